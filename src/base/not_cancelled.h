// SPDX-License-Identifier: MIT
// Where programs cancel threads (pthread_cancel(3)) that are in a call of ours: not while this
// lives. This code has no exceptions, so that no destructor would run, and a lock would stay held.
#pragma once

#include <pthread.h>

#include <mutex>

namespace verbena {

class NotCancelled {
 public:
  NotCancelled() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  NotCancelled(const NotCancelled&) = delete;
  NotCancelled& operator=(const NotCancelled&) = delete;
  ~NotCancelled() { pthread_setcancelstate(before_, nullptr); }

 private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

// As std::lock_guard.
template <class Lock>
class UncancelledGuard {
 public:
  explicit UncancelledGuard(Lock& lock) : guard_(lock) {}

 private:
  const NotCancelled until_unlocked_;
  const std::lock_guard<Lock> guard_;
};

}  // namespace verbena
