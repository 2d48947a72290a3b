// SPDX-License-Identifier: MIT
// The CRC by tables, eight bytes at a time ("slicing by 8", Kounavis and Berry, 2005): table k
// holds what a byte contributes when k bytes follow it.
#include <array>
#include <bit>
#include <cstring>

#include "base/crc32_parts.h"

namespace verbena::crc {
namespace {

constexpr std::size_t kSlices = 8;
using Tables = std::array<std::array<std::uint32_t, 256>, kSlices>;

constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t state = byte;
    for (int bit = 0; bit < 8; ++bit)
      state = state >> 1 ^ ((0u - (state & 1)) & kGenerator);
    tables[0][byte] = state;
  }
  for (std::size_t slice = 1; slice < kSlices; ++slice) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[slice - 1][byte];
      tables[slice][byte] = before >> 8 ^ tables[0][before & 0xFF];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

std::uint64_t load_word(const std::byte* bytes) {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes, sizeof word);
  return std::endian::native == std::endian::big ? __builtin_bswap64(word) : word;
}

}  // namespace

std::uint32_t by_tables(std::uint64_t sum, const std::byte* bytes, std::size_t count) {
  for (; count >= kSlices; count -= kSlices, bytes += kSlices) {
    const std::uint64_t word = load_word(bytes) ^ sum;
    sum = 0;
    for (unsigned i = 0; i < kSlices; ++i) {
      sum ^= kTables[kSlices - 1 - i][word >> 8 * i & 0xFF];
    }
  }
  auto state = static_cast<std::uint32_t>(sum);
  for (; count != 0; --count, ++bytes) {
    state = state >> 8 ^ kTables[0][(state ^ static_cast<std::uint32_t>(*bytes)) & 0xFF];
  }
  return state;
}

#if !defined(__x86_64__)
Folding folding() { return Folding::kTables; }
Folding limit_folding(Folding) { return Folding::kTables; }

std::uint32_t by_folding(std::uint64_t state, const std::byte* bytes, std::size_t count) {
  return by_tables(state, bytes, count);
}
CrcBlock block_by_folding(const CrcBlock& before, const std::byte* bytes, std::size_t count) {
  return block_by_tables(before, bytes, count);
}
#endif

}  // namespace verbena::crc
