// SPDX-License-Identifier: MIT
#include "nic/events.h"

#include "base/futex.h"

namespace verbena::nic {

void EventCount::acknowledged(std::uint32_t count) {
  acknowledged_.fetch_add(count, std::memory_order_release);
  futex_wake(acknowledged_, INT32_MAX, FutexScope::kProcess);
}

void EventCount::wait_until_acknowledged() const {
  for (;;) {
    const std::uint32_t acknowledged = acknowledged_.load(std::memory_order_acquire);
    if (acknowledged == delivered_.load(std::memory_order_acquire)) return;
    futex_wait(acknowledged_, acknowledged, FutexScope::kProcess);
  }
}

}  // namespace verbena::nic
