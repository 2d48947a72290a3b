// SPDX-License-Identifier: MIT
// VERBENA_CONNECT_SECONDS: how long a request is repeated, and waited for where the peer asks for
// time.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

#include "base/time.h"

namespace verbena::rdmacm {

constexpr std::int64_t kPatienceSecondsMax = 3600;

// Nothing: the text is no number of seconds.
inline std::optional<Duration> parse_patience(std::string_view text) {
  std::int64_t seconds = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), seconds);
  const bool is_number = parsed.ec == std::errc{} && parsed.ptr == text.data() + text.size();
  if (!is_number || seconds <= 0 || seconds > kPatienceSecondsMax) return std::nullopt;
  return Duration::seconds(seconds);
}

}  // namespace verbena::rdmacm
