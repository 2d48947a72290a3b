// SPDX-License-Identifier: MIT
// The Ethernet CRC-32 (IEEE 802.3; generator x^32 + x^26 + x^23 + ... + 1), which the ICRC is made
// of, and the arithmetic behind it: a message is a polynomial over GF(2), its CRC is the remainder.
//
// Numbers are bit-reversed as the wire has them: bit 31 is the coefficient of x^0.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace verbena::wire {

// The CRC of all bytes folded so far. 0 is the CRC of nothing; zlib's crc32 counts the same way.
std::uint32_t crc32(std::uint32_t before, std::span<const std::byte> bytes);
// The same of bytes the first eight of which count as their sum (exclusive or) with `added`, whose
// lowest byte is the first one's. There are eight.
std::uint32_t crc32_of_sum(std::uint32_t before, std::span<const std::byte> bytes,
                           std::uint64_t added);

// Copies `bytes` from `from` to `to` and folds the CRC over the copy: what is sent is what was
// counted, even when somebody writes to `from` meanwhile. They do not overlap.
std::uint32_t copy_and_crc(std::byte* to, const std::byte* from, std::size_t bytes,
                           std::uint32_t crc);

namespace crc {

inline constexpr std::uint32_t kGenerator = 0xEDB88320;  // without x^32
inline constexpr std::uint32_t kOne = 0x80000000;        // x^0

// The product modulo the generator.
constexpr std::uint32_t multiply(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (int bit = 31; bit >= 0; --bit) {
    product ^= (0u - (a >> bit & 1)) & b;
    b = b >> 1 ^ ((0u - (b & 1)) & kGenerator);  // times x
  }
  return product;
}

// Undoes `times x`: the coefficient of x^0 is set exactly when the generator was subtracted.
constexpr std::uint32_t divide_by_x(std::uint32_t a) {
  return (a >> 31) != 0 ? (a ^ kGenerator) << 1 | 1 : a << 1;
}

// x^(-8 n): takes `n` bytes from behind a difference. n is at most 65535, a whole IP packet.
std::uint32_t inverse_power(std::uint32_t n);

}  // namespace crc
}  // namespace verbena::wire
