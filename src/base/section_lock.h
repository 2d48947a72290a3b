// SPDX-License-Identifier: MIT
// A lock whose holding others can see, also from another process: an access section. Who takes
// something away that is used under such locks marks it first, then waits until every section that
// was open at that time has ended; what opens later sees the mark. So the users pay for the lock
// and nothing more: one locked instruction takes it and is the fence between the section's
// beginning and the look at the mark; a plain store gives it back.
//
// The word counts: odd while held, so that a watcher knows a new holding from the one it waits for.
// Usable with std::lock_guard and std::unique_lock. Not recursive. Locked by the threads of one
// process; watched by any that has the memory, which may be mapped read-only there.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/fence.h"

namespace verbena {

class SectionLock {
 public:
  SectionLock() = default;
  SectionLock(const SectionLock&) = delete;
  SectionLock& operator=(const SectionLock&) = delete;

  void lock() noexcept {
    if (!try_lock()) [[unlikely]]
      lock_contended();
  }
  bool try_lock() noexcept {
    std::uint32_t free = word_.load(std::memory_order_relaxed) & ~kHeld;
    if (!word_.compare_exchange_strong(free, free | kHeld, std::memory_order_seq_cst)) [[unlikely]]
      return false;
#if !defined(__x86_64__)
    full_fence();  // a compare-and-swap is no fence for later loads everywhere
#endif
    return true;
  }
  void unlock() noexcept {
    word_.store(word_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    // A sleeper that counts itself just now is missed, and looks again by itself.
    if (sleepers_.load(std::memory_order_relaxed) != 0) [[unlikely]]
      wake_one();
  }

  // For watchers: a full fence stands between their mark and begin().
  class Watch {
   public:
    explicit Watch(const SectionLock& lock)
        : word_(&lock.word_), seen_(lock.word_.load(std::memory_order_seq_cst)) {}
    // The section that was open then, if any, has ended.
    bool is_over() const {
      return !(seen_ & kHeld) || word_->load(std::memory_order_acquire) != seen_;
    }

   private:
    const std::atomic<std::uint32_t>* word_;
    std::uint32_t seen_;
  };

 private:
  static constexpr std::uint32_t kHeld = 1;
  void lock_contended() noexcept;
  void wake_one() noexcept;

  std::atomic<std::uint32_t> word_{0};
  std::atomic<std::uint32_t> sleepers_{0};
};

}  // namespace verbena
