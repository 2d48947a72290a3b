// SPDX-License-Identifier: MIT
// A RoCEv2 packet: the UDP payload from the Base Transport Header to the ICRC (IBTA vol 1, 9.2 to
// 9.4; annex A17), decoded once into host order, and encoded from the same fields.
//
// To receive: `verify` the ICRC first (icrc.h), then `parse`. Nothing may be done on account of a
// packet whose ICRC is not right, not even a NAK for an unknown opcode.
// To send: `encode` the head, put payload and zeros as pad behind it, close with the ICRC
// (datagram.h does it all).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/result.h"
#include "base/types.h"
#include "wire/aeth.h"
#include "wire/malformed.h"
#include "wire/opcode.h"
#include "wire/sequence.h"

namespace verbena::wire {

inline constexpr std::uint16_t kDefaultPkey = 0xFFFF;
// RETH.DMALen and thereby a message (9.7.4.1, 9.4.3).
inline constexpr std::uint32_t kDmaLengthMax = 1u << 31;

// FETH.PLT: where the flushed bytes shall be; at least one of the two (A19).
struct Placement {
  bool global_visibility = false;
  bool persistence = false;
  friend constexpr bool operator==(Placement, Placement) = default;
};
// FETH.SEL.
enum class Selectivity : std::uint8_t { kRange = 0, kRegion = 1 };

// All fields a packet can have, in host order. Those of headers that the opcode does not have are
// 0 when parsed, and ignored when encoded.
struct Head {
  // BTH
  Opcode opcode{};
  bool is_solicited = false;
  bool is_migrated = true;  // MigReq: hardware sends 1, and some of it drops 0 or takes a slow path
  bool ack_request = false;
  bool fecn = false;
  bool becn = false;
  std::uint8_t pad = 0;
  // The seven reserved bits beside AckReq, which the ICRC covers: zeros, except between two ends
  // that know each other (roce/agreement.h).
  std::uint8_t mark = 0;
  std::uint16_t pkey = kDefaultPkey;
  QpNum dest_qp{};
  Psn psn{};
  // DETH
  std::uint32_t qkey = 0;
  QpNum source_qp{};
  // XRCETH
  std::uint32_t srq_number = 0;
  // FETH
  Placement placement{};
  Selectivity selectivity = Selectivity::kRange;
  // RETH and AtomicETH
  MemoryKey remote_key{};
  std::uint64_t remote_address = 0;
  std::uint32_t dma_length = 0;
  // AtomicETH
  std::uint64_t swap_or_add = 0;
  std::uint64_t compare = 0;
  // AETH
  Syndrome syndrome{};
  Msn msn{};
  // AtomicAckETH: what the memory held before.
  std::uint64_t original = 0;
  // ImmDt: kept in network order, as programs get it.
  std::uint32_t immediate = 0;
  // IETH
  MemoryKey invalidate_key{};

  friend constexpr bool operator==(const Head&, const Head&) = default;
};

struct Packet : Head {
  // Spelled out, for otherwise gcc clears all of it by `rep stos` first, and parse takes 16 ns
  // instead of 6.
  Packet() {}  // NOLINT(modernize-use-equals-default): see above

  const OpcodeShape* shape = nullptr;  // never null in what parse returns
  std::span<const std::byte> payload;  // points into the datagram, without the pad

  // Without the payload, to be changed and built again.
  const Head& head() const { return *this; }
};

// `datagram` is a UDP payload with its ICRC at the end, which is not looked at. Never reads past
// it. What comes back is complete: all headers of the opcode are there, the payload is of a length
// that the opcode allows with some path MTU (whether it is the queue pair's is for the engine to
// see), a WRITE's DMA length fits it. Reserved bits
// refuse nothing.
Result<Packet, Malformed> parse(std::span<const std::byte> datagram);

// A SEND of a reliable connection that is a whole message, with nothing but a BTH before it: what
// the packets of a conversation are.
struct WholeSendHead {
  bool is_solicited = false;
  bool ack_request = false;
  std::uint8_t mark = 0;
  std::uint16_t pkey = 0;
  Psn psn{};
};
struct WholeSend : WholeSendHead {
  std::span<const std::byte> payload{};
};
// Of a datagram as for parse(), which a conversation has no time for. Nothing where it is anything
// else, or has anything unusual: parse() tells.
std::optional<WholeSend> parse_whole_send(std::span<const std::byte> datagram);

// From the middle of a SEND or a WRITE of a reliable connection: what most packets of a stream are.
struct Middle {
  Kind kind = Kind::kSend;
  bool ack_request = false;
  std::uint8_t mark = 0;
  std::uint16_t pkey = 0;
  Psn psn{};
  std::span<const std::byte> payload{};
};
// As parse_whole_send(). Which path MTU the payload has to fill is for the connection to know.
std::optional<Middle> parse_middle(std::span<const std::byte> datagram);
// How many of the datagrams that lie behind each other have the first one's BTH, but for the PSN,
// which counts. Each has `bytes_of_each`, as many as a BTH and an ICRC at least.
std::size_t run_of(std::span<const std::byte> datagrams, std::size_t bytes_of_each);

// Only the BTH; nothing when the datagram is too short for it and an ICRC. For a NAK of what parse
// refused, and to find the queue pair before the ICRC is computed.
std::optional<Head> parse_bth(std::span<const std::byte> datagram);

// The queue pair that a datagram is for, without more; nothing when it is too short.
std::optional<QpNum> destination_of(std::span<const std::byte> datagram);

// Writes BTH and extension headers, shape_of(head.opcode).header_bytes in all, and returns how many
// that were. Asserts that the opcode is defined and that `room` is large enough.
std::size_t encode(const Head& head, std::span<std::byte> room);
// The same of such a SEND to this queue pair, by a shorter way: head_of() as encode() writes it,
// its pad as well.
void encode_whole_send(const WholeSendHead& head, QpNum to, std::uint8_t pad,
                       std::span<std::byte, kBthBytes> room);
Head head_of(const WholeSendHead& head, QpNum to);

// The pad that makes `payload_bytes` a multiple of 4 (9.2.3).
constexpr std::uint8_t pad_of(std::size_t payload_bytes) {
  return static_cast<std::uint8_t>(-payload_bytes & 3);
}
// The UDP payload of a packet with `payload_bytes`: headers, payload, pad and ICRC.
inline std::size_t datagram_bytes(Opcode opcode, std::size_t payload_bytes) {
  return shape_of(opcode).header_bytes + payload_bytes + pad_of(payload_bytes) + kIcrcBytes;
}
constexpr bool is_path_mtu(std::size_t bytes) {
  return bytes >= kPathMtuMin && bytes <= kPathMtuMax && (bytes & (bytes - 1)) == 0;
}

}  // namespace verbena::wire
