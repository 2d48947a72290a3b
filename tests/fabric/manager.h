// SPDX-License-Identifier: MIT
// The connection manager of a node: what src/cm says goes to queue pair 1 of the other node, over
// the same network as everything else, and meets the same faults.
#pragma once

#include <cstdint>
#include <optional>

#include "cm/engine.h"
#include "wire/packet.h"

namespace verbena::fabric {

class Node;
class World;

inline constexpr QpNum kManagementQp{1};
inline constexpr std::uint64_t kServiceId = 0x1064A39;

class Manager {
 public:
  Manager(World& world, Node& home);

  void receive(const wire::Packet& packet, unsigned from);
  // Sends what is to be sent, tells the program what has happened, and looks for its next deadline.
  void pump();
  cm::Route route_to(unsigned node) const;

 private:
  void send(const cm::Mad& mad);
  void schedule();

  World& world_;
  Node& home_;

 public:
  cm::Engine engine;

 private:
  std::uint32_t next_psn_ = 0;
  std::optional<Instant> wake_;
};

}  // namespace verbena::fabric
