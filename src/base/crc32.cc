// SPDX-License-Identifier: MIT
#include "base/crc32.h"

#include <cstring>

#include "base/assert.h"
#include "base/crc32_parts.h"

namespace verbena {
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

CrcBlock crc_fold(const CrcBlock& before, std::span<const std::byte> bytes) {
  if (bytes.empty()) return before;
  return crc::block_by_folding(before, bytes.data(), bytes.size());
}

std::uint32_t crc_end(const CrcBlock& all) {
  return ~crc::by_folding(0, all.bytes.data(), all.bytes.size());
}

// The state, taken back over the last four bytes of the block: they stand for all.
CrcBlock crc::block_by_tables(const CrcBlock& before, const std::byte* bytes, std::size_t count) {
  const std::uint32_t start = by_tables(0, before.bytes.data(), before.bytes.size());
  const std::uint32_t state = by_tables(start, bytes, count);
  const std::uint32_t last = multiply(state, inverse_power(sizeof state));
  CrcBlock block;
  for (unsigned i = 0; i < sizeof last; ++i)
    block.bytes[block.bytes.size() - sizeof last + i] = static_cast<std::byte>(last >> 8 * i);
  return block;
}

std::uint32_t crc::inverse_power(std::uint32_t n) {
  VERBENA_ASSERT(n <= 0xFFFF);
  return multiply(kInversePowers.low[n & 0xFF], kInversePowers.high[n >> 8]);
}

}  // namespace verbena
