// SPDX-License-Identifier: MIT
#include "base/biased_lock.h"

#include <gtest/gtest.h>

#include <mutex>
#include <thread>
#include <vector>

#include "base/far_fence.h"

namespace verbena {
namespace {

void take(BiasedLock& lock, std::uint32_t times) {
  for (std::uint32_t i = 0; i < times; ++i)
    const std::lock_guard guard(lock);
}

// False, and told, where nobody can be an owner.
bool make_owner(BiasedLock& lock) {
  const bool can_be = join_near_fences();
  take(lock, BiasedLock::kTimesForOwner + 1);
  EXPECT_EQ(lock.is_owner(), can_be && BiasedLock::kMayHaveOwner);
  return lock.is_owner();
}

TEST(BiasedLock, WhoTakesItOftenInARowBecomesItsOwner) {
  BiasedLock lock;
  join_near_fences();
  take(lock, BiasedLock::kTimesForOwner - 1);
  EXPECT_FALSE(lock.is_owner());
  std::thread([&] { take(lock, 1); }).join();
  take(lock, BiasedLock::kTimesForOwner - 1);
  EXPECT_FALSE(lock.is_owner()) << "somebody else had it between";
  if (!make_owner(lock)) GTEST_SKIP() << "no near fences here, or thread sanitizer";
  take(lock, 10);
  EXPECT_TRUE(lock.is_owner());
}

TEST(BiasedLock, OnlyTheFirstOwnerOwnsItAgainAndLater) {
  BiasedLock lock;
  if (!make_owner(lock)) GTEST_SKIP() << "no near fences here, or thread sanitizer";
  std::thread([&] {
    take(lock, 4 * BiasedLock::kTimesForOwner);
    EXPECT_FALSE(lock.is_owner());
  }).join();
  EXPECT_FALSE(lock.is_owner());
  take(lock, BiasedLock::kTimesForOwner + 1);
  EXPECT_FALSE(lock.is_owner());
  take(lock, BiasedLock::kTimesForOwner);
  EXPECT_TRUE(lock.is_owner());
}

TEST(BiasedLock, WhoOnlyTriesDoesNotWaitForTheOwner) {
  BiasedLock lock;
  make_owner(lock);
  lock.lock();
  std::thread([&] { EXPECT_FALSE(lock.try_lock()); }).join();
  lock.unlock();
  std::thread([&] {
    EXPECT_TRUE(lock.try_lock());
    lock.unlock();
  }).join();
  EXPECT_TRUE(lock.try_lock());
  std::thread([&] { EXPECT_FALSE(lock.try_lock()); }).join();
  lock.unlock();
}

TEST(BiasedLock, WhoeverTakesItAwayWaitsForItsOwner) {
  BiasedLock lock;
  make_owner(lock);
  lock.lock();
  bool changed = false;
  std::thread waiter([&] {
    const std::lock_guard guard(lock);
    EXPECT_TRUE(changed);
  });
  for (int i = 0; i < 5'000; ++i)
    std::this_thread::yield();
  changed = true;
  lock.unlock();
  waiter.join();
}

// Many locks, since an owner comes back late: the moments at which it is taken away are what
// counts.
TEST(BiasedLock, LetsOneInAtATimeWhileItIsTakenAway) {
  constexpr int kLocks = 2'000;
  constexpr long kAfter = 300;
  join_near_fences();
  for (int round = 0; round < kLocks; ++round) {
    BiasedLock lock;
    // No atomics: without the lock the numbers part.
    long first = 0;
    long second = 0;
    const auto count = [&](long times) {
      for (long n = 0; n < times; ++n) {
        const std::lock_guard guard(lock);
        ++first;
        ++second;
        ASSERT_EQ(first, second);
      }
    };
    std::atomic<bool> has_begun{false};
    const long owners = BiasedLock::kTimesForOwner + kAfter + round % 97;
    std::thread owner([&] {
      count(BiasedLock::kTimesForOwner + 1);
      has_begun.store(true, std::memory_order_relaxed);
      count(owners);
    });
    while (!has_begun.load(std::memory_order_relaxed)) {
    }
    count(kAfter);
    owner.join();
    ASSERT_EQ(first, BiasedLock::kTimesForOwner + 1 + owners + kAfter);
    ASSERT_EQ(second, first);
  }
}

}  // namespace
}  // namespace verbena
