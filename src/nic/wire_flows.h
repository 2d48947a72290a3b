// SPDX-License-Identifier: MIT
// ICRCs of what comes, by flow. Which IPv4 id a packet had is guessed: our own kind counts the
// packets of a train from 0, the kernel's rxe counts on and on. For one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "port/port.h"
#include "wire/icrc.h"

namespace verbena::nic {

class WireFlows {
 public:
  static wire::Flow flow_of(const port::Received& packet) {
    return {.source = packet.from, .destination = packet.to, .source_port = packet.source_port};
  }

  // Whether the packet is what its sender sent.
  bool is_intact(const port::Received& packet);
  // The same for those who find out as they copy, and then note() what they found of the last one.
  wire::Unverified unverified(const port::Received& first, std::span<const std::byte> all);
  void note(const port::Received& packet, const wire::Verified& verified);
  // Whether the sender of the last such packet counts identifications from packet to packet.
  bool counts_on() const { return last_ && last_->counts_on; }

 private:
  struct Entry {
    explicit Entry(const wire::Flow& which) : flow(which), icrc(which) {}
    std::uint16_t guess(const port::Received& packet) const {
      return counts_on ? static_cast<std::uint16_t>(last_id + 1) : packet.segment;
    }
    wire::Flow flow;
    wire::FlowIcrc icrc;
    std::uint16_t last_id = 0;
    bool counts_on = false;
  };
  static bool is_of(const port::Received& packet, const wire::Flow& flow) {
    return packet.source_port == flow.source_port && packet.from == flow.source &&
           packet.to == flow.destination;
  }
  Entry& entry_of(const port::Received& packet);
  Entry& find(const wire::Flow& flow);

  static constexpr std::size_t kEntries = 256;  // flows share them
  std::array<std::optional<Entry>, kEntries> entries_;
  Entry* last_ = nullptr;  // the place that served last, whose flow may be another by now
};

}  // namespace verbena::nic
