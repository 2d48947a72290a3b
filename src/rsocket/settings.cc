// SPDX-License-Identifier: MIT
#include "rsocket/settings.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <string>
#include <system_error>

#include "base/unique_fd.h"
#include "rsocket/stream.h"

namespace verbena::rsocket {
namespace {

constexpr std::uint32_t kPage = 4096;

std::optional<std::uint32_t> number_in(const char* folder, const char* name) {
  const std::string path = std::string(folder) + "/" + name;
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return std::nullopt;
  char text[32];
  const ssize_t size = read(file.get(), text, sizeof text);
  if (size <= 0) return std::nullopt;
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text, text + size, value);
  if (error != std::errc()) return std::nullopt;
  if (end != text + size && std::strchr(" \t\n", *end) == nullptr) return std::nullopt;
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

Settings read_settings(const char* folder) {
  Settings settings;
  const auto set = [folder](std::uint32_t& value, const char* name, auto limit) {
    if (const auto number = number_in(folder, name)) value = limit(*number);
  };
  const auto any = [](std::uint32_t value) { return value; };
  set(settings.receive_bytes, "mem_default", buffer_size);
  set(settings.send_bytes, "wmem_default", buffer_size);
  set(settings.send_slots, "sqsize_default", slot_count);
  set(settings.receive_slots, "rqsize_default", slot_count);
  set(settings.inline_bytes, "inline_default", any);
  set(settings.map_slots, "iomap_size",
      [](std::uint32_t value) { return std::min(value, kMapsMax); });
  set(settings.polling_microseconds, "polling_time", any);
  set(settings.wake_up_milliseconds, "wake_up_interval", any);
  return settings;
}

const Settings& default_settings() {
  static const Settings settings = read_settings("/etc/rdma/rsocket");
  return settings;
}

}  // namespace verbena::rsocket
