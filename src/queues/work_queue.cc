// SPDX-License-Identifier: MIT
#include "queues/work_queue.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "base/assert.h"

namespace verbena::queues {
namespace {

std::size_t stride_for(std::uint32_t sge_max, std::uint32_t inline_max) {
  const std::size_t payload = std::max<std::size_t>(sge_max * sizeof(Sge), inline_max);
  return (sizeof(SendWqe) + payload + kWqeAlign - 1) / kWqeAlign * kWqeAlign;
}

std::uint32_t depth_for(std::uint32_t wanted) {
  VERBENA_ASSERT(wanted <= 1u << 31);
  return wanted == 0 ? 0 : std::bit_ceil(wanted);
}

std::byte* align(std::byte* start) {
  const auto address = reinterpret_cast<std::uintptr_t>(start);
  return start + (kWqeAlign - address % kWqeAlign) % kWqeAlign;
}

}  // namespace

SendQueue::SendQueue(std::uint32_t depth, std::uint32_t sge_max, std::uint32_t inline_max)
    : depth_(depth_for(depth)),
      sge_max_(sge_max),
      inline_max_(inline_max),
      stride_(stride_for(sge_max, inline_max)),
      memory_(std::make_unique_for_overwrite<std::byte[]>(depth_ * stride_ + kWqeAlign)),
      base_(align(memory_.get())) {}

SendWqe* SendQueue::place_of(std::uint32_t index) const {
  return reinterpret_cast<SendWqe*>(base_ + (index & (depth_ - 1)) * stride_);
}

SendWqe* SendQueue::room() { return used() < depth_ ? place_of(posted_) : nullptr; }

const SendWqe& SendQueue::at(std::uint32_t index) const {
  VERBENA_ASSERT(index - freed_ < used());
  return *place_of(index);
}

bool SendQueue::snapshot(std::uint32_t index, std::span<std::byte> to) const {
  VERBENA_ASSERT(to.size() >= stride_);
  std::memcpy(to.data(), &at(index), sizeof(SendWqe));
  // What is checked below is what was copied: the compiler may not look at the original again.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  const auto& copy = *reinterpret_cast<const SendWqe*>(to.data());
  if (copy.opcode > static_cast<std::uint8_t>(SendOpcode::kLocalInvalidate)) return false;
  const bool is_inline = copy.flags & kInline;
  if (is_inline ? copy.inline_length > inline_max_ : copy.sge_count > sge_max_) return false;
  const std::size_t payload = is_inline ? copy.inline_length : copy.sge_count * sizeof(Sge);
  std::memcpy(to.data() + sizeof(SendWqe), place_of(index) + 1, payload);
  return true;
}

std::span<const Sge> SendQueue::sges(const SendWqe& wqe) {
  if (wqe.flags & kInline) return {};
  return {reinterpret_cast<const Sge*>(&wqe + 1), wqe.sge_count};
}

std::span<const std::byte> SendQueue::inline_payload(const SendWqe& wqe) {
  if (!(wqe.flags & kInline)) return {};
  return {reinterpret_cast<const std::byte*>(&wqe + 1), wqe.inline_length};
}

void SendQueue::free_upto(std::uint32_t index) {
  VERBENA_ASSERT(index - freed_ <= used());
  freed_ = index;
}

std::uint64_t Receive::room() const {
  std::uint64_t bytes = 0;
  for (const Sge& sge : list())
    bytes += sge.length;
  return bytes;
}

struct ReceiveQueue::Slot {
  std::uint64_t wr_id;
  std::uint64_t sge_count;
  Sge* sges() { return reinterpret_cast<Sge*>(this + 1); }
};

ReceiveQueue::ReceiveQueue(std::uint32_t depth, std::uint32_t sge_max, ReceiveQueueEvents* events)
    : depth_(depth), sge_max_(sge_max), memory_(memory_for(depth)), events_(events) {
  VERBENA_ASSERT(sge_max <= kReceiveSgeMax);
}

std::size_t ReceiveQueue::stride() const { return sizeof(Slot) + sge_max_ * sizeof(Sge); }

std::unique_ptr<std::byte[]> ReceiveQueue::memory_for(std::uint32_t depth) const {
  return std::make_unique_for_overwrite<std::byte[]>(depth * stride());
}

ReceiveQueue::Slot* ReceiveQueue::place_of(std::uint32_t index) const {
  const std::uint64_t place = std::uint64_t{head_} + index;
  return reinterpret_cast<Slot*>(memory_.get() +
                                 (place < depth() ? place : place - depth()) * stride());
}

std::optional<ReceiveQueue::PostError> ReceiveQueue::post(std::uint64_t wr_id,
                                                          std::span<const Sge> sges) {
  if (sges.size() > sge_max_) return PostError::kTooManySges;
  std::lock_guard guard(lock_);
  const std::uint32_t count = count_.load(std::memory_order_relaxed);
  if (count == depth()) return PostError::kFull;
  Slot* slot = new (place_of(count)) Slot{wr_id, sges.size()};
  std::copy(sges.begin(), sges.end(), slot->sges());
  count_.store(count + 1, std::memory_order_release);
  return std::nullopt;
}

bool ReceiveQueue::take(Receive& out) {
  // Without the lock when there is nothing to find and nothing to say.
  if (waiting() == 0 && limit() == 0) return false;
  std::unique_lock guard(lock_);
  std::uint32_t count = count_.load(std::memory_order_relaxed);
  const bool found = count > 0;
  if (found) {
    Slot* slot = place_of(0);
    out.wr_id = slot->wr_id;
    out.sge_count = static_cast<std::uint32_t>(slot->sge_count);
    std::copy_n(slot->sges(), slot->sge_count, out.sges);
    --count;
    head_ = head_ + 1 == depth() ? 0 : head_ + 1;
    count_.store(count, std::memory_order_release);
  }
  const bool tell = limit_fires(count);
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
  std::lock_guard guard(lock_);
  head_ = 0;
  count_.store(0, std::memory_order_release);
  limit_.store(0, std::memory_order_relaxed);
}

bool ReceiveQueue::set_limit(std::uint32_t limit) {
  std::lock_guard guard(lock_);
  if (limit > depth()) return false;
  limit_.store(limit, std::memory_order_relaxed);
  return true;
}

bool ReceiveQueue::resize(std::uint32_t depth) {
  std::unique_ptr<std::byte[]> memory = memory_for(depth);
  // The old memory is freed after the lock is.
  std::lock_guard guard(lock_);
  const std::uint32_t count = count_.load(std::memory_order_relaxed);
  if (count > depth || limit() > depth) return false;
  for (std::uint32_t i = 0; i < count; ++i) {
    std::memcpy(memory.get() + i * stride(), place_of(i), stride());
  }
  std::swap(memory_, memory);
  head_ = 0;
  depth_.store(depth, std::memory_order_relaxed);
  return true;
}

}  // namespace verbena::queues
