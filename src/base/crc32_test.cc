// SPDX-License-Identifier: MIT
#include "base/crc32.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <vector>

#include "base/crc32_parts.h"
#include "base/random.h"
#include "base/test_folding.h"
#include "base/test_seed.h"

namespace verbena {
namespace {

std::uint32_t zlib_crc(std::uint32_t crc, std::span<const std::byte> bytes) {
  if (bytes.empty()) return crc;  // zlib takes a null for the wish to start
  return static_cast<std::uint32_t>(
      ::crc32(crc, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(bytes.size())));
}

std::vector<std::byte> random_bytes(SeededRandom& random, std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes)
    byte = static_cast<std::byte>(random.next() >> 56);
  return bytes;
}

using Crc32 = EachFolding;
INSTANTIATE_TEST_SUITE_P(Foldings, Crc32, kFoldings, name_of_folding);

TEST_P(Crc32, AgreesWithZlibForEveryLengthAndAlignment) {
  SeededRandom random(test_seed());
  const auto bytes = random_bytes(random, 4096 + 64);
  for (std::size_t length = 0; length <= 4096; length += length < 600 ? 1 : 97) {
    const std::size_t offset = random.below(64);
    const auto piece = std::span(bytes).subspan(offset, length);
    const auto before = static_cast<std::uint32_t>(random.next());
    ASSERT_EQ(crc32(0, piece), zlib_crc(0, piece)) << length;
    ASSERT_EQ(crc32(before, piece), zlib_crc(before, piece)) << length;
    // Whatever this processor can: the tables serve those that cannot multiply.
    ASSERT_EQ(~crc::by_tables(~before, piece.data(), length), zlib_crc(before, piece)) << length;
  }
}

TEST_P(Crc32, FoldsPiecesToTheCrcOfTheWhole) {
  SeededRandom random(test_seed());
  const auto bytes = random_bytes(random, 5000);
  for (int round = 0; round < 200; ++round) {
    std::uint32_t crc = 0;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t piece = std::min<std::size_t>(random.below(700), bytes.size() - at);
      crc = crc32(crc, std::span(bytes).subspan(at, piece));
      at += piece;
    }
    ASSERT_EQ(crc, zlib_crc(0, bytes));
  }
}

TEST_P(Crc32, CountsTheFirstBytesAsTheirSumWithOthers) {
  SeededRandom random(test_seed());
  for (std::size_t length = 8; length <= 4096; length += length < 600 ? 1 : 97) {
    auto bytes = random_bytes(random, length);
    const auto before = static_cast<std::uint32_t>(random.next());
    const std::uint64_t added = random.next();
    const std::uint32_t crc = crc32_of_sum(before, bytes, added);
    const std::uint32_t by_tables = ~crc::by_tables(added ^ ~before, bytes.data(), length);
    for (unsigned i = 0; i < sizeof added; ++i)
      bytes[i] ^= static_cast<std::byte>(added >> 8 * i);
    ASSERT_EQ(crc, zlib_crc(before, bytes)) << length;
    ASSERT_EQ(by_tables, zlib_crc(before, bytes)) << length;
  }
}

TEST_P(Crc32, GoesOnFromABlock) {
  SeededRandom random(test_seed());
  for (int round = 0; round < 1000; ++round) {
    const auto bytes = random_bytes(random, 4 + random.below(40) + random.below(1500));
    const auto before = static_cast<std::uint32_t>(random.next());
    const std::span<const std::byte> all(bytes);
    std::size_t at = random.one_in(2) && bytes.size() >= 12 ? 12 : 4;
    CrcBlock block =
        at == 12 ? crc_begin(before, all.first<12>()) : crc_begin(before, all.first<4>());
    CrcBlock by_tables = block;
    while (at < bytes.size()) {
      const std::size_t most = random.one_in(2) ? 20 : 900;
      const std::size_t part = std::min<std::size_t>(random.below(most), bytes.size() - at);
      block = crc_fold(block, std::span(bytes).subspan(at, part));
      by_tables = crc::block_by_tables(by_tables, bytes.data() + at, part);
      at += part;
    }
    ASSERT_EQ(crc_end(block), zlib_crc(before, bytes)) << bytes.size();
    ASSERT_EQ(crc_end(by_tables), zlib_crc(before, bytes)) << bytes.size();
  }
}

TEST(Crc32Powers, MultiplicationIsThatOfPolynomials) {
  SeededRandom random(test_seed());
  for (int round = 0; round < 1000; ++round) {
    const auto a = static_cast<std::uint32_t>(random.next());
    const auto b = static_cast<std::uint32_t>(random.next());
    const auto c = static_cast<std::uint32_t>(random.next());
    ASSERT_EQ(crc::multiply(a, crc::kOne), a);
    ASSERT_EQ(crc::multiply(a, b), crc::multiply(b, a));
    ASSERT_EQ(crc::multiply(a, b ^ c), crc::multiply(a, b) ^ crc::multiply(a, c));
    ASSERT_EQ(crc::multiply(crc::multiply(a, b), c), crc::multiply(a, crc::multiply(b, c)));
  }
}

// Zeros behind a difference multiply it by x^8 each; the inverse takes them away.
TEST(Crc32Powers, InversePowersUndoTheBytesBehind) {
  const std::vector<std::byte> zeros(0xFFFF);
  for (const std::uint32_t behind : {0u, 1u, 2u, 255u, 256u, 257u, 4144u, 65535u}) {
    const std::uint32_t a = 0x12345678;
    const auto tail = std::span(zeros).first(behind);
    // The difference of two CRCs, so that their start and end values cancel.
    const std::uint32_t moved = crc32(a, tail) ^ crc32(0, tail);
    EXPECT_EQ(crc::multiply(moved, crc::inverse_power(behind)), a) << behind;
  }
}

}  // namespace
}  // namespace verbena
