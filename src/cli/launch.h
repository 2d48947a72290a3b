// SPDX-License-Identifier: MIT
// What a program needs in its environment to run on the software NIC.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace verbena::cli {

inline constexpr char kPreloadName[] = "libverbena-preload.so";

struct LaunchEnvironment {
  std::vector<std::pair<std::string, std::string>> variables;
  std::string warning;  // what a program may miss; empty when there is nothing to say
};

// The folder with our libraries: found from where this program lies, so a build folder works as
// well as an installation.
Result<std::string, std::string> library_folder();

// `list` (entries separated by ':') with `entry` at its front or end, once.
std::string with_front(std::string_view list, const std::string& entry);
std::string with_end(std::string_view list, const std::string& entry);

// Looks at the devices, makes the tree of their files, and says what to set.
Result<LaunchEnvironment, std::string> launch_environment();

// Sets them in this process.
void apply(const LaunchEnvironment& environment);

}  // namespace verbena::cli
