// SPDX-License-Identifier: MIT
#include "base/biased_lock.h"

#include "base/far_fence.h"

namespace verbena {
namespace {

// Takes in a row before it has an owner again. Where threads take it in turn it has none.
constexpr unsigned kDoublings = 6;

}  // namespace

void BiasedLock::lock_for_all() noexcept {
  for_all_.lock();
  if (is_owned_) [[unlikely]]
    take_away();
}

bool BiasedLock::try_lock_for_all() noexcept {
  if (!for_all_.try_lock()) return false;
  if (!is_owned_) [[likely]]
    return true;
  if (inside_.load(std::memory_order_relaxed) != 0) {
    for_all_.unlock();
    return false;
  }
  take_away();
  return true;
}

void BiasedLock::take_away() noexcept {
  owner_.store(nullptr, std::memory_order_relaxed);
  near_fence();
  for (ShortWait wait; inside_.load(std::memory_order_acquire) != 0;)
    wait.pause();
  is_owned_ = false;
  times_ = 0;
  if (takes_away_ < kDoublings) ++takes_away_;
}

// Another thread than the first owner never becomes it: that one may still be about to look whether
// it is, with inside_ set, which would be seen as the other's.
void BiasedLock::unlock_for_all() noexcept {
  times_ = last_ == self() ? times_ + 1 : 1;
  last_ = self();
  const bool may_own = first_owner_ == nullptr || first_owner_ == self();
  if (times_ >= kTimesForOwner << takes_away_ && may_own && kMayHaveOwner &&
      has_joined_near_fences()) {
    first_owner_ = self();
    is_owned_ = true;
    owner_.store(self(), std::memory_order_relaxed);
  }
  for_all_.unlock();
}

}  // namespace verbena
