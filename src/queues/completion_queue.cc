// SPDX-License-Identifier: MIT
#include "queues/completion_queue.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <utility>

#include "base/assert.h"

namespace verbena::queues {
namespace {

std::unique_ptr<std::byte[]> memory_for(std::uint32_t capacity) {
  return std::make_unique_for_overwrite<std::byte[]>(std::size_t{capacity} * sizeof(Completion));
}

}  // namespace

CompletionQueue::CompletionQueue(std::uint32_t capacity, CompletionEvents* events)
    : memory_(memory_for(capacity)), capacity_(capacity), events_(events) {
  VERBENA_ASSERT(capacity >= 1);
}

bool CompletionQueue::push(const Completion& completion, bool solicited) {
  std::unique_lock guard(lock_);
  const std::uint32_t count = count_.load(std::memory_order_relaxed);
  if (count == capacity() || is_overrun()) {
    const bool is_first = !overrun_.exchange(true, std::memory_order_relaxed);
    guard.unlock();
    if (is_first && events_) events_->overrun_event(*this);
    return false;
  }
  new (ring() + place_of(count)) Completion(completion);
  const bool tell = takes_event(completion, solicited);
  count_.store(count + 1, std::memory_order_release);
  guard.unlock();
  if (tell && events_) events_->completion_event(*this);
  return true;
}

bool CompletionQueue::takes_event(const Completion& completion, bool solicited) {
  if (armed_ == Arm::kNo) [[likely]]
    return false;
  const bool counts = armed_ == Arm::kNext || solicited || completion.status != Status::kSuccess;
  if (counts) armed_ = Arm::kNo;
  return counts;
}

std::size_t CompletionQueue::poll(std::span<Completion> out) {
  if (empty() || out.empty()) return 0;
  std::lock_guard guard(lock_);
  const std::uint32_t count = count_.load(std::memory_order_relaxed);
  const auto taken = static_cast<std::uint32_t>(std::min<std::size_t>(count, out.size()));
  copy_oldest(out.data(), taken);
  head_ = place_of(taken);
  set_count(count - taken);
  return taken;
}

void CompletionQueue::set_count(std::uint32_t count) {
  // An empty queue starts over at its first place: a program that keeps up stays in one cache line.
  if (count == 0) head_ = 0;
  count_.store(count, std::memory_order_release);
}

std::uint32_t CompletionQueue::place_of(std::uint32_t index) const {
  const std::uint64_t place = std::uint64_t{head_} + index;
  const std::uint32_t capacity = capacity_.load(std::memory_order_relaxed);
  return static_cast<std::uint32_t>(place < capacity ? place : place - capacity);
}

void CompletionQueue::copy_oldest(Completion* to, std::uint32_t count) {
  const std::uint32_t before_wrap = std::min(count, capacity() - head_);
  std::copy_n(ring() + head_, before_wrap, to);
  std::copy_n(ring(), count - before_wrap, to + before_wrap);
}

void CompletionQueue::arm(Arm what) {
  std::lock_guard guard(lock_);
  if (what == Arm::kSolicited && armed_ == Arm::kNext) return;
  armed_ = what;
}

void CompletionQueue::remove(QpNum qp) {
  std::lock_guard guard(lock_);
  const std::uint32_t count = count_.load(std::memory_order_relaxed);
  std::uint32_t kept = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    const Completion& completion = ring()[place_of(i)];
    if (completion.qp == qp) continue;
    if (kept != i) ring()[place_of(kept)] = completion;
    ++kept;
  }
  set_count(kept);
}

bool CompletionQueue::resize(std::uint32_t capacity) {
  if (capacity == 0) return false;
  std::unique_ptr<std::byte[]> memory = memory_for(capacity);
  // The old memory is freed after the lock is.
  std::lock_guard guard(lock_);
  const std::uint32_t count = count_.load(std::memory_order_relaxed);
  if (count > capacity) return false;
  copy_oldest(reinterpret_cast<Completion*>(memory.get()), count);
  std::swap(memory_, memory);
  head_ = 0;
  capacity_.store(capacity, std::memory_order_relaxed);
  return true;
}

}  // namespace verbena::queues
