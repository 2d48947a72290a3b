// SPDX-License-Identifier: MIT
#include "local/ring_requester.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/fence.h"
#include "base/serial_number.h"
#include "local/request_kinds.h"
#include "memory/guarded_copy.h"

namespace verbena::local {
namespace {

// Small answers lie in the record's first unit.
constexpr std::size_t kInlineAnswerMax = sizeof(ResponseRecord::unused);

std::uint8_t flags_of(const qp::Operation& op) {
  std::uint8_t flags = 0;
  if (op.has_immediate) flags |= kWithImmediate;
  if (op.invalidates) flags |= kWithInvalidate;
  if (op.is_solicited) flags |= kSolicitedEvent;
  return flags;
}

}  // namespace

void RingRequester::attach(Conduit conduit) {
  conduit_ = std::move(conduit);
  requests_ = conduit_.request_writer();
  responses_ = conduit_.response_reader();
}

bool RingRequester::is_closed() const {
  return conduit_ && conduit_.header().responder_closed.load(std::memory_order_acquire) != 0;
}

bool RingRequester::has_answers() const {
  return conduit_ && !broken_ && (executed() != acknowledged_ || responses_.has_record());
}

std::uint32_t RingRequester::executed() const {
  const std::uint32_t counted = conduit_.header().executed.load(std::memory_order_acquire);
  return is_after(counted, acknowledged_) ? counted : acknowledged_;
}

// All that was sent before has been answered. What did not take the ring since, any number of
// operations, has no number there: the responder's counter says nothing of it.
void RingRequester::begin_at(qp::OpIndex index) {
  skipped_ += index.value() - (sending_.value() + 1);
  sending_ = qp::OpIndex(index.value() - 1);
  acknowledged_ = number_of(index);
  last_fetch_.reset();
  last_send_.reset();
  last_lent_.reset();
}

void RingRequester::close() {
  if (!conduit_ || std::exchange(closed_, true)) return;
  conduit_.header().requester_closed.store(1, std::memory_order_release);
  // What was lent is the program's own again: whoever finds what it writes there now finds this,
  // too.
  full_fence();
  raise(signal_, Signal::kMessage);
}

void RingRequester::go_back(qp::OpIndex to) {
  ++epoch_;
  sent_ = 0;
  sending_ = qp::OpIndex(to.value() - 1);
  last_lent_.reset();
}

bool RingRequester::lends(const qp::SendWindow& window) const {
  if (!conduit_ || closed_ || broken_ || !last_lent_ || !window.has_outstanding()) return false;
  return *last_lent_ - window.oldest() >= 0 && !is_after(executed(), number_of(*last_lent_));
}

bool RingRequester::issue(qp::SendWindow& window, const qp::Operation& op, qp::Budget& budget,
                          const Now& now) {
  const qp::OpIndex index = op.index;
  // The one before may have been flushed half-way.
  if (index != sending_) sent_ = 0;
  if (sent_ == 0 && window.oldest() == index) begin_at(index);
  if (op.kind == qp::OpKind::kSend || op.has_immediate) last_send_ = index;
  if (op.kind == qp::OpKind::kRead || is_atomic(op.kind)) last_fetch_ = index;
  const Sent sent = send(window, op, budget);
  if (sent != Sent::kLater || sent_ != 0) sending_ = index;
  if (sent == Sent::kLater) return false;
  sent_ = 0;
  if (sent == Sent::kEnded) return true;
  window.issued(now);
  // Unreliable: done when it is on its way, and nothing of the sender's memory is needed any more.
  if (type_ == qp::QpType::kUc) window.answered(index, qp::Answer::kDone, now);
  return true;
}

// A longer one takes a while to copy, and may be lent the next time.
constexpr std::uint32_t kCopiedAtOnceMax = 1024;
bool RingRequester::send_at_once(const AtOnce& message, Acknowledged acknowledged) {
  const std::uint32_t length = message.source.length;
  if (sent_ != 0 || broken_) return false;
  if (requests_.is_holding()) {
    if (length <= kRowBytesMost && !message.is_solicited) return add_to_row(message, acknowledged);
    end_row();
  }
  const bool may_lend =
      length >= kLentMin && own_ && type_ == qp::QpType::kRc && message.source.key.value != 0;
  const bool lends = may_lend && is_borrowed(message.source.key);
  // The general way names the source, and who hears of it may map it. This may be asked more than
  // once about a message.
  if (may_lend && !lends && unnamed_ >= kUnnamedMost) return false;
  if (length > (lends ? kLentMax : kCopiedAtOnceMax)) return false;
  const std::uint32_t units = lends || length <= kInlineMax ? 1 : units_for(length);
  RequestRecord* const record = reserve(units, message, acknowledged);
  if (!record) return false;
  std::uint8_t flags = kFirst | kLast;
  if (message.is_solicited) flags |= kSolicitedEvent;
  if (lends) {
    record->source = {message.source.address, message.source.key.value, 0};
    flags |= kNamesSource | kLent;
    last_lent_ = message.index;
  } else {
    std::byte* room = length <= kInlineMax ? record->inline_payload
                                           : reinterpret_cast<std::byte*>(record) + kUnit;
    if (!memory::guarded_copy(room, message.from, length)) return false;
    unnamed_ += may_lend;
  }
  last_send_ = sending_ = message.index;
  publish(units, qp::OpKind::kSend, flags);
  return true;
}

RequestRecord* RingRequester::reserve(std::uint32_t units, const AtOnce& message,
                                      Acknowledged acknowledged) {
  if (message.is_first_out) begin_at(message.index);
  RequestRecord* const record = reserve(units);
  if (!record) return nullptr;
  record->index = number_of(message.index);
  record->epoch = epoch_;
  record->total_length = message.source.length;
  record->piece_length = message.source.length;
  record->acknowledged = acknowledged;
  record->pace = message.measures_pace ? kMeasuresPace : kNoPace;
  record->immediate = 0;
  record->offset = 0;
  record->shared_queue = 0;
  return record;
}

RequestRecord* RingRequester::reserve(std::uint32_t units) {
  auto* record = reinterpret_cast<RequestRecord*>(requests_.reserve(units));
  if (!record) broken_ |= requests_.is_broken();
  return record;
}

RequestRecord* RingRequester::reserve(std::uint32_t units, const qp::Operation& op) {
  RequestRecord* const record = reserve(units);
  if (!record) return nullptr;
  record->index = number_of(op.index);
  record->epoch = epoch_;
  record->total_length = static_cast<std::uint32_t>(op.length);
  record->remote_address = op.kind == qp::OpKind::kSend ? 0 : op.remote_address;
  record->remote_key = op.kind == qp::OpKind::kSend ? kNoPace : op.remote_key.value;
  record->immediate = op.immediate;
  record->shared_queue = op.shared_queue;
  return record;
}

void RingRequester::publish(std::uint32_t units, qp::OpKind kind, std::uint8_t flags) {
  requests_.publish(units, static_cast<std::uint8_t>(kind_of(kind)), flags);
  raise(signal_, Signal::kMessage);
}

RingRequester::Sent RingRequester::send(qp::SendWindow& window, const qp::Operation& op,
                                        qp::Budget& budget) {
  if (op.kind == qp::OpKind::kSend || op.kind == qp::OpKind::kWrite ||
      op.kind == qp::OpKind::kAtomicWrite) {
    return send_payload(window, op, budget);
  }
  RequestRecord* record = reserve(1, op);
  if (!record) return Sent::kLater;
  record->piece_length = 0;
  record->offset = 0;
  if (op.kind == qp::OpKind::kFlush) {
    record->flush = {op.flush.length, what_of(op.flush), 0};
  } else {
    record->atomic = {op.compare_add, op.swap};
  }
  publish(1, op.kind, kFirst | kLast);
  budget.take(0);
  return Sent::kWhole;
}

bool RingRequester::is_borrowed(MemoryKey key) const {
  const std::uint64_t identity =
      own_->regions[published_place(key)].identity.load(std::memory_order_relaxed);
  const auto& place = conduit_.header().borrowed[key.value % ConduitHeader::kBorrowed];
  return static_cast<std::uint32_t>(identity) == key.value &&
         place.load(std::memory_order_relaxed) == identity;
}

// Unreliable: the sender's memory is its own again as soon as the operation is sent, so nothing is
// lent.
RingRequester::Sent RingRequester::send_payload(qp::SendWindow& window, const qp::Operation& op,
                                                qp::Budget& budget) {
  const std::uint64_t length = op.length;
  const qp::OpIndex index = op.index;
  const bool may_lend = own_ && type_ == qp::QpType::kRc && length >= kLentMin;
  // Without key: it has no single source.
  const Sge source = may_lend ? window.only_sge(index).value_or(Sge{}) : Sge{};
  const bool has_source = source.key.value != 0;
  const bool lends = has_source && is_borrowed(source.key);
  for (;;) {
    const auto piece = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(lends ? kLentMax : kPieceMax, length - sent_));
    const std::uint32_t units = lends || piece <= kInlineMax ? 1 : units_for(piece);
    RequestRecord* record = reserve(units, op);
    if (!record) return Sent::kLater;
    std::uint8_t flags = flags_of(op);
    if (lends || (has_source && piece > kInlineMax)) {
      record->source = {source.address + sent_, source.key.value, 0};
      flags |= lends ? kNamesSource | kLent : kNamesSource;
      if (lends) last_lent_ = index;
      unnamed_ = 0;
    }
    if (!lends && piece != 0) {
      std::byte* room = piece <= kInlineMax ? record->inline_payload
                                            : reinterpret_cast<std::byte*>(record) + kUnit;
      if (!window.gather(index, sent_, {room, piece})) return Sent::kEnded;
    }
    record->piece_length = piece;
    record->offset = static_cast<std::uint32_t>(sent_);
    const bool is_last = sent_ + piece == length;
    if (sent_ == 0) flags |= kFirst;
    if (is_last) flags |= kLast;
    publish(units, op.kind, flags);
    sent_ += piece;
    budget.take(lends ? 0 : piece);
    if (is_last) return Sent::kWhole;
    if (budget.spent()) return Sent::kLater;
  }
}

void RingRequester::collect(qp::SendWindow& window, qp::Budget& budget, const Now& now) {
  if (!conduit_) return;
  // Read before the responses: a READ that it covers has its data published before.
  const std::uint32_t executed = this->executed();
  Unit unit;
  const std::byte* payload = nullptr;
  std::uint32_t units = 0;
  while (!broken_ && !budget.spent() && responses_.peek(unit, payload, units)) {
    ResponseRecord record;
    static_assert(sizeof record == sizeof unit);
    std::memcpy(static_cast<void*>(&record), &unit, sizeof record);
    const std::size_t room =
        record.piece_length <= kInlineAnswerMax ? kInlineAnswerMax : (units - 1) * kUnit;
    if (record.piece_length > room) {
      broken_ = true;
      break;
    }
    if (record.piece_length <= kInlineAnswerMax)
      payload = unit.bytes + offsetof(ResponseRecord, unused);
    take(record, payload, window, now);
    responses_.consume(units);
    budget.take(record.piece_length);
  }
  if (responses_.give_back()) raise(signal_, Signal::kRoom);
  broken_ |= responses_.is_broken();
  if (executed != acknowledged_ && !responses_.has_record()) acknowledge(executed, window, now);
}

bool RingRequester::take_acknowledgement(const Acknowledged& said, qp::SendWindow& window,
                                         const Now& now) {
  if (!conduit_ || broken_ || said.conduit != static_cast<std::uint32_t>(conduit_.id()))
    return !window.has_outstanding();
  if (responses_.has_record()) return false;
  if (is_after(said.executed, acknowledged_)) acknowledge(said.executed, window, now);
  return true;
}

void RingRequester::acknowledge(std::uint32_t executed, qp::SendWindow& window, const Now& now) {
  done_ += executed - acknowledged_;
  acknowledged_ = executed;
  if (last_fetch_ && *last_fetch_ - window.oldest() < 0) last_fetch_.reset();
  if (last_fetch_) [[unlikely]]
    fail_unanswered(index_of(executed), window, now);
  window.answered(index_of(executed - 1), qp::Answer::kDone, now);
}

// What brings something is over when that has come, not when it is said to be executed.
void RingRequester::fail_unanswered(qp::OpIndex behind, qp::SendWindow& window, const Now& now) {
  const std::uint32_t behind_last = last_fetch_->value() + 1;
  const std::uint32_t end = is_after(behind.value(), behind_last) ? behind_last : behind.value();
  for (std::uint32_t at = window.oldest().value(); is_after(end, at); ++at) {
    const qp::OpIndex index(at);
    const qp::Operation* op = window.outstanding(index);
    if (!op) continue;
    if (op->kind == qp::OpKind::kRead && op->length != 0)
      return window.answered(index, qp::Answer::kBadLength, now);
    if (is_atomic(op->kind)) return window.answered(index, qp::Answer::kBadResponse, now);
  }
}

// The connection ends with it. It may be on its way yet: that ends here.
void RingRequester::answered_badly(qp::OpIndex index, qp::Answer how, qp::SendWindow& window,
                                   const Now& now) {
  if (sent_ != 0 && index == sending_) window.issued(now);
  window.answered(index, how, now);
}

void RingRequester::take(const ResponseRecord& record, const std::byte* payload,
                         qp::SendWindow& window, const Now& now) {
  const qp::OpIndex index = index_of(record.index);
  switch (static_cast<ResponseKind>(record.head.kind)) {
    case ResponseKind::kData: return take_data(record, payload, window, now);
    case ResponseKind::kValue: {
      const qp::Operation* op = window.outstanding(index);
      if (!op) return;
      if (!is_atomic(op->kind)) return answered_badly(index, qp::Answer::kBadResponse, window, now);
      std::byte value[8];
      std::memcpy(value, &record.value, sizeof value);
      if (window.scatter(index, 0, value)) window.answered(index, qp::Answer::kDone, now);
      return;
    }
    case ResponseKind::kRefusal:
      if (record.answer == 0 || record.answer > static_cast<std::uint8_t>(qp::Answer::kOperation))
        break;
      // What is refused may be on its way yet: that ends here.
      if (sent_ != 0 && index == sending_) window.issued(now);
      window.answered(index, static_cast<qp::Answer>(record.answer), now, record.rnr_timer & 31);
      go_back(index);
      return;
    case ResponseKind::kNotLent:
      if (sent_ != 0 && index == sending_) window.issued(now);
      own_ = nullptr;
      window.repeat_from(index);
      go_back(index);
      return;
  }
  broken_ = true;
}

void RingRequester::take_data(const ResponseRecord& record, const std::byte* payload,
                              qp::SendWindow& window, const Now& now) {
  const qp::OpIndex index = index_of(record.index);
  const qp::Operation* op = window.outstanding(index);
  if (!op) return;
  if (op->kind != qp::OpKind::kRead)
    return answered_badly(index, qp::Answer::kBadResponse, window, now);
  if (record.offset == 0) {
    reading_ = index;
    received_ = 0;
  }
  const std::uint64_t length = op->length;
  if (index != reading_ || record.offset != received_ || record.piece_length > length - received_)
    return answered_badly(index, qp::Answer::kBadLength, window, now);
  if (!window.scatter(index, received_, {payload, record.piece_length})) return;
  received_ += record.piece_length;
  if (received_ == length) window.answered(index, qp::Answer::kDone, now);
}

}  // namespace verbena::local
