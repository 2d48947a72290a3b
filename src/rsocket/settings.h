// SPDX-License-Identifier: MIT
// What a new rsocket begins with: the files of /etc/rdma/rsocket (rsocket(7)), else upstream's
// defaults.
#pragma once

#include <cstdint>
#include <string_view>

namespace verbena::rsocket {

struct Settings {
  std::uint32_t receive_bytes = 1 << 17;
  std::uint32_t send_bytes = 1 << 17;
  std::uint32_t send_slots = 384;
  std::uint32_t receive_slots = 384;
  std::uint32_t inline_bytes = 64;
  std::uint32_t map_slots = 0;
  std::uint32_t polling_microseconds = 10;
  std::uint32_t wake_up_milliseconds = 5000;
};

constexpr std::uint32_t kPage = 4096;
constexpr std::uint32_t kBufferMin = 1 << 12;
constexpr std::uint32_t kBufferMax = 1U << 30;
constexpr std::uint32_t kSlotsMin = 16;
constexpr std::uint32_t kSlotsMax = 0xfffe;

// Within what can be built: whole pages in each half, enough slots for control messages.
std::uint32_t buffer_size(std::uint64_t wanted);
std::uint32_t slot_count(std::uint64_t wanted);

// What a file of that name says. One that says no number leaves what there is.
void read_setting(std::string_view file, std::string_view text, Settings& settings);
// Read from that folder. A file that is not there, or says no number, leaves the default.
Settings read_settings(const char* folder);
// Read once.
const Settings& default_settings();

}  // namespace verbena::rsocket
