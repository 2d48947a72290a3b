// SPDX-License-Identifier: MIT
#include "base/short_lock.h"

#include <sched.h>
#include <time.h>

#include <cerrno>

#include "base/mutex.h"

namespace verbena {

void ShortLock::lock_contended() noexcept {
  // A holder on another core is done within the spins. One that lost its core gets it back by the
  // yields, unless it has a lower priority than we: then only our sleep lets it run.
  constexpr int kSpins = 200;
  constexpr int kYields = 20;
  constexpr timespec kSleep{.tv_sec = 0, .tv_nsec = 50'000};
  const int saved = errno;
  for (int i = 0;; ++i) {
    if (held_.load(std::memory_order_relaxed) == 0 &&
        held_.exchange(1, std::memory_order_acquire) == 0) {
      break;
    }
    if (i < kSpins) {
      spin_pause();
    } else if (i < kSpins + kYields) {
      sched_yield();
    } else {
      nanosleep(&kSleep, nullptr);
    }
  }
  errno = saved;
}

}  // namespace verbena
