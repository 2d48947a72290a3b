// SPDX-License-Identifier: MIT
// XRC targets (annex A14): which shared receive queue a request is for, and whose.
#include "qp/opcode.h"
#include "qp/responder.h"

namespace verbena::qp {
namespace {

std::uint32_t access_of(const RelayPiece& piece) {
  switch (piece.kind) {
    case OpKind::kWrite:
    case OpKind::kAtomicWrite: return memory::kRemoteWrite;
    case OpKind::kRead: return memory::kRemoteRead;
    case OpKind::kCompareSwap:
    case OpKind::kFetchAdd: return memory::kRemoteAtomic;
    case OpKind::kFlush:
      return (piece.flush.global_visibility ? std::uint32_t{memory::kFlushGlobal} : 0) |
             (piece.flush.persistence ? std::uint32_t{memory::kFlushPersistent} : 0);
    case OpKind::kSend:
    case OpKind::kLocalInvalidate:
    case OpKind::kBindWindow: break;
  }
  return 0;
}

bool is_answered_by_itself(OpKind kind) { return kind != OpKind::kSend && kind != OpKind::kWrite; }

}  // namespace

Result<void, Refusal> Responder::choose(std::uint32_t shared_queue) {
  if (!receiving_) return drop(Reason::kNotReceiving);
  if (chosen_ == shared_queue && chosen_domain_ == shared_queue) return {};
  const bool is_other = chosen_ != shared_queue;
  // A message is for one queue.
  if (is_other && current_.has_receive) return bad_request(Reason::kBrokenRequest);
  const auto found = config_.shared_queues->find(shared_queue);
  if (!found) return bad_request(found.error());
  config_.queue = found->queue;
  config_.completions = found->completions;
  config_.receive_pd = config_.pd = found->pd;
  chosen_ = chosen_domain_ = shared_queue;
  return {};
}

Result<void, Refusal> Responder::choose_domain(std::uint32_t shared_queue) {
  if (const auto found = set_domain(shared_queue); !found) return bad_request(found.error());
  return {};
}

bool Responder::find_domain(std::uint32_t shared_queue) {
  return set_domain(shared_queue).has_value();
}

Result<void, Reason> Responder::set_domain(std::uint32_t shared_queue) {
  if (chosen_domain_ == shared_queue) return {};
  const auto found = config_.shared_queues->find(shared_queue);
  if (!found) return refuse(found.error());
  config_.pd = found->pd;
  chosen_domain_ = shared_queue;
  return {};
}

void Responder::forget_queue(const queues::ReceiveQueue& queue) {
  chosen_domain_.reset();
  if (!chosen_ || config_.queue != &queue) return;
  chosen_.reset();
  current_.has_receive = current_.in_progress = false;
}

// -- queues of other processes -----------------------------------------------------------------

Relay* Responder::relay_for(std::uint32_t shared_queue) const {
  if (!relay_ || chosen_ == shared_queue) return nullptr;
  return config_.shared_queues->is_elsewhere(shared_queue) ? relay_ : nullptr;
}

bool Responder::may_relay(const RelayPiece& piece) const {
  const std::uint32_t access = access_of(piece);
  if (!receiving_ || (access_ & access) != access || piece.length > kMessageMax) return false;
  return !is_answered_by_itself(piece.kind) || reads_in_max_ != 0;
}

Result<void, Refusal> Responder::admit_relayed(const RelayPiece& piece) {
  if (auto admitted = admit(access_of(piece), piece.length); !admitted) return admitted;
  if (!may_relay(piece)) return bad_request(Reason::kNoReadResources);
  return {};
}

// What is wrong with the request, whoever has the queue has found; how it ends for the connection
// is as if it had been found here.
Result<void, Refusal> Responder::refuse_relayed(Answer answer) {
  switch (answer) {
    case Answer::kNotReady: return not_ready();
    case Answer::kAccess: return bad_access(Reason::kSharedQueueElsewhere);
    case Answer::kOperation:
    case Answer::kSilence:
    case Answer::kBadResponse:
    case Answer::kBadLength:
      static_cast<void>(bad_request(Reason::kSharedQueueElsewhere));
      return refuse(Refusal::kOperation);
    case Answer::kDone:
    case Answer::kInvalidRequest: break;
  }
  return bad_request(Reason::kSharedQueueElsewhere);
}

}  // namespace verbena::qp
