// SPDX-License-Identifier: MIT
#include "wire/packet.h"

#include <bit>

#include "base/assert.h"
#include "wire/headers.h"

namespace verbena::wire {
namespace {

void decode_bth(const Bth& bth, Head& head) {
  head.opcode = {bth.opcode};
  head.is_solicited = (bth.flags & Bth::kSolicited) != 0;
  head.is_migrated = (bth.flags & Bth::kMigrated) != 0;
  head.pad = bth.flags >> Bth::kPadShift & 3;
  head.pkey = bth.pkey.value();
  head.fecn = (bth.congestion & Bth::kFecn) != 0;
  head.becn = (bth.congestion & Bth::kBecn) != 0;
  head.dest_qp = {bth.dest_qp.value()};
  head.ack_request = (bth.ack_request & Bth::kAckRequest) != 0;
  head.mark = bth.ack_request & Bth::kMarkMask;
  head.psn = Psn(bth.psn.value());
}

Bth encode_bth(const Head& head) {
  Bth bth;
  bth.opcode = head.opcode.value;
  bth.flags = static_cast<std::uint8_t>((head.is_solicited ? Bth::kSolicited : 0) |
                                        (head.is_migrated ? Bth::kMigrated : 0) |
                                        (head.pad & 3) << Bth::kPadShift);
  bth.pkey = be16(head.pkey);
  bth.congestion =
      static_cast<std::uint8_t>((head.fecn ? Bth::kFecn : 0) | (head.becn ? Bth::kBecn : 0));
  bth.dest_qp = be24(head.dest_qp.value);
  bth.ack_request = static_cast<std::uint8_t>((head.ack_request ? Bth::kAckRequest : 0) |
                                              (head.mark & Bth::kMarkMask));
  bth.psn = be24(head.psn.value());
  return bth;
}

// False: the placement or the selectivity is not one that exists.
bool decode_feth(const Feth& feth, Head& head) {
  const std::uint32_t type = feth.type.value();
  const std::uint32_t placement = type & Feth::kPlacementMask;
  const std::uint32_t selectivity = type >> Feth::kSelectivityShift & Feth::kSelectivityMask;
  if (placement == 0 || (placement & ~(Feth::kGlobalVisibility | Feth::kPersistence)) != 0) {
    return false;
  }
  if (selectivity > static_cast<std::uint32_t>(Selectivity::kRegion)) return false;
  head.placement = {.global_visibility = (placement & Feth::kGlobalVisibility) != 0,
                    .persistence = (placement & Feth::kPersistence) != 0};
  head.selectivity = static_cast<Selectivity>(selectivity);
  return true;
}

Feth encode_feth(const Head& head) {
  return {be32((head.placement.global_visibility ? Feth::kGlobalVisibility : 0) |
               (head.placement.persistence ? Feth::kPersistence : 0) |
               static_cast<std::uint32_t>(head.selectivity) << Feth::kSelectivityShift)};
}

// Headers that name memory. The caller has seen that all headers are there.
bool decode_memory(View& view, const OpcodeShape& shape, Head& head) {
  if (shape.feth && !decode_feth(*view.take<Feth>(), head)) return false;
  if (shape.reth) {
    const Reth& reth = *view.take<Reth>();
    head.remote_address = reth.address.value();
    head.remote_key = {reth.key.value()};
    head.dma_length = reth.dma_length.value();
  }
  if (shape.atomic_eth) {
    const AtomicEth& atomic = *view.take<AtomicEth>();
    head.remote_address = atomic.address.value();
    head.remote_key = {atomic.key.value()};
    head.swap_or_add = atomic.swap_or_add.value();
    head.compare = atomic.compare.value();
  }
  return true;
}

void decode_answer(View& view, const OpcodeShape& shape, Head& head) {
  const Aeth& aeth = *view.take<Aeth>();
  head.syndrome = Syndrome(aeth.syndrome);
  head.msn = Msn(aeth.msn.value());
  if (shape.atomic_ack_eth) head.original = view.take<AtomicAckEth>()->original.value();
}

void decode_rest(View& view, const OpcodeShape& shape, Head& head) {
  if (shape.immediate) head.immediate = std::bit_cast<std::uint32_t>(view.take<ImmDt>()->data);
  if (shape.ieth) head.invalidate_key = {view.take<Ieth>()->key.value()};
  if (shape.cnp_reserved) view.take<CnpReserved>();
}

// False: FETH means nothing.
bool decode_extensions(View& view, const OpcodeShape& shape, Head& head) {
  if (shape.deth) {
    const Deth& deth = *view.take<Deth>();
    head.qkey = deth.qkey.value();
    head.source_qp = {deth.source_qp.value()};
  }
  if (shape.xrceth) head.srq_number = view.take<Xrceth>()->srq_number.value();
  if ((shape.reth || shape.atomic_eth) && !decode_memory(view, shape, head)) return false;
  if (shape.aeth) decode_answer(view, shape, head);
  decode_rest(view, shape, head);
  return true;
}

// How much payload the opcode allows, with the largest path MTU.
std::optional<Malformed> check_payload(const OpcodeShape& shape, std::size_t bytes) {
  switch (shape.payload) {
    case Payload::kNone:
      if (bytes != 0) return Malformed::kPayload;
      return {};
    case Payload::kFull:
      if (bytes == 0) return Malformed::kNoPayload;
      if (!is_path_mtu(bytes)) return Malformed::kPayloadSize;
      return {};
    case Payload::kSome:
      if (bytes == 0) return Malformed::kNoPayload;
      [[fallthrough]];
    case Payload::kAny:
      if (bytes > kPathMtuMax) return Malformed::kPayloadSize;
      return {};
    case Payload::kEight:
      if (bytes == 0) return Malformed::kNoPayload;
      if (bytes != 8) return Malformed::kPayloadSize;
      return {};
  }
  return {};
}

// Whether RETH.DMALen is possible together with the payload of this packet.
bool dma_length_fits(const Packet& packet) {
  if (packet.dma_length > kDmaLengthMax) return false;
  switch (packet.shape->payload) {
    case Payload::kFull: return packet.dma_length > packet.payload.size();
    case Payload::kAny:
    case Payload::kEight: return packet.dma_length == packet.payload.size();
    case Payload::kNone:
    case Payload::kSome: return true;
  }
  return true;
}

// Only an Acknowledge may refuse; what brings data is an ACK by itself.
bool syndrome_fits(const Packet& packet) {
  if (!packet.syndrome.is_defined()) return false;
  return packet.syndrome.is_ack() || packet.shape->kind == Kind::kAcknowledge;
}

const Bth* bth_of(std::span<const std::byte> datagram) {
  if (datagram.size() < kBthBytes + kIcrcBytes) return nullptr;
  return View(datagram).take<Bth>();
}

// Of a packet that no router marked.
const Bth* plain_bth_of(std::span<const std::byte> datagram) {
  const Bth* const bth = bth_of(datagram);
  const bool is_plain = bth && (bth->flags & Bth::kVersionMask) == 0 && bth->congestion == 0;
  return is_plain ? bth : nullptr;
}

// The reason to refuse, or none.
std::optional<Malformed> decode(std::span<const std::byte> datagram, Packet& packet) {
  const Bth* const bth = bth_of(datagram);
  if (bth == nullptr) return Malformed::kTruncated;
  if ((bth->flags & Bth::kVersionMask) != 0) return Malformed::kTransportVersion;
  const OpcodeShape& shape = shape_of({bth->opcode});
  if (!shape.is_defined) return Malformed::kOpcode;
  if (datagram.size() < shape.header_bytes + kIcrcBytes) return Malformed::kTruncated;

  packet.shape = &shape;
  decode_bth(*bth, packet);
  if (shape.header_bytes != kBthBytes) [[unlikely]] {
    View view(datagram.subspan(kBthBytes));
    if (!decode_extensions(view, shape, packet)) return Malformed::kFlush;
  }

  const std::size_t padded = datagram.size() - shape.header_bytes - kIcrcBytes;
  if ((padded & 3) != 0) return Malformed::kUnaligned;
  if (packet.pad > padded) return Malformed::kPad;
  packet.payload = datagram.subspan(shape.header_bytes, padded - packet.pad);
  if (const auto reason = check_payload(shape, packet.payload.size())) return reason;
  if (shape.reth && !dma_length_fits(packet)) return Malformed::kDmaLength;
  if (shape.aeth && !syndrome_fits(packet)) return Malformed::kSyndrome;
  return {};
}

}  // namespace

Result<Packet, Malformed> parse(std::span<const std::byte> datagram) {
  // Decoded where it is returned: moving so many fields would take longer than decoding them.
  Result<Packet, Malformed> packet;
  if (const auto reason = decode(datagram, *packet)) packet = refuse(*reason);
  return packet;
}

std::optional<WholeSend> parse_whole_send(std::span<const std::byte> datagram) {
  const Bth* const bth = plain_bth_of(datagram);
  if (!bth || bth->opcode != Opcode::of(Service::kRc, Code::kSendOnly).value) return std::nullopt;
  const std::size_t padded = datagram.size() - kBthBytes - kIcrcBytes;
  const std::size_t pad = bth->flags >> Bth::kPadShift & 3;
  if ((padded & 3) != 0 || pad > padded || padded - pad > kPathMtuMax) return std::nullopt;
  return WholeSend{{.is_solicited = (bth->flags & Bth::kSolicited) != 0,
                    .ack_request = (bth->ack_request & Bth::kAckRequest) != 0,
                    .mark = static_cast<std::uint8_t>(bth->ack_request & Bth::kMarkMask),
                    .pkey = bth->pkey.value(),
                    .psn = Psn(bth->psn.value())},
                   datagram.subspan(kBthBytes, padded - pad)};
}

// Of such a packet the payload is full, and multiples of four have no pad.
std::optional<Middle> parse_middle(std::span<const std::byte> datagram) {
  const Bth* const bth = plain_bth_of(datagram);
  if (!bth) return std::nullopt;
  const bool is_write = bth->opcode == Opcode::of(Service::kRc, Code::kWriteMiddle).value;
  const bool is_send = bth->opcode == Opcode::of(Service::kRc, Code::kSendMiddle).value;
  const std::size_t bytes = datagram.size() - kBthBytes - kIcrcBytes;
  if (is_write == is_send || (bth->flags >> Bth::kPadShift & 3) != 0 || !is_path_mtu(bytes))
    return std::nullopt;
  return Middle{.kind = is_write ? Kind::kWrite : Kind::kSend,
                .ack_request = (bth->ack_request & Bth::kAckRequest) != 0,
                .mark = static_cast<std::uint8_t>(bth->ack_request & Bth::kMarkMask),
                .pkey = bth->pkey.value(),
                .psn = Psn(bth->psn.value()),
                .payload = datagram.subspan(kBthBytes, bytes)};
}

std::size_t run_of(std::span<const std::byte> datagrams, std::size_t bytes_of_each) {
  static_assert(offsetof(Bth, psn) + sizeof(be24) == sizeof(Bth));
  const auto bth_at = [&](std::size_t i) {
    return View(datagrams.subspan(i * bytes_of_each)).take<Bth>();
  };
  const std::size_t most = datagrams.size() / bytes_of_each;
  std::size_t count = 0;
  for (Psn psn(most != 0 ? bth_at(0)->psn.value() : 0); count < most; ++count, psn = psn.next()) {
    const bool is_alike = std::memcmp(bth_at(0), bth_at(count), offsetof(Bth, psn)) == 0;
    if (!is_alike || Psn(bth_at(count)->psn.value()) != psn) break;
  }
  return count;
}

void encode_whole_send(const WholeSendHead& head, QpNum to, std::uint8_t pad,
                       std::span<std::byte, kBthBytes> room) {
  Bth bth;
  bth.opcode = Opcode::of(Service::kRc, Code::kSendOnly).value;
  bth.flags = static_cast<std::uint8_t>((head.is_solicited ? Bth::kSolicited : 0) | Bth::kMigrated |
                                        pad << Bth::kPadShift);
  bth.pkey = be16(head.pkey);
  bth.dest_qp = be24(to.value);
  bth.ack_request = static_cast<std::uint8_t>((head.ack_request ? Bth::kAckRequest : 0) |
                                              (head.mark & Bth::kMarkMask));
  bth.psn = be24(head.psn.value());
  std::memcpy(room.data(), &bth, sizeof bth);
}

Head head_of(const WholeSendHead& head, QpNum to) {
  Head all;
  all.opcode = Opcode::of(Service::kRc, Code::kSendOnly);
  all.is_solicited = head.is_solicited;
  all.ack_request = head.ack_request;
  all.mark = head.mark;
  all.pkey = head.pkey;
  all.dest_qp = to;
  all.psn = head.psn;
  return all;
}

std::optional<Head> parse_bth(std::span<const std::byte> datagram) {
  const Bth* const bth = bth_of(datagram);
  if (bth == nullptr) return {};
  Head head;
  decode_bth(*bth, head);
  return head;
}

std::optional<QpNum> destination_of(std::span<const std::byte> datagram) {
  const Bth* const bth = bth_of(datagram);
  if (bth == nullptr) return {};
  return QpNum{bth->dest_qp.value()};
}

std::size_t encode(const Head& head, std::span<std::byte> room) {
  const OpcodeShape& shape = shape_of(head.opcode);
  VERBENA_ASSERT(shape.is_defined && room.size() >= shape.header_bytes);
  Put put(room.data());
  put(encode_bth(head));
  if (shape.header_bytes == kBthBytes) [[likely]]
    return kBthBytes;
  if (shape.deth) put(Deth{.qkey = be32(head.qkey), .source_qp = be24(head.source_qp.value)});
  if (shape.xrceth) put(Xrceth{.srq_number = be24(head.srq_number)});
  if (shape.feth) put(encode_feth(head));
  if (shape.reth) {
    put(Reth{be64(head.remote_address), be32(head.remote_key.value), be32(head.dma_length)});
  }
  if (shape.atomic_eth) {
    put(AtomicEth{be64(head.remote_address), be32(head.remote_key.value), be64(head.swap_or_add),
                  be64(head.compare)});
  }
  if (shape.aeth) put(Aeth{head.syndrome.value(), be24(head.msn.value())});
  if (shape.atomic_ack_eth) put(AtomicAckEth{be64(head.original)});
  if (shape.immediate) put(std::bit_cast<ImmDt>(head.immediate));
  if (shape.ieth) put(Ieth{be32(head.invalidate_key.value)});
  if (shape.cnp_reserved) put(CnpReserved{});
  return static_cast<std::size_t>(put.end() - room.data());
}

}  // namespace verbena::wire
