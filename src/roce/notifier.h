// SPDX-License-Identifier: MIT
// Tells the sender that its packets were marked on their way: a CNP, not too often (A17.9.3).
#pragma once

#include <optional>

#include "roce/engine.h"

namespace verbena::roce {

class Notifier {
 public:
  Notifier(const Settings& settings, Wire& wire) : settings_(settings), wire_(wire) {}

  void arrived(const Arrival& arrival, EngineCounters& counters, const Now& now) {
    if (arrival.is_congested()) [[unlikely]]
      notify(counters, now);
  }

 private:
  [[gnu::cold]] void notify(EngineCounters& counters, const Now& now) {
    if (last_ && now < *last_ + settings_.cnp_interval) return;
    Outgoing packet;
    packet.head.opcode = wire::kCnp;
    packet.head.becn = true;
    packet.head.pkey = settings_.pkey;
    packet.head.dest_qp = settings_.peer;
    const auto sent =
        wire_.transmit(packet, settings_.path, [](std::span<std::byte>) { return true; });
    if (sent != Wire::Sent::kSent) return;
    last_ = Instant(now);
    ++counters.notifications_sent;
  }

  const Settings& settings_;
  Wire& wire_;
  std::optional<Instant> last_;
};

}  // namespace verbena::roce
