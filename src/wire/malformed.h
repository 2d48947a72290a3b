// SPDX-License-Identifier: MIT
// Why a datagram is no packet: one reason each, and a counter each. Every byte of a peer is
// hostile; what is refused here never reaches a queue pair, except that a reliable responder may
// answer some of it with a NAK (IBTA vol 1, 9.6 and 9.7.4.1).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace verbena::wire {

enum class Malformed : std::uint8_t {
  kIpHead,            // not IPv4 without options or IPv6 without extensions, or lengths that differ
  kFragment,          // a fragment: RoCEv2 has none (A17.3.1)
  kNotRoce,           // not UDP to port 4791 (A17.3.1)
  kTruncated,         // ends inside its headers
  kIcrc,              // corrupt, or not RoCEv2 at all
  kTransportVersion,  // BTH.TVer is not 0 (9.6.1)
  kOpcode,            // reserved, or of a service that we do not have (9.2.1)
  kUnaligned,         // payload and pad are no multiple of 4 (9.2.3)
  kPad,               // pad where there is nothing to pad, or in a packet that must be full
  kPayload,           // payload where there is none
  kNoPayload,         // none where there must be some
  kPayloadSize,       // First or Middle that is no path MTU, or more than 4096 bytes
  kDmaLength,         // RETH.DMALen does not fit the packet, or is above 2^31 (9.7.4.1)
  kSyndrome,          // AETH that means nothing, or not with this opcode (9.7.5.2)
  kFlush,             // FETH with an unknown placement or selectivity (A19)
};
inline constexpr std::size_t kMalformedCount = 15;

// In words, for counters and traces: "ICRC", "DMA length".
const char* name_of(Malformed reason);

// Whether a responder of a reliable service answers "NAK invalid request" when the ICRC was right
// (9.7.4.1): the peer means us, and asks for what cannot be. All else is dropped in silence, and
// by unreliable services everything (9.8.3, 9.8.2.2).
constexpr bool deserves_nak(Malformed reason) {
  switch (reason) {
    case Malformed::kOpcode:
    case Malformed::kPad:
    case Malformed::kPayload:
    case Malformed::kNoPayload:
    case Malformed::kPayloadSize:
    case Malformed::kDmaLength:
    case Malformed::kFlush: return true;
    case Malformed::kIpHead:
    case Malformed::kFragment:
    case Malformed::kNotRoce:
    case Malformed::kTruncated:
    case Malformed::kIcrc:
    case Malformed::kTransportVersion:
    case Malformed::kUnaligned:
    case Malformed::kSyndrome: return false;
  }
  return false;
}

// How many of each. Counted by one thread.
class MalformedCounters {
 public:
  void count(Malformed reason) { ++counts_[static_cast<std::size_t>(reason)]; }
  std::uint64_t operator[](Malformed reason) const {
    return counts_[static_cast<std::size_t>(reason)];
  }
  std::uint64_t total() const {
    std::uint64_t sum = 0;
    for (const std::uint64_t count : counts_)
      sum += count;
    return sum;
  }

 private:
  std::array<std::uint64_t, kMalformedCount> counts_{};
};

}  // namespace verbena::wire
