// SPDX-License-Identifier: MIT
// Counts and positions of 32 bits that wrap (RFC 1982). Of two that are compared, the later one is
// less than 2^31 ahead.
#pragma once

#include <cstdint>

namespace verbena {

constexpr bool is_before(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::int32_t>(a - b) < 0;
}
constexpr bool is_after(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::int32_t>(a - b) > 0;
}

}  // namespace verbena
