// SPDX-License-Identifier: MIT
#include "roce/assembly.h"

namespace verbena::roce {

using qp::Refusal;
using wire::Kind;

namespace {

qp::Arrived arrived_of(const wire::Packet& packet) {
  qp::Arrived arrived;
  arrived.has_immediate = packet.shape->immediate;
  arrived.invalidates = packet.shape->ieth;
  arrived.is_solicited = packet.is_solicited;
  arrived.immediate = packet.shape->ieth ? packet.invalidate_key.value : packet.immediate;
  return arrived;
}

// With this path MTU. The opcode's own rules were checked when the packet was parsed.
bool has_possible_length(const wire::Packet& packet, std::uint32_t path_mtu) {
  if (packet.shape->payload == wire::Payload::kFull) return packet.payload.size() == path_mtu;
  return packet.payload.size() <= path_mtu;
}

}  // namespace

bool Assembly::fits(const wire::Packet& packet) const {
  if (packet.shape->is_response || !wire::may_follow(last_, *packet.shape)) return false;
  if (!has_possible_length(packet, path_mtu_)) return false;
  return packet.shape->kind != Kind::kWrite || packet.shape->starts_message() || fits_write(packet);
}

// The DMA length said how much there would be.
bool Assembly::fits_write(const wire::Packet& packet) const {
  const std::uint64_t upto = offset_ + packet.payload.size();
  return packet.shape->ends_message() ? upto == length_ : upto < length_;
}

Result<void, Refusal> Assembly::take(const wire::Packet& packet, qp::Responder& responder) {
  const auto done = packet.shape->kind == Kind::kSend ? take_send(packet, responder)
                                                      : take_write(packet, responder);
  if (!done) return done;
  offset_ = (packet.shape->starts_message() ? 0 : offset_) + packet.payload.size();
  last_ = packet.shape;
  return done;
}

// Something is left for the last packet.
std::size_t Assembly::fitting(const wire::Middle& piece, std::size_t count) const {
  const std::size_t bytes = piece.payload.size();
  if (!is_inside() || last_->kind != piece.kind || bytes != path_mtu_) return 0;
  if (piece.kind == Kind::kSend) return count;
  const std::uint64_t left = length_ - offset_;
  return left == 0 ? 0 : std::min<std::uint64_t>(count, (left - 1) / bytes);
}

// The shape of the packet before, which is as much inside, serves as well as its own.
Result<void, Refusal> Assembly::take(const wire::Middle& piece, qp::Responder& responder) {
  const auto done = piece.kind == Kind::kSend
                        ? responder.place(offset_, piece.payload)
                        : responder.write(key_, address_ + offset_, piece.payload, false);
  if (done) placed(piece.payload.size());
  return done;
}

bool Assembly::place(Kind kind, const ConstPieces& pieces, qp::Responder& responder) const {
  return kind == Kind::kSend ? responder.place_pieces(offset_, pieces)
                             : responder.write_pieces(key_, address_ + offset_, pieces);
}

qp::RelayPiece Assembly::piece_of(const wire::Packet& packet) const {
  const bool starts = packet.shape->starts_message();
  const bool is_send = packet.shape->kind == Kind::kSend;
  const std::uint64_t offset = starts ? 0 : offset_;
  const std::uint64_t length = starts ? packet.dma_length : length_;
  return {.shared_queue = packet.srq_number,
          .kind = is_send ? qp::OpKind::kSend : qp::OpKind::kWrite,
          .is_first = starts,
          .is_last = packet.shape->ends_message(),
          .arrived = arrived_of(packet),
          .key = starts ? packet.remote_key : key_,
          .address = starts ? packet.remote_address : address_,
          .length = static_cast<std::uint32_t>(is_send ? offset + packet.payload.size() : length),
          .offset = static_cast<std::uint32_t>(offset),
          .bytes = packet.payload};
}

void Assembly::passed(const wire::Packet& packet) {
  const bool starts = packet.shape->starts_message();
  if (starts) {
    key_ = packet.remote_key;
    address_ = packet.remote_address;
    length_ = packet.dma_length;
  }
  offset_ = (starts ? 0 : offset_) + packet.payload.size();
  last_ = packet.shape;
}

Result<void, Refusal> Assembly::take_send(const wire::Packet& packet, qp::Responder& responder) {
  const bool starts = packet.shape->starts_message();
  if (starts && packet.shape->ends_message())
    return responder.receive_whole(packet.payload, arrived_of(packet));
  const std::uint64_t offset = starts ? 0 : offset_;
  if (starts) {
    if (auto begun = responder.begin_receive_of_any_length(); !begun) return begun;
  }
  if (!packet.payload.empty()) {
    if (auto placed = responder.place(offset, packet.payload); !placed) return placed;
  }
  if (!packet.shape->ends_message()) return {};
  responder.length_known(offset + packet.payload.size());
  return responder.finish_receive(arrived_of(packet));
}

Result<void, Refusal> Assembly::take_write(const wire::Packet& packet, qp::Responder& responder) {
  const bool starts = packet.shape->starts_message();
  const MemoryKey key = starts ? packet.remote_key : key_;
  const std::uint64_t address = starts ? packet.remote_address : address_;
  const std::uint64_t length = starts ? packet.dma_length : length_;
  if (starts) {
    if (auto begun = responder.begin_write(key, address, length, packet.shape->immediate); !begun)
      return begun;
    key_ = key;
    address_ = address;
    length_ = length;
  }
  if (!packet.payload.empty()) {
    const std::uint64_t offset = starts ? 0 : offset_;
    if (auto written =
            responder.write(key, address + offset, packet.payload, packet.shape->immediate);
        !written)
      return written;
  }
  if (!packet.shape->immediate) return {};
  return responder.finish_write_with_immediate(length, arrived_of(packet));
}

}  // namespace verbena::roce
