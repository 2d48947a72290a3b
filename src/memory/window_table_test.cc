// SPDX-License-Identifier: MIT
#include "memory/window_table.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "base/random.h"
#include "memory/test_memory.h"

namespace verbena::memory {
namespace {

constexpr QpNum kQp{17};
constexpr QpNum kOtherQp{18};
constexpr std::uint32_t kBindable = kLocalWrite | kWindowBind;
constexpr std::uint32_t kAll = kRemoteWrite | kRemoteRead | kRemoteAtomic;

class Windows : public testing::Test {
 protected:
  Windows() { region = add(kBindable); }

  MemoryKey add(std::uint32_t access, PdId pd = kDomain) {
    const auto key = table.add({.pd = pd,
                                .iova = pages.address(),
                                .access = access,
                                .extents = {{pages.begin(), pages.size()}}});
    EXPECT_TRUE(key.has_value());
    return key.value_or(MemoryKey{});
  }
  MemoryKey window(WindowType type, PdId pd = kDomain) {
    const auto key = table.windows().add(pd, type);
    EXPECT_TRUE(key.has_value());
    return key.value_or(MemoryKey{});
  }
  // The 100 bytes behind the first 100.
  WindowBinding binding(MemoryKey key, std::uint32_t access = kAll) const {
    return {.key = key,
            .region = region,
            .address = pages.address() + 100,
            .length = 100,
            .access = access};
  }
  std::optional<WindowRefusal> bind(const WindowBinding& wanted, const RemoteUser& user = kUser) {
    return table.windows().bind(user, wanted);
  }
  std::optional<RegionRefusal> write(MemoryKey key, std::uint64_t address, std::size_t length,
                                     const RemoteUser& user = kUser) {
    const std::vector<std::byte> bytes(length, std::byte{7});
    const auto done = write_range(table, user, key, address, bytes);
    if (done) return std::nullopt;
    return done.error();
  }

  static constexpr RemoteUser kUser{kDomain, kQp};
  KernelRandom random;
  SectionList sections;
  RegionTable table{100, random, sections};
  TestPages pages{2};
  MemoryKey region;
};

TEST_F(Windows, GiveWhatTheyAreBoundToAndNoMore) {
  const MemoryKey key = window(WindowType::kTwo);
  const std::uint64_t first = pages.address() + 100;
  EXPECT_EQ(write(key, first, 1), RegionRefusal::kNoSuchKey);
  ASSERT_EQ(bind(binding(key)), std::nullopt);
  EXPECT_EQ(write(key, first, 100), std::nullopt);
  EXPECT_EQ(pages.begin()[99], std::byte{0});
  EXPECT_EQ(pages.begin()[100], std::byte{7});
  EXPECT_EQ(pages.begin()[199], std::byte{7});
  EXPECT_EQ(pages.begin()[200], std::byte{0});
  EXPECT_EQ(write(key, first - 1, 1), RegionRefusal::kOutOfRange);
  EXPECT_EQ(write(key, first, 101), RegionRefusal::kOutOfRange);
  EXPECT_EQ(write(key, first + 100, 1), RegionRefusal::kOutOfRange);
  EXPECT_EQ(write(key, ~std::uint64_t{0}, 1), RegionRefusal::kOutOfRange);
  // Nothing of it is the program's own, whatever domain it says.
  EXPECT_FALSE(table.lease(key, kDomain, first, 1, 0));
}

TEST_F(Windows, HaveRightsOfTheirOwn) {
  const MemoryKey key = window(WindowType::kTwo);
  ASSERT_EQ(bind(binding(key, kRemoteRead)), std::nullopt);
  std::byte byte{};
  const std::uint64_t first = pages.address() + 104;
  EXPECT_TRUE(read_range(table, kUser, key, first, {&byte, 1}));
  EXPECT_EQ(write(key, first, 1), RegionRefusal::kNoPermission);
  EXPECT_EQ(atomic_on_range(table, kUser, key, first, {.add = true}).error(),
            RegionRefusal::kNoPermission);
  ASSERT_EQ(table.windows().invalidate(kUser, key), std::nullopt);
  ASSERT_EQ(bind(binding(key, kRemoteAtomic)), std::nullopt);
  EXPECT_TRUE(atomic_on_range(table, kUser, key, first, {.add = true, .operand = 5}));
  EXPECT_EQ(pages.begin()[104], std::byte{5});
  EXPECT_FALSE(read_range(table, kUser, key, first, {&byte, 1}));
}

TEST_F(Windows, MayCountFromZero) {
  const MemoryKey key = window(WindowType::kTwo);
  ASSERT_EQ(bind(binding(key, kAll | kZeroBased)), std::nullopt);
  EXPECT_EQ(write(key, 0, 100), std::nullopt);
  EXPECT_EQ(pages.begin()[100], std::byte{7});
  EXPECT_EQ(write(key, 1, 100), RegionRefusal::kOutOfRange);
  EXPECT_EQ(write(key, pages.address() + 100, 1), RegionRefusal::kOutOfRange);
}

TEST_F(Windows, OfTypeTwoBelongToOneQueuePairAndOfTypeOneToTheDomain) {
  const MemoryKey two = window(WindowType::kTwo);
  const MemoryKey one = window(WindowType::kOne);
  ASSERT_EQ(bind(binding(two)), std::nullopt);
  ASSERT_EQ(bind(binding(one)), std::nullopt);
  const std::uint64_t first = pages.address() + 100;
  EXPECT_EQ(write(two, first, 1, {kDomain, kOtherQp}), RegionRefusal::kOtherDomain);
  EXPECT_EQ(write(one, first, 1, {kDomain, kOtherQp}), std::nullopt);
  EXPECT_EQ(write(two, first, 1, {kOtherDomain, kQp}), RegionRefusal::kOtherDomain);
  EXPECT_EQ(write(one, first, 1, {kOtherDomain, kQp}), RegionRefusal::kOtherDomain);
  const RemoteUser other{kDomain, kOtherQp};
  EXPECT_EQ(table.windows().invalidate(other, two), WindowRefusal::kOtherQueuePair);
  EXPECT_EQ(table.windows().invalidate(kUser, one), WindowRefusal::kWrongType);
  EXPECT_EQ(table.windows().invalidate(kUser, region), WindowRefusal::kNoSuchWindow);
  table.windows().release(kOtherQp);
  EXPECT_EQ(write(two, first, 1), std::nullopt);
  table.windows().release(kQp);
  EXPECT_EQ(write(two, first, 1), RegionRefusal::kNoSuchKey);
  EXPECT_EQ(write(one, first, 1), std::nullopt);
}

TEST_F(Windows, AreBoundOnlyToWhatAllowsIt) {
  const MemoryKey two = window(WindowType::kTwo);
  const MemoryKey one = window(WindowType::kOne);
  const auto with = [&](MemoryKey key, auto change) {
    WindowBinding wanted = binding(key);
    change(wanted);
    return bind(wanted);
  };
  using B = WindowBinding&;
  EXPECT_EQ(with(two, [](B b) { b.key.value ^= 1u << 30; }), WindowRefusal::kNoSuchWindow);
  EXPECT_EQ(with(two, [](B b) { b.length = 0; }), WindowRefusal::kWrongType);
  EXPECT_EQ(with(one, [](B b) { b.access |= kZeroBased; }), WindowRefusal::kWrongType);
  EXPECT_EQ(with(two, [](B b) { b.access |= kWindowBind; }), WindowRefusal::kBadRights);
  EXPECT_EQ(with(two, [](B b) { b.length = 8192; }), WindowRefusal::kRegion);
  EXPECT_EQ(with(two, [](B b) { b.address -= 101; }), WindowRefusal::kRegion);
  EXPECT_EQ(with(two, [](B b) { b.region.value ^= 1; }), WindowRefusal::kRegion);
  EXPECT_EQ(with(two, [&](B b) { b.region = one; }), WindowRefusal::kRegion);
  EXPECT_EQ(with(two, [&](B b) { b.region = add(kLocalWrite); }), WindowRefusal::kRegion);
  EXPECT_EQ(with(two, [&](B b) { b.region = add(kWindowBind); }), WindowRefusal::kRegion);
  EXPECT_EQ(with(two, [&](B b) { b.region = add(kBindable, kOtherDomain); }),
            WindowRefusal::kOtherDomain);
  EXPECT_EQ(bind(binding(two), {kOtherDomain, kQp}), WindowRefusal::kOtherDomain);
  // Reading needs no local write (C10-74).
  const MemoryKey readable = window(WindowType::kTwo);
  WindowBinding wanted = binding(readable, kRemoteRead);
  wanted.region = add(kWindowBind);
  EXPECT_EQ(bind(wanted), std::nullopt);
}

TEST_F(Windows, OfTypeTwoAreInvalidatedBeforeTheyAreBoundAgain) {
  const MemoryKey key = window(WindowType::kTwo);
  ASSERT_EQ(bind(binding(key)), std::nullopt);
  const MemoryKey next{(key.value & ~WindowTable::kTagMask) | ((key.value + 1) & 0xff)};
  EXPECT_EQ(bind(binding(next)), WindowRefusal::kStillBound);
  EXPECT_EQ(table.windows().invalidate(kUser, next), WindowRefusal::kNoSuchWindow);
  EXPECT_EQ(table.windows().invalidate(kUser, key), std::nullopt);
  EXPECT_EQ(table.windows().invalidate(kUser, key), WindowRefusal::kNoSuchWindow);
  ASSERT_EQ(bind(binding(next)), std::nullopt);
  EXPECT_EQ(write(key, pages.address() + 100, 1), RegionRefusal::kNoSuchKey);
  EXPECT_EQ(write(next, pages.address() + 100, 1), std::nullopt);
}

TEST_F(Windows, OfTypeOneMoveWithEachBind) {
  const MemoryKey key = window(WindowType::kOne);
  ASSERT_EQ(bind(binding(key)), std::nullopt);
  WindowBinding moved = binding({(key.value & ~WindowTable::kTagMask) | ((key.value + 1) & 0xff)});
  moved.address += 1000;
  ASSERT_EQ(bind(moved), std::nullopt);
  EXPECT_EQ(write(key, pages.address() + 100, 1), RegionRefusal::kNoSuchKey);
  EXPECT_EQ(write(moved.key, pages.address() + 1100, 1), std::nullopt);
  moved.length = 0;
  moved.region = {};
  ASSERT_EQ(bind(moved), std::nullopt);
  EXPECT_EQ(write(moved.key, pages.address() + 1100, 1), RegionRefusal::kNoSuchKey);
  EXPECT_FALSE(table.has_windows(region));
}

TEST_F(Windows, KeepTheirRegion) {
  const MemoryKey key = window(WindowType::kTwo);
  ASSERT_EQ(bind(binding(key)), std::nullopt);
  EXPECT_FALSE(table.remove(region));
  EXPECT_EQ(table.change(region, region_of(pages)).error(), RegisterError::kBusy);
  EXPECT_EQ(write(key, pages.address() + 100, 1), std::nullopt);
  EXPECT_TRUE(table.lease(region, kDomain, pages.address(), 1, 0));
  ASSERT_EQ(table.windows().invalidate(kUser, key), std::nullopt);
  EXPECT_TRUE(table.remove(region));
  EXPECT_EQ(bind(binding(key)), WindowRefusal::kRegion);
}

TEST_F(Windows, ThatAreGoneAreNotFound) {
  const MemoryKey key = window(WindowType::kOne);
  ASSERT_EQ(bind(binding(key)), std::nullopt);
  table.windows().remove(key);
  EXPECT_EQ(write(key, pages.address() + 100, 1), RegionRefusal::kNoSuchKey);
  EXPECT_EQ(bind(binding(key)), WindowRefusal::kNoSuchWindow);
  EXPECT_TRUE(table.remove(region));
}

TEST_F(Windows, AreAsManyAsPromisedAndHaveKeysOfTheirOwn) {
  std::set<std::uint32_t> names;
  for (std::uint32_t i = 0; i < WindowTable::kWindowsMax; ++i) {
    const MemoryKey key = window(WindowType::kTwo);
    ASSERT_TRUE(WindowTable::is_key(key));
    names.insert(key.value & ~WindowTable::kTagMask);
  }
  EXPECT_EQ(names.size(), WindowTable::kWindowsMax);
  EXPECT_EQ(table.windows().add(kDomain, WindowType::kTwo).error(), RegisterError::kTooMany);
  for (const std::uint32_t name : names)
    table.windows().remove({name});
  EXPECT_EQ(table.windows().count(), 0u);
  EXPECT_FALSE(names.contains(window(WindowType::kTwo).value & ~WindowTable::kTagMask) &&
               names.size() == 1);
}

// What is bound anew while peers write through it: nobody writes to the old place once the bind is
// done.
TEST_F(Windows, AreNotUsedAnyMoreWhenTheyWereBoundToSomethingElse) {
  const MemoryKey key = window(WindowType::kOne);
  std::atomic<bool> stops{false};
  std::atomic<std::uint32_t> now{key.value};
  const auto writer = [&] {
    while (!stops) {
      const MemoryKey used{now.load()};
      write(used, pages.address() + 100, 100, {kDomain, kOtherQp});
      write(used, pages.address() + 1100, 100, {kDomain, kOtherQp});
    }
  };
  std::thread first(writer);
  std::thread second(writer);
  WindowBinding wanted = binding(key);
  for (int i = 0; i < 20'000; ++i) {
    wanted.key.value =
        (wanted.key.value & ~WindowTable::kTagMask) | ((wanted.key.value + 1) & 0xff);
    wanted.address = pages.address() + (i % 2 ? 100 : 1100);
    while (const auto refusal = bind(wanted))
      ASSERT_EQ(refusal, WindowRefusal::kBusy);
    now = wanted.key.value;
    std::byte* const old = pages.begin() + (i % 2 ? 1100 : 100);
    std::memset(old, 1, 100);
    for (int look = 0; look < 100; ++look)
      ASSERT_EQ(old[look], std::byte{1}) << i;
  }
  stops = true;
  first.join();
  second.join();
}

}  // namespace
}  // namespace verbena::memory
