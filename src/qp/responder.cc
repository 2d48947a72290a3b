// SPDX-License-Identifier: MIT
// Who gets which error (IBTA vol 1, 9.9.3, table "responder error behavior summary"):
//
//   what is wrong                        the peer (RC)     here                            UC, UD
//   no receive posted                    RNR NAK           nothing                         dropped
//   operation not enabled, too long,     invalid request   ERR, event: request error       dropped
//     misaligned atomic, no resources
//   rkey, range, domain, rights          access            ERR, event: access error        dropped
//   memory behind the rkey is gone       operation         ERR, event: access error        dropped
//   one of these two, by a WRITE with    the same          receive, if there is one:       dropped
//     immediate (2)                                        local access; ERR, event
//   receive too short                    invalid request   receive: local length; ERR      (1)
//   receive's own memory is bad          operation         receive: local protection; ERR  the same
//   invalidate of a key that is no       access            receive: remote invalid         dropped
//     window bound to this queue pair                      request; ERR, event
//   completion queue full                operation         ERR, event: fatal               the same
//
// (1) Dropped, and the receive waits for the next message (class D), unless it came from a shared
//     receive queue, or is a raw packet: then it completes in error (class E).
//
// (2) Where what came says that it is one: the first packet of several on a wire does not, and then
//     the receive is flushed as those behind it.
//
// "Not enabled" is an invalid request, not an access error: the specification counts "RDMA or
// ATOMIC on a QP not set up for this" to the unsupported opcodes, and hardware and rxe do the same.
// Access errors are about keys.
#include "qp/responder.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/fence.h"
#include "memory/window_table.h"
#include "qp/opcode.h"
#include "qp/responder_small.h"

namespace verbena::qp {

using queues::Completion;
using queues::CompletionKind;
using queues::Status;

namespace {

constexpr std::uint32_t kGrhBytes = 40;
constexpr std::uint64_t kAtomicBytes = 8;

constexpr bool receives_in(QpState state) {
  switch (state) {
    case QpState::kReadyToReceive:
    case QpState::kReadyToSend:
    case QpState::kDrained:
    case QpState::kSendError: return true;
    case QpState::kReset:
    case QpState::kInit:
    case QpState::kError: return false;
  }
  return false;
}

// What each type of queue pair serves (9.4, table 37).
constexpr bool serves(QpType type, std::uint32_t access) {
  switch (type) {
    case QpType::kRc: return true;
    case QpType::kUc: return access == 0 || access == memory::kRemoteWrite;
    case QpType::kUd:
    case QpType::kRawPacket: return access == 0;
  }
  return false;
}

}  // namespace

Responder::Responder(const Config& config)
    : config_(config), tagged_(config.tags ? std::make_unique<Tagged>() : nullptr) {}

// -- refusals -----------------------------------------------------------------------------------

Result<void, Refusal> Responder::drop(Reason reason) {
  last_refusal_ = reason;
  return refuse(Refusal::kInvalidRequest);
}

Result<void, Refusal> Responder::not_ready() {
  last_refusal_ = Reason::kNoReceivePosted;
  return refuse(Refusal::kNotReady);
}

Result<void, Refusal> Responder::bad_request(Reason reason) {
  last_refusal_ = reason;
  if (config_.type == QpType::kRc) config_.owner->responder_failed(ResponderFault::kRequest);
  return refuse(Refusal::kInvalidRequest);
}

Result<void, Refusal> Responder::bad_access(Reason reason) {
  last_refusal_ = reason;
  if (config_.type == QpType::kRc) config_.owner->responder_failed(ResponderFault::kAccess);
  return refuse(Refusal::kAccess);
}

// The receive that a WRITE with immediate would have taken fails with it (11.6.2).
Result<void, Refusal> Responder::bad_range(memory::RegionRefusal refusal, bool has_immediate) {
  if (has_immediate && config_.type == QpType::kRc) {
    if (tagged_) leave_tagged();
    if (take_receive()) complete_failed(Status::kLocalAccess, remote_reason(refusal));
  }
  const auto answer = bad_access(remote_reason(refusal));
  // The key was right; that its memory is gone is not the peer's mistake.
  if (refusal == memory::RegionRefusal::kFault) return refuse(Refusal::kOperation);
  return answer;
}

Result<void, Refusal> Responder::bad_receive(Status status, Reason reason, Refusal refusal) {
  last_refusal_ = reason;
  complete_failed(status, reason);
  if (lost_)
    tell_lost_completion();
  else
    config_.owner->responder_failed(ResponderFault::kReceive);
  return refuse(refusal);
}

Result<void, Refusal> Responder::too_short() {
  const bool may_drop = config_.type == QpType::kUc || config_.type == QpType::kUd;
  if (may_drop && !config_.is_shared) return drop(Reason::kReceiveTooShort);
  return bad_receive(Status::kLocalLength, Reason::kReceiveTooShort, Refusal::kInvalidRequest);
}

Result<void, Refusal> Responder::admit(std::uint32_t access, std::uint64_t length) {
  if (!receiving_) return drop(Reason::kNotReceiving);
  note_first_message();
  if (config_.xrc == Xrc::kInitiator || !serves(config_.type, access))
    return bad_request(Reason::kOperationNotForType);
  if ((access_ & access) != access) return bad_request(Reason::kOperationNotEnabled);
  if (length > kMessageMax) return bad_request(Reason::kRequestTooLong);
  const bool needs_resources = access == memory::kRemoteRead || access == memory::kRemoteAtomic;
  if (needs_resources && reads_in_max_ == 0) return bad_request(Reason::kNoReadResources);
  return {};
}

void Responder::note_first_message() {
  if (!in_rtr_ || first_message_seen_ || config_.type == QpType::kRawPacket) return;
  first_message_seen_ = true;
  config_.owner->communication_established();
}

// -- receives -----------------------------------------------------------------------------------

bool Responder::take_receive() {
  if (!current_.has_receive) current_.has_receive = config_.queue->take(current_.receive);
  return current_.has_receive;
}

std::uint32_t Responder::grh_room() const { return config_.type == QpType::kUd ? kGrhBytes : 0; }

Result<void, Refusal> Responder::begin_receive(std::uint64_t length) {
  // A message that was abandoned leaves its receive to this one: RC repeats it, UC drops it.
  current_.in_progress = false;
  if (auto admitted = admit(0, length); !admitted) return admitted;
  if (tagged_) [[unlikely]]
    return begin_tagged(length);
  if (!take_receive()) return not_ready();
  if (length + grh_room() > current_.receive.room()) return too_short();
  current_.in_progress = true;
  current_.length = length;
  return {};
}

Result<void, Refusal> Responder::begin_receive_of_any_length() {
  if (auto begun = begin_receive(0); !begun) return begun;
  if (tagged_) [[unlikely]]
    return begin_tagged(kMessageMax);
  current_.length = std::min<std::uint64_t>(kMessageMax, current_.receive.room() - grh_room());
  return {};
}

Result<void, Refusal> Responder::place(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (!receiving_ || !current_.in_progress) return drop(Reason::kNoMessageInProgress);
  if (tagged_) [[unlikely]]
    return place_tagged(offset, bytes);
  if (offset > current_.length || bytes.size() > current_.length - offset) return too_short();
  if (bytes.empty()) return {};
  const auto placed = memory::scatter(*config_.regions, config_.receive_pd, current_.receive.list(),
                                      offset + grh_room(), bytes);
  if (placed) return {};
  return bad_receive(Status::kLocalProtection, local_reason(placed.error()), Refusal::kOperation);
}

bool Responder::place_pieces(std::uint64_t offset, const ConstPieces& pieces) {
  if (!receiving_ || !current_.in_progress || tagged_) return false;
  if (offset > current_.length || pieces.total() > current_.length - offset) return false;
  return memory::scatter_pieces(*config_.regions, config_.receive_pd, current_.receive.list(),
                                offset + grh_room(), pieces)
      .has_value();
}

memory::RegionReach Responder::reach_of(const Sge& to, std::uint32_t length) const {
  const auto lease =
      config_.regions->lease(to.key, config_.receive_pd, to.address, length, memory::kLocalWrite);
  return lease ? memory::RegionReach(to.key, *lease, length) : memory::RegionReach();
}

// Almost every message: a receive with one SGE that has room.
Responder::Small Responder::receive_small(std::span<const std::byte> bytes,
                                          const Arrived& arrived) {
  const auto receive = put_small(bytes, arrived);
  return receive ? finish_small(receive, bytes.size(), arrived) : Small::kNo;
}

Result<void, Refusal> Responder::receive_whole(std::span<const std::byte> bytes,
                                               const Arrived& arrived) {
  switch (receive_small(bytes, arrived)) {
    case Small::kDone: return {};
    case Small::kLost: return refuse(Refusal::kOperation);
    case Small::kNo: break;
  }
  if (auto begun = begin_receive(bytes.size()); !begun) return begun;
  if (auto placed = place(0, bytes); !placed) return placed;
  return finish_receive(arrived);
}

Result<void, Refusal> Responder::place_grh(std::span<const std::byte> grh) {
  VERBENA_ASSERT(config_.type == QpType::kUd && grh.size() == kGrhBytes);
  if (!receiving_ || !current_.in_progress) return drop(Reason::kNoMessageInProgress);
  const auto placed =
      memory::scatter(*config_.regions, config_.receive_pd, current_.receive.list(), 0, grh);
  if (placed) return {};
  return bad_receive(Status::kLocalProtection, local_reason(placed.error()), Refusal::kOperation);
}

Result<void, Refusal> Responder::finish_receive(const Arrived& arrived) {
  if (!receiving_ || !current_.in_progress) return drop(Reason::kNoMessageInProgress);
  if (tagged_) {
    // A message of nothing has no header.
    if (auto known = know_receive({}); !known) return known;
  }
  if (arrived.invalidates) {
    if (config_.type != QpType::kRc) return drop(Reason::kOperationNotForType);
    if (config_.regions->windows().invalidate(user(), {arrived.immediate})) {
      complete_failed(Status::kRemoteInvalidRequest, Reason::kRemoteInvalidateRefused);
      return bad_access(Reason::kRemoteInvalidateRefused);
    }
  }
  if (tagged_) [[unlikely]]
    return finish_tagged(arrived);
  Completion completion = completion_of_receive();
  if (arrived.invalidates) {
    completion.flags |= queues::kHasInvalidatedKey;
    completion.immediate = arrived.immediate;
  }
  completion.byte_length = static_cast<std::uint32_t>(current_.length) + grh_room();
  if (arrived.has_immediate) {
    completion.flags |= queues::kHasImmediate;
    completion.immediate = arrived.immediate;
  }
  if (config_.type == QpType::kUd) {
    completion.source_qp = arrived.source_qp;
    if (arrived.has_grh) completion.flags |= queues::kHasGrh;
  }
  return complete(completion, arrived.is_solicited);
}

Result<void, Refusal> Responder::finish_write_with_immediate(std::uint64_t length,
                                                             const Arrived& arrived) {
  current_.in_progress = false;
  if (auto admitted = admit(memory::kRemoteWrite, length); !admitted) return admitted;
  if (tagged_) leave_tagged();
  if (!take_receive()) return not_ready();
  Completion completion = completion_of_receive();
  completion.kind = CompletionKind::kReceiveWithImmediate;
  completion.byte_length = static_cast<std::uint32_t>(length);
  completion.flags = queues::kHasImmediate;
  completion.immediate = arrived.immediate;
  return complete(completion, arrived.is_solicited);
}

Completion Responder::completion_of_receive() const {
  Completion completion;
  completion.wr_id = current_.receive.wr_id;
  completion.kind = CompletionKind::kReceive;
  completion.qp = config_.qp;
  if (!tagged_) [[likely]]
    return completion;
  completion.kind = whole_kind_;
  if (tagged_->entry) completion.wr_id = tagged_->receive.wr_id;
  return completion;
}

Result<void, Refusal> Responder::complete(const Completion& completion, bool is_solicited) {
  receive_is_over();
  if (config_.completions->push(completion, is_solicited)) return {};
  return completion_lost();
}

Result<void, Refusal> Responder::completion_lost() {
  lost_ = true;
  last_refusal_ = Reason::kCompletionQueueFull;
  tell_lost_completion();
  return refuse(Refusal::kOperation);
}

void Responder::tell_lost_completion() {
  if (lost_told_) return;
  lost_told_ = true;
  config_.owner->responder_failed(ResponderFault::kCompletionLost);
}

void Responder::complete_failed(Status status, Reason reason) {
  Completion completion = completion_of_receive();
  completion.status = status;
  completion.vendor_error = static_cast<std::uint32_t>(reason);
  receive_is_over();
  if (!config_.completions->push(completion, false)) lost_ = true;
}

void Responder::receive_is_over() {
  current_.in_progress = false;
  if (!tagged_) [[likely]] {
    current_.has_receive = false;
    return;
  }
  // What failed is not among the unexpected messages that the program counts.
  if (std::exchange(tagged_->is_unexpected, false)) config_.tags->forget_unexpected();
  if (tagged_->entry)
    config_.tags->consume(*std::exchange(tagged_->entry, std::nullopt));
  else
    current_.has_receive = false;
}

void Responder::abandon() {
  if (tagged_) leave_tagged();
}

// -- one-sided ----------------------------------------------------------------------------------

Result<void, Refusal> Responder::check_range(MemoryKey key, std::uint64_t address,
                                             std::uint64_t length, std::uint32_t access,
                                             bool has_immediate) {
  if (auto admitted = admit(access, length); !admitted) return admitted;
  if (length == 0) return {};
  const auto good = memory::check_range(*config_.regions, user(), key, address, length, access);
  if (!good) return bad_range(good.error(), has_immediate);
  return {};
}

Result<void, Refusal> Responder::begin_write(MemoryKey key, std::uint64_t address,
                                             std::uint64_t length, bool has_immediate) {
  current_.in_progress = false;
  return check_range(key, address, length, memory::kRemoteWrite, has_immediate);
}

Result<void, Refusal> Responder::write(MemoryKey key, std::uint64_t address,
                                       std::span<const std::byte> bytes, bool has_immediate) {
  if (!receiving_) return drop(Reason::kNotReceiving);
  if (bytes.empty()) return {};
  const auto done = memory::write_range(*config_.regions, user(), key, address, bytes);
  if (!done) return bad_range(done.error(), has_immediate);
  return {};
}

bool Responder::write_pieces(MemoryKey key, std::uint64_t address, const ConstPieces& pieces) {
  return receiving_ &&
         memory::write_pieces(*config_.regions, user(), key, address, pieces).has_value();
}

Result<void, Refusal> Responder::begin_read(MemoryKey key, std::uint64_t address,
                                            std::uint64_t length) {
  return check_range(key, address, length, memory::kRemoteRead);
}

Result<void, Refusal> Responder::read(MemoryKey key, std::uint64_t address,
                                      std::span<std::byte> to) {
  if (!receiving_) return drop(Reason::kNotReceiving);
  if (to.empty()) return {};
  const auto done = memory::read_range(*config_.regions, user(), key, address, to);
  if (!done) return bad_range(done.error());
  return {};
}

bool Responder::read_again(MemoryKey key, std::uint64_t address, std::span<std::byte> to) {
  if (!receiving_ || (access_ & memory::kRemoteRead) == 0) return false;
  return to.empty() || memory::read_range(*config_.regions, user(), key, address, to).has_value();
}

Result<std::uint64_t, Refusal> Responder::atomic(MemoryKey key, std::uint64_t address,
                                                 memory::AtomicRequest request) {
  current_.in_progress = false;
  auto allowed = admit(memory::kRemoteAtomic, kAtomicBytes);
  if (allowed && address % kAtomicBytes != 0) allowed = bad_request(Reason::kMisalignedAtomic);
  if (!allowed) return refuse(allowed.error());
  const auto before = memory::atomic_on_range(*config_.regions, user(), key, address, request);
  if (before) return *before;
  // A region may give its bytes addresses of another alignment than their memory has.
  if (before.error() == memory::RegionRefusal::kMisaligned) {
    return refuse(bad_request(Reason::kMisalignedAtomic).error());
  }
  return refuse(bad_range(before.error()).error());
}

// What is answered by itself needs resources here, whatever it is.
Result<void, Refusal> Responder::admit_answered(std::uint32_t access, std::uint64_t length) {
  current_.in_progress = false;
  if (auto admitted = admit(access, length); !admitted) return admitted;
  if (reads_in_max_ == 0) return bad_request(Reason::kNoReadResources);
  return {};
}

Result<void, Refusal> Responder::atomic_write(MemoryKey key, std::uint64_t address,
                                              const memory::Word& word) {
  if (auto admitted = admit_answered(memory::kRemoteWrite, word.size()); !admitted) return admitted;
  if (address % word.size() != 0) return bad_request(Reason::kMisalignedAtomic);
  const auto done = memory::write_word(*config_.regions, user(), key, address, word);
  if (done) return {};
  if (done.error() != memory::RegionRefusal::kMisaligned) return bad_range(done.error());
  return bad_request(Reason::kMisalignedAtomic);
}

// Whoever writes for the peer has written when the next request is looked at, so what is left is
// that everybody sees it. Nothing is ever registered for persistence.
Result<void, Refusal> Responder::flush(MemoryKey key, std::uint64_t address, const Flush& what) {
  const std::uint32_t access = (what.global_visibility ? std::uint32_t{memory::kFlushGlobal} : 0) |
                               (what.persistence ? std::uint32_t{memory::kFlushPersistent} : 0);
  const std::uint64_t length = what.whole_region ? 0 : what.length;
  if (auto admitted = admit_answered(access, length); !admitted) return admitted;
  std::optional<std::uint64_t> range;
  if (!what.whole_region) range = length;
  if (range != 0) {
    const auto good = memory::check_range(*config_.regions, user(), key, address, range, access);
    if (!good) return bad_range(good.error());
  }
  full_fence();
  return {};
}

bool Responder::datagram_allowed(std::uint32_t qkey) const {
  if (config_.type != QpType::kUd || !receiving_) return false;
  if (qkey != qkey_) ++wrong_qkeys_;
  return qkey == qkey_;
}

std::uint8_t Responder::rnr_timer() const { return rnr_timer_; }

// -- for the queue pair -------------------------------------------------------------------------

void Responder::start(const QpAttributes& attributes) {
  const bool enters = !receiving_;
  receiving_ = receives_in(attributes.state);
  in_rtr_ = attributes.state == QpState::kReadyToReceive;
  if (enters) first_message_seen_ = false;
  access_ = attributes.access;
  qkey_ = attributes.qkey;
  rnr_timer_ = attributes.rnr_timer;
  reads_in_max_ = attributes.reads_in_max;
}

void Responder::flush() {
  receiving_ = false;
  if (tagged_ && tagged_->entry) complete_failed(Status::kFlushed, Reason::kFlushedReceive);
  if (current_.has_receive) complete_failed(Status::kFlushed, Reason::kFlushedReceive);
  while (!config_.is_shared && config_.queue->take(current_.receive))
    complete_failed(Status::kFlushed, Reason::kFlushedReceive);
  if (lost_) tell_lost_completion();
}

void Responder::reset() {
  receiving_ = in_rtr_ = first_message_seen_ = false;
  lost_ = lost_told_ = false;
  access_ = qkey_ = 0;
  last_refusal_ = Reason::kNone;
  abandon();
  current_.has_receive = current_.in_progress = false;
  if (!config_.is_shared) config_.queue->reset();
}

}  // namespace verbena::qp
