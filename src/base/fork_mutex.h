// SPDX-License-Identifier: MIT
// A mutex that is held over fork(2), so that the child finds what it guards whole and can take it:
// its last three functions are for pthread_atfork(3). The handler of a signal may fork amid a call
// that has the mutex. It would wait for itself, so the child finds half a change then; and in any
// case the mutex is free there.
#pragma once

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <memory>

#include "base/mutex.h"

namespace verbena {

class ForkMutex {
 public:
  constexpr ForkMutex() = default;
  ForkMutex(const ForkMutex&) = delete;
  ForkMutex& operator=(const ForkMutex&) = delete;

  void lock() noexcept {
    within = within + 1;  // first: a signal may come between both
    std::atomic_signal_fence(std::memory_order_seq_cst);
    lock_.lock();
  }
  void unlock() noexcept {
    lock_.unlock();
    std::atomic_signal_fence(std::memory_order_seq_cst);
    within = within - 1;
  }

  void before_fork() {
    if (within > 0) return;
    constexpr int kTries = 10'000;  // some milliseconds: others have it for less
    for (int i = 0; !lock_.try_lock(); ++i) {
      if (i == kTries) return;
      sched_yield();
    }
    forker_.store(pthread_self(), std::memory_order_relaxed);
  }
  void after_in_parent() {
    pthread_t self = pthread_self();
    if (forker_.compare_exchange_strong(self, pthread_t{}, std::memory_order_relaxed))
      lock_.unlock();
  }
  void after_in_child() {
    forker_.store(pthread_t{}, std::memory_order_relaxed);
    std::construct_at(&lock_);
  }

 private:
  Mutex lock_;
  std::atomic<pthread_t> forker_{};  // who has it over a fork
  // How many of them this thread is about to take, or has.
  static inline constinit thread_local volatile int within = 0;
};

}  // namespace verbena
