// SPDX-License-Identifier: MIT
// XRC targets in the ring. Of the target: requests for shared receive queues of other processes,
// which go on to these (qp/relay.h), and what they answer. Of the process that has the queue:
// pieces that a target passed on.
#include <algorithm>
#include <cstring>

#include "local/request_kinds.h"
#include "local/ring_request.h"
#include "local/ring_responder.h"
#include "memory/guarded_copy.h"

namespace verbena::local {

// -- who has the queue --------------------------------------------------------------------------

// A WRITE with immediate that only lacks a receive: the target's peer may send the last packet
// alone once more.
bool RingResponder::may_resume(const Request& request, qp::Refusal refusal) const {
  return request.is_relayed() && !request.is_first() && refusal == qp::Refusal::kNotReady;
}

RingResponder::Step RingResponder::piece_done(const Request& request) {
  if (request.is_relayed()) executed_ = request.record.index + 1;
  return Step::kConsumed;
}

// -- the target ---------------------------------------------------------------------------------

RingResponder::Step RingResponder::wait_with(const Request& request) {
  if (request.is_first()) message_.reset();
  return Step::kStalled;
}

RingResponder::Step RingResponder::relay(const Request& request, qp::Relay& to,
                                         qp::Responder& responder) {
  const RequestRecord& record = request.record;
  const auto kind = static_cast<RequestKind>(record.head.kind);
  if (!relaying_) relaying_ = std::make_unique<Relaying>();
  relaying_->to = &to;
  qp::RelayPiece piece{.shared_queue = record.shared_queue,
                       .kind = op_kind_of(kind),
                       .arrived = request.arrived(),
                       .key = request.key(),
                       .address = record.remote_address,
                       .length = record.total_length};
  if (piece.kind == qp::OpKind::kFlush) piece.flush = flush_of(record);
  if (request.is_first() && relaying_->done == 0) {
    if (is_relaying() && !responder.may_relay(piece)) return wait_with(request);
    if (auto admitted = responder.admit_relayed(piece); !admitted)
      return refuse_request(request, admitted.error(), responder);
  }
  if (kind == RequestKind::kCompareSwap || kind == RequestKind::kFetchAdd) {
    piece.compare_add = record.atomic.compare_add;
    piece.swap = record.atomic.swap;
  }
  std::uint32_t& done = relaying_->done;
  do {
    const std::uint32_t length = std::min(kPieceMax, record.piece_length - done);
    if (request.is_lent() && !fetch_lent(request, length)) return refuse_lent(request);
    piece.bytes = request.is_lent() ? std::span<const std::byte>(relaying_->lent.get(), length)
                                    : request.bytes().subspan(done, length);
    piece.offset = record.offset + done;
    piece.is_first = request.is_first() && done == 0;
    piece.is_last = request.is_last() && done + length == record.piece_length;
    switch (to.send(piece)) {
      case qp::Relay::Sent::kLater: return wait_with(request);
      case qp::Relay::Sent::kNowhere: {
        if (is_relaying()) return wait_with(request);
        done = 0;
        const auto refused = responder.refuse_relayed(qp::Answer::kInvalidRequest);
        return refuse_request(request, refused.error(), responder);
      }
      case qp::Relay::Sent::kSent: break;
    }
    relaying_->pieces.push_back({record.index, record.epoch, piece.is_last});
    done += length;
  } while (done < record.piece_length);
  done = 0;
  progress_ += record.piece_length;
  if (request.is_last()) message_.reset();
  return Step::kConsumed;
}

// Copied first: only what was lent all the time is passed on.
bool RingResponder::fetch_lent(const Request& request, std::uint32_t length) {
  auto& copy = relaying_->lent;
  if (!copy) copy = std::make_unique<std::byte[]>(kPieceMax);
  return memory::guarded_copy(copy.get(), request.payload + relaying_->done, length) &&
         still_lent(request);
}

// What was relayed is answered first.
RingResponder::Step RingResponder::refuse_lent(const Request& request) {
  if (is_relaying()) return wait_with(request);
  relaying_->done = 0;
  return refuse_source(request);
}

// False: the response ring has no room. Not more than fits the turn: that process may write answers
// as fast as they are taken.
bool RingResponder::take_relayed(qp::Responder& responder, qp::Budget& budget) {
  Relaying& relaying = *relaying_;
  while (!relaying.pieces.empty() && responder.is_receiving() && !budget.spent()) {
    const auto reply = relaying.to->reply();
    if (!reply) return true;
    if (!answer_relayed(*reply, responder)) return false;
    budget.take(reply->bytes.size());
    relaying.to->take_reply();
  }
  return true;
}

bool RingResponder::answer_relayed(const qp::RelayReply& reply, qp::Responder& responder) {
  std::deque<Relayed>& pieces = relaying_->pieces;
  const Relayed oldest = pieces.front();
  switch (reply.kind) {
    case qp::RelayReply::Kind::kDone:
      if (oldest.ends) executed_ = oldest.index + 1;
      pieces.pop_front();
      return true;
    case qp::RelayReply::Kind::kBytes: {
      const auto length = static_cast<std::uint32_t>(reply.bytes.size());
      const bool is_small = length <= sizeof(ResponseRecord::unused);
      const std::uint32_t units = is_small ? 1 : units_for(length);
      ResponseRecord* const record = reserve(units, oldest.index);
      if (!record) return false;
      std::memcpy(is_small ? record->unused : reinterpret_cast<std::byte*>(record) + kUnit,
                  reply.bytes.data(), length);
      record->offset = reply.offset;
      record->piece_length = length;
      publish(units, ResponseKind::kData);
      return true;
    }
    case qp::RelayReply::Kind::kValue: {
      ResponseRecord* const record = reserve(1, oldest.index);
      if (!record) return false;
      record->value = reply.value;
      publish(1, ResponseKind::kValue);
      return true;
    }
    case qp::RelayReply::Kind::kRefused: break;
  }
  // Of what was relayed behind it, nothing was executed.
  const auto refused = responder.refuse_relayed(reply.answer);
  refused_ = Refused{oldest.index, qp::answer_of(refused.error()), responder.rnr_timer()};
  drop_epoch_ = pieces.back().epoch;
  message_.reset();
  relaying_->done = 0;
  pieces.clear();
  send_refusal();
  return true;
}

}  // namespace verbena::local
