// SPDX-License-Identifier: MIT
#include "local/ring_relay.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/serial_number.h"
#include "local/request_kinds.h"

namespace verbena::local {

static_assert(kPieceMax == qp::Relay::kPieceMax);

namespace {

std::uint8_t flags_of(const qp::RelayPiece& piece) {
  std::uint8_t flags = kRelayed;
  if (piece.is_first) flags |= kFirst;
  if (piece.is_last) flags |= kLast;
  if (piece.arrived.has_immediate) flags |= kWithImmediate;
  if (piece.arrived.invalidates) flags |= kWithInvalidate;
  if (piece.arrived.is_solicited) flags |= kSolicitedEvent;
  return flags;
}

std::uint32_t total_of(const qp::RelayPiece& piece) {
  return piece.kind == qp::OpKind::kSend && !piece.is_last ? kUnknownLength : piece.length;
}

}  // namespace

RingRelay::RingRelay(Conduit conduit)
    : conduit_(std::move(conduit)),
      requests_(conduit_.request_writer()),
      responses_(conduit_.response_reader()) {}

bool RingRelay::send(const qp::RelayPiece& piece) {
  // It may take requests and answer none: what we keep of them has an end, too.
  if (pending_.size() >= kRequestUnits) return false;
  const auto length = static_cast<std::uint32_t>(piece.bytes.size());
  const std::uint32_t units = length <= kInlineMax ? 1 : units_for(length);
  auto* record = reinterpret_cast<RequestRecord*>(requests_.reserve(units));
  broken_ |= requests_.is_broken();
  if (!record) return false;
  record->index = next_index_++;
  record->epoch = epoch_;
  record->total_length = total_of(piece);
  record->piece_length = length;
  record->remote_address = piece.address;
  record->remote_key = piece.key.value;
  record->immediate = piece.arrived.immediate;
  record->offset = piece.offset;
  record->shared_queue = piece.shared_queue;
  if (is_atomic(piece.kind)) record->atomic = {piece.compare_add, piece.swap};
  if (piece.kind == qp::OpKind::kFlush)
    record->flush = {piece.flush.length, what_of(piece.flush), 0};
  std::byte* const room =
      units == 1 ? record->inline_payload : reinterpret_cast<std::byte*>(record) + kUnit;
  if (length != 0) std::memcpy(room, piece.bytes.data(), length);
  requests_.publish(units, static_cast<std::uint8_t>(kind_of(piece.kind)), flags_of(piece));
  raise(signal_, Signal::kMessage);
  pending_.push_back({piece.kind, piece.length});
  return true;
}

std::optional<qp::RelayReply> RingRelay::reply() {
  if (reply_ || broken_ || pending_.empty()) return reply_;
  // Read before the responses: what it counts has its response published before.
  const std::uint32_t executed = conduit_.header().executed.load(std::memory_order_acquire);
  if (responses_.has_record()) return reply_by_record();
  if (!is_after(executed, oldest())) return std::nullopt;
  return executed - oldest() <= outstanding() ? done() : broken();
}

std::optional<qp::RelayReply> RingRelay::reply_by_record() {
  const std::byte* payload = nullptr;
  std::uint32_t units = 0;
  if (!responses_.peek(unit_, payload, units)) {
    broken_ |= responses_.is_broken();
    return std::nullopt;
  }
  ResponseRecord record;
  std::memcpy(static_cast<void*>(&record), &unit_, sizeof record);
  const std::uint32_t ahead = record.index - oldest();
  if (ahead >= outstanding()) return broken();
  if (ahead > 0) return done();
  const bool is_small = record.piece_length <= sizeof record.unused;
  const std::size_t room = is_small ? sizeof record.unused : (units - 1) * kUnit;
  if (is_small) payload = unit_.bytes + offsetof(ResponseRecord, unused);
  const Pending& asked = pending_.front();
  qp::RelayReply reply;
  switch (static_cast<ResponseKind>(record.head.kind)) {
    case ResponseKind::kData:
      if (asked.kind != qp::OpKind::kRead || record.piece_length == 0 ||
          record.offset != received_ ||
          record.piece_length > std::min<std::size_t>(room, kPieceMax) ||
          record.piece_length > asked.length - received_) {
        return broken();
      }
      reply = {.kind = qp::RelayReply::Kind::kBytes,
               .offset = record.offset,
               .bytes = {payload, record.piece_length}};
      break;
    case ResponseKind::kValue:
      if (!is_atomic(asked.kind) || has_value_) return broken();
      reply = {.kind = qp::RelayReply::Kind::kValue, .value = record.value};
      break;
    case ResponseKind::kRefusal:
      if (record.answer == 0 || record.answer > static_cast<std::uint8_t>(qp::Answer::kOperation))
        return broken();
      reply = {.kind = qp::RelayReply::Kind::kRefused,
               .answer = static_cast<qp::Answer>(record.answer)};
      break;
    case ResponseKind::kNotLent:  // nothing was
    default: return broken();
  }
  units_ = units;
  reply_ = reply;
  return reply_;
}

std::optional<qp::RelayReply> RingRelay::done() {
  const Pending& asked = pending_.front();
  const bool is_whole = (asked.kind != qp::OpKind::kRead || received_ == asked.length) &&
                        (!is_atomic(asked.kind) || has_value_);
  if (!is_whole) return broken();
  reply_ = qp::RelayReply{};
  return reply_;
}

std::optional<qp::RelayReply> RingRelay::broken() {
  broken_ = true;
  return std::nullopt;
}

void RingRelay::take_reply() {
  const qp::RelayReply reply = *std::exchange(reply_, std::nullopt);
  switch (reply.kind) {
    case qp::RelayReply::Kind::kBytes:
      received_ += static_cast<std::uint32_t>(reply.bytes.size());
      break;
    case qp::RelayReply::Kind::kValue: has_value_ = true; break;
    case qp::RelayReply::Kind::kRefused:
      pending_.clear();
      ++epoch_;
      break;
    case qp::RelayReply::Kind::kDone: pending_.pop_front(); break;
  }
  if (reply.kind == qp::RelayReply::Kind::kDone || reply.kind == qp::RelayReply::Kind::kRefused) {
    received_ = 0;
    has_value_ = false;
  }
  if (units_ == 0) return;
  responses_.consume(std::exchange(units_, 0));
  if (responses_.give_back()) raise(signal_, Signal::kRoom);
}

bool RingRelay::is_over() const {
  if (broken_) return true;
  // In this order: what it answered last is there when it says that it leaves.
  const bool has_left = conduit_.header().responder_closed.load(std::memory_order_acquire) != 0;
  const std::uint32_t executed = conduit_.header().executed.load(std::memory_order_acquire);
  return has_left && !responses_.has_record() &&
         (pending_.empty() || !is_after(executed, oldest()));
}

Signal RingRelay::take_signal() { return std::exchange(signal_, Signal::kNone); }

void RingRelay::close() {
  conduit_.header().requester_closed.store(1, std::memory_order_release);
  raise(signal_, Signal::kMessage);
}

}  // namespace verbena::local
