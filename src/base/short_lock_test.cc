// SPDX-License-Identifier: MIT
#include "base/short_lock.h"

#include <gtest/gtest.h>

#include <mutex>
#include <thread>
#include <vector>

namespace verbena {
namespace {

TEST(ShortLock, LetsOneInAtATime) {
  constexpr int kEach = 20'000;
  ShortLock lock;
  // No atomics: without the lock the numbers part.
  long first = 0;
  long second = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < kEach; ++n) {
        std::lock_guard guard(lock);
        ++first;
        ++second;
        ASSERT_EQ(first, second);
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(first, 4 * kEach);
}

TEST(ShortLock, WaitsForAHolderThatTakesLong) {
  ShortLock lock;
  lock.lock();
  bool changed = false;
  std::thread waiter([&] {
    std::lock_guard guard(lock);
    EXPECT_TRUE(changed);
  });
  for (int i = 0; i < 5'000; ++i)
    std::this_thread::yield();
  changed = true;
  lock.unlock();
  waiter.join();
  EXPECT_TRUE(lock.try_lock());
  EXPECT_FALSE(lock.try_lock());
  lock.unlock();
}

}  // namespace
}  // namespace verbena
