// SPDX-License-Identifier: MIT
#include "roce/uc_engine.h"

#include <algorithm>

#include "roce/admission.h"
#include "roce/data_head.h"

namespace verbena::roce {

using wire::Opcode;
using wire::Psn;
using wire::Service;

UcEngine::UcEngine(const Settings& settings, Wire& wire, Congestion* congestion)
    : settings_(settings),
      wire_(wire),
      congestion_(congestion),
      notifier_(settings_, wire),
      expected_(settings.receive_psn),
      assembly_(settings.path_mtu) {}

void UcEngine::start(const qp::QpAttributes& attributes) {
  if (started_) return;
  started_ = true;
  next_ = Psn(attributes.send_psn);
}

// -- out ----------------------------------------------------------------------------------------

void UcEngine::issue(qp::SendWindow& window, qp::Budget& budget, const Now& now) {
  departure_.reset();
  while (started_ && !budget.spent() && may_depart(now)) {
    const qp::Operation* op = window.next(now);
    if (!op) return;
    // The one before may have been flushed half-way.
    if (sending_ != op->index) sent_ = 0;
    sending_ = op->index;
    const std::uint64_t length = op->length;
    const std::uint64_t before = sent_;
    switch (send(*op, window)) {
      case Wire::Sent::kNoRoom: return;
      // The operation has ended in error, and the peer will see that its message has no end.
      case Wire::Sent::kNoPayload: sending_.reset(); continue;
      case Wire::Sent::kSent: break;
    }
    budget.take(static_cast<std::size_t>(sent_ - before));
    if (congestion_) congestion_->sent(static_cast<std::size_t>(sent_ - before), now);
    if (sent_ != length) continue;
    sending_.reset();
    window.issued(now);
  }
}

bool UcEngine::may_depart(const Now& now) {
  if (!congestion_) return true;
  const Instant at = congestion_->next_departure(now);
  if (at <= now) return true;
  departure_ = at;
  return false;
}

// The next packet of the operation.
Wire::Sent UcEngine::send(const qp::Operation& op, qp::SendWindow& window) {
  const std::uint64_t bytes = std::min<std::uint64_t>(settings_.path_mtu, op.length - sent_);
  Outgoing packet{.payload_bytes = static_cast<std::size_t>(bytes), .is_ecn_capable = true};
  packet.head.opcode = Opcode::of(Service::kUc, wire::Code::kSendOnly);
  packet.head.pkey = settings_.pkey;
  packet.head.dest_qp = settings_.peer;
  packet.head.psn = next_;
  describe_data(op, sent_ == 0, sent_ + bytes == op.length, packet.head);
  const qp::OpIndex index = op.index;
  const std::uint64_t offset = sent_;
  const Wire::Sent sent = wire_.transmit(packet, settings_.path, [&](std::span<std::byte> to) {
    return window.gather(index, offset, to).has_value();
  });
  if (sent == Wire::Sent::kSent) {
    next_ = next_.next();
    sent_ += bytes;
  }
  return sent;
}

// -- in -----------------------------------------------------------------------------------------

UcEngine::Standing UcEngine::classify(const wire::Packet& packet) const {
  const std::int32_t distance = packet.psn - expected_;
  if (distance < 0) return Standing::kLate;
  if (packet.shape->starts_message()) return Standing::kBegins;
  return distance == 0 ? Standing::kExpected : Standing::kLost;
}

void UcEngine::receive(const wire::Packet& packet, const Arrival& arrival, qp::SendWindow&,
                       qp::Responder& responder, const Now& now) {
  switch (admit(packet, arrival, settings_, Service::kUc, counters_)) {
    case Admission::kDropped: return;
    case Admission::kNotification:
      if (congestion_) congestion_->notified(now);
      return;
    case Admission::kAdmitted: break;
  }
  notifier_.arrived(arrival, counters_, now);
  if (!responder.is_receiving()) return;
  switch (classify(packet)) {
    case Standing::kLate: ++counters_.dropped; return;
    case Standing::kBegins: assembly_.abandon(); break;
    case Standing::kExpected: break;
    case Standing::kLost:  // its beginning, or what lies between
      ++counters_.dropped;
      assembly_.abandon();
      expected_ = packet.psn.next();
      return;
  }
  expected_ = packet.psn.next();
  take(packet, responder);
}

void UcEngine::take(const wire::Packet& packet, qp::Responder& responder) {
  if (assembly_.fits(packet) && assembly_.take(packet, responder)) return;
  ++counters_.dropped;
  assembly_.abandon();
}

}  // namespace verbena::roce
