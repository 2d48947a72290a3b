// SPDX-License-Identifier: MIT
// The headers of a RoCEv2 packet as they lie on the wire (IBTA vol 1, 9.2 and 9.3). packet.h has
// them decoded; only packet.cc and traces need these.
#pragma once

#include <cstdint>

#include "wire/bytes.h"
#include "wire/opcode.h"

namespace verbena::wire {

// Base Transport Header (9.2).
struct Bth {
  static constexpr std::uint8_t kSolicited = 0x80;
  static constexpr std::uint8_t kMigrated = 0x40;
  static constexpr unsigned kPadShift = 4;
  static constexpr std::uint8_t kVersionMask = 0x0F;
  static constexpr std::uint8_t kFecn = 0x80;
  static constexpr std::uint8_t kBecn = 0x40;
  static constexpr std::uint8_t kAckRequest = 0x80;
  static constexpr std::uint8_t kMarkMask = 0x7F;
  // Where the byte is that the ICRC takes as ones.
  static constexpr std::size_t kCongestionOffset = 4;

  std::uint8_t opcode = 0;
  std::uint8_t flags = 0;  // SE:1 M:1 Pad:2 TVer:4
  be16 pkey;
  std::uint8_t congestion = 0;  // FECN:1 BECN:1 reserved:6
  be24 dest_qp;
  std::uint8_t ack_request = 0;  // A:1 reserved:7
  be24 psn;
};
static_assert(sizeof(Bth) == kBthBytes);

// Datagram Extended Transport Header (9.3.2).
struct Deth {
  be32 qkey;
  std::uint8_t reserved = 0;
  be24 source_qp;
};
static_assert(sizeof(Deth) == kDethBytes);

// XRC Extended Transport Header (9.3.6; annex A14).
struct Xrceth {
  std::uint8_t reserved = 0;
  be24 srq_number;
};
static_assert(sizeof(Xrceth) == kXrcethBytes);

// RDMA Extended Transport Header (9.3.3).
struct Reth {
  be64 address;
  be32 key;
  be32 dma_length;
};
static_assert(sizeof(Reth) == kRethBytes);

// Atomic Extended Transport Header (9.3.4).
struct AtomicEth {
  be64 address;
  be32 key;
  be64 swap_or_add;
  be64 compare;
};
static_assert(sizeof(AtomicEth) == kAtomicEthBytes);

// ACK Extended Transport Header (9.3.5).
struct Aeth {
  std::uint8_t syndrome = 0;
  be24 msn;
};
static_assert(sizeof(Aeth) == kAethBytes);

// Atomic ACK Extended Transport Header (9.3.5.3).
struct AtomicAckEth {
  be64 original;
};
static_assert(sizeof(AtomicAckEth) == kAtomicAckEthBytes);

// Immediate data (9.3.6), handed to programs as it lies here.
struct ImmDt {
  std::array<std::uint8_t, 4> data{};
};
static_assert(sizeof(ImmDt) == kImmDtBytes);

// Invalidate Extended Transport Header (9.3.7).
struct Ieth {
  be32 key;
};
static_assert(sizeof(Ieth) == kIethBytes);

// FLUSH Extended Transport Header (annex A19).
struct Feth {
  static constexpr std::uint32_t kGlobalVisibility = 1u << 0;
  static constexpr std::uint32_t kPersistence = 1u << 1;
  static constexpr std::uint32_t kPlacementMask = 0xF;
  static constexpr unsigned kSelectivityShift = 4;
  static constexpr std::uint32_t kSelectivityMask = 3;

  be32 type;  // reserved:26 SEL:2 PLT:4
};
static_assert(sizeof(Feth) == kFethBytes);

// What follows the BTH of a CNP (annex A17.9.3): zeros.
struct CnpReserved {
  std::array<std::uint8_t, kCnpReservedBytes> zeros{};
};

}  // namespace verbena::wire
