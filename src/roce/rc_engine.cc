// SPDX-License-Identifier: MIT
#include "roce/rc_engine.h"

#include <algorithm>

#include "roce/admission.h"
#include "roce/piggyback.h"

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
      responder_(settings, wire, agreement_),
      requester_(settings, wire, congestion, agreement_, responder_),
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
    [[unlikely]] case Admission::kDropped:
      return;
    [[unlikely]] case Admission::kNotification:
      if (congestion_) congestion_->notified(now);
      return;
    case Admission::kAdmitted: break;
  }
  notifier_.arrived(arrival, counters_, now);
  const bool is_response = packet.shape->is_response;
  if (!is_response && packet.mark == kPiggybackMark)
    return receive_together(packet, window, responder, now);
  // A request that a stranger made up has to hit the one PSN that is next, as for anything else.
  const bool belongs =
      is_response ? requester_.expects(packet.psn) : responder_.expects(packet.psn);
  if (belongs && agreement_.arrived(packet)) [[unlikely]]
    agree();
  if (is_response) return requester_.receive(packet, window, now);
  responder_.receive(packet, responder, now);
}

void RcEngine::receive_together(const wire::Packet& packet, qp::SendWindow& window,
                                qp::Responder& responder, const Now& now) {
  const std::optional<Piggyback> along = piggyback_of(packet);
  if (along && responder_.expects(packet.psn) && agreement_.arrived(packet)) [[unlikely]]
    agree();
  // To others these bits mean nothing.
  if (!agreement_.is_agreed()) [[unlikely]]
    return responder_.receive(packet, responder, now);
  if (!along) [[unlikely]] {
    ++counters_.dropped;
    return;
  }
  wire::Packet request = packet;
  request.payload = packet.payload.first(packet.payload.size() - kPiggybackBytes);
  responder_.receive(request, responder, now);
  requester_.acknowledged_along(*along, window, now);
}

// What receive() finds out about such a packet, as far as it is not known.
bool RcEngine::receive_at_once(std::span<const std::byte> datagram, const Gid& from,
                               qp::SendWindow& window, qp::Responder& responder, const Now& now) {
  if (settings_.is_xrc || from != settings_.path.destination) return false;
  auto message = wire::parse_whole_send(datagram);
  if (!message) {
    const auto piece = wire::parse_middle(datagram);
    return piece && is_plain(*piece) && responder_.receive_at_once(*piece, responder);
  }
  if (!agreement_.is_agreed() || !pkeys_match(message->pkey, settings_.pkey) ||
      message->payload.size() > settings_.path_mtu)
    return false;
  std::optional<Piggyback> along;
  if (message->mark == kPiggybackMark) [[likely]] {
    along = piggyback_in(message->payload);
    if (!along) return false;
    message->payload = message->payload.first(message->payload.size() - kPiggybackBytes);
  }
  if (!responder_.receive_at_once(*message, responder)) return false;
  if (along) requester_.acknowledged_along(*along, window, now);
  return true;
}

Taken RcEngine::receive_run(wire::Unverified& packets, const Gid& from, qp::Responder& responder) {
  if (settings_.is_xrc || from != settings_.path.destination) return {};
  const auto piece = wire::parse_middle(packets.datagram(0));
  if (!piece || !is_plain(*piece)) return {};
  return responder_.receive_run(*piece, packets, responder);
}

// It needs nothing that others do not.
bool RcEngine::is_plain(const wire::Middle& piece) const {
  // By a mark the ends may just have agreed, or bytes behind the payload are none of it.
  const bool says_more = agreement_.is_agreed() ? piece.mark == kPiggybackMark : piece.mark != 0;
  return !says_more && pkeys_match(piece.pkey, settings_.pkey);
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
