// SPDX-License-Identifier: MIT
// How a thread of the program asks the control thread to make adopted memory private, and waits:
// without the heap, and without a lock that anybody holds while it uses the heap. The thread may be
// inside its allocator and hold the heap's lock.
//
//   kFree ─► kFilling ─► kAsked ─► kTaken ─► kDone ─► kFree
//                          └─► kFree  the control thread did not come in time: it may itself be
//                                     waiting for the heap
//
// Once it is taken the asker waits for the end, whatever it takes: memory must not change under the
// control thread's hands, and that needs nothing that the asker could hold.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/futex.h"
#include "base/time.h"

namespace verbena::nic {

class UndoRequests {
 public:
  // `wake()` makes the control thread call serve(). False: it was not done, or not in time.
  template <class Wake>
  bool ask(const std::byte* address, std::size_t length, Duration patience, Wake wake) {
    Place* const place = take_place();
    if (!place) return false;
    place->address = address;
    place->length = length;
    place->state.store(kAsked, std::memory_order_seq_cst);
    if (!wake()) patience = Duration();
    return wait(*place, patience);
  }

  // The control thread. `undo(address, length)` gives whether it is done.
  template <class Undo>
  void serve(Undo undo) {
    for (Place& place : places_) {
      std::uint32_t asked = kAsked;
      if (!place.state.compare_exchange_strong(asked, kTaken, std::memory_order_acquire)) continue;
      place.is_done = undo(place.address, place.length);
      place.state.store(kDone, std::memory_order_release);
      futex_wake(place.state, 1, FutexScope::kProcess);
    }
  }

 private:
  enum State : std::uint32_t { kFree, kFilling, kAsked, kTaken, kDone };
  struct alignas(64) Place {
    std::atomic<std::uint32_t> state{kFree};
    bool is_done = false;
    const std::byte* address = nullptr;
    std::size_t length = 0;
  };

  Place* take_place();
  static bool wait(Place& place, Duration patience);

  std::array<Place, 64> places_;
};

}  // namespace verbena::nic
