// SPDX-License-Identifier: MIT
// The requester's way in: what acknowledgements and answers mean (IBTA vol 1, 9.7.5.1, 9.7.5.2).
#include <algorithm>
#include <cstring>

#include "roce/requester.h"

namespace verbena::roce {

using qp::Answer;
using wire::AethKind;
using wire::Kind;
using wire::NakCode;

namespace {

// Table 45. Only those that end an operation.
constexpr Answer answer_of(NakCode code) {
  switch (code) {
    case NakCode::kInvalidRequest: return Answer::kInvalidRequest;
    case NakCode::kRemoteAccessError: return Answer::kAccess;
    case NakCode::kRemoteOperationalError: return Answer::kOperation;
    case NakCode::kPsnSequenceError:
    case NakCode::kInvalidRdRequest: break;
  }
  return Answer::kInvalidRequest;
}

// What brings the answer. FLUSH and ATOMIC WRITE are answered like a READ of nothing (annex A19).
constexpr Kind answer_kind(qp::OpKind kind) {
  switch (kind) {
    case qp::OpKind::kRead:
    case qp::OpKind::kFlush:
    case qp::OpKind::kAtomicWrite: return Kind::kReadResponse;
    case qp::OpKind::kCompareSwap:
    case qp::OpKind::kFetchAdd: return Kind::kAtomicAcknowledge;
    case qp::OpKind::kSend:
    case qp::OpKind::kWrite:
    case qp::OpKind::kBindWindow:
    case qp::OpKind::kLocalInvalidate: break;
  }
  return Kind::kAcknowledge;
}

}  // namespace

// To something that was not sent, or is over, are ghosts and duplicates (9.7.5.1.3).
bool Requester::hears(Psn psn, qp::SendWindow& window) {
  follow(window);
  if (line_.is_empty() || psn - high_ >= 0 || psn - finished_ < 0) [[unlikely]] {
    ++counters_.strays;
    return false;
  }
  has_heard_ = true;
  return true;
}

void Requester::acknowledged_along(const Piggyback& along, qp::SendWindow& window, const Now& now) {
  if (hears(along.psn, window)) take_positive(along.psn, window, now);
}

void Requester::receive(const wire::Packet& packet, qp::SendWindow& window, const Now& now) {
  if (!hears(packet.psn, window)) return;
  if (packet.shape->kind == Kind::kAcknowledge) return take_acknowledge(packet, window, now);
  if (packet.shape->kind == Kind::kReadResponse) {
    return take_answer(packet, packet.payload, window, now);
  }
  if (packet.shape->kind != Kind::kAtomicAcknowledge) return;
  std::byte value[sizeof packet.original];
  std::memcpy(value, &packet.original, sizeof value);
  take_answer(packet, value, window, now);
}

// -- acknowledgements ---------------------------------------------------------------------------

void Requester::take_acknowledge(const wire::Packet& packet, qp::SendWindow& window,
                                 const Now& now) {
  if (packet.syndrome.is_ack()) return take_positive(packet.psn, window, now);
  take_nak(packet, window, now);
}

void Requester::take_positive(Psn psn, qp::SendWindow& window, const Now& now) {
  if (psn - acknowledged_ >= 0) return acknowledge_upto(psn.next(), window, now);
  ++counters_.strays;
}

// A NAK acknowledges what lies before it (9.7.5.1.1).
void Requester::take_nak(const wire::Packet& packet, qp::SendWindow& window, const Now& now) {
  const Psn at = packet.psn;
  const bool is_sequence = packet.syndrome.kind() == AethKind::kNak &&
                           packet.syndrome.nak_code() == NakCode::kPsnSequenceError;
  const bool is_refusal = !is_sequence && packet.syndrome.kind() != AethKind::kRnrNak;
  if (at - acknowledged_ < 0) {
    // What was executed is asked for again where its answer is missing; what it reads may be gone
    // by then.
    const Flight* const flight = line_.find(at);
    if (is_refusal && flight && flight->brings_back)
      return take_refusal(at, answer_of(packet.syndrome.nak_code()), 0, window, now);
    ++counters_.strays;
    return;
  }
  if (is_sequence && packet.mark == kGapMark && agreement_.is_agreed())
    return take_gap(at, packet.msn.value(), now);
  acknowledge_upto(at, window, now);
  if (line_.is_empty()) return;
  if (is_sequence) return take_sequence_nak(at, now);
  if (is_refusal) return take_refusal(at, answer_of(packet.syndrome.nak_code()), 0, window, now);
  take_refusal(at, Answer::kNotReady, packet.syndrome.code(), window, now);
}

// Everything from there on is sent again, at once (9.7.5.1.2). The same NAK much sooner than a
// round trip says nothing new: what it asks for is on its way.
void Requester::take_sequence_nak(Psn expected, const Now& now) {
  const bool is_same = expected == went_back_to_;
  if (is_same && now < went_back_at_ + round_trip_.half()) return;
  ++counters_.naks;
  went_back_to_ = expected;
  went_back_at_ = now;
  if (congestion_) congestion_->lost(now);
  go_back(expected);
  note_gap(now);
}

// Selective: only what is missing, and nothing is acknowledged.
void Requester::take_gap(Psn first, std::uint32_t count, Instant now) {
  const auto sent_behind = static_cast<std::uint32_t>(high_ - first);
  ++counters_.naks;
  if (congestion_) congestion_->lost(now);
  repairs_.add(first, std::clamp(count, 1u, std::min(sent_behind, kInFlightPacketsMax)));
  round_trip_.heard();
  if (timers_.probe != Instant::never()) timers_.probe = now + round_trip_.probe_after();
}

// The first operation that is not over was refused, or has to wait. If answers before it are
// missing, they come first: the refusal will come again.
void Requester::take_refusal(Psn at, Answer answer, std::uint8_t rnr_timer, qp::SendWindow& window,
                             const Now& now) {
  const Flight* flight = line_.find(at);
  if (!flight || flight->index != line_.oldest().index) return;
  window.answered(flight->index, answer, now, rnr_timer);
  start_over(window);
}

// -- answers that bring bytes -------------------------------------------------------------------

void Requester::take_answer(const wire::Packet& packet, std::span<const std::byte> bytes,
                            qp::SendWindow& window, const Now& now) {
  const Flight* flight = line_.find(packet.psn);
  const qp::Operation* op = flight ? window.outstanding(flight->index) : nullptr;
  if (!op || arrived_.has(packet.psn)) {
    ++counters_.strays;
    return;
  }
  if (answer_kind(op->kind) != packet.shape->kind)
    return answered_badly(*flight, Answer::kBadResponse, window, now);
  const std::uint64_t offset = bytes_at(*flight, packet.psn) - flight->before;
  if (bytes.size() != bytes_at(*flight, packet.psn.next()) - flight->before - offset)
    return answered_badly(*flight, Answer::kBadLength, window, now);
  // Whoever answers this has executed all that came before it (9.7.5.1.1), also where the bytes
  // cannot be placed.
  const bool is_placed = bytes.empty() || window.scatter(flight->index, offset, bytes);
  acknowledged_ = later(acknowledged_, flight->first);
  evidence_ = later(evidence_, packet.psn.next());
  if (is_placed) arrived_.add(packet.psn);
  advance(window, now);
}

// It ends the connection, in its turn: while answers before it are missing they are asked for
// again, and this one with them.
void Requester::answered_badly(const Flight& flight, Answer how, qp::SendWindow& window,
                               const Now& now) {
  ++counters_.bad_answers;
  const qp::OpIndex index = flight.index;
  acknowledge_upto(flight.first, window, now);
  if (line_.is_empty() || line_.oldest().index != index) return;
  window.answered(index, how, now);
  start_over(window);
}

// -- progress -----------------------------------------------------------------------------------

void Requester::acknowledge_upto(Psn psn, qp::SendWindow& window, const Now& now) {
  if (psn - acknowledged_ <= 0) return;
  if (psn == next_ && reads_.is_empty()) return all_is_done(window, now);
  acknowledged_ = psn;
  evidence_ = later(evidence_, psn);
  advance(window, now);
}

// What advance() comes to where nothing is left, as in every conversation.
void Requester::all_is_done(qp::SendWindow& window, const Now& now) {
  const qp::OpIndex last = line_.newest().index;
  const std::uint64_t bytes = bytes_begun_ - bytes_finished_;
  line_.clear();
  bytes_finished_ = bytes_begun_;
  finished_ = acknowledged_ = send_ = evidence_ = repaired_ = next_;
  timers_.repair = Instant::never();
  made_progress(bytes, now);
  window.answered(last, Answer::kDone, now);
  if (cursor_ - window.oldest() < 0) cursor_ = window.oldest();
}

void Requester::advance(qp::SendWindow& window, const Now& now) {
  const std::uint64_t bytes_before = bytes_finished_;
  std::optional<qp::OpIndex> last;
  while (!line_.is_empty()) {
    const Flight& flight = line_.oldest();
    while (flight.brings_back && finished_ != flight.end() && arrived_.has(finished_)) {
      arrived_.remove(finished_);
      finished_ = finished_.next();
    }
    if (!flight.brings_back) finished_ = later(finished_, earlier(acknowledged_, flight.end()));
    bytes_finished_ = bytes_at(flight, finished_);
    if (finished_ != flight.end()) break;
    last = flight.index;
    line_.pop();
  }
  reads_.finished_upto(finished_);
  acknowledged_ = later(acknowledged_, finished_);
  send_ = later(send_, finished_);
  repaired_ = later(repaired_, finished_);
  made_progress(bytes_finished_ - bytes_before, now);
  if (last)
    window.answered(*last, Answer::kDone, now);
  else
    window.progressed();
  if (cursor_ - window.oldest() < 0) cursor_ = window.oldest();
  follow(window);
  note_gap(now);
}

std::optional<Duration> Requester::take_measurement(const Now& now) {
  if (!timed_ || acknowledged_ - timed_->psn <= 0) return std::nullopt;
  const Timed timed = *timed_;
  timed_.reset();
  const Duration measured = now - timed.at;
  if (timed.is_doubtful) {
    if (!round_trip_.believes(measured)) return std::nullopt;
  } else {
    round_trip_.sample(measured);
  }
  return measured;
}

// Somebody is there: timers begin again. When no more than what was probed is acknowledged, either
// it was lost, or the peer is slow and the answer belongs to the first sending: then others follow
// it closely (compare F-RTO, RFC 5682).
void Requester::made_progress(std::uint64_t bytes, const Now& now) {
  const std::optional<Duration> measured = take_measurement(now);
  round_trip_.heard();
  if (congestion_) congestion_->acknowledged(bytes, measured, now);
  if (probed_upto_ && acknowledged_ - *probed_upto_ > 0) probed_upto_.reset();
  timers_.retry = timers_.probe = Instant::never();
  asked_upto_ = later(asked_upto_, finished_);
  if (!is_in_flight()) return;
  arm(now);
  if (probed_upto_ == acknowledged_) timers_.probe = now + round_trip_.follows_within();
}

}  // namespace verbena::roce
