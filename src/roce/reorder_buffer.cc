// SPDX-License-Identifier: MIT
#include "roce/reorder_buffer.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

namespace verbena::roce {

ReorderBuffer::ReorderBuffer(std::uint32_t packets, std::uint32_t path_mtu, ReorderBudget* budget)
    : room_(packets == 0 ? 0 : std::bit_ceil(packets)),
      mask_(std::max(1u, room_) - 1),
      path_mtu_(path_mtu),
      budget_(budget) {}

bool ReorderBuffer::take_memory() {
  if (slots_) return true;
  if (budget_ && !budget_->take(bytes())) return false;
  // A packet may ask for it, so there may be none.
  slots_.reset(new (std::nothrow) Slot[room_]);
  payloads_.reset(new (std::nothrow) std::byte[std::size_t{room_} * path_mtu_]);
  if (slots_ && payloads_) return true;
  slots_.reset();
  payloads_.reset();
  if (budget_) budget_->give_back(bytes());
  return false;
}

void ReorderBuffer::drop_memory() {
  if (!slots_) return;
  slots_.reset();
  payloads_.reset();
  if (budget_) budget_->give_back(bytes());
}

bool ReorderBuffer::keep(const wire::Packet& packet, std::uint32_t ahead) {
  if (ahead >= room_ || packet.payload.size() > path_mtu_) return false;
  if (!take_memory()) return false;
  Slot& slot = slots_[place_of(packet.psn)];
  if (slot.is_used && slot.packet.psn == packet.psn) return true;
  std::byte* const payload = payloads_.get() + place_of(packet.psn) * path_mtu_;
  if (!packet.payload.empty()) std::memcpy(payload, packet.payload.data(), packet.payload.size());
  slot.packet = packet;
  slot.packet.payload = {payload, packet.payload.size()};
  count_ += slot.is_used ? 0 : 1;
  slot.is_used = true;
  return true;
}

const wire::Packet* ReorderBuffer::find(wire::Psn psn) const {
  if (count_ == 0) return nullptr;
  const Slot& slot = slots_[place_of(psn)];
  return slot.is_used && slot.packet.psn == psn ? &slot.packet : nullptr;
}

void ReorderBuffer::release(wire::Psn psn) {
  Slot& slot = slots_[place_of(psn)];
  if (!slot.is_used || slot.packet.psn != psn) return;
  slot.is_used = false;
  --count_;
  if (count_ == 0 && budget_ && budget_->is_short()) drop_memory();
}

void ReorderBuffer::clear() {
  for (std::uint32_t i = 0; count_ != 0 && i < room_; ++i) {
    count_ -= slots_[i].is_used ? 1 : 0;
    slots_[i].is_used = false;
  }
  if (budget_ && budget_->is_short()) drop_memory();
}

}  // namespace verbena::roce
