// SPDX-License-Identifier: MIT
#include "base/short_lock.h"

#include <sched.h>
#include <time.h>

#include <cerrno>

#include "base/mutex.h"

namespace verbena {

// A holder on another core is done within the spins. One that lost its core gets it back by the
// yields, unless it has a lower priority than we: then only our sleep lets it run.
void ShortWait::pause() noexcept {
  constexpr int kSpins = 200;
  constexpr int kYields = 20;
  constexpr timespec kSleep{.tv_sec = 0, .tv_nsec = 50'000};
  if (pauses_ < kSpins) {
    ++pauses_;
    return spin_pause();
  }
  const int saved = errno;
  if (pauses_ < kSpins + kYields) {
    ++pauses_;
    sched_yield();
  } else {
    nanosleep(&kSleep, nullptr);
  }
  errno = saved;
}

void ShortLock::lock_contended() noexcept {
  for (ShortWait wait;; wait.pause()) {
    if (held_.load(std::memory_order_relaxed) == 0 &&
        held_.exchange(1, std::memory_order_acquire) == 0)
      return;
  }
}

}  // namespace verbena
