// SPDX-License-Identifier: MIT
// What two rsockets tell each other: upstream's "rsocket Protocol and Design Guide" (librdmacm,
// docs/rsocket). Private data of the connection are in network order; what one writes into the
// other's memory is in the writer's own order, which the private data name.
#pragma once

#include <bit>
#include <cstdint>

#include "wire/bytes.h"

namespace verbena::rsocket {

using wire::be16;
using wire::be32;
using wire::be64;

// Memory that the peer may write into.
struct Place {
  std::uint64_t address = 0;
  std::uint32_t key = 0;
  std::uint32_t length = 0;

  Place swapped() const {
    return {__builtin_bswap64(address), __builtin_bswap32(key), __builtin_bswap32(length)};
  }
};
static_assert(sizeof(Place) == 16);

// Memory that a program mapped for its peer, and the offset that it goes by.
struct MappedPlace {
  std::uint64_t offset = 0;
  Place place;

  MappedPlace swapped() const { return {__builtin_bswap64(offset), place.swapped()}; }
};
static_assert(sizeof(MappedPlace) == 24);

struct WirePlace {
  be64 address;
  be32 key;
  be32 length;
};

constexpr std::uint8_t kProtocolVersion = 1;
constexpr std::uint8_t kFlagBigEndian = 1;
constexpr std::uint8_t kFlagMaps = 2;  // the number of maps is filled in

// The private data of REQ and REP (struct rs_conn_data).
struct Hello {
  std::uint8_t version = 0;
  std::uint8_t flags = 0;
  be16 credits;
  std::uint8_t reserved[3] = {};
  std::uint8_t map_slots = 0;  // scaled, see below
  WirePlace targets;           // length: how many there are
  WirePlace data;              // where the first bytes go
};
static_assert(sizeof(Hello) == 40);

// Counts up to 128 as they are, larger ones in units of 256, in eight bits.
constexpr std::uint8_t scale_of(std::uint32_t count) {
  return static_cast<std::uint8_t>(count <= 128 ? count : 128 | (count >> 8));
}
constexpr std::uint32_t unscaled(std::uint8_t scale) {
  return scale <= 128 ? scale : (scale & 127U) << 8;
}

constexpr bool kIsBigEndian = std::endian::native == std::endian::big;

// The immediate of each message: 3 bits what it is, 29 bits about it.
enum class Op : std::uint8_t { kData = 0, kCredit = 4, kMap = 6, kControl = 7 };
constexpr std::uint32_t kValueMask = (1U << 29) - 1;
enum class Control : std::uint8_t { kDisconnect = 0, kKeepalive = 1, kShutdown = 2 };

constexpr std::uint32_t immediate_of(Op op, std::uint32_t value) {
  return static_cast<std::uint32_t>(op) << 29 | (value & kValueMask);
}
constexpr std::uint32_t immediate_of(Control control) {
  return immediate_of(Op::kControl, static_cast<std::uint32_t>(control));
}

}  // namespace verbena::rsocket
