// SPDX-License-Identifier: MIT
#include "nic/events.h"

#include "base/futex.h"

namespace verbena::nic {

// Most programs acknowledge each event, and hardly ever somebody waits: then it is no system call.
// To wake whoever waits takes the address only.
void EventCount::acknowledged(std::uint32_t count) {
  if (acknowledged_.fetch_add(count * kOne, std::memory_order_release) & kAwaited)
    futex_wake(acknowledged_, INT32_MAX, FutexScope::kProcess);
}

void EventCount::wait_until_acknowledged() {
  acknowledged_.fetch_or(kAwaited, std::memory_order_relaxed);
  for (;;) {
    const std::uint32_t acknowledged = acknowledged_.load(std::memory_order_acquire);
    if ((acknowledged & ~kAwaited) == delivered_.load(std::memory_order_acquire)) return;
    futex_wait(acknowledged_, acknowledged, FutexScope::kProcess);
  }
}

}  // namespace verbena::nic
