// SPDX-License-Identifier: MIT
// Numbers in the environment variables of librspreload: RS_SQ_SIZE and others.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace verbena::rspreload {

// The one that the text begins with; nothing: there is none, or it is no int.
inline std::optional<int> read_number(std::string_view text) {
  int value = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  if (read.ec != std::errc{}) return std::nullopt;
  return value;
}

}  // namespace verbena::rspreload
