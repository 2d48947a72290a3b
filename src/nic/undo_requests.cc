// SPDX-License-Identifier: MIT
#include "nic/undo_requests.h"

#include "nic/engine.h"

namespace verbena::nic {

// Null: 64 threads ask at this moment.
UndoRequests::Place* UndoRequests::take_place() {
  for (Place& place : places_) {
    std::uint32_t free = kFree;
    if (place.state.compare_exchange_strong(free, kFilling, std::memory_order_acquire)) {
      return &place;
    }
  }
  return nullptr;
}

bool UndoRequests::wait(Place& place, Duration patience) {
  const Instant end = clock_now() + patience;
  for (;;) {
    std::uint32_t state = place.state.load(std::memory_order_acquire);
    if (state == kDone) break;
    if (state == kTaken) {
      futex_wait(place.state, kTaken, FutexScope::kProcess);
      continue;
    }
    const Instant now = clock_now();
    if (now < end) {
      futex_wait(place.state, kAsked, FutexScope::kProcess, end - now);
    } else if (place.state.compare_exchange_strong(state, kFree, std::memory_order_acq_rel)) {
      return false;
    }
  }
  const bool is_done = place.is_done;
  place.state.store(kFree, std::memory_order_release);
  return is_done;
}

}  // namespace verbena::nic
