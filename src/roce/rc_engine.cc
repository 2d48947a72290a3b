// SPDX-License-Identifier: MIT
#include "roce/rc_engine.h"

#include <algorithm>

#include "roce/admission.h"

namespace verbena::roce {

namespace {

Agreement::State first_state(const Settings& settings) {
  if (settings.selective) return Agreement::State::kAgreed;
  return settings.asks_for_agreement ? Agreement::State::kAsking : Agreement::State::kOff;
}

}  // namespace

RcEngine::RcEngine(const Settings& settings, Wire& wire, Congestion* congestion,
                   Congestion* when_agreed)
    : settings_(settings),
      congestion_(congestion),
      when_agreed_(when_agreed),
      agreement_(first_state(settings)),
      requester_(settings, wire, congestion, agreement_),
      responder_(settings, wire, agreement_),
      notifier_(settings_, wire) {
  if (agreement_.is_agreed()) agree();
}

void RcEngine::agree() {
  if (!when_agreed_) return;
  congestion_ = when_agreed_;
  requester_.set_congestion(when_agreed_);
}

void RcEngine::receive(const wire::Packet& packet, const Arrival& arrival, qp::SendWindow& window,
                       qp::Responder& responder, const Now& now) {
  switch (admit(packet, arrival, settings_, service_of(settings_), counters_)) {
    case Admission::kDropped: return;
    case Admission::kNotification:
      if (congestion_) congestion_->notified(now);
      return;
    case Admission::kAdmitted: break;
  }
  notifier_.arrived(arrival, counters_, now);
  const bool is_response = packet.shape->is_response;
  const bool belongs =
      is_response ? requester_.expects(packet.psn) : responder_.expects(packet.psn);
  if (belongs && agreement_.arrived(packet)) agree();
  if (is_response) return requester_.receive(packet, window, now);
  responder_.receive(packet, responder, now);
}

// A stranger's mistakes end nothing, no more than what else a stranger sends.
void RcEngine::receive_broken(const wire::Head& bth, wire::Malformed why, const Arrival& arrival,
                              qp::Responder& responder) {
  const auto admission = admit(bth, arrival, settings_, service_of(settings_), counters_);
  if (admission != Admission::kAdmitted || !wire::deserves_nak(why)) return;
  const wire::OpcodeShape& shape = wire::shape_of(bth.opcode);
  if (shape.is_defined && shape.is_response) return;
  responder_.receive_broken(bth.psn, responder);
}

std::optional<Instant> RcEngine::next_deadline() const {
  const Instant next = std::min(requester_.next_deadline(), responder_.next_deadline());
  return next == Instant::never() ? std::nullopt : std::optional(next);
}

}  // namespace verbena::roce
