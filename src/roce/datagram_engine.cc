// SPDX-License-Identifier: MIT
#include "roce/datagram_engine.h"

#include "roce/admission.h"
#include "roce/data_head.h"

namespace verbena::roce {

using wire::Service;

namespace {

// A QKey with this bit in a work request stands for the queue pair's own (10.2.5): programs
// without privilege may not name such a QKey.
constexpr std::uint32_t kOwnQkey = 0x80000000;

// The PSN means nothing here (9.8.3.2.1), and a datagram without a receive is dropped.
bool deliver(const wire::Packet& packet, const Arrival& arrival, qp::Responder& responder) {
  if (!responder.is_receiving() || !responder.datagram_allowed(packet.qkey)) return false;
  if (!responder.begin_receive(packet.payload.size())) return false;
  const auto grh = wire::grh_of(arrival.ip, arrival.datagram_bytes);
  if (!responder.place_grh(grh)) return false;
  if (!packet.payload.empty() && !responder.place(0, packet.payload)) return false;
  return responder
      .finish_receive({.has_immediate = packet.shape->immediate,
                       .is_solicited = packet.is_solicited,
                       .immediate = packet.immediate,
                       .source_qp = packet.source_qp,
                       .has_grh = true})
      .has_value();
}

}  // namespace

void DatagramEngine::start(const qp::QpAttributes& attributes) {
  qkey_ = attributes.qkey;
  if (started_) return;
  started_ = true;
  next_ = wire::Psn(attributes.send_psn);
}

void DatagramEngine::issue(qp::SendWindow& window, qp::Budget& budget, const Now& now) {
  while (started_ && !budget.spent()) {
    const qp::Operation* op = window.next(now);
    if (!op) return;
    const std::uint64_t length = op->length;
    const Path* path = paths_.path_of(*op);
    const bool goes = path != nullptr && length <= settings_.path_mtu;
    switch (goes ? send(*op, *path, window) : Wire::Sent::kSent) {
      case Wire::Sent::kNoRoom: return;
      case Wire::Sent::kNoPayload: continue;  // it has ended in error
      case Wire::Sent::kSent: break;
    }
    if (!goes) ++counters_.dropped;
    budget.take(static_cast<std::size_t>(length));
    window.issued(now);
  }
}

Wire::Sent DatagramEngine::send(const qp::Operation& op, const Path& path, qp::SendWindow& window) {
  Outgoing packet{.payload_bytes = static_cast<std::size_t>(op.length)};
  packet.head.opcode = wire::Opcode::of(Service::kUd, wire::Code::kSendOnly);
  packet.head.pkey = settings_.pkey;
  packet.head.dest_qp = op.remote_qp;
  packet.head.psn = next_;
  packet.head.qkey = (op.remote_qkey & kOwnQkey) != 0 ? qkey_ : op.remote_qkey;
  packet.head.source_qp = settings_.self;
  describe_data(op, true, true, packet.head);
  const qp::OpIndex index = op.index;
  const Wire::Sent sent = wire_.transmit(packet, path, [&](std::span<std::byte> to) {
    return window.gather(index, 0, to).has_value();
  });
  if (sent == Wire::Sent::kSent) next_ = next_.next();
  return sent;
}

void DatagramEngine::receive(const wire::Packet& packet, const Arrival& arrival, qp::SendWindow&,
                             qp::Responder& responder, const Now&) {
  if (admit(packet, arrival, settings_, Service::kUd, counters_) != Admission::kAdmitted) return;
  if (!deliver(packet, arrival, responder)) ++counters_.dropped;
}

bool deliver_multicast(const wire::Packet& packet, const Arrival& arrival,
                       qp::Responder& responder) {
  return packet.opcode.service() == Service::kUd && pkeys_match(packet.pkey, wire::kDefaultPkey) &&
         deliver(packet, arrival, responder);
}

}  // namespace verbena::roce
