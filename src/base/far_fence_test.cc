// SPDX-License-Identifier: MIT
#include "base/far_fence.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "base/fence.h"
#include "base/mutex.h"

namespace verbena {
namespace {

constexpr int kEnd = -1;

struct alignas(64) Word {
  std::atomic<int> value{0};
};

// False: the other side has ended.
bool wait_until(const Word& word, int value) {
  for (;;) {
    const int found = word.value.load(std::memory_order_acquire);
    if (found == value) return true;
    if (found == kEnd) return false;
    spin_pause();
  }
}

// Each side stores, then looks at the other's word: with a fence on both sides at least one sees
// the other. Here only one has fences, far ones.
TEST(FarFence, StandsInForTheFencesOfOthers) {
  if (!join_far_fences()) GTEST_SKIP() << "the system has no membarrier for all";
  constexpr int kRounds = 20'000;
  Word often;
  Word seldom;
  Word round;
  Word answered;
  std::atomic<int> seen_by_often{0};
  std::thread other([&] {
    for (int i = 1; i <= kRounds; ++i) {
      if (!wait_until(round, i)) return;
      often.value.store(i, std::memory_order_relaxed);
      std::atomic_signal_fence(std::memory_order_seq_cst);
      seen_by_often.store(seldom.value.load(std::memory_order_relaxed), std::memory_order_relaxed);
      answered.value.store(i, std::memory_order_release);
    }
  });
  // Where others want the cores, each round takes a slice of the scheduler's: fewer have to do.
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  int missed = 0;
  int rounds = 0;
  for (int i = 1; i <= kRounds && std::chrono::steady_clock::now() < limit; ++i) {
    round.value.store(i, std::memory_order_release);
    seldom.value.store(i, std::memory_order_relaxed);
    far_fence();
    const int seen = often.value.load(std::memory_order_relaxed);
    wait_until(answered, i);
    ++rounds;
    missed += seen != i && seen_by_often.load(std::memory_order_relaxed) != i;
  }
  round.value.store(kEnd, std::memory_order_release);
  other.join();
  EXPECT_EQ(missed, 0);
  EXPECT_GT(rounds, 100);
}

}  // namespace
}  // namespace verbena
