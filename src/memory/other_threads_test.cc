// SPDX-License-Identifier: MIT
// Who uses memory without touching it.
#include "memory/other_threads.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <fstream>
#include <ranges>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "memory/adoption.h"
#include "memory/test_adoption.h"

namespace verbena::memory {
namespace {

constexpr std::size_t kPages = 4;

bool parse(std::string_view text, ThreadCall& call) {
  return parse_call(text.data(), text.size(), call);
}

TEST(ThreadCall, IsReadAsTheKernelWritesIt) {
  ThreadCall call;
  ASSERT_TRUE(parse("running\n", call));
  EXPECT_TRUE(call.is_running);
  ASSERT_TRUE(parse("-1 0x7ffc1 0x7f001\n", call));
  EXPECT_FALSE(call.is_running);
  EXPECT_EQ(call.number, -1);
  ASSERT_TRUE(parse("202 0x7f8260359064 0x80 0x2 0x0 0x0 0xffffffffffffffff 0x7ff 0x7f\n", call));
  EXPECT_EQ(call.number, 202);
  EXPECT_EQ(call.arguments[0], 0x7f8260359064u);
  EXPECT_EQ(call.arguments[1], 0x80u);
  EXPECT_EQ(call.arguments[5], ~std::uint64_t{0});
}

TEST(ThreadCall, WhatIsNotCompleteIsRefused) {
  ThreadCall call;
  for (const char* text :
       {"", "x", "202", "202 0x1 0x2", "202 1 2 3 4 5 6", "202 0x1 0x2 0x3 0x4 0x5 ",
        "99999999999999999999999 0x1 0x2 0x3 0x4 0x5 0x6"})
    EXPECT_FALSE(parse(text, call)) << text;
}

// Waits until a thread, which says its id when it has begun, sleeps in the call.
void wait_until_in(long number, const std::atomic<pid_t>& id) {
  using Clock = std::chrono::steady_clock;
  for (const auto end = Clock::now() + std::chrono::seconds(30); Clock::now() < end;) {
    std::ifstream file("/proc/self/task/" + std::to_string(id) + "/syscall");
    std::string text;
    std::getline(file, text);
    ThreadCall call;
    if (parse(text + "\n", call) && call.number == number) return;
    std::this_thread::yield();
  }
  ADD_FAILURE() << "it is not in call " << number;
}

class SleepersOnPages : public testing::Test {
 protected:
  std::uint32_t* word() const {
    return reinterpret_cast<std::uint32_t*>(pages.begin() + 2 * kPage);
  }
  PageRun all() const { return {.begin = pages.begin(), .length = pages.size()}; }
  PageRun others() const { return {.begin = pages.begin(), .length = 2 * kPage}; }

  std::thread sleep_on(int flag) {
    *word() = 0;
    std::atomic<pid_t> id = 0;
    std::thread sleeper([this, flag, &id] {
      auto* const it = word();
      id = gettid();
      while (std::atomic_ref(*it).load() == 0)
        syscall(SYS_futex, it, FUTEX_WAIT | flag, 0, nullptr, nullptr, 0);
    });
    wait_until_in(SYS_futex, id);
    return sleeper;
  }
  void wake(std::thread sleeper, int flag) const {
    std::atomic_ref(*word()).store(1);
    syscall(SYS_futex, word(), FUTEX_WAKE | flag, 1, nullptr, nullptr, 0);
    sleeper.join();
  }
  const TestPages pages{kPages};
};

TEST_F(SleepersOnPages, AreSeenOnTheirRangeOnly) {
  EXPECT_FALSE(is_used_by_others(all(), ThreadUse::kSleepsOrReads));
  std::thread sleeper = sleep_on(0);
  EXPECT_TRUE(is_used_by_others(all(), ThreadUse::kSleeps));
  EXPECT_TRUE(stays_used_by_others(all(), ThreadUse::kSleeps));
  EXPECT_FALSE(is_used_by_others(others(), ThreadUse::kSleepsOrReads));
  wake(std::move(sleeper), 0);
  EXPECT_FALSE(is_used_by_others(all(), ThreadUse::kSleepsOrReads));
}

TEST_F(SleepersOnPages, PrivateOnesDoNotCount) {
  std::thread sleeper = sleep_on(FUTEX_PRIVATE_FLAG);
  EXPECT_FALSE(is_used_by_others(all(), ThreadUse::kSleepsOrReads));
  wake(std::move(sleeper), FUTEX_PRIVATE_FLAG);
}

TEST_F(SleepersOnPages, KeepTheirMemoryWhereItIs) {
  Adoption adoption{with(Means::kEverything)};
  if (const std::string why = why_no_adoption(adoption); !why.empty()) {
    GTEST_SKIP() << "SKIP adoption under use: " << why;
  }
  fill_pattern(pages.begin(), pages.size());
  std::thread sleeper = sleep_on(0);
  const auto refused = adoption.adopt(pages.begin(), pages.size(), true);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error(), AdoptRefusal::kSleepers);
  EXPECT_FALSE(is_shared(pages.begin()));
  EXPECT_EQ(pages.begin()[3 * kPage], pattern(3 * kPage));
  wake(std::move(sleeper), 0);
  const auto adopted = adoption.adopt(pages.begin(), pages.size(), true);
  ASSERT_TRUE(adopted) << to_string(adopted.error());
  sleeper = sleep_on(0);
  adoption.release(adopted->id);
  EXPECT_TRUE(is_shared(pages.begin()));
  EXPECT_EQ(adoption.counters().kept, 1u);
  wake(std::move(sleeper), 0);
  const auto again = adoption.adopt(pages.begin(), pages.size(), true);
  ASSERT_TRUE(again);
  adoption.release(again->id);
  EXPECT_FALSE(is_shared(pages.begin()));
  EXPECT_EQ(adoption.counters().kept, 0u);
}

// A reader of a pipe copies, and may wait for ever.
TEST(ReadersOfPages, OfPipesDoNotCount) {
  const TestPages pages(kPages);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  std::atomic<pid_t> id = 0;
  std::thread reader([&] {
    id = gettid();
    EXPECT_EQ(read(ends[0], pages.begin(), kPage), 1);
  });
  wait_until_in(SYS_read, id);
  EXPECT_FALSE(is_used_by_others({.begin = pages.begin(), .length = pages.size()},
                                 ThreadUse::kSleepsOrReads));
  EXPECT_EQ(write(ends[1], "x", 1), 1);
  reader.join();
  for (const int end : ends)
    close(end);
}

// One opened past the page cache (O_DIRECT: for pipes a mode of packets, which is as good to wait).
TEST(ReadersOfPages, OfDirectFilesCount) {
  const TestPages pages(kPages);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(fcntl(ends[0], F_SETFL, O_DIRECT), 0);
  std::atomic<pid_t> id = 0;
  std::thread reader([&] {
    id = gettid();
    EXPECT_EQ(read(ends[0], pages.begin() + kPage, kPage), 1);
  });
  wait_until_in(SYS_read, id);
  const PageRun all{.begin = pages.begin(), .length = pages.size()};
  const PageRun first{.begin = pages.begin(), .length = kPage};
  const PageRun last{.begin = pages.begin() + 2 * kPage, .length = kPage};
  EXPECT_TRUE(is_used_by_others(all, ThreadUse::kSleepsOrReads));
  EXPECT_FALSE(is_used_by_others(all, ThreadUse::kSleeps));
  EXPECT_FALSE(is_used_by_others(first, ThreadUse::kSleepsOrReads));
  EXPECT_FALSE(is_used_by_others(last, ThreadUse::kSleepsOrReads));
  EXPECT_EQ(write(ends[1], "x", 1), 1);
  reader.join();
  EXPECT_FALSE(is_used_by_others(all, ThreadUse::kSleepsOrReads));
  for (const int end : ends)
    close(end);
}

// Of threads that share a processor most are not on it. They may have been stopped on their way to
// sleep, so none is passed over before it has been there.
TEST(RunningThreads, AreGivenTheTimeToGoToSleep) {
  const TestPages pages(kPages);
  constexpr int kTries = 20;
  constexpr std::int64_t kNeeded = 90'000;
  std::atomic<bool> is_over = false;
  std::vector<std::thread> threads;
  std::vector<clockid_t> clocks;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!is_over) {
      }
    });
    clocks.emplace_back();
    ASSERT_EQ(pthread_getcpuclockid(threads.back().native_handle(), &clocks.back()), 0);
    cpu_set_t first;
    CPU_ZERO(&first);
    CPU_SET(sched_getcpu(), &first);
    pthread_setaffinity_np(threads.back().native_handle(), sizeof first, &first);
  }
  const auto times = [&] {
    std::vector<std::int64_t> all;
    for (const clockid_t clock : clocks) {
      timespec time{};
      clock_gettime(clock, &time);
      all.push_back(std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec);
    }
    return all;
  };
  int good = 0;
  for (int i = 0; i < kTries; ++i) {
    const auto before = times();
    EXPECT_FALSE(is_used_by_others({.begin = pages.begin(), .length = pages.size()},
                                   ThreadUse::kSleepsOrReads));
    const auto after = times();
    good += std::ranges::all_of(std::views::iota(0u, clocks.size()), [&](std::size_t each) {
      return after[each] - before[each] >= kNeeded;
    });
  }
  is_over = true;
  for (std::thread& thread : threads)
    thread.join();
  // The wait has an end, which a busy machine may come to.
  EXPECT_GT(good, kTries / 2);
}

}  // namespace
}  // namespace verbena::memory
