// SPDX-License-Identifier: MIT
#include "send_ledger.h"

#include <algorithm>
#include <utility>

namespace verbena::sim {

using qp::Answer;
using qp::OpKind;
using queues::CompletionKind;
using queues::SendOpcode;
using queues::Status;

namespace {

constexpr std::uint8_t kWithoutLimit = 7;
// What code 3 means (9.7.5.2.8), which is what all of our responders say.
constexpr Duration kRnrDelay = Duration::microseconds(30);

struct Meaning {
  OpKind kind;
  CompletionKind completion;
  bool has_immediate;
  bool invalidates;
};

Meaning meaning_of(SendOpcode opcode) {
  switch (opcode) {
    case SendOpcode::kSend: return {OpKind::kSend, CompletionKind::kSend, false, false};
    case SendOpcode::kSendWithImmediate: return {OpKind::kSend, CompletionKind::kSend, true, false};
    case SendOpcode::kSendWithInvalidate:
      return {OpKind::kSend, CompletionKind::kSend, false, true};
    case SendOpcode::kWrite: return {OpKind::kWrite, CompletionKind::kWrite, false, false};
    case SendOpcode::kWriteWithImmediate:
      return {OpKind::kWrite, CompletionKind::kWrite, true, false};
    case SendOpcode::kRead: return {OpKind::kRead, CompletionKind::kRead, false, false};
    case SendOpcode::kCompareSwap:
      return {OpKind::kCompareSwap, CompletionKind::kCompareSwap, false, false};
    case SendOpcode::kFetchAdd: return {OpKind::kFetchAdd, CompletionKind::kFetchAdd, false, false};
    case SendOpcode::kBindWindow:
      return {OpKind::kBindWindow, CompletionKind::kBindWindow, false, false};
    case SendOpcode::kLocalInvalidate:
      return {OpKind::kLocalInvalidate, CompletionKind::kLocalInvalidate, false, false};
    case SendOpcode::kFlush: return {OpKind::kFlush, CompletionKind::kFlush, false, false};
    case SendOpcode::kAtomicWrite:
      return {OpKind::kAtomicWrite, CompletionKind::kAtomicWrite, false, false};
  }
  return {};
}

}  // namespace

SendLedger::SendLedger(Failures& failures, const Limits& limits)
    : failures_(failures),
      limits_(limits),
      retries_left_(limits.retry_count),
      rnr_left_(limits.rnr_retry) {}

bool SendLedger::has_room() const {
  if (sends_.size() < limits_.depth) return true;
  const std::size_t before = sends_.size() - limits_.depth;
  return reported_ > before || (sends_[before].is_done && !is_signaled(sends_[before]));
}

void SendLedger::posted(PostedSend send) {
  send.is_flushed = !active_;
  sends_.push_back(std::move(send));
}

bool SendLedger::same(const PostedSend& send, const qp::Operation& op) const {
  const Meaning meaning = meaning_of(send.opcode);
  const bool is_datagram = send.remote_qp != QpNum{};
  return op.kind == meaning.kind && op.has_immediate == meaning.has_immediate &&
         op.invalidates == meaning.invalidates &&
         op.is_solicited == ((send.flags & queues::kSolicited) != 0) &&
         op.immediate == send.immediate && op.length == send.length &&
         op.remote_address == send.remote_address && op.remote_key == send.remote_key &&
         (!send.reads() || send.opcode == SendOpcode::kRead ||
          (op.compare_add == send.compare_add && op.swap == send.swap)) &&
         (!is_datagram || (op.address_handle == send.address_handle &&
                           op.remote_qp == send.remote_qp && op.remote_qkey == send.remote_qkey));
}

void SendLedger::offered(const qp::Operation& op) {
  if (forgotten_) return;
  const std::uint32_t index = op.index.value();
  failures_.check(active_, "offered by a queue that has stopped", index);
  failures_.check(index == cursor_ && index < sends_.size(), "offered out of order", index);
  if (index >= sends_.size()) return;
  const PostedSend& send = sends_[index];
  failures_.check(same(send, op), "offered something else than was posted", index);
  failures_.check(!send.local_error, "offered although it cannot be sent", index);
  for (std::uint32_t i = done_; i < index; ++i)
    failures_.check(!sends_[i].local_error, "offered behind one that fails", index);
  unsigned reads = 0;
  for (std::uint32_t i = done_; i < index; ++i)
    reads += sends_[i].reads();
  failures_.check(!send.is_fenced() || reads == 0, "offered before its fence", index);
  failures_.check(!send.reads() || reads < limits_.reads_out_max, "too many READs out", index);
  failures_.check(index < drain_limit_, "begun while draining", index);
  failures_.check(failures_.now() >= not_before_, "the peer asked to wait", index);
  if (offered_ <= index) offered_ = index + 1;
}

void SendLedger::sent(std::uint32_t index) {
  if (forgotten_) return;
  failures_.check(index == cursor_, "issued out of order", index);
  cursor_ = index + 1;
  if (issued_ < cursor_) issued_ = cursor_;
  if (!limits_.is_reliable) done_upto(cursor_);
}

bool SendLedger::has_read_before(std::uint32_t index) const {
  for (std::uint32_t i = done_; i < index && i < sends_.size(); ++i)
    if (sends_[i].reads()) return true;
  return false;
}

void SendLedger::done_upto(std::uint32_t end) {
  if (done_ >= end) return;
  for (; done_ < end && !sends_[done_].failed; ++done_)
    sends_[done_].is_done = true;
  if (cursor_ < done_) cursor_ = done_;
  retries_left_ = limits_.retry_count;
  rnr_left_ = limits_.rnr_retry;
  not_before_ = Instant();
  // What failed on our side waited for this.
  if (done_ < end || (done_ < sends_.size() && sends_[done_].failed)) active_ = false;
}

void SendLedger::fail(std::uint32_t index, Status status) {
  if (!sends_[index].failed) sends_[index].failed = status;
  active_ = false;
}

void SendLedger::told(std::uint32_t index, Answer answer) {
  if (!active_ || index < done_ || index >= issued_) return;
  if (answer == Answer::kDone) return done_upto(index + 1);
  // Of a round that is over: it is being repeated already.
  if ((answer == Answer::kSilence || answer == Answer::kNotReady) && index >= cursor_) {
    if (answer == Answer::kNotReady && index == done_)
      not_before_ = std::max(not_before_, failures_.now() + kRnrDelay);
    return;
  }
  done_upto(index);
  if (!active_) return;
  switch (answer) {
    case Answer::kDone: return;
    case Answer::kSilence:
      if (retries_left_ == 0) return fail(index, Status::kRetryExceeded);
      --retries_left_;
      cursor_ = index;
      return;
    case Answer::kNotReady:
      if (rnr_left_ == 0) return fail(index, Status::kRnrRetryExceeded);
      if (limits_.rnr_retry != kWithoutLimit) --rnr_left_;
      not_before_ = failures_.now() + kRnrDelay;
      cursor_ = index;
      return;
    case Answer::kInvalidRequest: return fail(index, Status::kRemoteInvalidRequest);
    case Answer::kAccess: return fail(index, Status::kRemoteAccess);
    case Answer::kOperation: return fail(index, Status::kRemoteOperation);
    case Answer::kBadResponse: return fail(index, Status::kBadResponse);
    case Answer::kBadLength: return fail(index, Status::kLocalLength);
  }
}

void SendLedger::told_peer_lost() {
  if (!limits_.is_reliable || !active_ || done_ == sends_.size() || done_ == drain_limit_) return;
  const PostedSend& send = sends_[done_];
  if (send.local_error) return fail(done_, *send.local_error);
  fail(done_, Status::kRetryExceeded);
}

void SendLedger::memory_refused(std::uint32_t index) {
  if (forgotten_) return;
  const PostedSend& send = sends_[index];
  failures_.check(send.uses_revocable && is_revoked(), "good memory refused", index);
  sends_[index].failed = Status::kLocalProtection;
  if (index == done_) active_ = false;
}

void SendLedger::draining() {
  drain_limit_ = offered_;
  drain_posted_ = static_cast<std::uint32_t>(sends_.size());
}
void SendLedger::resumed() {
  drain_limit_ = UINT32_MAX;
  if (active_) return;
  // From SQE: all of it was flushed.
  done_ = cursor_ = offered_ = issued_ = static_cast<std::uint32_t>(sends_.size());
  active_ = true;
}

void SendLedger::stopped(bool for_a_reason) {
  if (done_ < sends_.size() && !sends_[done_].failed && !for_a_reason) {
    PostedSend& send = sends_[done_];
    failures_.check(send.local_error || (send.uses_revocable && is_revoked()),
                    "stopped without a reason", done_);
    failures_.check(drain_limit_ == UINT32_MAX || done_ < drain_posted_, "looked at while draining",
                    done_);
    send.failed = send.local_error.value_or(Status::kLocalProtection);
  }
  // What waited for its turn to fail is flushed now.
  const bool first_failed = done_ < sends_.size() && sends_[done_].failed;
  for (std::uint32_t i = done_ + (first_failed ? 1 : 0); i < sends_.size(); ++i) {
    sends_[i].failed.reset();
    sends_[i].is_flushed = true;
  }
  active_ = false;
}

void SendLedger::completed(const queues::Completion& completion) {
  if (forgotten_) return;
  while (reported_ < sends_.size() && sends_[reported_].is_done && !is_signaled(sends_[reported_]))
    ++reported_;
  if (reported_ >= sends_.size()) return failures_.add("a completion of nothing");
  const PostedSend& send = sends_[reported_];
  const std::uint32_t index = reported_++;
  failures_.check(completion.wr_id == send.wr_id, "completed out of order", index);
  failures_.check(completion.kind == meaning_of(send.opcode).completion, "another kind", index);
  const Status expected = send.is_done      ? Status::kSuccess
                          : send.failed     ? *send.failed
                          : send.is_flushed ? Status::kFlushed
                                            : Status::kFatal;
  // Whether it was fetched before its memory went or after is not for us to say.
  const bool either = expected == Status::kRetryExceeded && send.uses_revocable && is_revoked() &&
                      completion.status == Status::kLocalProtection;
  if (completion.status != expected && !either)
    failures_.add("operation " + std::to_string(index) + " ended with status " +
                  std::to_string(static_cast<int>(completion.status)) + " instead of " +
                  std::to_string(static_cast<int>(expected)));
  failures_.check((completion.vendor_error == 0) == (expected == Status::kSuccess),
                  "no reason given", index);
  if (send.is_done && send.reads())
    failures_.check(completion.byte_length == send.length, "another length", index);
}

void SendLedger::finish() {
  if (forgotten_) return;
  while (reported_ < sends_.size() && sends_[reported_].is_done && !is_signaled(sends_[reported_]))
    ++reported_;
  failures_.check(reported_ == sends_.size(), "operations never completed",
                  sends_.size() - reported_);
}

void SendLedger::forget() {
  forgotten_ = true;
  active_ = false;
}

}  // namespace verbena::sim
