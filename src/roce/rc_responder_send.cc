// SPDX-License-Identifier: MIT
// What the responder of a reliable connection sends: answers of READs and atomics in the order of
// their PSNs, then NAKs, then one ACK for everything (IBTA vol 1, 9.7.5.1.1, 9.7.5.2).
#include <algorithm>

#include "roce/rc_responder.h"

namespace verbena::roce {

using wire::Code;
using wire::NakCode;
using wire::Opcode;
using wire::Syndrome;

namespace {

constexpr Code answer_code(bool is_first, bool is_last) {
  if (is_first) return is_last ? Code::kReadResponseOnly : Code::kReadResponseFirst;
  return is_last ? Code::kReadResponseLast : Code::kReadResponseMiddle;
}

}  // namespace

bool RcResponder::serve(qp::Responder& responder, qp::Budget& budget, const Now& now) {
  if (gap_at_ != Instant::never() && now >= gap_at_) name_gaps(now);
  if (relaying_) take_relayed(responder, budget, now);
  const bool has_replies = is_relaying() && budget.spent();
  if (!responder.is_receiving()) {
    answers_.clear();
    gaps_.clear();
    ack_due_ = false;
    // A queue pair in the error state says nothing more but what brought it there.
    if (refusal_ && refusal_->kind() == wire::AethKind::kRnrNak) refusal_.reset();
  }
  return send_due(responder, budget) || has_replies;
}

// True: there is more.
bool RcResponder::send_due(qp::Responder& responder, qp::Budget& budget) {
  switch (send_answers(responder, budget)) {
    case Progress::kMore: return true;
    case Progress::kWaits: return false;
    case Progress::kDone: break;
  }
  // A gap that is named acknowledges what is before it.
  if (is_waiting()) return send_acknowledge() == Progress::kMore;
  if (send_gaps() == Progress::kMore) return true;
  return send_acknowledge() == Progress::kMore;
}

wire::Head RcResponder::head_of(Code code, Psn psn) const {
  wire::Head head;
  head.opcode = Opcode::of(service_of(settings_), code);
  head.pkey = settings_.pkey;
  head.dest_qp = settings_.peer;
  head.psn = psn;
  head.mark = agreement_.mark(true);
  return head;
}

RcResponder::Progress RcResponder::send_answers(qp::Responder& responder, qp::Budget& budget) {
  while (!answers_.is_empty()) {
    if (budget.spent()) return Progress::kMore;
    OwedAnswer& answer = answers_.front();
    if (answer.is_gone) {
      if (send_gone(answer) != Wire::Sent::kSent) return Progress::kMore;
      answers_.pop();
      continue;
    }
    switch (fetch_for(answer, responder)) {
      case Fetch::kHere: break;
      case Fetch::kLater: return Progress::kWaits;
      case Fetch::kNowhere:
        if (answer.is_again) {
          answer.is_gone = true;
        } else {
          refuse_answer(responder.refuse_relayed(qp::Answer::kInvalidRequest).error(), responder);
        }
        continue;
    }
    switch (send_answer(answer, responder, budget)) {
      case Wire::Sent::kNoRoom: return Progress::kMore;
      case Wire::Sent::kNoPayload: break;  // refused: nothing of it is owed any more
      case Wire::Sent::kSent:
        if (++answer.done != answer.packets) break;
        answers_.pop();
        // The next READ sees what is there by then. What is asked for is not for this one.
        if (relaying_ && relaying_->fetched.state == Fetched::State::kHere)
          relaying_->fetched.state = Fetched::State::kNone;
        break;
    }
  }
  return Progress::kDone;
}

// Of the next packet of a READ's answer.
std::uint32_t RcResponder::next_bytes(const OwedAnswer& answer) const {
  return std::min(settings_.path_mtu, answer.length - answer.done * settings_.path_mtu);
}

// The next packet of one answer. When the memory is gone meanwhile, a NAK at its place, and the
// queue pair has failed (9.7.4.1.5); but not where the READ came again. The peer may have had its
// answer and said so, by whatever way, to the program that then took its memory back: this request
// was late, and nobody waits for it. A peer that does is told, all the same.
Wire::Sent RcResponder::send_answer(OwedAnswer& answer, qp::Responder& responder,
                                    qp::Budget& budget) {
  const bool is_first = answer.done == 0;
  const bool is_last = answer.done + 1 == answer.packets;
  const Psn psn = answer.psn + answer.done;
  Outgoing packet{.head = head_of(Code::kAtomicAcknowledge, psn), .is_ecn_capable = true};
  packet.head.syndrome = Syndrome::ack();
  packet.head.msn = answer.msn;
  packet.head.original = answer.value;
  if (answer.is_atomic) {
    budget.take(sizeof answer.value);
    return transmit(packet);
  }
  packet.head.opcode = Opcode::of(service_of(settings_), answer_code(is_first, is_last));
  const std::uint32_t offset = answer.done * settings_.path_mtu;
  packet.payload_bytes = next_bytes(answer);
  std::optional<qp::Refusal> refused;
  const bool is_elsewhere = answer.length != 0 && responder.must_choose() &&
                            responder.relay_for(answer.shared_queue) != nullptr;
  const Wire::Sent sent = wire_.transmit(packet, settings_.path, [&](std::span<std::byte> to) {
    if (is_elsewhere) return copy_fetched(answer, offset, to);
    const auto done = read(answer, offset, responder, to);
    if (!done) refused = done.error();
    return done.has_value();
  });
  if (sent == Wire::Sent::kSent) agreement_.sent();
  if (sent == Wire::Sent::kNoPayload && answer.is_again) {
    answer.is_gone = true;
  } else if (sent == Wire::Sent::kNoPayload) {
    refuse_answer(refused.value_or(qp::Refusal::kOperation), responder);
  }
  budget.take(packet.payload_bytes);
  return sent;
}

Result<void, qp::Refusal> RcResponder::read(const OwedAnswer& answer, std::uint32_t offset,
                                            qp::Responder& responder,
                                            std::span<std::byte> to) const {
  const std::uint64_t address = answer.address + offset;
  // What answers FLUSH and ATOMIC WRITE touches nothing.
  const bool must_choose = answer.length != 0 && responder.must_choose();
  if (answer.is_again) {
    const bool is_found = !must_choose || responder.find_domain(answer.shared_queue);
    if (is_found && responder.read_again(answer.key, address, to)) return {};
    return refuse(qp::Refusal::kAccess);
  }
  if (must_choose) {
    if (auto chosen = responder.choose_domain(answer.shared_queue); !chosen) return chosen;
  }
  return responder.read(answer.key, address, to);
}

// To a peer that does not wait for it, it says nothing (9.7.5.1.3).
Wire::Sent RcResponder::send_gone(const OwedAnswer& answer) {
  Outgoing packet{.head = head_of(Code::kAcknowledge, answer.psn + answer.done)};
  packet.head.syndrome = Syndrome::nak(NakCode::kRemoteAccessError);
  packet.head.msn = answer.msn;
  const Wire::Sent sent = transmit(packet);
  counters_.gone += sent == Wire::Sent::kSent ? 1 : 0;
  return sent;
}

void RcResponder::refuse_answer(qp::Refusal refusal, qp::Responder& responder) {
  const OwedAnswer& answer = answers_.front();
  expected_ = answer.psn + answer.done;
  answers_.clear();
  refuse_packet(refusal, responder);
}

RcResponder::Progress RcResponder::send_gaps() {
  while (!gaps_.is_empty()) {
    const Repairs::Range gap = gaps_.front();
    // It may have come meanwhile.
    if (gap.first - expected_ >= 0) {
      if (transmit_gap(gap) != Wire::Sent::kSent) return Progress::kMore;
      ++counters_.naks;
      ack_due_ &= is_selective();
    }
    gaps_.take(gap.count);
  }
  return Progress::kDone;
}

RcResponder::Progress RcResponder::send_acknowledge() {
  if (!refusal_ && !ack_due_) return Progress::kDone;
  const Psn psn = refusal_ ? expected_ : acknowledged_upto().previous();
  if (transmit_acknowledge(psn, refusal_.value_or(Syndrome::ack())) != Wire::Sent::kSent) {
    return Progress::kMore;
  }
  counters_.acks += refusal_ ? 0 : 1;
  refusal_.reset();
  ack_due_ = false;
  unacknowledged_ = 0;
  return Progress::kDone;
}

// Not before answers, which acknowledge what is before them.
std::optional<Piggyback> RcResponder::owed() const {
  if (!ack_due_ || refusal_ || !answers_.is_empty() || !gaps_.is_empty()) return std::nullopt;
  return Piggyback{.psn = acknowledged_upto().previous(), .msn = acknowledged_msn()};
}

void RcResponder::went_along() {
  ++counters_.acks;
  ack_due_ = false;
  unacknowledged_ = 0;
}

Wire::Sent RcResponder::transmit_acknowledge(Psn psn, Syndrome syndrome) {
  Outgoing packet{.head = head_of(Code::kAcknowledge, psn)};
  packet.head.syndrome = syndrome;
  packet.head.msn = acknowledged_msn();
  return transmit(packet);
}

// To an end that understands it, a gap as such; else it acknowledges what is before it (9.7.5.1.1),
// so it is that of the first gap, which is where we are.
Wire::Sent RcResponder::transmit_gap(const Repairs::Range& gap) {
  Outgoing packet{.head = head_of(Code::kAcknowledge, gap.first)};
  packet.head.syndrome = Syndrome::nak(NakCode::kPsnSequenceError);
  packet.head.msn = msn_;
  if (is_selective()) {
    packet.head.mark = kGapMark;
    packet.head.msn = wire::Msn(gap.count);
  }
  return transmit(packet);
}

Wire::Sent RcResponder::transmit(const Outgoing& packet) {
  const auto sent =
      wire_.transmit(packet, settings_.path, [](std::span<std::byte>) { return true; });
  if (sent == Wire::Sent::kSent) agreement_.sent();
  return sent;
}

}  // namespace verbena::roce
