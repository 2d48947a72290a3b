// SPDX-License-Identifier: MIT
#include "host/doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "base/futex.h"

namespace verbena::host {

void Doorbell::wake() {
  // "sleep_state = 0, and wake one who sleeps on it": inside one system call, where no signal can
  // stop or kill us halfway.
  const int saved = errno;
  const int operation = FUTEX_OP(FUTEX_OP_SET, kAwake, FUTEX_OP_CMP_EQ, kAsleep);
  const long woken =
      syscall(SYS_futex, &page_.sleep_state, FUTEX_WAKE_OP, 1, 0L, &page_.sleep_state, operation);
  if (woken < 0) {
    page_.sleep_state.exchange(kAwake, std::memory_order_seq_cst);
    futex_wake(page_.sleep_state, 1, FutexScope::kShared);
  }
  errno = saved;
}

void Doorbell::sleep(std::optional<Duration> timeout) {
  futex_wait(page_.sleep_state, kAsleep, FutexScope::kShared, timeout);
  awake();
}

bool Doorbell::nap(NapKind how, Duration timeout) {
  futex_wait(page_.sleep_state, static_cast<std::uint32_t>(how), FutexScope::kShared, timeout);
  const bool is_ended = page_.sleep_state.load(std::memory_order_relaxed) == kAwake;
  awake();
  return is_ended;
}

}  // namespace verbena::host
