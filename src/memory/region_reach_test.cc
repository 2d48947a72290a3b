// SPDX-License-Identifier: MIT
#include "memory/region_reach.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "memory/test_memory.h"

namespace verbena::memory {
namespace {

constexpr std::uint64_t kIova = 0x1'0000'0000;
constexpr std::uint64_t kLength = 8;

class Reach : public testing::Test {
 protected:
  // Of a range that begins at this address.
  RegionReach reach_of(const RegionConfig& config, std::uint64_t address) {
    key = table.add(config).value_or(MemoryKey{});
    const auto lease = table.lease(key, kDomain, address, kLength, 0);
    EXPECT_TRUE(lease);
    return {key, *lease, kLength};
  }

  KernelRandom random;
  SectionList sections;
  RegionTable table{16, random, sections};
  TestPages pages{1};
  MemoryKey key;
};

TEST_F(Reach, HasNothingAtFirst) {
  const RegionReach nothing;
  for (const std::uint32_t each : {0u, 1u, 2u, ~0u}) {
    EXPECT_FALSE(nothing.has({each}, 0));
    EXPECT_FALSE(nothing.has({each}, ~std::uint64_t{0}));
  }
}

TEST_F(Reach, HasAllRangesOfItsLengthInTheRegion) {
  RegionConfig config = region_of(pages);
  config.iova = kIova;
  const RegionReach reach = reach_of(config, kIova + 100);
  const std::uint64_t end = kIova + pages.size();
  for (const std::uint64_t address : {kIova, kIova + 1, kIova + 100, end - kLength}) {
    EXPECT_TRUE(reach.has(key, address));
    EXPECT_EQ(reach.at(address), pages.begin() + (address - kIova));
    EXPECT_FALSE(reach.has({key.value ^ 1}, address)) << "another region's key";
  }
  for (const std::uint64_t address : {kIova - 1, end - kLength + 1, end, std::uint64_t{0},
                                      ~std::uint64_t{0}, kIova + (std::uint64_t{1} << 63)})
    EXPECT_FALSE(reach.has(key, address)) << address;
}

TEST_F(Reach, HasNothingOfARegionInSeveralPieces) {
  const std::size_t half = pages.size() / 2;
  RegionConfig config = region_of(pages);
  config.extents = {{pages.begin() + half, half}, {pages.begin(), half}};
  const RegionReach reach = reach_of(config, config.iova);
  EXPECT_FALSE(reach.has(key, config.iova));
}

TEST_F(Reach, OfAProgramHasWhateverItNames) {
  const RegionReach reach = RegionReach::of_program();
  for (const std::uint32_t each : {0u, 1u, ~0u}) {
    EXPECT_TRUE(reach.has({each}, pages.address()));
    EXPECT_EQ(reach.at(pages.address()), pages.begin());
  }
}

}  // namespace
}  // namespace verbena::memory
