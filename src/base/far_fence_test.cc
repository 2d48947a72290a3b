// SPDX-License-Identifier: MIT
#include "base/far_fence.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/fence.h"
#include "base/mutex.h"

namespace verbena {
namespace {

struct alignas(64) Word {
  std::atomic<int> value{0};
};

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
      while (round.value.load(std::memory_order_acquire) != i)
        spin_pause();
      often.value.store(i, std::memory_order_relaxed);
      std::atomic_signal_fence(std::memory_order_seq_cst);
      seen_by_often.store(seldom.value.load(std::memory_order_relaxed), std::memory_order_relaxed);
      answered.value.store(i, std::memory_order_release);
    }
  });
  int missed = 0;
  for (int i = 1; i <= kRounds; ++i) {
    round.value.store(i, std::memory_order_release);
    seldom.value.store(i, std::memory_order_relaxed);
    far_fence();
    const int seen = often.value.load(std::memory_order_relaxed);
    while (answered.value.load(std::memory_order_acquire) != i)
      spin_pause();
    missed += seen != i && seen_by_often.load(std::memory_order_relaxed) != i;
  }
  other.join();
  EXPECT_EQ(missed, 0);
}

}  // namespace
}  // namespace verbena
