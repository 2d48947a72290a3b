// SPDX-License-Identifier: MIT
// What comes in. rc_responder_send.cc has what goes out.
#include "roce/rc_responder.h"

#include <algorithm>

namespace verbena::roce {

using qp::Refusal;
using wire::Kind;
using wire::NakCode;
using wire::Syndrome;

namespace {

// A requester of ours asks for acknowledgements, and what comes in one train is read together.
constexpr std::uint32_t kUnacknowledgedMaxAgreed = 128;
// So much of a train is verified before it is placed: it stays in the nearest cache meanwhile.
constexpr std::size_t kRunBytes = 20 * 1024;
// Naming a gap again waits for a round trip that we do not know: longer each time.
constexpr Duration kNameAgainAfter = Duration::microseconds(100);
constexpr unsigned kNameAgainMost = 12;

constexpr NakCode nak_of(Refusal refusal) {
  switch (refusal) {
    case Refusal::kInvalidRequest: return NakCode::kInvalidRequest;
    case Refusal::kAccess: return NakCode::kRemoteAccessError;
    case Refusal::kOperation: return NakCode::kRemoteOperationalError;
    case Refusal::kNotReady: break;
  }
  return NakCode::kRemoteOperationalError;
}

}  // namespace

qp::Flush RcResponder::flush_of(const wire::Packet& packet) {
  return {.length = packet.dma_length,
          .global_visibility = packet.placement.global_visibility,
          .persistence = packet.placement.persistence,
          .whole_region = packet.selectivity == wire::Selectivity::kRegion};
}

RcResponder::RcResponder(const Settings& settings, Wire& wire, Agreement& agreement)
    : settings_(settings),
      wire_(wire),
      agreement_(agreement),
      expected_(settings.receive_psn),
      assembly_(settings.path_mtu),
      answers_(settings.reads_in_max),
      atomics_(settings.reads_in_max),
      reads_(settings.reads_in_max),
      last_ahead_(expected_),
      kept_(settings.reorder_packets, settings.path_mtu, settings.reorder_budget),
      highest_(expected_),
      named_upto_(expected_),
      due_upto_(expected_) {}

RcResponder::Standing RcResponder::classify(Psn psn) const {
  const std::int32_t distance = psn - expected_;
  if (distance == 0) return Standing::kExpected;
  return distance < 0 ? Standing::kDuplicate : Standing::kAhead;
}

std::uint32_t RcResponder::psns_of(const wire::Packet& packet) const {
  if (packet.shape->kind != Kind::kReadRequest) return 1;
  return wire::packets_of(packet.dma_length, settings_.path_mtu);
}

void RcResponder::receive(const wire::Packet& packet, qp::Responder& responder, const Now& now) {
  if (!responder.is_receiving() || refusal_) return;
  ++counters_.packets;
  switch (classify(packet.psn)) {
    case Standing::kExpected:
      if (accept(packet, responder)) accept_kept(responder, now);
      return;
    case Standing::kDuplicate: return repeat(packet);
    case Standing::kAhead: return keep(packet, now);
  }
}

// Nothing else is to be thought of when it comes.
bool RcResponder::is_just_next(Psn psn, const qp::Responder& responder) const {
  return psn == expected_ && responder.is_receiving() && !refusal_ && !relaying_ &&
         !responder.must_choose() && kept_.is_empty() && gap_at_ == Instant::never();
}

bool RcResponder::receive_at_once(const wire::WholeSend& message, qp::Responder& responder) {
  if (!is_just_next(message.psn, responder) || assembly_.is_inside()) return false;
  qp::Arrived arrived;
  arrived.is_solicited = message.is_solicited;
  const auto done = responder.receive_small(message.payload, arrived);
  if (done == qp::Responder::Small::kNo) return false;
  ++counters_.packets;
  if (done == qp::Responder::Small::kLost) {
    refuse_packet(Refusal::kOperation, responder);
    return true;
  }
  accepted_at_once(1, true, message.ack_request);
  return true;
}

bool RcResponder::receive_at_once(const wire::Middle& piece, qp::Responder& responder) {
  if (!is_just_next(piece.psn, responder) || !assembly_.fits(piece)) return false;
  ++counters_.packets;
  if (const auto done = assembly_.take(piece, responder); !done) {
    refuse_packet(done.error(), responder);
    return true;
  }
  accepted_at_once(1, false, piece.ack_request);
  return true;
}

// What is the same for all of them is found out once, and the program's memory is asked for once.
// None is verified in vain: where one is missing, that would be done for each one behind it.
Taken RcResponder::receive_run(const wire::Middle& piece, wire::Unverified& packets,
                               qp::Responder& responder) {
  if (!is_just_next(piece.psn, responder)) return {};
  const std::size_t bytes = packets.bytes_of_each();
  const std::size_t most = std::clamp<std::size_t>(kRunBytes / bytes, 1, kRunMost);
  const auto some = packets.all().first(std::min(packets.all().size(), most * bytes));
  const std::size_t count = assembly_.fitting(piece, wire::run_of(some, bytes));
  if (count == 0) return {};
  Taken taken;
  while (taken.packets < count && packets.verify(taken.packets))
    ++taken.packets;
  taken.is_corrupt = taken.packets < count;
  if (taken.packets == 0) return taken;
  const ConstPieces pieces{.first = piece.payload.data(),
                           .bytes = piece.payload.size(),
                           .stride = bytes,
                           .count = taken.packets};
  if (!assembly_.place(piece.kind, pieces, responder)) return {};
  counters_.packets += taken.packets;
  assembly_.placed(taken.packets * pieces.bytes);
  accepted_at_once(static_cast<std::uint32_t>(taken.packets), false, piece.ack_request);
  return taken;
}

void RcResponder::accepted_at_once(std::uint32_t packets, bool ends_message,
                                   bool asks_for_acknowledge) {
  accepted(packets, ends_message);
  want_acknowledge(asks_for_acknowledge, packets);
  times_named_ = 0;
  nothing_is_kept();
}

void RcResponder::receive_broken(Psn psn, qp::Responder& responder) {
  if (!responder.is_receiving() || refusal_ || classify(psn) != Standing::kExpected) return;
  if (is_relaying()) return;  // it comes again
  responder.broken_request();
  refuse_packet(Refusal::kInvalidRequest, responder);
}

// -- expected -----------------------------------------------------------------------------------

bool RcResponder::accept(const wire::Packet& packet, qp::Responder& responder) {
  if (!assembly_.fits(packet)) {
    if (is_relaying()) return hold(packet);
    responder.broken_request();
    return refuse_packet(Refusal::kInvalidRequest, responder);
  }
  if (responder.must_choose()) {
    if (qp::Relay* const relay = responder.relay_for(packet.srq_number))
      return pass_on(packet, *relay, responder);
    if (is_relaying()) return hold(packet);
  }
  const auto done = execute(packet, responder);
  if (!done) return refuse_packet(done.error(), responder);
  accepted(psns_of(packet), packet.shape->ends_message());
  const bool is_answered = packet.shape->kind != Kind::kSend && packet.shape->kind != Kind::kWrite;
  if (!is_answered) want_acknowledge(packet.ack_request);
  return true;
}

void RcResponder::want_acknowledge(bool is_asked, std::uint32_t packets) {
  unacknowledged_ += packets;
  const std::uint32_t most = agreement_.is_agreed() ? kUnacknowledgedMaxAgreed : kUnacknowledgedMax;
  ack_due_ |= is_asked || unacknowledged_ >= most;
}

void RcResponder::accepted(std::uint32_t psns, bool ends_message) {
  expected_ = last_ahead_ = expected_ + psns;
  if (ends_message) msn_ = msn_.next();
  waits_ = is_not_ready_ = false;
  if (relaying_) relaying_->held.reset();
}

// What has come before its turn, and now it is.
void RcResponder::accept_kept(qp::Responder& responder, const Now& now) {
  times_named_ = 0;
  if (kept_.is_empty()) return nothing_is_kept();
  while (const wire::Packet* packet = kept_.find(expected_)) {
    const Psn from = expected_;
    if (!accept(*packet, responder)) return;
    for (Psn psn = from; psn != expected_ && !kept_.is_empty(); psn = psn.next())
      kept_.release(psn);
  }
  named_upto_ = later(named_upto_, expected_);
  due_upto_ = later(due_upto_, expected_);
  highest_ = later(highest_, expected_);
  if (kept_.is_empty()) return nothing_is_kept();
  if (!is_selective()) gap_at_ = now + settings_.reorder_patience;
}

void RcResponder::nothing_is_kept() {
  gap_at_ = Instant::never();
  highest_ = named_upto_ = due_upto_ = expected_;
}

Result<void, Refusal> RcResponder::execute(const wire::Packet& packet, qp::Responder& responder) {
  if (responder.must_choose()) {
    if (auto chosen = responder.choose(packet.srq_number); !chosen) return chosen;
  }
  switch (packet.shape->kind) {
    case Kind::kSend:
    case Kind::kWrite: return assembly_.take(packet, responder);
    case Kind::kReadRequest: return execute_read(packet, responder);
    case Kind::kCompareSwap:
    case Kind::kFetchAdd: return execute_atomic(packet, responder);
    case Kind::kFlush: return execute_flush(packet, responder);
    case Kind::kAtomicWrite: return execute_atomic_write(packet, responder);
    case Kind::kReadResponse:  // no requests: never come here
    case Kind::kAcknowledge:
    case Kind::kAtomicAcknowledge:
    case Kind::kCongestionNotification: break;
  }
  responder.broken_request();
  return refuse(Refusal::kInvalidRequest);
}

OwedAnswer RcResponder::answer_of_read(const wire::Packet& packet, wire::Msn msn) const {
  return {.psn = packet.psn,
          .msn = msn,
          .packets = psns_of(packet),
          .shared_queue = packet.srq_number,
          .key = packet.remote_key,
          .address = packet.remote_address,
          .length = packet.dma_length};
}

Result<void, Refusal> RcResponder::execute_read(const wire::Packet& packet,
                                                qp::Responder& responder) {
  auto begun = responder.begin_read(packet.remote_key, packet.remote_address, packet.dma_length);
  if (!begun) return begun;
  const OwedAnswer answer = answer_of_read(packet, msn_.next());
  if (!answers_.add(answer)) {
    responder.broken_request();
    return refuse(Refusal::kInvalidRequest);
  }
  reads_.add(answer);
  assembly_.pass(packet);
  return {};
}

Result<void, Refusal> RcResponder::execute_atomic(const wire::Packet& packet,
                                                  qp::Responder& responder) {
  const bool is_add = packet.shape->kind == Kind::kFetchAdd;
  // Its answer's place first: an atomic is executed once.
  OwedAnswer answer{.psn = packet.psn, .msn = msn_.next(), .is_atomic = true};
  const auto before = responder.atomic(packet.remote_key, packet.remote_address,
                                       {.add = is_add,
                                        .operand = is_add ? packet.swap_or_add : packet.compare,
                                        .swap = is_add ? 0 : packet.swap_or_add});
  if (!before) return refuse(before.error());
  answer.value = *before;
  atomics_.add(packet.psn, *before);
  answers_.add_again(answer);
  assembly_.pass(packet);
  return {};
}

// Answered like READs of nothing (annex A19).
Result<void, Refusal> RcResponder::execute_flush(const wire::Packet& packet,
                                                 qp::Responder& responder) {
  const auto done = responder.flush(packet.remote_key, packet.remote_address, flush_of(packet));
  if (!done) return done;
  if (!answers_.add({.psn = packet.psn, .msn = msn_.next()})) {
    responder.broken_request();
    return refuse(Refusal::kInvalidRequest);
  }
  assembly_.pass(packet);
  return {};
}

Result<void, Refusal> RcResponder::execute_atomic_write(const wire::Packet& packet,
                                                        qp::Responder& responder) {
  memory::Word word;
  std::copy_n(packet.payload.begin(), word.size(), word.begin());
  const auto done = responder.atomic_write(packet.remote_key, packet.remote_address, word);
  if (!done) return done;
  answers_.add_again({.psn = packet.psn, .msn = msn_.next()});
  assembly_.pass(packet);
  return {};
}

// False, always: nothing was accepted.
bool RcResponder::refuse_packet(Refusal refusal, qp::Responder& responder) {
  ack_due_ = false;  // the NAK says it, too
  if (relaying_) {
    relaying_->held.reset();
    relaying_->missed.reset();
  }
  is_not_ready_ = true;
  kept_.clear();
  nothing_is_kept();
  gaps_.clear();
  if (refusal == Refusal::kNotReady) {
    ++counters_.not_ready;
    refusal_ = Syndrome::rnr_nak(responder.rnr_timer());
    return false;
  }
  ++counters_.refused;
  refusal_ = Syndrome::nak(nak_of(refusal));
  return false;
}

// -- duplicate ----------------------------------------------------------------------------------

void RcResponder::repeat(const wire::Packet& packet) {
  ++counters_.duplicates;
  // Another process has it, and has not answered.
  if (packet.psn - acknowledged_upto() >= 0) return;
  switch (packet.shape->kind) {
    case Kind::kSend:
    case Kind::kWrite: ack_due_ = true; return;
    case Kind::kReadRequest: return repeat_read(packet);
    case Kind::kCompareSwap:
    case Kind::kFetchAdd:
      if (const std::uint64_t* value = atomics_.find(packet.psn)) {
        answers_.add_again(
            {.psn = packet.psn, .msn = msn_, .is_again = true, .is_atomic = true, .value = *value});
      }
      return;
    // Done; the next one may have written there since.
    case Kind::kFlush:
    case Kind::kAtomicWrite:
      answers_.add_again({.psn = packet.psn, .msn = msn_, .is_again = true});
      return;
    case Kind::kReadResponse:
    case Kind::kAcknowledge:
    case Kind::kAtomicAcknowledge:
    case Kind::kCongestionNotification: return;
  }
}

// All of it or a part, but nothing that was not asked for before: half of all sequence numbers are
// past, so a stranger's guess would hit. It is executed again, when it is its turn (9.7.5.1.5).
void RcResponder::repeat_read(const wire::Packet& packet) {
  OwedAnswer answer = answer_of_read(packet, msn_);
  if (!reads_.has(answer, settings_.path_mtu)) return;
  answer.is_again = true;
  answers_.add_again(answer);
}

// -- ahead --------------------------------------------------------------------------------------

void RcResponder::keep(const wire::Packet& packet, const Now& now) {
  ++counters_.ahead;
  // After an RNR NAK everything is dropped until its packet comes again (9.7.5.2.8).
  if (is_not_ready_) return;
  // Its PSNs went back, so the requester has sent what is missing once more: and it was lost again.
  const bool went_round = last_ahead_ - packet.psn >= 0;
  last_ahead_ = packet.psn;
  if (went_round && waits_) waits_ = false;
  const auto ahead = static_cast<std::uint32_t>(packet.psn - expected_);
  const bool keeps = is_selective() || !settings_.asks_for_agreement;
  if (!keeps || !kept_.keep(packet, ahead)) {
    if (is_waiting()) return miss(packet.psn);
    if (!is_selective()) name_one_gap();
    return;
  }
  if (packet.psn - highest_ > 0) highest_ = packet.psn;
  // Of gaps before it that were named, another packet behind them says nothing new.
  if (is_selective() && packet.psn - named_upto_ < 0) return;
  // Not later than what waits already, for instance to name all gaps once more.
  const Instant soon = now + settings_.reorder_patience;
  if (gap_at_ <= soon) return;
  due_upto_ = highest_;
  gap_at_ = soon;
}

// Once: until what is missing has come, another NAK would only make the requester go back again
// (9.7.5.2.4).
void RcResponder::name_one_gap() {
  if (waits_) return;
  waits_ = true;
  gaps_.add(expected_, 1);
}

void RcResponder::name_gaps(Instant now) {
  gap_at_ = Instant::never();
  if (is_selective()) return name_all_gaps(now);
  name_one_gap();
}

// Selective: what is missing before due_upto_, and has not been named. When all are named, they are
// again, after a while.
void RcResponder::name_all_gaps(Instant now) {
  if (kept_.is_empty()) return;
  if (due_upto_ - named_upto_ <= 0) {
    named_upto_ = expected_;
    times_named_ = std::min(times_named_ + 1, kNameAgainMost);
  }
  for (Psn psn = later(named_upto_, expected_); due_upto_ - psn > 0;) {
    std::uint32_t run = 0;
    while (due_upto_ - (psn + run) > 0 && !kept_.has(psn + run))
      ++run;
    gaps_.add(psn, run);
    psn = psn + std::max(1u, run);
  }
  named_upto_ = due_upto_;
  const bool has_more = highest_ - due_upto_ > 0;
  due_upto_ = highest_;
  gap_at_ = now + (has_more ? settings_.reorder_patience
                            : settings_.reorder_patience + kNameAgainAfter * (1 << times_named_));
}

}  // namespace verbena::roce
