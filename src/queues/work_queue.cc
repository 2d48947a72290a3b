// SPDX-License-Identifier: MIT
#include "queues/work_queue.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <new>

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

std::uint32_t* zeros(std::uint32_t count) {
  auto* const made = static_cast<std::uint32_t*>(std::calloc(std::max(count, 1u), sizeof count));
  // check: allow throw: because it stands for operator new, whose zeros are all touched at once
  if (!made) throw std::bad_alloc();
  return made;
}

std::byte* align(std::byte* start) {
  const auto address = reinterpret_cast<std::uintptr_t>(start);
  return start + (kWqeAlign - address % kWqeAlign) % kWqeAlign;
}

}  // namespace

std::uint32_t SendQueue::inline_room(std::uint32_t sge_max, std::uint32_t inline_max) {
  return static_cast<std::uint32_t>(stride_for(sge_max, inline_max) - sizeof(SendWqe));
}

SendQueue::SendQueue(std::uint32_t depth, std::uint32_t sge_max, std::uint32_t inline_max)
    : depth_(depth_for(depth)),
      mask_(depth_ == 0 ? 0 : depth_ - 1),
      sge_max_(sge_max),
      inline_max_(inline_max),
      stride_(stride_for(sge_max, inline_max)),
      memory_(std::make_unique_for_overwrite<std::byte[]>(depth_ * stride_ + kWqeAlign)),
      completed_at_(zeros(depth_)),
      base_(align(memory_.get())) {}

void SendQueue::reset(std::uint32_t first) {
  if (posted_ != 0) std::memset(completed_at_.get(), 0, depth_ * sizeof completed_at_[0]);
  posted_ = freed_ = first;
}

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
  if (copy.opcode > static_cast<std::uint8_t>(SendOpcode::kBindWindow)) return false;
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

std::uint64_t SendQueue::payload_length(const SendWqe& wqe) {
  std::uint64_t length = wqe.flags & kInline ? wqe.inline_length : 0;
  for (const Sge& sge : sges(wqe))
    length += sge.length;
  return length;
}

void SendQueue::free_upto(std::uint32_t index) {
  VERBENA_ASSERT(index - freed_ <= used());
  freed_ = index;
}

}  // namespace verbena::queues
