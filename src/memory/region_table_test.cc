// SPDX-License-Identifier: MIT
#include "memory/region_table.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "base/random.h"
#include "memory/test_memory.h"

namespace verbena::memory {
namespace {

bool holds_only(const TestPages& pages, std::uint8_t value) {
  const std::vector<std::byte> wanted(pages.size(), std::byte{value});
  return std::memcmp(pages.begin(), wanted.data(), wanted.size()) == 0;
}

class Regions : public testing::Test {
 protected:
  MemoryKey add(const RegionConfig& config) {
    const auto key = table.add(config);
    EXPECT_TRUE(key.has_value());
    return key.value_or(MemoryKey{});
  }
  bool write_in_section(SectionLock& lock, MemoryKey key, std::span<const std::byte> from) {
    const std::lock_guard section(lock);
    return write_range(table, kDomain, key, pages.address(), from).has_value();
  }

  // What a lease is refused for, or nothing.
  std::optional<RegionRefusal> refusal(MemoryKey key, std::uint64_t address, std::uint64_t length,
                                       std::uint32_t access = 0, PdId pd = kDomain) {
    const auto lease = table.lease(key, pd, address, length, access);
    if (lease) return std::nullopt;
    return lease.error();
  }

  KernelRandom random;
  SectionList sections;
  RegionTable table{1000, random, sections};
  TestPages pages{4};
};

TEST_F(Regions, ALeaseGivesTheMemoryOfTheRange) {
  const MemoryKey key = add(region_of(pages));
  auto lease = table.lease(key, kDomain, pages.address() + 100, 5000, kRemoteWrite);
  ASSERT_TRUE(lease);
  EXPECT_EQ(lease->in_one_piece(), pages.begin() + 100);
  const Extent extent = lease->next();
  EXPECT_EQ(extent.address, pages.begin() + 100);
  EXPECT_EQ(extent.length, 5000u);
  EXPECT_EQ(lease->next().length, 0u);
  EXPECT_EQ(lease->next().length, 0u);
}

TEST_F(Regions, RefusesEachKindOfMistake) {
  const std::uint64_t at = pages.address();
  const std::uint64_t size = pages.size();
  const MemoryKey key = add(region_of(pages, kLocalWrite | kRemoteRead));
  EXPECT_EQ(refusal(key, at, size), std::nullopt);
  EXPECT_EQ(refusal(key, at + size - 1, 1), std::nullopt);
  EXPECT_EQ(refusal({key.value + 1}, at, 1), RegionRefusal::kNoSuchKey);
  EXPECT_EQ(refusal({key.value ^ 0x80000000}, at, 1), RegionRefusal::kNoSuchKey);
  EXPECT_EQ(refusal({0}, at, 1), RegionRefusal::kNoSuchKey);
  EXPECT_EQ(refusal({0xffffffff}, at, 1), RegionRefusal::kNoSuchKey);
  EXPECT_EQ(refusal(key, at, 1, 0, kOtherDomain), RegionRefusal::kOtherDomain);
  EXPECT_EQ(refusal(key, at - 1, 1), RegionRefusal::kOutOfRange);
  EXPECT_EQ(refusal(key, at - 1, size), RegionRefusal::kOutOfRange);
  EXPECT_EQ(refusal(key, at + size, 1), RegionRefusal::kOutOfRange);
  EXPECT_EQ(refusal(key, at + size - 1, 2), RegionRefusal::kOutOfRange);
  EXPECT_EQ(refusal(key, at, size + 1), RegionRefusal::kOutOfRange);
  EXPECT_EQ(refusal(key, 0, 1), RegionRefusal::kOutOfRange);
  EXPECT_EQ(refusal(key, at, 1, kRemoteRead), std::nullopt);
  EXPECT_EQ(refusal(key, at, 1, kLocalWrite | kRemoteRead), std::nullopt);
  EXPECT_EQ(refusal(key, at, 1, kRemoteWrite), RegionRefusal::kNoPermission);
  EXPECT_EQ(refusal(key, at, 1, kRemoteAtomic), RegionRefusal::kNoPermission);
  EXPECT_EQ(refusal(key, at, 1, kRemoteRead | kRemoteWrite), RegionRefusal::kNoPermission);
}

TEST_F(Regions, RangesThatWrapAreOutOfRange) {
  const std::uint64_t at = pages.address();
  const MemoryKey key = add(region_of(pages));
  constexpr std::uint64_t kMost = ~std::uint64_t{0};
  EXPECT_EQ(refusal(key, at, kMost), RegionRefusal::kOutOfRange);
  EXPECT_EQ(refusal(key, at + 1, kMost), RegionRefusal::kOutOfRange);
  EXPECT_EQ(refusal(key, at + 16, 0 - std::uint64_t{16}), RegionRefusal::kOutOfRange);
  EXPECT_EQ(refusal(key, kMost, 2), RegionRefusal::kOutOfRange);
  EXPECT_EQ(refusal(key, kMost, kMost), RegionRefusal::kOutOfRange);
  EXPECT_EQ(refusal(key, at - 1, kMost), RegionRefusal::kOutOfRange);
}

TEST_F(Regions, ARegionMayEndAtTheEndOfAllAddresses) {
  RegionConfig config = region_of(pages);
  config.iova = 0 - pages.size();
  const MemoryKey key = add(config);
  constexpr std::uint64_t kMost = ~std::uint64_t{0};
  EXPECT_EQ(refusal(key, config.iova, pages.size()), std::nullopt);
  EXPECT_EQ(refusal(key, kMost, 1), std::nullopt);
  EXPECT_EQ(refusal(key, kMost, 2), RegionRefusal::kOutOfRange);
  EXPECT_EQ(refusal(key, 0, 1), RegionRefusal::kOutOfRange);
  EXPECT_EQ(refusal(key, config.iova - 1, 1), RegionRefusal::kOutOfRange);
  auto lease = table.lease(key, kDomain, kMost, 1, 0);
  ASSERT_TRUE(lease);
  EXPECT_EQ(lease->next().address, pages.end() - 1);
  config.iova += 1;
  EXPECT_EQ(table.add(config).error(), RegisterError::kBadRange) << "one byte too far";
}

TEST_F(Regions, NineWaysAcrossDomainsAreAllRefused) {
  const PdId domains[] = {{1}, {2}, {3}};
  MemoryKey keys[3];
  for (int i = 0; i < 3; ++i)
    keys[i] = add(region_of(pages, kAllAccess, domains[i]));
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 3; ++j) {
      for (const std::uint32_t access : {0u, +kLocalWrite, +kRemoteWrite, +kRemoteAtomic}) {
        EXPECT_EQ(refusal(keys[i], pages.address(), 8, access, domains[j]),
                  i == j ? std::nullopt : std::optional(RegionRefusal::kOtherDomain));
      }
    }
  }
}

TEST_F(Regions, RegistrationRefusesWhatIsNoRegion) {
  const auto error_of = [&](const RegionConfig& wanted) {
    const auto key = table.add(wanted);
    return key ? std::nullopt : std::optional(key.error());
  };
  RegionConfig config = region_of(pages);
  config.extents = {};
  EXPECT_EQ(error_of(config), RegisterError::kBadRange);
  config.extents = {{.address = pages.begin(), .length = 0}};
  EXPECT_EQ(error_of(config), RegisterError::kBadRange);
  config.extents = {{.address = pages.begin(), .length = pages.size() + 1}};
  EXPECT_EQ(error_of(config), RegisterError::kBadRange) << "runs over the end of the memory";
  config.extents = {{.address = pages.begin(), .length = ~std::size_t{0}}};
  EXPECT_EQ(error_of(config), RegisterError::kBadRange) << "wraps";
  config.extents = {{.address = pages.begin(), .length = kPage},
                    {.address = pages.begin(), .length = ~std::size_t{0} - 10}};
  EXPECT_EQ(error_of(config), RegisterError::kBadRange) << "the sum wraps";
  config.extents = {{.address = nullptr, .length = 8}};
  EXPECT_EQ(error_of(config), RegisterError::kBadRange);
  EXPECT_EQ(error_of(region_of(pages, kRemoteWrite)), RegisterError::kBadAccess);
  pages.protect(3, 1, PROT_READ);
  EXPECT_EQ(error_of(region_of(pages, kLocalWrite)), RegisterError::kBadRange);
  EXPECT_EQ(error_of(region_of(pages, kRemoteRead)), std::nullopt) << "reading is allowed";
  pages.protect(3, 1, PROT_NONE);
  EXPECT_EQ(error_of(region_of(pages, kRemoteRead)), RegisterError::kBadRange);
  EXPECT_EQ(table.count(), 1u);
}

TEST(RegionAccess, RemoteWritingNeedsLocalWriting) {
  for (std::uint32_t access = 0; access < 256; ++access) {
    const bool remote_changes = (access & (kRemoteWrite | kRemoteAtomic)) != 0;
    EXPECT_EQ(is_valid_access(access), !remote_changes || (access & kLocalWrite) != 0) << access;
  }
  for (unsigned bit = 8; bit < 32; ++bit) {
    EXPECT_EQ(is_valid_access(1u << bit), bit == 8 || (bit >= 20 && bit < 30)) << bit;
  }
}

TEST_F(Regions, ARemovedRegionIsGone) {
  const MemoryKey key = add(region_of(pages));
  EXPECT_EQ(table.count(), 1u);
  EXPECT_TRUE(table.remove(key));
  EXPECT_FALSE(table.remove(key));
  EXPECT_FALSE(table.remove({0}));
  EXPECT_FALSE(table.remove({12345}));
  EXPECT_EQ(refusal(key, pages.address(), 1), RegionRefusal::kNoSuchKey);
  EXPECT_EQ(table.count(), 0u);
}

TEST_F(Regions, ARegionOfSeveralPiecesReadsAsOne) {
  RegionConfig config{.pd = kDomain, .iova = 0x1000, .access = kAllAccess, .extents = {}};
  // Lengths 100, 0, 1, 300; the last two are neighbours in memory.
  config.extents = {{.address = pages.begin() + 2 * kPage, .length = 100},
                    {.address = pages.begin(), .length = 0},
                    {.address = pages.begin() + 50, .length = 1},
                    {.address = pages.begin() + 51, .length = 300}};
  const MemoryKey key = add(config);
  auto lease = table.lease(key, kDomain, 0x1000 + 99, 302, 0);
  ASSERT_TRUE(lease);
  EXPECT_EQ(lease->in_one_piece(), nullptr);
  Extent extent = lease->next();
  EXPECT_EQ(extent.address, pages.begin() + 2 * kPage + 99);
  EXPECT_EQ(extent.length, 1u);
  extent = lease->next();
  EXPECT_EQ(extent.address, pages.begin() + 50);
  EXPECT_EQ(extent.length, 301u);
  EXPECT_EQ(lease->next().length, 0u);
  EXPECT_EQ(refusal(key, 0x1000, 401), std::nullopt);
  EXPECT_EQ(refusal(key, 0x1000, 402), RegionRefusal::kOutOfRange);
  auto inside = table.lease(key, kDomain, 0x1000 + 200, 7, 0);
  ASSERT_TRUE(inside);
  EXPECT_EQ(inside->in_one_piece(), pages.begin() + 150);
  EXPECT_EQ(inside->next().address, pages.begin() + 150);
}

TEST_F(Regions, ChangeKeepsTheKeyAndTakesTheNewMeaning) {
  const TestPages other(2);
  const MemoryKey key = add(region_of(pages));
  auto changed = table.change(key, region_of(other, kRemoteRead, kOtherDomain));
  ASSERT_TRUE(changed);
  EXPECT_EQ(*changed, key);
  EXPECT_EQ(refusal(key, pages.address(), 1, 0, kOtherDomain), RegionRefusal::kOutOfRange);
  EXPECT_EQ(refusal(key, other.address(), 1, 0, kDomain), RegionRefusal::kOtherDomain);
  EXPECT_EQ(refusal(key, other.address(), 1, kRemoteWrite, kOtherDomain),
            RegionRefusal::kNoPermission);
  EXPECT_EQ(refusal(key, other.address(), other.size(), kRemoteRead, kOtherDomain), std::nullopt);
  EXPECT_EQ(table.count(), 1u);
}

TEST_F(Regions, ARefusedChangeLeavesTheRegion) {
  const MemoryKey key = add(region_of(pages));
  RegionConfig bad = region_of(pages);
  bad.extents[0].length += kPage;
  EXPECT_EQ(table.change(key, bad).error(), RegisterError::kBadRange);
  EXPECT_EQ(table.change(key, region_of(pages, kRemoteAtomic)).error(), RegisterError::kBadAccess);
  EXPECT_EQ(refusal(key, pages.address(), pages.size(), kRemoteWrite), std::nullopt);
  EXPECT_EQ(table.change({key.value ^ 0x40000000}, region_of(pages)).error(),
            RegisterError::kNoSuchKey);
  EXPECT_EQ(table.change({0}, region_of(pages)).error(), RegisterError::kNoSuchKey);
}

TEST_F(Regions, FillsUpToItsLimitAndNotBeyond) {
  for (const std::uint32_t limit : {1u, 3u, 64u, 100u}) {
    RegionTable own(limit, random, sections);
    std::set<std::uint32_t> keys;
    for (std::uint32_t i = 0; i < limit; ++i) {
      const auto key = own.add(region_of(pages));
      ASSERT_TRUE(key);
      keys.insert(key->value);
    }
    EXPECT_EQ(keys.size(), limit);
    EXPECT_EQ(own.add(region_of(pages)).error(), RegisterError::kTooMany);
    EXPECT_TRUE(own.remove({*keys.begin()}));
    EXPECT_TRUE(own.add(region_of(pages)));
    EXPECT_EQ(own.add(region_of(pages)).error(), RegisterError::kTooMany);
  }
  RegionTable none(0, random, sections);
  EXPECT_EQ(none.add(region_of(pages)).error(), RegisterError::kTooMany);
  EXPECT_FALSE(none.lease({5}, kDomain, 0, 1, 0));
}

TEST_F(Regions, FiftyThousandHaveKeysThatNobodyGuesses) {
  constexpr std::uint32_t kRegions = 50'000;
  RegionTable own(65'536, random, sections);
  std::set<std::uint32_t> keys;
  unsigned set_bits[32] = {};
  for (std::uint32_t i = 0; i < kRegions; ++i) {
    const auto key = own.add(region_of(pages));
    ASSERT_TRUE(key);
    keys.insert(key->value);
    for (unsigned bit = 0; bit < 32; ++bit)
      set_bits[bit] += key->value >> bit & 1;
  }
  EXPECT_EQ(keys.size(), kRegions);
  // The first says that it is no window's; each other bit is a fair coin, but for one time in
  // 10^12: seven standard deviations of half the root of the number.
  EXPECT_EQ(set_bits[31], 0u);
  for (unsigned bit = 0; bit < 31; ++bit)
    EXPECT_NEAR(set_bits[bit], kRegions / 2.0, 7 * 0.5 * 224);
  EXPECT_FALSE(keys.contains(0));
  for (const std::uint32_t key : keys) {
    ASSERT_TRUE(own.lease({key}, kDomain, pages.address(), 1, 0));
  }
  for (const std::uint32_t key : keys)
    ASSERT_TRUE(own.remove({key}));
  EXPECT_EQ(own.count(), 0u);
}

TEST_F(Regions, AKeyIsNotGivenOutAgainSoonEvenByABadGenerator) {
  struct Stuck final : RandomSource {
    std::uint64_t next() override { return 0; }
  } stuck;
  RegionTable own(1, stuck, sections);
  std::set<std::uint32_t> last;
  for (int i = 0; i < 4; ++i) {
    const auto key = own.add(region_of(pages));
    ASSERT_TRUE(key);
    EXPECT_NE(key->value, 0u);
    EXPECT_TRUE(i == 3 || last.insert(key->value).second) << i;
    EXPECT_TRUE(own.remove(*key));
  }
}

TEST_F(Regions, ATableUnderATightAddressSpaceLimitStillWorks) {
  rlimit limit;
  getrlimit(RLIMIT_AS, &limit);
#ifdef VERBENA_SANITIZED
  GTEST_SKIP() << "a sanitizer's shadow memory alone is over any limit";
#endif
  std::size_t mapped = 0;
  FILE* statm = std::fopen("/proc/self/statm", "r");
  ASSERT_EQ(std::fscanf(statm, "%zu", &mapped), 1);
  std::fclose(statm);
  const rlimit tight{.rlim_cur = mapped * kPage + (6u << 20), .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &tight), 0);
  {
    RegionTable own(65'536, random, sections);
    EXPECT_TRUE(own.add(region_of(pages)));
    RegionTable too_large(1u << 20, random, sections);
    EXPECT_EQ(too_large.add(region_of(pages)).error(), RegisterError::kTooMany);
    EXPECT_FALSE(too_large.lease({77}, kDomain, pages.address(), 1, 0));
    EXPECT_FALSE(too_large.remove({77}));
  }
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
}

// After remove returns nobody touches the memory: writers write all the time, and the memory is
// given another use at once.
TEST_F(Regions, NotOneByteAfterRemoveReturns) {
  constexpr int kRounds = 100;
  std::atomic<std::uint32_t> key{0};
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> writes{0};
  const std::vector<std::byte> pattern(4 * kPage, std::byte{0xaa});
  std::array<SectionLock, 3> locks;
  for (const SectionLock& lock : locks)
    sections.add(lock);
  std::vector<std::thread> writers;
  for (std::size_t i = 0; i < locks.size(); ++i) {
    writers.emplace_back([&, i] {
      const std::size_t length = i == 0 ? 8 : i == 1 ? 700 : pattern.size();
      while (!stop) {
        const MemoryKey now{key.load(std::memory_order_relaxed)};
        if (write_in_section(locks[i], now, {pattern.data(), length})) {
          writes.fetch_add(1, std::memory_order_relaxed);
        } else {
          std::this_thread::yield();
        }
      }
    });
  }
  for (int round = 0; round < kRounds; ++round) {
    const MemoryKey fresh = add(region_of(pages));
    const std::uint64_t before = writes;
    key = fresh.value;
    while (writes - before < 5)
      std::this_thread::yield();
    ASSERT_TRUE(table.remove(fresh));
    pages.fill(static_cast<std::uint8_t>(round % 100));
    std::this_thread::yield();
    ASSERT_TRUE(holds_only(pages, static_cast<std::uint8_t>(round % 100))) << round;
  }
  stop = true;
  for (std::thread& writer : writers)
    writer.join();
}

TEST_F(Regions, NotOneByteOfTheOldMemoryAfterChangeReturns) {
  const TestPages other(4);
  SectionLock lock;
  sections.add(lock);
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> writes{0};
  const MemoryKey key = add(region_of(pages));
  std::thread writer([&] {
    const std::vector<std::byte> pattern(600, std::byte{0xaa});
    const TestPages* const targets[] = {&pages, &other};
    while (!stop) {
      for (const TestPages* target : targets) {
        const std::lock_guard section(lock);
        if (write_range(table, kDomain, key, target->address(), pattern)) {
          writes.fetch_add(1, std::memory_order_relaxed);
        }
      }
    }
  });
  for (int round = 0; round < 100; ++round) {
    const TestPages& next = round % 2 ? pages : other;
    const TestPages& old = round % 2 ? other : pages;
    ASSERT_TRUE(table.change(key, region_of(next)));
    old.fill(1);
    const std::uint64_t before = writes;
    while (writes - before < 3)
      std::this_thread::yield();
    for (const std::byte b : old.bytes())
      ASSERT_EQ(b, std::byte{1}) << "round " << round;
  }
  stop = true;
  writer.join();
}

TEST_F(Regions, RemoveWaitsForASectionThatIsOpen) {
  const MemoryKey key = add(region_of(pages));
  SectionLock lock;
  sections.add(lock);
  std::atomic<bool> left{false};
  std::atomic<bool> removed{false};
  std::thread remover;
  {
    const std::lock_guard section(lock);
    ASSERT_TRUE(table.lease(key, kDomain, pages.address(), 8, 0));
    remover = std::thread([&] {
      EXPECT_TRUE(table.remove(key));
      EXPECT_TRUE(left);
      removed = true;
    });
    // No new leases as soon as the removal has begun.
    while (refusal(key, pages.address(), 1) == std::nullopt)
      std::this_thread::yield();
    for (int i = 0; i < 200; ++i)
      std::this_thread::yield();
    EXPECT_FALSE(removed);
    EXPECT_EQ(table.change(key, region_of(pages)).error(), RegisterError::kBusy);
    left = true;
  }
  remover.join();
  EXPECT_TRUE(removed);
}

TEST_F(Regions, ManyThreadsAddAndRemove) {
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 2'000; ++round) {
        const auto key = table.add(region_of(pages));
        if (!key || !table.lease(*key, kDomain, pages.address(), 8, kRemoteWrite)) ++wrong;
        if (!key || !table.remove(*key)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(table.count(), 0u);
}

}  // namespace
}  // namespace verbena::memory
