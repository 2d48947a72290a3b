// SPDX-License-Identifier: MIT
// What text of /proc and /sys says, without the files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace verbena::cli {

// The mask for a list of processors as the kernel writes it ("0-3,8" is "10f").
std::string cpu_mask(const std::string& list);

// Whether a line of /proc/net/tcp or tcp6 is of a socket that listens at the port.
bool is_listener(const std::string& line, unsigned port);

// /proc/meminfo: the number behind "MemAvailable:" or another name; 0 where it does not stand.
std::uint64_t kibibytes_of(std::string_view name, const std::string& meminfo);

// /proc/self/cgroup: the folder of the control group (cgroup v2), below where they are mounted.
std::string control_group_in(const std::string& text);

}  // namespace verbena::cli
