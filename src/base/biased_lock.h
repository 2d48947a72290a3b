// SPDX-License-Identifier: MIT
// A lock as ShortLock, which most of the time one thread takes: that one owns it after a while and
// then takes it by plain stores. A locked instruction waits for all stores before it, and keeps
// all loads behind it waiting; on the way of each message there are several.
//
// Whoever else wants it takes it away from its owner first: says so, makes a near fence
// (base/far_fence.h) on the owner's behalf, and waits until that one is outside. The same thread
// may own it again later. Where there are no such fences nobody owns it. Usable with
// std::lock_guard and std::unique_lock. Not recursive. Process-private.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/short_lock.h"

namespace verbena {

class BiasedLock {
 public:
  // So many times in a row by one thread; twice as many after each time that it was taken away.
  static constexpr std::uint32_t kTimesForOwner = 256;

  // Thread sanitizer knows nothing of such fences.
#if defined(__SANITIZE_THREAD__)
  static constexpr bool kMayHaveOwner = false;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
  static constexpr bool kMayHaveOwner = false;
#else
  static constexpr bool kMayHaveOwner = true;
#endif
#else
  static constexpr bool kMayHaveOwner = true;
#endif

  BiasedLock() = default;
  BiasedLock(const BiasedLock&) = delete;
  BiasedLock& operator=(const BiasedLock&) = delete;

  void lock() noexcept {
    if (!lock_as_owner()) [[unlikely]]
      lock_for_all();
  }
  bool try_lock() noexcept { return lock_as_owner() || try_lock_for_all(); }
  void unlock() noexcept {
    if (is_owned_) [[likely]] {
      unlock_as_owner();
    } else {
      unlock_for_all();
    }
  }
  // Only where the calling thread is its owner; ends with unlock_as_owner().
  bool lock_as_owner() noexcept {
    if (!is_owner()) [[unlikely]]
      return false;
    inside_.store(1, std::memory_order_relaxed);
    // Of the two, our store and our look, and those of whoever takes it away, its fence orders
    // both: at least one of us sees the other.
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (is_owner()) [[likely]]
      return true;
    inside_.store(0, std::memory_order_release);
    return false;
  }
  void unlock_as_owner() noexcept { inside_.store(0, std::memory_order_release); }
  // The calling thread takes it by plain stores.
  bool is_owner() const noexcept { return owner_.load(std::memory_order_relaxed) == self(); }

 private:
  using Thread = const void*;
  // One that begins after the owner has ended may be the same: then it is the owner.
  static Thread self() noexcept { return __builtin_thread_pointer(); }

  void lock_for_all() noexcept;
  bool try_lock_for_all() noexcept;
  void unlock_for_all() noexcept;
  void take_away() noexcept;

  std::atomic<Thread> owner_{nullptr};
  std::atomic<std::uint32_t> inside_{0};  // the owner is
  // With the lock; an owner that is inside keeps it from changing.
  bool is_owned_ = false;
  // The rest with for_all_.
  ShortLock for_all_;
  std::uint32_t times_ = 0;  // in a row, by last_
  Thread last_ = nullptr;
  Thread first_owner_ = nullptr;
  unsigned takes_away_ = 0;
};

}  // namespace verbena
