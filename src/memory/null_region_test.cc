// SPDX-License-Identifier: MIT
// Null regions, by all ways that memory of a program is touched.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "memory/guarded_copy.h"
#include "memory/null_memory.h"
#include "memory/region_table.h"

namespace verbena::memory {
namespace {

constexpr PdId kPd{3};
constexpr std::uint64_t kFar = 0xfffffffffff00000;

class NullRegion : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto added =
        table.add({.pd = kPd, .access = kLocalWrite, .extents = {}, .is_null = true});
    ASSERT_TRUE(added.has_value());
    key = *added;
  }
  static bool are(const std::vector<std::byte>& bytes, std::uint8_t value) {
    return std::ranges::all_of(bytes, [&](std::byte byte) { return byte == std::byte{value}; });
  }
  Sge sge(std::uint64_t address, std::uint32_t length) const { return {address, length, key}; }

  SeededRandom random{1};
  SectionList sections;
  RegionTable table{8, random, sections};
  MemoryKey key;
};

TEST_F(NullRegion, IsZerosAtEveryAddress) {
  for (const std::size_t length : {1UL, 7UL, 4096UL, kNullBytes + 5, 3 * kNullBytes}) {
    std::vector<std::byte> bytes(length, std::byte{9});
    for (const std::uint64_t address : {0UL, 12345UL, kFar - length}) {
      std::ranges::fill(bytes, std::byte{9});
      const Sge list = sge(address, static_cast<std::uint32_t>(length));
      ASSERT_TRUE(gather(table, kPd, {&list, 1}, 0, bytes));
      EXPECT_TRUE(are(bytes, 0));
    }
  }
}

TEST_F(NullRegion, LeavesOutWhatIsWritten) {
  const std::vector<std::byte> bytes(2 * kNullBytes, std::byte{9});
  const Sge list = sge(77, static_cast<std::uint32_t>(bytes.size()));
  ASSERT_TRUE(scatter(table, kPd, {&list, 1}, 0, bytes));
  std::vector<std::byte> read(100, std::byte{1});
  ASSERT_TRUE(gather(table, kPd, {&list, 1}, 0, read));
  EXPECT_TRUE(are(read, 0));
}

// Those look for memory in one piece, and copy there.
TEST_F(NullRegion, IsNeverOnePieceForThoseWhoWouldWrite) {
  for (const std::uint64_t length : {2UL, 8UL, 4096UL, kNullBytes}) {
    auto lease = table.lease(key, kPd, 64, length, kLocalWrite);
    ASSERT_TRUE(lease.has_value());
    EXPECT_EQ(lease->in_one_piece(), nullptr);
    std::uint64_t all = 0;
    std::size_t pieces = 0;
    for (Extent extent = lease->next(); extent.length != 0; extent = lease->next()) {
      EXPECT_TRUE(is_null_memory(extent.address) &&
                  is_null_memory(extent.address + extent.length - 1));
      all += extent.length;
      ++pieces;
    }
    EXPECT_EQ(length, all);
    EXPECT_GT(pieces, 1U);
  }
  // And where it is only a byte, the write fails, and is no harm.
  const std::byte value{1};
  EXPECT_FALSE(guarded_copy(null_memory.load(), &value, 1));
}

TEST_F(NullRegion, IsOfItsDomainAndForNobodyElse) {
  EXPECT_EQ(RegionRefusal::kOtherDomain, table.lease(key, {4}, 0, 8, 0).error());
  std::array<std::byte, 8> word{};
  EXPECT_EQ(RegionRefusal::kNoPermission, write_range(table, kPd, key, 0, word).error());
  EXPECT_EQ(RegionRefusal::kNoPermission, read_range(table, kPd, key, 0, word).error());
  EXPECT_EQ(RegionRefusal::kNoPermission, atomic_on_range(table, kPd, key, 0, {}).error());
}

TEST_F(NullRegion, GoesAwayLikeOthers) {
  ASSERT_TRUE(table.remove(key));
  EXPECT_EQ(RegionRefusal::kNoSuchKey, table.lease(key, kPd, 0, 8, 0).error());
  EXPECT_EQ(0U, table.count());
}

}  // namespace
}  // namespace verbena::memory
