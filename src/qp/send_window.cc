// SPDX-License-Identifier: MIT
// The send queue between five marks:
//
//     done_      cursor_      issued_      offered_      fetched_      posted
//       |--in flight--|--to repeat--|--being issued--|--checked--|--not looked at--|
//
// An answer moves done_, in order. Going back (RNR, silence) puts cursor_ on done_. An operation
// that fails locally keeps its status until everything before it is done, then it completes,
// everything after it is flushed and the owner is told.
#include "qp/send_window.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/assert.h"
#include "base/serial_number.h"

namespace verbena::qp {

using queues::Completion;
using queues::SendWqe;
using queues::Status;

namespace {

constexpr std::uint8_t kRetryWithoutLimit = 7;
constexpr std::uint64_t kFrameMin = 14;  // bytes of an Ethernet header

template <class T>
std::unique_ptr<std::byte[]> room_for(std::size_t count) {
  static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
  return std::make_unique_for_overwrite<std::byte[]>(count * sizeof(T));
}

std::uint32_t ring_size(const SendWindow::Config& config) {
  return std::bit_ceil(std::max(1u, std::min(config.in_flight_max, config.queue->depth())));
}

}  // namespace

SendWindow::SendWindow(const Config& config)
    : config_(config),
      mask_(ring_size(config) - 1),
      entries_(room_for<Entry>(mask_ + std::size_t{1})),
      operations_(room_for<Operation>(mask_ + std::size_t{1})),
      snapshots_(std::make_unique_for_overwrite<std::byte[]>((mask_ + std::size_t{1}) *
                                                             config.queue->stride())),
      stride_(config.queue->stride()) {
  done_ = cursor_ = issued_ = offered_ = fetched_ = config.queue->posted();
}

const SendWindow::Entry* SendWindow::find(OpIndex op) const {
  const std::uint32_t index = op.value();
  if (!is_active() || is_before(index, done_) || !is_before(index, fetched_)) return nullptr;
  complete_description(index);
  const Entry& entry = at(index);
  return entry.status == Status::kSuccess ? &entry : nullptr;
}

SendWindow::Entry* SendWindow::find(OpIndex op) {
  return const_cast<Entry*>(std::as_const(*this).find(op));
}

// -- fetching -----------------------------------------------------------------------------------

bool SendWindow::fetch() {
  if (mode_ != Mode::kRunning || fetched_ == config_.queue->posted()) return false;
  if (fetched_ - done_ > mask_) return false;
  Entry& entry = *new (&at(fetched_)) Entry;
  const bool is_sound = config_.queue->snapshot(fetched_, wqe_room(fetched_));
  const SendWqe& copy = wqe(fetched_);
  entry = entry_of(copy);
  Operation& op =
      *new (&operation_at(fetched_)) Operation(operation_of(entry, copy, OpIndex(fetched_)));
  if (!is_sound && entry.shape) {
    entry.status = Status::kLocalQpOperation;
    entry.reason = copy.flags & queues::kInline ? Reason::kInlineTooLong : Reason::kTooManySges;
  } else if (const std::optional<LocalError> error = check(entry, op, copy)) {
    entry.status = error->status;
    entry.reason = error->reason;
  }
  ++fetched_;
  return true;
}

SendWindow::Entry SendWindow::entry_of(const SendWqe& wqe) const {
  Entry entry;
  entry.shape = shape_of(wqe.opcode);
  if (wqe.flags & queues::kInternal && entry.shape) [[unlikely]]
    entry.shape = entry.shape->kind == OpKind::kRead ? &kInternalRead : &kInternalSend;
  entry.wr_id = wqe.wr_id;
  entry.is_signaled = config_.signal_all || wqe.flags & queues::kSignaled;
  entry.is_fenced = wqe.flags & queues::kFence;
  return entry;
}

Operation SendWindow::operation_of(const Entry& entry, const SendWqe& wqe, OpIndex index) const {
  Operation op;
  op.index = index;
  op.is_solicited = wqe.flags & queues::kSolicited;
  op.immediate = wqe.immediate;
  op.remote_address = wqe.remote_address;
  op.remote_key = {wqe.remote_key};
  if (!entry.shape) return op;
  if (config_.is_xrc) op.shared_queue = named_shared_queue(wqe);
  op.kind = entry.shape->kind;
  op.has_immediate = entry.shape->has_immediate;
  op.invalidates = entry.shape->invalidates;
  if (entry.shape->atomic) {
    op.compare_add = wqe.atomic.compare_add;
    op.swap = wqe.atomic.swap;
  } else if (op.kind == OpKind::kFlush) {
    op.flush = unpack_flush(wqe);
  } else if (config_.type == QpType::kUd) {
    op.address_handle = wqe.datagram.address_handle;
    op.remote_qp = {wqe.datagram.qp};
    op.remote_qkey = wqe.datagram.qkey;
  }
  return op;
}

// Everything that can be known here is checked before a byte of the operation is sent (10.7.3.1).
std::optional<SendWindow::LocalError> SendWindow::check(const Entry& entry, Operation& op,
                                                        const SendWqe& wqe) const {
  if (!entry.shape) return LocalError{Status::kLocalQpOperation, Reason::kUnknownOpcode};
  const OpcodeShape& shape = *entry.shape;
  const bool is_inline = wqe.flags & queues::kInline;
  if (!shape.is_on(config_.type) || (is_inline && !shape.may_be_inline()))
    return LocalError{Status::kLocalQpOperation, Reason::kOpcodeNotForType};
  // When it is its turn.
  if (shape.is_local) return std::nullopt;

  const std::uint64_t length = queues::SendQueue::payload_length(wqe);
  const bool is_flush = shape.kind == OpKind::kFlush;
  op.length = is_flush ? 0 : length;
  if (length > kMessageMax || (is_flush && op.flush.length > kMessageMax))
    return LocalError{Status::kLocalLength, Reason::kMessageTooLong};
  const bool is_raw = config_.type == QpType::kRawPacket;
  if ((config_.type == QpType::kUd || is_raw) && length > config_.datagram_max)
    return LocalError{Status::kLocalLength, Reason::kDatagramTooLong};
  if (is_raw && length < kFrameMin) return LocalError{Status::kLocalLength, Reason::kFrameTooShort};
  // 10.2.3: an address handle is for the queue pairs of its domain.
  const bool has_address = config_.type == QpType::kUd && wqe.datagram.pd != 0;
  if (has_address && wqe.datagram.pd != config_.pd.value)
    return LocalError{Status::kLocalQpOperation, Reason::kAddressHandleDomain};
  if (is_flush && !op.flush.global_visibility && !op.flush.persistence)
    return LocalError{Status::kLocalQpOperation, Reason::kFlushToNowhere};
  const bool is_word = shape.atomic || shape.kind == OpKind::kAtomicWrite;
  if (is_word && length != sizeof(std::uint64_t))
    return LocalError{Status::kLocalLength, Reason::kAtomicNotEightBytes};
  // It could only wait for ever.
  if (shape.reads && reads_out_max_ == 0)
    return LocalError{Status::kLocalQpOperation, Reason::kNoReadsAllowed};
  return check_sges(entry, wqe);
}

std::optional<SendWindow::LocalError> SendWindow::check_sges(const Entry& entry,
                                                             const SendWqe& wqe) const {
  const std::uint32_t access = entry.shape->returns ? std::uint32_t{memory::kLocalWrite} : 0;
  for (const Sge& sge : queues::SendQueue::sges(wqe)) {
    if (sge.length == 0) continue;
    const auto lease = config_.regions->lease(sge.key, config_.pd, sge.address, sge.length, access);
    if (!lease) return LocalError{Status::kLocalProtection, local_reason(lease.error())};
  }
  return std::nullopt;
}

// -- issuing ------------------------------------------------------------------------------------

const Operation* SendWindow::next(const Now& now) {
  if (!is_active()) return nullptr;
  if (resume_at_) {
    if (now < *resume_at_) return nullptr;
    resume_at_.reset();
  }
  if (cursor_ == fetched_ && !fetch()) return nullptr;
  settle();
  if (!is_active()) return nullptr;
  if (is_local(at(cursor_)) && !pass_local(now)) [[unlikely]]
    return nullptr;
  complete_description(cursor_);
  const Entry& entry = at(cursor_);
  if (entry.status != Status::kSuccess) return nullptr;
  if (mode_ == Mode::kDraining && cursor_ == offered_) return nullptr;
  // A fence waits for READs and atomics, not for SENDs and WRITEs (10.8.3.3).
  if (entry.is_fenced && reads_out_ > 0) return nullptr;
  if (entry.shape->reads && reads_out_ >= reads_out_max_) return nullptr;
  if (cursor_ == offered_) ++offered_;
  shown_ = cursor_;
  return &operation_at(cursor_);
}

void SendWindow::issued(const Now&) {
  // What next() gave may have ended meanwhile: its payload was not there, or a late answer came.
  if (!is_active() || cursor_ == offered_ || cursor_ != shown_) return;
  if (at(cursor_).status != Status::kSuccess) return;
  reads_out_ += at(cursor_).shape->reads;
  if (cursor_ == issued_) ++issued_;
  ++cursor_;
  // Nobody acknowledges on an unreliable service: out is done (9.8.1, 10.7.3.1).
  if (config_.type != QpType::kRc) complete_upto(cursor_);
}

void SendWindow::too_long(OpIndex op) {
  if (Entry* const entry = find(op))
    fail_locally(*entry, Status::kLocalLength, Reason::kDatagramTooLong);
}

// -- answers ------------------------------------------------------------------------------------

void SendWindow::answered(OpIndex upto, Answer answer, const Now& now, std::uint8_t rnr_timer) {
  const std::uint32_t index = upto.value();
  if (!is_active() || is_before(index, done_) || !is_before(index, issued_)) return;
  if (answer == Answer::kDone) return complete_upto(index + 1);

  // We went back already: this answer belongs to the round before. But who is not ready is left
  // alone for as long as it says (9.7.5.2.8).
  const bool asks_again = answer == Answer::kNotReady || answer == Answer::kSilence;
  if (asks_again && !is_before(index, cursor_)) {
    if (answer == Answer::kNotReady && index == done_) wait_for_receiver(now, rnr_timer);
    return;
  }
  complete_upto(index);
  if (!is_active() || done_ != index || at(index).status != Status::kSuccess) return;
  switch (answer) {
    case Answer::kNotReady:
    case Answer::kSilence: return retry_later(answer, now, rnr_timer);
    case Answer::kInvalidRequest:
      return fail_oldest(Status::kRemoteInvalidRequest, Reason::kPeerInvalidRequest);
    case Answer::kAccess: return fail_oldest(Status::kRemoteAccess, Reason::kPeerAccess);
    case Answer::kOperation: return fail_oldest(Status::kRemoteOperation, Reason::kPeerOperation);
    case Answer::kBadResponse: return fail_oldest(Status::kBadResponse, Reason::kAnswerKind);
    case Answer::kBadLength: return fail_oldest(Status::kLocalLength, Reason::kAnswerLength);
    case Answer::kDone: return;
  }
}

void SendWindow::repeat_from(OpIndex op) {
  const std::uint32_t index = op.value();
  if (!is_active() || is_before(index, done_) || !is_before(index, cursor_)) return;
  complete_upto(index);
  if (is_active() && done_ == index) go_back();
}

void SendWindow::retry_later(Answer answer, const Now& now, std::uint8_t rnr_timer) {
  if (answer == Answer::kSilence) {
    if (retries_left_ == 0) return fail_oldest(Status::kRetryExceeded, Reason::kPeerSilent);
    --retries_left_;
    return go_back();
  }
  if (rnr_left_ == 0) return fail_oldest(Status::kRnrRetryExceeded, Reason::kPeerNotReady);
  if (rnr_retry_ != kRetryWithoutLimit) --rnr_left_;
  go_back();
  wait_for_receiver(now, rnr_timer);
}

void SendWindow::wait_for_receiver(const Now& now, std::uint8_t rnr_timer) {
  const Instant until = now + rnr_delay(rnr_timer);
  if (!resume_at_ || *resume_at_ < until) resume_at_ = until;
}

void SendWindow::go_back() {
  cursor_ = done_;
  reads_out_ = 0;
}

void SendWindow::refill_counters() {
  retries_left_ = retry_count_;
  rnr_left_ = rnr_retry_;
  resume_at_.reset();
}

void SendWindow::complete_upto(std::uint32_t end) {
  const std::uint32_t begin = done_;
  const auto is_over = [&] {
    return is_before(done_, end) || (done_ != issued_ && at(done_).is_executed);
  };
  while (is_over() && at(done_).status == Status::kSuccess && !lost_) {
    const Entry& entry = at(done_);
    if (entry.is_signaled) push(entry, Status::kSuccess, Reason::kNone);
    if (is_before(done_, cursor_))
      reads_out_ -= entry.shape->reads;
    else
      ++cursor_;
    ++done_;
  }
  if (done_ == begin) return settle();
  refill_counters();
  config_.queue->free_upto(done_);
  settle();
}

// After anything that may have moved done_ or marked an operation.
void SendWindow::settle() {
  if (!is_active()) return;
  if (lost_) {
    mode_ = Mode::kFlushing;
    flush_reason_ = Reason::kCompletionQueueFull;
    flush_rest();
    return tell_lost_completion();
  }
  if (done_ != fetched_ && at(done_).status != Status::kSuccess)
    return fail_oldest(at(done_).status, at(done_).reason);
  if (mode_ == Mode::kDraining && is_drained() && !drained_told_) {
    drained_told_ = true;
    config_.owner->window_drained();
  }
}

void SendWindow::fail_oldest(Status status, Reason reason) {
  mode_ = Mode::kFlushing;
  flush_reason_ = Reason::kFlushedAfterFailure;
  push(at(done_), status, reason);
  ++done_;
  flush_rest();
  if (lost_) return tell_lost_completion();
  config_.owner->window_failed(WindowFault::kFailed);
}

void SendWindow::fail_locally(Entry& entry, Status status, Reason reason) {
  entry.status = status;
  entry.reason = reason;
  settle();
}

void SendWindow::peer_lost(const Now& now) {
  if (config_.type != QpType::kRc || !is_active()) return;
  if (mode_ == Mode::kDraining && is_drained()) return;
  run_local(now);
  if (!is_active() || (done_ == fetched_ && !fetch())) return;
  settle();
  if (is_active()) fail_oldest(Status::kRetryExceeded, Reason::kPeerLost);
}

// -- completions --------------------------------------------------------------------------------

void SendWindow::push(const Entry& entry, Status status, Reason reason) {
  if (status != Status::kSuccess || entry.shape->reports) return push_report(entry, status, reason);
  push_done(entry);
}

void SendWindow::push_report(const Entry& entry, Status status, Reason reason) {
  if (entry.shape && entry.shape->is_internal) {
    if (!config_.owner->internal_done(entry.wr_id, entry.shape->kind, status, reason)) lost_ = true;
    return;
  }
  Completion completion;
  completion.wr_id = entry.wr_id;
  completion.status = status;
  completion.kind = entry.shape ? entry.shape->completion : queues::CompletionKind::kSend;
  completion.vendor_error = static_cast<std::uint32_t>(reason);
  completion.qp = config_.qp;
  if (status == Status::kSuccess && entry.shape->returns)
    completion.byte_length = static_cast<std::uint32_t>(operation_at(done_).length);
  if (!config_.completions->push(completion, false, &last_place_)) lost_ = true;
  note_completion(done_);
}

void SendWindow::flush_rest() {
  if (done_ != config_.queue->posted()) config_.owner->window_flushes();
  for (; done_ != config_.queue->posted(); ++done_) {
    const bool is_fetched = is_before(done_, fetched_);
    const Entry entry = is_fetched ? at(done_) : entry_of(config_.queue->at(done_));
    push(entry, Status::kFlushed, flush_reason_);
  }
  cursor_ = issued_ = offered_ = fetched_ = done_;
  reads_out_ = 0;
  resume_at_.reset();
  config_.queue->free_upto(done_);
}

void SendWindow::tell_lost_completion() {
  if (lost_told_) return;
  lost_told_ = true;
  config_.owner->window_failed(WindowFault::kCompletionLost);
}

// -- looking ------------------------------------------------------------------------------------

bool SendWindow::has_on_its_way() const { return is_active() && done_ != cursor_; }

OpIndex SendWindow::oldest() const { return OpIndex(done_); }

bool SendWindow::has_work() const {
  if (mode_ == Mode::kDraining) return !is_drained();
  return mode_ == Mode::kRunning && done_ != config_.queue->posted();
}

const Operation* SendWindow::outstanding(OpIndex op) const {
  const Entry* entry = find(op);
  return entry && is_before(op.value(), offered_) ? &operation_at(op.value()) : nullptr;
}

std::optional<Instant> SendWindow::resume_at() const { return resume_at_; }

// -- for the queue pair -------------------------------------------------------------------------

void SendWindow::start(const QpAttributes& attributes) {
  reads_out_max_ = attributes.reads_out_max;
  retry_count_ = attributes.retry_count;
  rnr_retry_ = attributes.rnr_retry;
  if (attributes.state != QpState::kReadyToSend) return;
  if (mode_ != Mode::kRunning) refill_counters();
  mode_ = Mode::kRunning;
  flush_reason_ = Reason::kFlushedByModify;
}

void SendWindow::stop_new() {
  if (mode_ != Mode::kRunning) return;
  mode_ = Mode::kDraining;
  drained_told_ = false;
  settle();
}

void SendWindow::flush() {
  mode_ = Mode::kFlushing;
  flush_rest();
  if (lost_) tell_lost_completion();
}

void SendWindow::reset() {
  mode_ = Mode::kIdle;
  flush_reason_ = Reason::kFlushedByModify;
  config_.queue->reset();
  last_place_ = taken_;
  done_ = cursor_ = issued_ = offered_ = fetched_ = config_.queue->posted();
  reads_out_ = 0;
  lost_ = lost_told_ = drained_told_ = false;
  resume_at_.reset();
}

// Seldom: the completion queue's own line is another thread's, maybe.
bool SendWindow::has_been_taken(std::uint32_t place) const {
  taken_ = config_.completions->taken_upto();
  return !config_.completions->is_waiting_at(place);
}

bool SendWindow::accepts_posts() const { return mode_ != Mode::kIdle; }

}  // namespace verbena::qp
