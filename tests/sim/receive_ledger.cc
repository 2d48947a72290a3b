// SPDX-License-Identifier: MIT
#include "receive_ledger.h"

namespace verbena::sim {

using queues::Completion;
using queues::Status;

void ReceiveLedger::ended(Completion expected) {
  take();
  expected.wr_id = current_->wr_id;
  expected_.push_back(expected);
  current_.reset();
  ++messages_;
}

void ReceiveLedger::flushed() {
  const Completion flush{.status = Status::kFlushed, .kind = queues::CompletionKind::kReceive};
  if (current_) ended(flush);
  while (!is_shared_ && !queue_.empty())
    ended(flush);
}

void ReceiveLedger::completed(const Completion& completion) {
  if (forgotten_) return;
  if (expected_.empty()) return failures_.add("a receive completed without a message");
  const Completion expected = expected_.front();
  expected_.pop_front();
  const std::uint64_t id = completion.wr_id;
  failures_.check(id == expected.wr_id, "receive completed out of order", id);
  failures_.check(completion.status == expected.status, "receive with another status", id);
  failures_.check((completion.vendor_error == 0) == (expected.status == Status::kSuccess),
                  "receive failed without a reason", id);
  if (expected.status != Status::kSuccess) return;
  failures_.check(completion.kind == expected.kind, "receive of another kind", id);
  failures_.check(completion.byte_length == expected.byte_length, "receive of another length", id);
  failures_.check(completion.flags == expected.flags, "receive with other flags", id);
  failures_.check(completion.immediate == expected.immediate, "other immediate data", id);
  failures_.check(completion.source_qp == expected.source_qp, "another source", id);
}

void ReceiveLedger::finish() {
  if (!forgotten_) failures_.check(expected_.empty(), "receives never completed", expected_.size());
}

}  // namespace verbena::sim
