// SPDX-License-Identifier: MIT
// What every packet of a connection is held against before it is looked at (IBTA vol 1, 9.6.1.1,
// 9.6.1.2, 9.6.1.5): drop in silence what is not from the peer and not for this service.
#pragma once

#include "roce/engine.h"

namespace verbena::roce {

enum class Admission : std::uint8_t { kAdmitted, kNotification, kDropped };

// Full members talk to all, limited ones to full ones only (10.9.3).
constexpr bool pkeys_match(std::uint16_t a, std::uint16_t b) {
  constexpr unsigned kNumber = 0x7FFF;
  constexpr unsigned kFullMember = 0x8000;
  return ((a ^ b) & kNumber) == 0 && ((a | b) & kFullMember) != 0;
}

inline Admission admit(const wire::Head& packet, const Arrival& arrival, const Settings& settings,
                       wire::Service service, EngineCounters& counters) {
  const bool is_connected = service != wire::Service::kUd;
  if (is_connected && arrival.ip.flow.source != settings.path.destination) [[unlikely]] {
    ++counters.other_sender;
    return Admission::kDropped;
  }
  if (packet.opcode == wire::kCnp && is_connected) [[unlikely]] {
    ++counters.notifications;
    return Admission::kNotification;
  }
  if (packet.opcode.service() != service) [[unlikely]] {
    ++counters.other_service;
    return Admission::kDropped;
  }
  if (!pkeys_match(packet.pkey, settings.pkey)) [[unlikely]] {
    ++counters.other_pkey;
    return Admission::kDropped;
  }
  return Admission::kAdmitted;
}

}  // namespace verbena::roce
