// SPDX-License-Identifier: MIT
#include "queues/receive_queue.h"

#include <bit>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/assert.h"

namespace verbena::queues {
namespace {

std::uint32_t places_for(std::uint32_t depth) {
  VERBENA_ASSERT(depth <= 1u << 31);
  return std::bit_ceil(depth);
}

}  // namespace

ReceiveQueue::ReceiveQueue(std::uint32_t depth, std::uint32_t sge_max, ReceiveQueueEvents* events,
                           Takers takers)
    : takers_(takers),
      sge_max_(sge_max),
      stride_(sizeof(Slot) + sge_max * sizeof(Sge)),
      mask_(places_for(depth) - 1),
      memory_(memory_for(depth)),
      depth_(depth),
      events_(events) {
  VERBENA_ASSERT(sge_max <= kReceiveSgeMax);
}

std::unique_ptr<std::byte[]> ReceiveQueue::memory_for(std::uint32_t depth) const {
  return std::make_unique_for_overwrite<std::byte[]>(places_for(depth) * stride_);
}

void ReceiveQueue::wait_for_posts() { const std::lock_guard guard(lock_); }

bool ReceiveQueue::take_shared(Receive& out) {
  // Without the lock when there is nothing to find and nothing to say.
  if (waiting() == 0 && limit() == 0) return false;
  std::unique_lock guard(lock_);
  const bool found = take_oldest(out);
  const bool tell = limit_fires(waiting());
  guard.unlock();
  if (tell && events_) events_->limit_reached();
  return found;
}

bool ReceiveQueue::limit_fires(std::uint32_t left) {
  if (left >= limit()) [[likely]]
    return false;
  limit_.store(0, std::memory_order_relaxed);
  return true;
}

void ReceiveQueue::reset() {
  const std::lock_guard guard(lock_);
  taken_.store(posted_.load(std::memory_order_relaxed), std::memory_order_release);
  limit_.store(0, std::memory_order_relaxed);
}

bool ReceiveQueue::set_limit(std::uint32_t limit) {
  const std::lock_guard guard(lock_);
  if (limit > depth()) return false;
  limit_.store(limit, std::memory_order_relaxed);
  return true;
}

bool ReceiveQueue::resize(std::uint32_t depth) {
  VERBENA_ASSERT(takers_ == Takers::kMany);
  std::unique_ptr<std::byte[]> memory = memory_for(depth);
  // The old memory is freed after the lock is.
  const std::lock_guard guard(lock_);
  const std::uint32_t count = waiting();
  if (count > depth || limit() > depth) return false;
  const std::uint32_t oldest = taken_.load(std::memory_order_relaxed);
  for (std::uint32_t i = 0; i < count; ++i)
    std::memcpy(memory.get() + i * stride_, place_of(oldest + i), stride_);
  std::swap(memory_, memory);
  mask_ = places_for(depth) - 1;
  taken_.store(0, std::memory_order_relaxed);
  posted_.store(count, std::memory_order_release);
  depth_.store(depth, std::memory_order_relaxed);
  return true;
}

}  // namespace verbena::queues
