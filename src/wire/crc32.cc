// SPDX-License-Identifier: MIT
#include "wire/crc32.h"

#include <cstring>

#include "base/assert.h"
#include "wire/crc32_parts.h"

namespace verbena::wire {
namespace {

// x^(-8 n) is x^(-8 (n mod 256)) times x^(-2048 (n div 256)).
struct InversePowers {
  std::array<std::uint32_t, 256> low{};
  std::array<std::uint32_t, 256> high{};
};

constexpr InversePowers inverse_powers() {
  InversePowers powers;
  std::uint32_t power = crc::kOne;
  for (std::uint32_t& entry : powers.low) {
    entry = power;
    for (int bit = 0; bit < 8; ++bit)
      power = crc::divide_by_x(power);
  }
  const std::uint32_t step = power;
  power = crc::kOne;
  for (std::uint32_t& entry : powers.high) {
    entry = power;
    power = crc::multiply(power, step);
  }
  return powers;
}

constexpr InversePowers kInversePowers = inverse_powers();

constexpr std::uint32_t kX = crc::kOne >> 1;
static_assert(crc::multiply(crc::divide_by_x(crc::kOne), kX) == crc::kOne);

// What stays in the first-level cache between the copy and the CRC.
constexpr std::size_t kPiece = 8192;

}  // namespace

// The state is inverted at both ends, so that zeros in front and behind count.
std::uint32_t crc32(std::uint32_t before, std::span<const std::byte> bytes) {
  const auto advance = bytes.size() < crc::kFoldMin ? crc::by_tables : crc::by_folding;
  return ~advance(~before, bytes.data(), bytes.size());
}

std::uint32_t crc32_of_sum(std::uint32_t before, std::span<const std::byte> bytes,
                           std::uint64_t added) {
  VERBENA_ASSERT(bytes.size() >= sizeof added);
  return ~crc::by_folding(added ^ ~before, bytes.data(), bytes.size());
}

std::uint32_t copy_and_crc(std::byte* to, const std::byte* from, std::size_t bytes,
                           std::uint32_t crc) {
  while (bytes != 0) {
    const std::size_t piece = bytes < kPiece ? bytes : kPiece;
    std::memcpy(to, from, piece);
    crc = crc32(crc, {to, piece});
    to += piece;
    from += piece;
    bytes -= piece;
  }
  return crc;
}

std::uint32_t crc::inverse_power(std::uint32_t n) {
  VERBENA_ASSERT(n <= 0xFFFF);
  return multiply(kInversePowers.low[n & 0xFF], kInversePowers.high[n >> 8]);
}

}  // namespace verbena::wire
