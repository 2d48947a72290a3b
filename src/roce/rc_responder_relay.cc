// SPDX-License-Identifier: MIT
// Requests of XRC connections for shared receive queues of other processes (qp/relay.h): they are
// passed on as they come, and acknowledged when they are answered. READs are accepted as ever, and
// their bytes fetched when it is their turn to be sent.
#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "roce/rc_responder.h"

namespace verbena::roce {

using qp::Refusal;
using wire::Kind;

namespace {

// Of a READ: so much at a time.
constexpr std::uint32_t kFetchMax = 64 * 1024;

qp::OpKind op_kind_of(Kind kind) {
  switch (kind) {
    case Kind::kReadRequest: return qp::OpKind::kRead;
    case Kind::kCompareSwap: return qp::OpKind::kCompareSwap;
    case Kind::kFetchAdd: return qp::OpKind::kFetchAdd;
    case Kind::kFlush: return qp::OpKind::kFlush;
    case Kind::kAtomicWrite: return qp::OpKind::kAtomicWrite;
    case Kind::kWrite: return qp::OpKind::kWrite;
    case Kind::kSend:
    case Kind::kReadResponse:
    case Kind::kAcknowledge:
    case Kind::kAtomicAcknowledge:
    case Kind::kCongestionNotification: break;
  }
  return qp::OpKind::kSend;
}

bool is_answered(const wire::Packet& packet) {
  return packet.shape->kind != Kind::kSend && packet.shape->kind != Kind::kWrite;
}

}  // namespace

// -- requests -----------------------------------------------------------------------------------

RcResponder::Relaying& RcResponder::relaying_by(qp::Relay& relay) {
  if (!relaying_) relaying_ = std::make_unique<Relaying>();
  relaying_->to = &relay;
  return *relaying_;
}

// False, always: it was not accepted.
bool RcResponder::hold(const wire::Packet& packet) {
  relaying_->held = packet.srq_number;
  if (!kept_.keep(packet, 0)) miss(packet.psn);
  return false;
}

void RcResponder::miss(Psn psn) {
  std::optional<Psn>& last = relaying_->missed;
  if (!last || psn - *last > 0) last = psn;
}

qp::RelayPiece RcResponder::piece_of(const wire::Packet& packet) const {
  if (!is_answered(packet)) return assembly_.piece_of(packet);
  const bool is_add = packet.shape->kind == Kind::kFetchAdd;
  const bool is_read = packet.shape->kind == Kind::kReadRequest;
  const bool is_word = packet.shape->kind == Kind::kAtomicWrite;
  return {.shared_queue = packet.srq_number,
          .kind = op_kind_of(packet.shape->kind),
          .key = packet.remote_key,
          .address = packet.remote_address,
          .length = is_read   ? packet.dma_length
                    : is_word ? static_cast<std::uint32_t>(packet.payload.size())
                              : 0,
          .compare_add = is_add ? packet.swap_or_add : packet.compare,
          .swap = is_add ? 0 : packet.swap_or_add,
          .flush = flush_of(packet),
          .bytes = is_word ? packet.payload : std::span<const std::byte>()};
}

bool RcResponder::pass_on(const wire::Packet& packet, qp::Relay& relay, qp::Responder& responder) {
  Relaying& relaying = relaying_by(relay);
  const qp::RelayPiece piece = piece_of(packet);
  // What has an answer of its own goes alone.
  const bool goes_alone =
      is_answered(packet) || (is_relaying() && relaying.passed.back().is_answered);
  if (is_relaying() && goes_alone) return hold(packet);
  if (piece.is_first) {
    if (is_relaying() && !responder.may_relay(piece)) return hold(packet);
    if (const auto admitted = responder.admit_relayed(piece); !admitted)
      return refuse_packet(admitted.error(), responder);
  }
  if (piece.kind == qp::OpKind::kRead) return pass_read(packet, responder);
  switch (relay.send(piece)) {
    case qp::Relay::Sent::kLater: return hold(packet);
    case qp::Relay::Sent::kNowhere: {
      if (is_relaying()) return hold(packet);
      const auto refused = responder.refuse_relayed(qp::Answer::kInvalidRequest);
      return refuse_packet(refused.error(), responder);
    }
    case qp::Relay::Sent::kSent: break;
  }
  relaying.passed.push_back({.psn = expected_,
                             .msn = msn_,
                             .before = assembly_,
                             .is_answered = is_answered(packet),
                             .wants_ack = packet.ack_request});
  if (is_answered(packet))
    assembly_.pass(packet);
  else
    assembly_.passed(packet);
  accepted(psns_of(packet), packet.shape->ends_message());
  return true;
}

bool RcResponder::pass_read(const wire::Packet& packet, qp::Responder& responder) {
  const OwedAnswer answer = answer_of_read(packet, msn_.next());
  if (!answers_.add(answer)) {
    responder.broken_request();
    return refuse_packet(Refusal::kInvalidRequest, responder);
  }
  reads_.add(answer);
  assembly_.pass(packet);
  accepted(psns_of(packet), packet.shape->ends_message());
  return true;
}

// -- replies ------------------------------------------------------------------------------------

void RcResponder::take_relayed(qp::Responder& responder, qp::Budget& budget, const Now& now) {
  std::deque<Passed>& passed = relaying_->passed;
  if (!responder.is_receiving()) {
    passed.clear();
    relaying_->fetched.state = Fetched::State::kNone;
    relaying_->held.reset();
    return;
  }
  // That process may write answers as fast as they are taken.
  while (!passed.empty() && !budget.spent()) {
    const auto reply = relaying_->to->reply();
    if (!reply) break;
    budget.take(reply->bytes.size());
    take_reply(*reply, responder);
    relaying_->to->take_reply();
  }
  if (refusal_ || !responder.is_receiving()) return;
  if (kept_.has(expected_)) accept_kept(responder, now);
  if (is_relaying()) return;
  // It would be held again.
  if (relaying_->held && !relaying_->to->knows_way_to(*relaying_->held)) return;
  relaying_->held.reset();
  if (!relaying_->missed) return;
  // What was dropped meanwhile is not lost to the peer, only late.
  const bool is_missing = *relaying_->missed - expected_ >= 0 && !kept_.has(expected_);
  relaying_->missed.reset();
  if (is_missing) name_one_gap();
}

void RcResponder::take_reply(const qp::RelayReply& reply, qp::Responder& responder) {
  Relaying& relaying = *relaying_;
  Passed& oldest = relaying.passed.front();
  switch (reply.kind) {
    case qp::RelayReply::Kind::kDone:
      relayed(oldest);
      relaying.passed.pop_front();
      return;
    case qp::RelayReply::Kind::kBytes:
      if (oldest.is_fetch) {
        const std::span to(relaying.fetched.bytes);
        VERBENA_ASSERT(reply.offset <= to.size() && reply.bytes.size() <= to.size() - reply.offset);
        std::ranges::copy(reply.bytes, to.begin() + reply.offset);
      }
      return;
    case qp::RelayReply::Kind::kValue: oldest.value = reply.value; return;
    case qp::RelayReply::Kind::kRefused: return refuse_relayed(reply.answer, responder);
  }
}

void RcResponder::relayed(const Passed& done) {
  if (done.is_fetch) {
    relaying_->fetched.state = Fetched::State::kHere;
    return;
  }
  if (!done.is_answered) {
    ++unacknowledged_;
    ack_due_ |= done.wants_ack || unacknowledged_ >= kUnacknowledgedMax;
    return;
  }
  OwedAnswer answer{.psn = done.psn, .msn = done.msn.next(), .is_atomic = done.value.has_value()};
  if (done.value) {
    answer.value = *done.value;
    atomics_.add(done.psn, *done.value);
  }
  answers_.add_again(answer);
}

// What was passed on behind it, nobody has executed: it comes again, or never.
void RcResponder::refuse_relayed(qp::Answer answer, qp::Responder& responder) {
  const Passed oldest = relaying_->passed.front();
  relaying_->passed.clear();
  relaying_->fetched.state = Fetched::State::kNone;
  if (oldest.is_fetch) return refuse_fetch(oldest, answer, responder);
  const auto refused = responder.refuse_relayed(answer);
  expected_ = oldest.psn;
  msn_ = oldest.msn;
  assembly_ = oldest.before;
  refuse_packet(refused.error(), responder);
}

void RcResponder::refuse_fetch(const Passed& fetch, qp::Answer answer, qp::Responder& responder) {
  if (!answers_.is_empty() && answers_.front().is_again) {
    answers_.front().is_gone = true;
    if (expected_ == fetch.psn) return;
    miss(expected_.previous());
    expected_ = last_ahead_ = fetch.psn;
    msn_ = fetch.msn;
    assembly_ = fetch.before;
    return;
  }
  const bool is_nonsense = answer == qp::Answer::kNotReady;
  const auto refused = responder.refuse_relayed(is_nonsense ? qp::Answer::kOperation : answer);
  if (!answers_.is_empty()) refuse_answer(refused.error(), responder);
}

// -- answers of READs ---------------------------------------------------------------------------

RcResponder::Fetch RcResponder::fetch_for(const OwedAnswer& answer, qp::Responder& responder) {
  if (answer.length == 0 || answer.is_atomic || !responder.must_choose()) return Fetch::kHere;
  qp::Relay* const relay = responder.relay_for(answer.shared_queue);
  return relay ? fetch(answer, answer.done * settings_.path_mtu, *relay) : Fetch::kHere;
}

RcResponder::Fetch RcResponder::fetch(const OwedAnswer& answer, std::uint32_t offset,
                                      qp::Relay& relay) {
  Relaying& relaying = relaying_by(relay);
  Fetched& fetched = relaying.fetched;
  const std::uint64_t address = answer.address + offset;
  if (fetched.state == Fetched::State::kAsked) return Fetch::kLater;
  // Parts begin with a packet, and end with one; but what was fetched may be for a READ of which
  // the peer now asks for more, or for another one.
  if (fetched.has(answer, offset, next_bytes(answer))) return Fetch::kHere;
  const std::uint32_t length = std::min(kFetchMax, answer.length - offset);
  const qp::RelayPiece piece{.shared_queue = answer.shared_queue,
                             .kind = qp::OpKind::kRead,
                             .key = answer.key,
                             .address = address,
                             .length = length};
  switch (relay.send(piece)) {
    case qp::Relay::Sent::kLater: return Fetch::kLater;
    case qp::Relay::Sent::kNowhere: return is_relaying() ? Fetch::kLater : Fetch::kNowhere;
    case qp::Relay::Sent::kSent: break;
  }
  fetched.state = Fetched::State::kAsked;
  fetched.shared_queue = answer.shared_queue;
  fetched.key = answer.key;
  fetched.address = address;
  fetched.bytes.resize(length);
  relaying.passed.push_back(
      {.psn = expected_, .msn = msn_, .before = assembly_, .is_fetch = true, .value = {}});
  return Fetch::kLater;
}

bool RcResponder::copy_fetched(const OwedAnswer& answer, std::uint32_t offset,
                               std::span<std::byte> to) const {
  const Fetched& fetched = relaying_->fetched;
  if (!fetched.has(answer, offset, to.size())) return false;
  const std::uint64_t from = answer.address + offset - fetched.address;
  std::ranges::copy(std::span(fetched.bytes).subspan(from, to.size()), to.begin());
  return true;
}

}  // namespace verbena::roce
