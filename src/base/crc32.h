// SPDX-License-Identifier: MIT
// The Ethernet CRC-32 (IEEE 802.3; generator x^32 + x^26 + x^23 + ... + 1), which the ICRC is made
// of, and the arithmetic behind it: a message is a polynomial over GF(2), its CRC is the remainder.
// Here, and not with the packets, because memory that is sent is folded as it is copied.
//
// Numbers are bit-reversed as the wire has them: bit 31 is the coefficient of x^0.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace verbena {

// The CRC of all bytes folded so far. 0 is the CRC of nothing; zlib's crc32 counts the same way.
std::uint32_t crc32(std::uint32_t before, std::span<const std::byte> bytes);
// The same of bytes the first eight of which count as their sum (exclusive or) with `added`, whose
// lowest byte is the first one's. There are eight.
std::uint32_t crc32_of_sum(std::uint32_t before, std::span<const std::byte> bytes,
                           std::uint64_t added);

// All bytes that were folded so far as sixteen that leave the same remainder: what a CRC that is
// folded part by part goes on from without being reduced to 32 bits in between.
struct CrcBlock {
  alignas(16) std::array<std::byte, 16> bytes{};
};
// The CRC `before`, and these bytes behind it.
template <std::size_t kBytes>
CrcBlock crc_begin(std::uint32_t before, std::span<const std::byte, kBytes> bytes) {
  static_assert(kBytes >= sizeof before && kBytes <= sizeof(CrcBlock));
  CrcBlock block;
  std::byte* const at = block.bytes.data() + sizeof block - kBytes;
  std::memcpy(at, bytes.data(), kBytes);
  // A CRC is what is to be added to the next four bytes, inverted.
  for (unsigned i = 0; i < sizeof before; ++i)
    at[i] ^= static_cast<std::byte>(~before >> 8 * i);
  return block;
}
CrcBlock crc_fold(const CrcBlock& before, std::span<const std::byte> bytes);
std::uint32_t crc_end(const CrcBlock& all);

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

// x^n.
constexpr std::uint32_t power(unsigned n) {
  std::uint32_t result = kOne;
  for (std::uint32_t square = kOne >> 1; n != 0; n >>= 1, square = multiply(square, square)) {
    if ((n & 1) != 0) result = multiply(result, square);
  }
  return result;
}

// Undoes `times x`: the coefficient of x^0 is set exactly when the generator was subtracted.
constexpr std::uint32_t divide_by_x(std::uint32_t a) {
  return (a >> 31) != 0 ? (a ^ kGenerator) << 1 | 1 : a << 1;
}

// x^(-8 n): takes `n` bytes from behind a difference. n is at most 65535, a whole IP packet.
std::uint32_t inverse_power(std::uint32_t n);

}  // namespace crc
}  // namespace verbena
