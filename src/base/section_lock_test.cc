// SPDX-License-Identifier: MIT
#include "base/section_lock.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace verbena {
namespace {

TEST(SectionLock, AllowsOneAtATime) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 20'000;
  SectionLock lock;
  std::uint64_t count = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        const std::lock_guard guard(lock);
        ++count;
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(count, std::uint64_t{kThreads} * kRounds);
}

TEST(SectionLock, TryTellsWhetherItIsHeld) {
  SectionLock lock;
  EXPECT_TRUE(lock.try_lock());
  EXPECT_FALSE(lock.try_lock());
  lock.unlock();
  EXPECT_TRUE(lock.try_lock());
  lock.unlock();
}

TEST(SectionLock, AWatchKnowsAnOldSectionFromANewOne) {
  SectionLock lock;
  EXPECT_TRUE(SectionLock::Watch(lock).is_over());
  lock.lock();
  const SectionLock::Watch watch(lock);
  EXPECT_FALSE(watch.is_over());
  lock.unlock();
  EXPECT_TRUE(watch.is_over());
  lock.lock();
  EXPECT_TRUE(watch.is_over());
  EXPECT_FALSE(SectionLock::Watch(lock).is_over());
  lock.unlock();
}

// The litmus of mark and section: whoever enters after the mark was set sees it, and the watcher
// waits for whoever entered before.
TEST(SectionLock, NobodyUsesWhatWasTakenAway) {
  constexpr int kRounds = 20'000;
  SectionLock lock;
  std::atomic<bool> is_given{true};
  std::atomic<bool> is_mine{false};
  std::atomic<bool> stop{false};
  std::atomic<int> violations{0};
  std::thread user([&] {
    while (!stop.load(std::memory_order_relaxed)) {
      const std::lock_guard section(lock);
      if (!is_given.load(std::memory_order_relaxed)) continue;
      if (is_mine.load(std::memory_order_relaxed)) ++violations;
    }
  });
  for (int round = 0; round < kRounds; ++round) {
    is_given.store(false, std::memory_order_relaxed);
    full_fence();
    const SectionLock::Watch watch(lock);
    while (!watch.is_over()) {
    }
    is_mine.store(true, std::memory_order_relaxed);
    is_mine.store(false, std::memory_order_relaxed);
    is_given.store(true, std::memory_order_relaxed);
  }
  stop = true;
  user.join();
  EXPECT_EQ(violations, 0);
}

}  // namespace
}  // namespace verbena
