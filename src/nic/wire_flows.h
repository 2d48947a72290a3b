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
  // Whether the sender of the last such packet counts identifications from packet to packet.
  bool counts_on() const { return last_ && last_->counts_on; }

 private:
  struct Entry {
    explicit Entry(const wire::Flow& which) : flow(which), icrc(which) {}
    wire::Flow flow;
    wire::FlowIcrc icrc;
    std::uint16_t last_id = 0;
    bool counts_on = false;
  };
  Entry& entry_of(const wire::Flow& flow);

  static constexpr std::size_t kEntries = 256;  // flows share them
  std::array<std::optional<Entry>, kEntries> entries_;
  Entry* last_ = nullptr;  // the place that served last, whose flow may be another by now
};

}  // namespace verbena::nic
