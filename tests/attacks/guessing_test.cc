// SPDX-License-Identifier: MIT
// What guessing costs: keys, queue pair numbers, communication ids, as the NIC draws them. The
// figures are printed, and docs/security.md repeats them. A bound is passed by chance once in 10^9
// runs or less.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <set>
#include <vector>

#include "base/random.h"
#include "cm/engine.h"
#include "memory/region_table.h"
#include "memory/window_table.h"
#include "nic/qp_table.h"
#include "wire/ip.h"

namespace verbena {
namespace {

using Numbers = std::vector<std::uint32_t>;

// More of what is expected `mean` times comes once in a milliard runs (Chernoff's bound of a
// Poisson distribution).
double most_of(double mean) {
  double most = mean + 10;
  while (most * std::log(most / mean) - most + mean < 21)
    most += 1;
  return most;
}

// Each of the lower bits is a fair coin, and no two of them go together: seven standard deviations.
void expect_fair_coins(const Numbers& numbers, unsigned bits) {
  const double tolerance = 7 * 0.5 * std::sqrt(static_cast<double>(numbers.size()));
  const auto ones = [&](auto bit_of) { return std::ranges::count_if(numbers, bit_of); };
  for (unsigned a = 0; a < bits; ++a) {
    for (unsigned b = 0; b <= a; ++b) {
      const auto count = ones([&](std::uint32_t each) {
        return a == b ? (each >> a & 1) != 0 : ((each >> a ^ each >> b) & 1) != 0;
      });
      EXPECT_NEAR(static_cast<double>(count), static_cast<double>(numbers.size()) / 2, tolerance)
          << "bits " << a << " and " << b;
    }
  }
}

// The difference from one to the next says nothing of the next.
void expect_no_steps(const Numbers& numbers, unsigned bits) {
  std::set<std::uint32_t> steps;
  std::size_t repeated = 0;
  for (std::size_t i = 1; i < numbers.size(); ++i)
    repeated += !steps.insert((numbers[i] - numbers[i - 1]) & ((1u << bits) - 1)).second;
  const double pairs =
      static_cast<double>(numbers.size()) * static_cast<double>(numbers.size()) / 2;
  EXPECT_LE(static_cast<double>(repeated), most_of(pairs / std::exp2(bits)));
}

void tell(const char* what, std::uint64_t hits, std::uint64_t guesses, double chance) {
  std::printf("%-34s %10llu guesses %6llu hits, expected %.2f (one in %.0f)\n", what,
              static_cast<unsigned long long>(guesses), static_cast<unsigned long long>(hits),
              static_cast<double>(guesses) * chance, 1 / chance);
}

class Keys : public testing::Test {
 protected:
  static constexpr std::uint32_t kRegions = 4'000;
  static constexpr PdId kOwn{1};
  static constexpr PdId kOther{2};

  MemoryKey add(PdId pd) {
    return *table.add({.pd = pd,
                       .iova = reinterpret_cast<std::uint64_t>(memory.data()),
                       .access = memory::kLocalWrite | memory::kRemoteWrite,
                       .extents = {{memory.data(), memory.size()}}});
  }
  bool hits(std::uint32_t key, PdId pd) {
    const auto at = reinterpret_cast<std::uint64_t>(memory.data());
    return table.lease({key}, pd, at, 1, memory::kRemoteWrite).has_value();
  }

  std::vector<std::byte> memory = std::vector<std::byte>(4096);
  KernelRandom random;
  memory::SectionList sections;
  memory::RegionTable table{65'536, random, sections};
};

TEST_F(Keys, OfRegionsAreHitOncePerRegionIn31Bits) {
  Numbers keys;
  for (std::uint32_t i = 0; i < kRegions; ++i)
    keys.push_back(add(kOwn).value);
  expect_fair_coins(keys, 31);
  expect_no_steps(keys, 31);
  const double chance = kRegions / std::exp2(31);
  constexpr std::uint64_t kGuesses = 4'000'000;
  SeededRandom guess(random.next());
  std::uint64_t found = 0;
  for (std::uint64_t i = 0; i < kGuesses; ++i)
    found += hits(static_cast<std::uint32_t>(guess.next() >> 33), kOwn);
  tell("keys of 4,000 regions, by chance", found, kGuesses, chance);
  EXPECT_LE(static_cast<double>(found), most_of(static_cast<double>(kGuesses) * chance));
  // Who was given keys finds no others beside them.
  std::uint64_t near = 0;
  std::uint64_t tried = 0;
  for (const std::uint32_t key : keys) {
    for (std::uint32_t by = 1; by <= 256; ++by, ++tried)
      near += hits(key + by, kOwn);
  }
  tell("the same, beside known ones", near, tried, chance);
  EXPECT_LE(static_cast<double>(near), most_of(static_cast<double>(tried) * chance));
}

// One table for all domains, and one generator: what one domain learns says nothing of another's.
TEST_F(Keys, OfOneDomainSayNothingOfAnothers) {
  Numbers own;
  Numbers others;
  for (std::uint32_t i = 0; i < kRegions; ++i) {
    own.push_back(add(kOwn).value);
    others.push_back(add(kOther).value);
  }
  Numbers differences;
  for (std::uint32_t i = 0; i < kRegions; ++i)
    differences.push_back(own[i] ^ others[i]);
  expect_fair_coins(differences, 31);
  for (const std::uint32_t key : others)
    EXPECT_FALSE(hits(key, kOwn));
}

TEST_F(Keys, OfWindowsAreHitOncePerWindowIn23Bits) {
  constexpr std::uint32_t kWindows = 2'000;
  Numbers names;
  for (std::uint32_t i = 0; i < kWindows; ++i)
    names.push_back(table.windows().add(kOwn, memory::WindowType::kTwo)->value >> 8 & 0x7FFFFF);
  expect_fair_coins(names, 23);
  expect_no_steps(names, 23);
  EXPECT_EQ(std::set<std::uint32_t>(names.begin(), names.end()).size(), kWindows);
}

TEST(QueuePairNumbers, AreHitOncePerQueuePairIn14BitsOfAKnownProcess) {
  KernelRandom random;
  nic::QpTable table;
  const SlotNumber slot{static_cast<std::uint16_t>(random.next() % kSlotCount)};
  table.add_slot(slot);
  Numbers numbers;
  constexpr std::uint32_t kPairs = 1'000;
  for (std::uint32_t i = 0; i < kPairs; ++i)
    numbers.push_back(table.reserve(random)->index());
  const std::set<std::uint32_t> taken(numbers.begin(), numbers.end());
  EXPECT_EQ(taken.size(), kPairs);
  expect_fair_coins(numbers, 14);
  expect_no_steps(numbers, 14);
  const double chance = kPairs / std::exp2(14);
  std::uint64_t near = 0;
  for (const std::uint32_t number : numbers)
    near += taken.contains(number + 1);
  tell("numbers of 1,000, beside known ones", near, kPairs, chance);
  EXPECT_LE(static_cast<double>(near), most_of(kPairs * chance));
  for (const std::uint32_t number : numbers)
    table.release(QpNum::of(slot, number));
}

// A number that was given up is not somebody else's at once.
TEST(QueuePairNumbers, RestBeforeTheyAreUsedAgain) {
  KernelRandom random;
  nic::QpTable table;
  table.add_slot({5});
  std::set<std::uint32_t> lately;
  for (int i = 0; i < 1'000; ++i) {
    const QpNum number = *table.reserve(random);
    EXPECT_TRUE(lately.insert(number.value).second) << "after " << i << " others";
    table.insert(number, nullptr);
    table.remove(number);
  }
}

TEST(CommunicationIds, AreHitOncePerConnectionIn22BitsOfAKnownProcess) {
  KernelRandom random;
  constexpr std::uint32_t kConnections = 2'000;
  cm::Engine engine({.slot = {3},
                     .connections_max = kConnections,
                     .time_wait_max = 8,
                     .outgoing_max = kConnections},
                    random);
  const cm::Route route{.local = wire::gid_of(std::array<std::uint8_t, 4>{10, 0, 0, 1}),
                        .remote = wire::gid_of(std::array<std::uint8_t, 4>{10, 0, 0, 2})};
  Numbers ids;
  for (std::uint32_t i = 0; i < kConnections; ++i) {
    wire::Req req;
    req.service_id = 5;
    req.local_qp = {i + 2};
    req.path_mtu = 3;
    const auto id = engine.connect(route, req, 0, Instant::at(1));
    ASSERT_TRUE(id.has_value());
    ids.push_back(id->value & 0x3FFFFF);
  }
  expect_fair_coins(ids, 22);
  expect_no_steps(ids, 22);
}

}  // namespace
}  // namespace verbena
