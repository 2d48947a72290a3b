// SPDX-License-Identifier: MIT
#include "base/section_lock.h"

#include <cerrno>

#include "base/futex.h"
#include "base/mutex.h"

namespace verbena {

void SectionLock::lock_contended() noexcept {
  // Long enough for a holder that runs on another core, short enough when the holder lost its core.
  constexpr int kSpins = 100;
  // Until a sleeper whose wake-up was missed looks again.
  constexpr Duration kLookAgain = Duration::microseconds(200);
  const int saved = errno;
  for (int i = 0; i < kSpins; ++i) {
    if (try_lock()) return;
    spin_pause();
  }
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  while (!try_lock()) {
    const std::uint32_t seen = word_.load(std::memory_order_relaxed);
    if (seen & kHeld) futex_wait(word_, seen, FutexScope::kProcess, kLookAgain);
  }
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
  errno = saved;
}

void SectionLock::wake_one() noexcept { futex_wake(word_, 1, FutexScope::kProcess); }

}  // namespace verbena
