// SPDX-License-Identifier: MIT
// Packets that came before their turn, and wait for it. Bounded: what lies too far ahead is not
// kept. Its memory comes with the first packet that waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "wire/packet.h"

namespace verbena::roce {

class ReorderBuffer {
 public:
  // `packets` is rounded up to a power of two; 0: keeps nothing.
  ReorderBuffer(std::uint32_t packets, std::uint32_t path_mtu);

  // A copy of what came `ahead` of the expected one. False: there is no room that far ahead, or it
  // is longer than a packet can be.
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
  std::size_t place_of(wire::Psn psn) const { return psn.value() & mask_; }

  std::uint32_t room_;
  std::uint32_t mask_;
  std::uint32_t path_mtu_;
  std::uint32_t count_ = 0;
  std::unique_ptr<Slot[]> slots_;
  std::unique_ptr<std::byte[]> payloads_;
};

}  // namespace verbena::roce
