// SPDX-License-Identifier: MIT
#include "roce/rc_engine.h"

#include <algorithm>

#include "roce/admission.h"

namespace verbena::roce {

RcEngine::RcEngine(const Settings& settings, Wire& wire, Congestion* congestion)
    : settings_(settings),
      congestion_(congestion),
      requester_(settings, wire, congestion),
      responder_(settings, wire),
      notifier_(settings_, wire) {}

void RcEngine::receive(const wire::Packet& packet, const Arrival& arrival, qp::SendWindow& window,
                       qp::Responder& responder, const Now& now) {
  switch (admit(packet, arrival, settings_, wire::Service::kRc, counters_)) {
    case Admission::kDropped: return;
    case Admission::kNotification:
      if (congestion_) congestion_->notified(now);
      return;
    case Admission::kAdmitted: break;
  }
  notifier_.arrived(arrival, counters_, now);
  if (packet.shape->is_response) return requester_.receive(packet, window, now);
  responder_.receive(packet, responder, now);
}

void RcEngine::receive_broken(const wire::Head& bth, wire::Malformed why,
                              qp::Responder& responder) {
  if (bth.opcode.service() != wire::Service::kRc || !wire::deserves_nak(why)) return;
  const wire::OpcodeShape& shape = wire::shape_of(bth.opcode);
  if (shape.is_defined && shape.is_response) return;
  responder_.receive_broken(bth.psn, responder);
}

std::optional<Instant> RcEngine::next_deadline() const {
  const auto one = requester_.next_deadline();
  const auto other = responder_.next_deadline();
  if (one && other) return std::min(*one, *other);
  return one ? one : other;
}

}  // namespace verbena::roce
