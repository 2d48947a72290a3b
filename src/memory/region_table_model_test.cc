// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <vector>

#include "base/random.h"
#include "base/test_seed.h"
#include "memory/region_table.h"
#include "memory/test_memory.h"

namespace verbena::memory {
namespace {

// A table beside a map that says the same in a plain way, with 128-bit sums.
struct RegionModel {
  explicit RegionModel(std::uint64_t seed) : random(seed), table(16, random, sections) {}

  RegionConfig any_config() {
    RegionConfig config{.pd = {static_cast<std::uint32_t>(random.below(3))},
                        .iova = random.one_in(4) ? 0 - random.below(2 * kPage) : random.next(),
                        .access = static_cast<std::uint32_t>(random.below(16)),
                        .extents = {}};
    for (std::uint64_t n = random.below(4); n-- > 0;) {
      const std::size_t begin = random.below(3 * kPage);
      config.extents.push_back({.address = pages.begin() + begin, .length = random.below(kPage)});
    }
    return config;
  }

  static std::uint64_t length_of(const RegionConfig& config) {
    std::uint64_t length = 0;
    for (const Extent& extent : config.extents)
      length += extent.length;
    return length;
  }

  static bool is_good(const RegionConfig& config) {
    const std::uint64_t length = length_of(config);
    return is_valid_access(config.access) && length > 0 &&
           static_cast<unsigned __int128>(config.iova) + length <= (unsigned __int128){1} << 64;
  }

  MemoryKey any_key() {
    if (regions.empty() || random.one_in(8)) return {static_cast<std::uint32_t>(random.next())};
    auto it = regions.begin();
    std::advance(it, static_cast<std::ptrdiff_t>(random.below(regions.size())));
    return {it->first};
  }

  void add() {
    const RegionConfig config = any_config();
    const auto key = table.add(config);
    ASSERT_EQ(key.has_value(), is_good(config) && regions.size() < 16);
    if (!key) return;
    ASSERT_TRUE(regions.emplace(key->value, config).second);
  }

  void remove() {
    const MemoryKey key = any_key();
    ASSERT_EQ(table.remove(key), regions.erase(key.value) == 1);
  }

  void change() {
    const RegionConfig config = any_config();
    const MemoryKey key = any_key();
    const bool expected = is_good(config) && regions.contains(key.value);
    ASSERT_EQ(table.change(key, config).has_value(), expected);
    if (expected) regions[key.value] = config;
  }

  std::optional<RegionRefusal> expected_refusal(MemoryKey key, PdId pd, std::uint64_t address,
                                                std::uint64_t length, std::uint32_t access) {
    const auto found = regions.find(key.value);
    if (found == regions.end()) return RegionRefusal::kNoSuchKey;
    const RegionConfig& region = found->second;
    using Wide = unsigned __int128;
    if (region.pd != pd) return RegionRefusal::kOtherDomain;
    if (address < region.iova || Wide{address} + length > Wide{region.iova} + length_of(region)) {
      return RegionRefusal::kOutOfRange;
    }
    if ((region.access & access) != access) return RegionRefusal::kNoPermission;
    return std::nullopt;
  }

  void lease() {
    const MemoryKey key = any_key();
    const auto found = regions.find(key.value);
    const std::uint64_t base = found == regions.end() ? 0 : found->second.iova;
    const std::uint64_t size = found == regions.end() ? 100 : length_of(found->second);
    const PdId pd = found != regions.end() && !random.one_in(6)
                        ? found->second.pd
                        : PdId{static_cast<std::uint32_t>(random.below(3))};
    const std::uint64_t address = base + random.below(size + 3) - random.below(3);
    const std::uint64_t length =
        random.one_in(8) ? random.next() : random.below(size + 2 - random.below(size)) + 1;
    const auto access = static_cast<std::uint32_t>(random.one_in(2) ? 0 : 1u << random.below(4));
    auto lease = table.lease(key, pd, address, length, access);
    const auto expected = expected_refusal(key, pd, address, length, access);
    ASSERT_EQ(lease ? std::nullopt : std::optional(lease.error()), expected);
    if (lease) check_extents(*lease, found->second, address - base, length);
  }

  void check_extents(RegionLease& lease, const RegionConfig& region, std::uint64_t offset,
                     std::uint64_t length) {
    std::vector<std::byte*> bytes;
    for (const Extent& extent : region.extents) {
      for (std::size_t i = 0; i < extent.length; ++i)
        bytes.push_back(extent.address + i);
    }
    std::uint64_t done = 0;
    for (Extent extent = lease.next(); extent.length > 0; extent = lease.next()) {
      ASSERT_LE(done + extent.length, length);
      ASSERT_EQ(extent.address, bytes[offset + done]);
      ASSERT_EQ(extent.address + extent.length - 1, bytes[offset + done + extent.length - 1]);
      done += extent.length;
    }
    ASSERT_EQ(done, length);
  }

  void step() {
    const std::uint64_t what = random.below(10);
    if (what == 0) return add();
    if (what == 1) return random.one_in(2) ? remove() : change();
    lease();
  }

  SeededRandom random;
  SectionList sections;
  RegionTable table;
  TestPages pages{4};
  std::map<std::uint32_t, RegionConfig> regions;
};

TEST(RegionTable, AgreesWithAModel) {
  SeededRandom seeds(test_seed());
  for (int round = 0; round < 30; ++round) {
    RegionModel model(seeds.next());
    for (int step = 0; step < 400; ++step) {
      model.step();
      if (testing::Test::HasFatalFailure()) return;
      ASSERT_EQ(model.table.count(), model.regions.size());
    }
  }
}

}  // namespace
}  // namespace verbena::memory
