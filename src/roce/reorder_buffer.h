// SPDX-License-Identifier: MIT
// Packets that came before their turn, and wait for it. Bounded: what lies too far ahead is not
// kept. Its memory comes with the first packet that waits, and out of a budget of all that share
// one; where that is short it goes when nothing waits any more.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "wire/packet.h"

namespace verbena::roce {

// Any thread.
class ReorderBudget {
 public:
  explicit ReorderBudget(std::size_t bytes) : most_(bytes), left_(bytes) {}
  bool take(std::size_t bytes) {
    std::size_t left = left_.load(std::memory_order_relaxed);
    do {
      if (left < bytes) return false;
    } while (!left_.compare_exchange_weak(left, left - bytes, std::memory_order_relaxed));
    return true;
  }
  void give_back(std::size_t bytes) { left_.fetch_add(bytes, std::memory_order_relaxed); }
  bool is_short() const { return left_.load(std::memory_order_relaxed) < most_ / 2; }
  std::size_t left() const { return left_.load(std::memory_order_relaxed); }

 private:
  const std::size_t most_;
  std::atomic<std::size_t> left_;
};

class ReorderBuffer {
 public:
  // `packets` is rounded up to a power of two; 0: keeps nothing. `budget`: null for none.
  ReorderBuffer(std::uint32_t packets, std::uint32_t path_mtu, ReorderBudget* budget = nullptr);
  ~ReorderBuffer() { drop_memory(); }
  ReorderBuffer(const ReorderBuffer&) = delete;
  ReorderBuffer& operator=(const ReorderBuffer&) = delete;

  // A copy of what came `ahead` of the expected one. False: there is no room that far ahead, or it
  // is longer than a packet can be, or there is no memory.
  bool keep(const wire::Packet& packet, std::uint32_t ahead);
  bool has(wire::Psn psn) const { return count_ != 0 && find(psn) != nullptr; }
  // Null: it is not here. Good until release().
  const wire::Packet* find(wire::Psn psn) const;
  void release(wire::Psn psn);
  void clear();
  bool is_empty() const { return count_ == 0; }
  std::uint32_t count() const { return count_; }

 private:
  struct Slot {
    bool is_used = false;
    wire::Packet packet;
  };
  std::size_t bytes() const { return room_ * (sizeof(Slot) + path_mtu_); }
  bool take_memory();
  void drop_memory();
  std::size_t place_of(wire::Psn psn) const { return psn.value() & mask_; }

  std::uint32_t room_;
  std::uint32_t mask_;
  std::uint32_t path_mtu_;
  ReorderBudget* budget_;
  std::uint32_t count_ = 0;
  std::unique_ptr<Slot[]> slots_;
  std::unique_ptr<std::byte[]> payloads_;
};

}  // namespace verbena::roce
