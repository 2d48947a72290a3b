// SPDX-License-Identifier: MIT
#include "nic/undo_requests.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <thread>
#include <vector>

#include "nic/engine.h"

namespace verbena::nic {
namespace {

const std::byte* address(std::uintptr_t value) { return reinterpret_cast<const std::byte*>(value); }

TEST(UndoRequests, AnswersEachAskerItsOwn) {
  UndoRequests requests;
  std::atomic<bool> is_over{false};
  std::atomic<unsigned> wrong{0};
  std::thread server([&] {
    while (!is_over.load()) {
      // Done when the length is even, so that answers differ.
      requests.serve([](const std::byte* at, std::size_t length) {
        return at == address(length * 7) && length % 2 == 0;
      });
      sched_yield();
    }
  });
  std::vector<std::thread> askers;
  for (unsigned t = 0; t < 4; ++t) {
    askers.emplace_back([&, t] {
      for (std::size_t i = 1; i < 300; ++i) {
        const std::size_t length = i * 8 + t;
        const bool done =
            requests.ask(address(length * 7), length, Duration::seconds(60), [] { return true; });
        if (done != (length % 2 == 0)) ++wrong;
      }
    });
  }
  for (std::thread& asker : askers)
    asker.join();
  is_over = true;
  server.join();
  EXPECT_EQ(wrong.load(), 0u);
}

TEST(UndoRequests, WithdrawsWhatNobodyBegins) {
  UndoRequests requests;
  const auto ask = [&](Duration patience, bool wakes) {
    return requests.ask(address(4096), 1, patience, [wakes] { return wakes; });
  };
  // More often than there are places.
  for (int i = 0; i < 200; ++i)
    EXPECT_FALSE(ask(Duration::microseconds(10), true));
  EXPECT_FALSE(ask(Duration::seconds(3600), false)) << "there is nobody to wake";
  bool was_asked = false;
  requests.serve([&](const std::byte*, std::size_t) { return was_asked = true; });
  EXPECT_FALSE(was_asked);
}

TEST(UndoRequests, WaitsForTheEndOfWhatHasBegun) {
  UndoRequests requests;
  std::atomic<bool> is_done{false};
  std::atomic<bool> may_end{false};
  std::thread server;
  const auto wake = [&] {
    std::atomic<bool> has_begun{false};
    server = std::thread([&] {
      requests.serve([&](const std::byte*, std::size_t) {
        has_begun = true;
        while (!may_end.load())
          sched_yield();
        return true;
      });
    });
    while (!has_begun.load())
      sched_yield();
    return true;
  };
  std::thread asker([&] { is_done = requests.ask(address(4096), 1, Duration(), wake); });
  const Instant begin = clock_now();
  while (clock_now() - begin < Duration::milliseconds(20))
    EXPECT_FALSE(is_done.load());
  may_end = true;
  asker.join();
  server.join();
  EXPECT_TRUE(is_done.load());
}

}  // namespace
}  // namespace verbena::nic
