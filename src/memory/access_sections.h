// SPDX-License-Identifier: MIT
// Who may be touching registered memory. Every touch happens inside an access section, which is the
// holding of a SectionLock (a queue pair's), and is of bounded length.
#pragma once

#include <sched.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "base/fence.h"
#include "base/mutex.h"
#include "base/section_lock.h"

namespace verbena::memory {

class AccessSections {
 public:
  // Returns when every section that was open at the call has ended. The caller has marked what it
  // takes away before, and is in no section itself.
  virtual void wait_until_left() = 0;

 protected:
  ~AccessSections() = default;
};

// Spins a little, a section is usually over within a microsecond, then lets others have the core.
inline void wait_until_over(const SectionLock::Watch& watch) {
  constexpr int kSpins = 1000;
  for (int i = 0; !watch.is_over(); ++i) {
    if (i < kSpins) {
      spin_pause();
    } else {
      sched_yield();
    }
  }
}

// The sections of a list of locks.
class SectionList final : public AccessSections {
 public:
  void add(const SectionLock& lock) {
    const std::lock_guard guard(lock_);
    locks_.push_back(&lock);
  }
  void remove(const SectionLock& lock) {
    const std::lock_guard guard(lock_);
    std::erase(locks_, &lock);
  }
  void wait_until_left() override {
    full_fence();
    const std::lock_guard guard(lock_);
    for (const SectionLock* lock : locks_)
      wait_until_over(SectionLock::Watch(*lock));
  }

 private:
  Mutex lock_;
  std::vector<const SectionLock*> locks_;
};

}  // namespace verbena::memory
