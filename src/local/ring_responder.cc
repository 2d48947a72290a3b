// SPDX-License-Identifier: MIT
#include "local/ring_responder.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "local/request_kinds.h"
#include "local/ring_request.h"

namespace verbena::local {

void RingResponder::offer(Conduit conduit) {
  conduit_ = std::move(conduit);
  requests_ = conduit_.request_reader();
  responses_ = conduit_.response_writer();
}

void RingResponder::stop_reaching() {
  if (!conduit_) return;
  conduit_.header().small_length.store(0, std::memory_order_seq_cst);
  for (ConduitHeader::Reach& part : conduit_.header().reach)
    part.length.store(0, std::memory_order_seq_cst);
}

void RingResponder::close() {
  if (!conduit_ || std::exchange(closed_, true)) return;
  is_plain_ = false;
  acknowledge();
  conduit_.header().responder_closed.store(1, std::memory_order_release);
  raise(signal_, Signal::kMessage);
}

bool RingResponder::serve(qp::Responder& responder, qp::Budget& budget) {
  if (!conduit_ || broken_) return false;
  bool stalled = !send_refusal() || (relaying_ && !take_relayed(responder, budget));
  const bool has_replies = is_relaying() && budget.spent();
  std::size_t untold = 0;
  while (!stalled && !broken_ && !budget.spent() && responder.is_receiving()) {
    if (reading_ && !continue_read(responder, budget)) {
      stalled = !budget.spent();
      break;
    }
    Request request;
    std::uint32_t units = 0;
    if (!requests_.peek(reinterpret_cast<Unit&>(request.record), request.payload, units)) break;
    used_ = true;
    const RowView row{units, request.record.piece_length, request.record.row};
    const bool is_row = request.kind() == RequestKind::kSendRow;
    if (is_row && !take_apart(request, row)) {
      broken_ = true;
      break;
    }
    const std::size_t room = request.is_lent() ? kLentMax
                             : units == 1      ? kInlineMax
                                               : (units - 1) * kUnit;
    if (request.record.piece_length > room) {
      broken_ = true;
      break;
    }
    // What is lent has a source, or no payload: never what lies behind the record.
    if (request.record.head.flags & (kNamesSource | kLent)) find_source(request);
    if (execute(request, responder) == Step::kStalled) {
      stalled = true;
      break;
    }
    budget.take(request.record.piece_length);
    is_row ? consume_of_row(row, 1) : requests_.consume(units);
    untold += request.record.piece_length;
    if (must_tell(untold, request.record.piece_length)) {
      acknowledge();
      untold = 0;
    }
  }
  stalled_ = stalled;
  broken_ |= requests_.is_broken() || responses_.is_broken();
  is_plain_ = !stalled && !broken_ && !closed_ && !refused_ && !reading_ && !message_ &&
              !drop_epoch_ && !dropping_ && !responder.must_choose();
  acknowledge();
  if (requests_.give_back_in_quarters()) raise(signal_, Signal::kRoom);
  return !stalled && !broken_ && responder.is_receiving() &&
         (has_replies || reading_.has_value() || requests_.has_record());
}

RingResponder::Step RingResponder::execute(const Request& request, qp::Responder& responder) {
  if (is_usual(request) && !responder.must_choose()) return execute_whole_send(request, responder);
  const RequestRecord& record = request.record;
  if (drop_epoch_) {
    if (record.epoch == *drop_epoch_) return Step::kConsumed;
    drop_epoch_.reset();
  }
  if (dropping_ && !request.is_first()) return Step::kConsumed;
  dropping_ = false;
  if (!follows(request)) {
    broken_ = true;
    return Step::kConsumed;
  }
  if (request.is_lent() && !request.payload)
    return is_relaying() ? Step::kStalled : refuse_source(request);
  if (request.is_first() && !request.is_fetch()) {
    message_ = record.index;
    progress_ = 0;
  }
  if (responder.must_choose()) {
    if (qp::Relay* const to = responder.relay_for(record.shared_queue))
      return relay(request, *to, responder);
    // What was relayed is answered first.
    if (is_relaying()) return wait_with(request);
    // What a target fetches may come amid a message for another queue.
    if (auto chosen = request.is_fetch() ? responder.choose_domain(record.shared_queue)
                                         : responder.choose(record.shared_queue);
        !chosen)
      return refuse_request(request, chosen.error(), responder);
  }
  switch (request.kind()) {
    case RequestKind::kSendRow: break;  // was taken apart
    case RequestKind::kSend: return execute_send(request, responder);
    case RequestKind::kWrite: return execute_write(request, responder);
    case RequestKind::kRead: return execute_read(request, responder);
    case RequestKind::kCompareSwap:
    case RequestKind::kFetchAdd: return execute_atomic(request, responder);
    case RequestKind::kFlush: return execute_flush(request, responder);
    case RequestKind::kAtomicWrite: return execute_atomic_write(request, responder);
  }
  broken_ = true;
  return Step::kConsumed;
}

// A SEND in one piece, and no other message has left anything behind.
bool RingResponder::is_usual(const Request& request) const {
  constexpr std::uint8_t kLooked = kFirst | kLast | kLent;
  const RequestRecord& record = request.record;
  return record.head.kind == static_cast<std::uint8_t>(RequestKind::kSend) &&
         (record.head.flags & kLooked) == (kFirst | kLast) && record.offset == 0 &&
         record.piece_length == record.total_length && !message_ && !drop_epoch_ && !dropping_;
}

RingResponder::Step RingResponder::execute_whole_send(const Request& request,
                                                      qp::Responder& responder) {
  if (auto done = responder.receive_whole(request.bytes(), request.arrived()); !done) {
    return refuse_request(request, done.error(), responder);
  }
  executed_ = request.record.index + 1;
  return Step::kConsumed;
}

// Pieces come in order and without holes; a message ends before the next begins (UC: may be cut off
// by the next).
bool RingResponder::follows(const Request& request) const {
  const RequestRecord& record = request.record;
  const bool is_whole = record.offset + std::uint64_t{record.piece_length} == record.total_length;
  const auto kind = static_cast<RequestKind>(record.head.kind);
  if (has_payload(kind) ? is_whole != request.is_last() : record.piece_length != 0) return false;
  if (record.offset > record.total_length ||
      record.piece_length > record.total_length - record.offset) {
    return !has_payload(kind);
  }
  if (request.is_first()) {
    return record.offset == 0 && (!message_ || type_ == qp::QpType::kUc || request.is_relayed());
  }
  const bool is_same = request.is_relayed() ? message_.has_value() : message_ == record.index;
  return is_same && record.offset == progress_ && record.piece_length != 0;
}

std::optional<RingResponder::Lent> RingResponder::lent_in(const PeerMemory::Region& region,
                                                          std::uint64_t address,
                                                          std::uint32_t length) {
  const MappedPart& part = region.mapped;
  const std::uint64_t offset = address - region.iova;
  const bool is_mapped =
      region.base && offset >= part.begin && offset <= part.end && length <= part.end - offset;
  if (!is_mapped) return std::nullopt;
  return Lent{region.base + (offset - part.begin), region.identity};
}

// Where the requester says that the payload lies. Maps it for the next time, and tells the
// requester what is mapped. Without payload when it was lent and is not found.
void RingResponder::find_source(Request& request) {
  const RequestRecord& record = request.record;
  if (request.is_lent()) request.payload = nullptr;
  const MemoryKey key{record.source.key};
  const auto region = peer_ && record.piece_length > 0 ? peer_->find(key) : std::nullopt;
  if (!region || !region->base) return;
  auto& told = conduit_.header().borrowed[key.value % ConduitHeader::kBorrowed];
  if (told.load(std::memory_order_relaxed) != region->identity) {
    told.store(region->identity, std::memory_order_relaxed);
  }
  if (!request.is_lent() || is_left()) return;
  const auto lent = lent_in(*region, record.source.address, record.piece_length);
  if (!lent) return;
  request.payload = lent->payload;
  request.source_identity = lent->identity;
}

// What was read is what the requester lent: it has taken back neither its memory nor what it
// posted, of which its program may have been told already.
bool RingResponder::is_still_lent(MemoryKey key, std::uint64_t identity) const {
  std::atomic_thread_fence(std::memory_order_acquire);
  return !is_left() && peer_->still_holds(key, identity);
}

bool RingResponder::still_lent(const Request& request) const {
  return !request.is_lent() || is_still_lent({request.record.source.key}, request.source_identity);
}

RingResponder::Step RingResponder::refuse_source(const Request& request) {
  message_.reset();
  refused_ = Refused{request.record.index, qp::Answer::kDone, 0, ResponseKind::kNotLent};
  drop_epoch_ = request.record.epoch;
  send_refusal();
  return Step::kConsumed;
}

void RingResponder::finished(const Request& request) {
  executed_ = request.record.index + 1;
  message_.reset();
}

RingResponder::Step RingResponder::refuse_request(const Request& request, qp::Refusal refusal,
                                                  const qp::Responder& responder) {
  if (may_resume(request, refusal))
    progress_ = request.record.offset;
  else
    message_.reset();
  if (type_ == qp::QpType::kUc) {
    dropping_ = !request.is_last();
    return Step::kConsumed;
  }
  refused_ = Refused{request.record.index, qp::answer_of(refusal), responder.rnr_timer()};
  drop_epoch_ = request.record.epoch;
  send_refusal();
  return Step::kConsumed;
}

bool RingResponder::send_refusal() {
  if (!refused_) return true;
  ResponseRecord* record = reserve(1, refused_->index);
  if (!record) return false;
  record->answer = static_cast<std::uint8_t>(refused_->answer);
  record->rnr_timer = refused_->rnr_timer;
  publish(1, refused_->kind);
  refused_.reset();
  return true;
}

RingResponder::Step RingResponder::execute_send(const Request& request, qp::Responder& responder) {
  const RequestRecord& record = request.record;
  if (request.is_first()) {
    if (auto begun = request.is_relayed() && !request.is_last()
                         ? responder.begin_receive_of_any_length()
                         : responder.begin_receive(record.total_length);
        !begun) {
      return refuse_request(request, begun.error(), responder);
    }
  }
  if (record.piece_length != 0) {
    if (auto placed = responder.place(record.offset, request.bytes()); !placed) {
      return refuse_request(request, placed.error(), responder);
    }
    if (!still_lent(request)) return refuse_source(request);
  }
  progress_ += record.piece_length;
  if (!request.is_last()) return piece_done(request);
  if (request.is_relayed()) responder.length_known(record.total_length);
  if (auto done = responder.finish_receive(request.arrived()); !done) {
    return refuse_request(request, done.error(), responder);
  }
  finished(request);
  return Step::kConsumed;
}

RingResponder::Step RingResponder::execute_write(const Request& request, qp::Responder& responder) {
  const RequestRecord& record = request.record;
  const bool has_immediate = record.head.flags & kWithImmediate;
  if (request.is_first() && record.total_length != 0) {
    if (auto begun = responder.begin_write(request.key(), record.remote_address,
                                           record.total_length, has_immediate);
        !begun) {
      return refuse_request(request, begun.error(), responder);
    }
  }
  if (record.piece_length != 0) {
    if (auto written = responder.write(request.key(), record.remote_address + record.offset,
                                       request.bytes(), has_immediate);
        !written) {
      return refuse_request(request, written.error(), responder);
    }
    if (!still_lent(request)) return refuse_source(request);
  }
  progress_ += record.piece_length;
  if (!request.is_last()) return piece_done(request);
  if (has_immediate) {
    if (auto done = responder.finish_write_with_immediate(record.total_length, request.arrived());
        !done) {
      return refuse_request(request, done.error(), responder);
    }
  }
  finished(request);
  return Step::kConsumed;
}

RingResponder::Step RingResponder::execute_read(const Request& request, qp::Responder& responder) {
  const RequestRecord& record = request.record;
  if (type_ != qp::QpType::kRc)
    return refuse_request(request, qp::Refusal::kInvalidRequest, responder);
  if (record.total_length == 0) {
    finished(request);
    return Step::kConsumed;
  }
  if (auto begun = responder.begin_read(request.key(), record.remote_address, record.total_length);
      !begun) {
    return refuse_request(request, begun.error(), responder);
  }
  if (!request.is_fetch()) message_.reset();
  reading_ = Reading{record.index,          record.epoch,        request.key(),
                     record.remote_address, record.total_length, 0};
  return Step::kConsumed;
}

// False when it has to wait: for room, or for the next turn.
bool RingResponder::continue_read(qp::Responder& responder, qp::Budget& budget) {
  while (reading_->done < reading_->length) {
    if (budget.spent()) return false;
    const std::uint32_t piece = std::min(kPieceMax, reading_->length - reading_->done);
    const bool is_small = piece <= sizeof(ResponseRecord::unused);
    const std::uint32_t units = is_small ? 1 : units_for(piece);
    ResponseRecord* record = reserve(units, reading_->index);
    if (!record) return false;
    std::byte* room = is_small ? record->unused : reinterpret_cast<std::byte*>(record) + kUnit;
    if (auto read =
            responder.read(reading_->key, reading_->address + reading_->done, {room, piece});
        !read) {
      refused_ = Refused{reading_->index, qp::answer_of(read.error()), 0};
      drop_epoch_ = reading_->epoch;
      reading_.reset();
      return send_refusal();
    }
    record->offset = reading_->done;
    record->piece_length = piece;
    publish(units, ResponseKind::kData);
    reading_->done += piece;
    budget.take(piece);
  }
  executed_ = reading_->index + 1;
  reading_.reset();
  return true;
}

RingResponder::Step RingResponder::execute_atomic(const Request& request,
                                                  qp::Responder& responder) {
  const RequestRecord& record = request.record;
  if (type_ != qp::QpType::kRc)
    return refuse_request(request, qp::Refusal::kInvalidRequest, responder);
  // The answer's room first: an atomic is executed once.
  ResponseRecord* response = reserve(1, record.index);
  if (!response) {
    message_.reset();
    return Step::kStalled;
  }
  const memory::AtomicRequest wanted{
      .add = static_cast<RequestKind>(record.head.kind) == RequestKind::kFetchAdd,
      .operand = record.atomic.compare_add,
      .swap = record.atomic.swap};
  auto before = responder.atomic(request.key(), record.remote_address, wanted);
  if (!before) return refuse_request(request, before.error(), responder);
  response->value = *before;
  publish(1, ResponseKind::kValue);
  finished(request);
  return Step::kConsumed;
}

RingResponder::Step RingResponder::execute_flush(const Request& request, qp::Responder& responder) {
  const RequestRecord& record = request.record;
  if (type_ != qp::QpType::kRc)
    return refuse_request(request, qp::Refusal::kInvalidRequest, responder);
  const auto done = responder.flush(request.key(), record.remote_address, flush_of(record));
  if (!done) return refuse_request(request, done.error(), responder);
  finished(request);
  return Step::kConsumed;
}

RingResponder::Step RingResponder::execute_atomic_write(const Request& request,
                                                        qp::Responder& responder) {
  memory::Word word;
  if (type_ != qp::QpType::kRc)
    return refuse_request(request, qp::Refusal::kInvalidRequest, responder);
  if (request.is_lent() || request.record.piece_length != word.size()) {
    broken_ = true;
    return Step::kConsumed;
  }
  std::copy_n(request.record.inline_payload, word.size(), word.begin());
  const auto done = responder.atomic_write(request.key(), request.record.remote_address, word);
  if (!done) return refuse_request(request, done.error(), responder);
  finished(request);
  return Step::kConsumed;
}

ResponseRecord* RingResponder::reserve(std::uint32_t units, std::uint32_t index) {
  auto* record = reinterpret_cast<ResponseRecord*>(responses_.reserve(units));
  if (!record) return nullptr;
  record->index = index;
  record->offset = 0;
  record->piece_length = 0;
  record->answer = 0;
  record->rnr_timer = 0;
  return record;
}

void RingResponder::publish(std::uint32_t units, ResponseKind kind) {
  responses_.publish(units, static_cast<std::uint8_t>(kind), 0);
  raise(signal_, Signal::kMessage);
}

}  // namespace verbena::local
