// SPDX-License-Identifier: MIT
#include "rsocket/settings.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string>
#include <system_error>

#include "base/unique_fd.h"
#include "rsocket/stream.h"

namespace verbena::rsocket {
namespace {

struct File {
  const char* name;
  std::uint32_t Settings::* value;
  std::uint32_t (*limit)(std::uint64_t);
};

std::uint32_t any(std::uint64_t wanted) { return static_cast<std::uint32_t>(wanted); }
std::uint32_t map_count(std::uint64_t wanted) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(wanted, kMapsMax));
}

constexpr std::array<File, 8> kFiles{{
    {"mem_default", &Settings::receive_bytes, buffer_size},
    {"wmem_default", &Settings::send_bytes, buffer_size},
    {"sqsize_default", &Settings::send_slots, slot_count},
    {"rqsize_default", &Settings::receive_slots, slot_count},
    {"inline_default", &Settings::inline_bytes, any},
    {"iomap_size", &Settings::map_slots, map_count},
    {"polling_time", &Settings::polling_microseconds, any},
    {"wake_up_interval", &Settings::wake_up_milliseconds, any},
}};

std::optional<std::uint32_t> number_in(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\n";
  const char* const all = text.data() + text.size();
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  if (end != all && kSpaces.find(*end) == std::string_view::npos) return std::nullopt;
  return value;
}

}  // namespace

std::uint32_t buffer_size(std::uint64_t wanted) {
  const std::uint64_t size = std::clamp<std::uint64_t>(wanted, kBufferMin, kBufferMax);
  return static_cast<std::uint32_t>((size + 2 * kPage - 1) / (2 * kPage) * (2 * kPage));
}

std::uint32_t slot_count(std::uint64_t wanted) {
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(wanted, kSlotsMin, kSlotsMax));
}

void read_setting(std::string_view file, std::string_view text, Settings& settings) {
  const auto known = std::ranges::find(kFiles, file, [](const File& each) { return each.name; });
  const auto number = number_in(text);
  if (known != kFiles.end() && number) settings.*known->value = known->limit(*number);
}

Settings read_settings(const char* folder) {
  Settings settings;
  for (const File& each : kFiles) {
    const std::string path = std::string(folder) + "/" + each.name;
    const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    char text[32];
    const ssize_t size = file ? read(file.get(), text, sizeof text) : 0;
    if (size > 0) read_setting(each.name, {text, static_cast<std::size_t>(size)}, settings);
  }
  return settings;
}

const Settings& default_settings() {
  static const Settings settings = read_settings("/etc/rdma/rsocket");
  return settings;
}

}  // namespace verbena::rsocket
