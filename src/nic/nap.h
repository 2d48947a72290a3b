// SPDX-License-Identifier: MIT
// The short sleep of a thread of ours that leaves its work to whoever polls. Who knows that nobody
// will poll for a while ends it at once.
//
// The sleeper calls begin(), looks whether it may nap, and then sleep() or stay_awake(). Whoever
// wants it stores first what that look finds, and calls end_if_napping(); so one of the two sees
// the other (Dekker).
#pragma once

#include <atomic>
#include <cstdint>

#include "base/futex.h"
#include "base/time.h"

namespace verbena::nic {

class Nap {
 public:
  // -- the sleeper
  void begin() {
    ends_seen_ = ends_.load(std::memory_order_relaxed);
    is_napping_.store(true, std::memory_order_seq_cst);
  }
  void stay_awake() { is_napping_.store(false, std::memory_order_relaxed); }
  // True when somebody ended it, since begin().
  bool sleep(Duration limit) {
    futex_wait(ends_, ends_seen_, FutexScope::kProcess, limit);
    stay_awake();
    return ends_.load(std::memory_order_acquire) != ends_seen_;
  }

  // -- anybody
  bool is_napping() const { return is_napping_.load(std::memory_order_relaxed); }
  void end() {
    ends_.fetch_add(1, std::memory_order_release);
    futex_wake(ends_, 1, FutexScope::kProcess);
  }
  void end_if_napping() {
    if (is_napping_.load(std::memory_order_seq_cst)) end();
  }

 private:
  std::atomic<std::uint32_t> ends_{0};  // a futex
  std::atomic<bool> is_napping_{false};
  std::uint32_t ends_seen_ = 0;  // the sleeper's
};

}  // namespace verbena::nic
