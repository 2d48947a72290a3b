// SPDX-License-Identifier: MIT
#include "base/mutex.h"

#include "base/futex.h"

namespace verbena {

void Mutex::lock_contended() noexcept {
  // Long enough for a holder that runs on another core, short enough when the holder lost its core.
  constexpr int kSpins = 100;
  for (int i = 0; i < kSpins; ++i) {
    std::uint32_t free = kFree;
    if (state_.load(std::memory_order_relaxed) == kFree &&
        state_.compare_exchange_weak(free, kHeld, std::memory_order_acquire)) {
      return;
    }
    spin_pause();
  }
  while (state_.exchange(kHeldWithSleepers, std::memory_order_acquire) != kFree) {
    futex_wait(state_, kHeldWithSleepers, FutexScope::kProcess);
  }
}

void Mutex::wake_one() noexcept { futex_wake(state_, 1, FutexScope::kProcess); }

}  // namespace verbena
