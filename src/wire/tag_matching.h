// SPDX-License-Identifier: MIT
// The headers that begin messages for tag matching (struct ibv_tmh and struct ibv_rvh of
// <infiniband/tm_types.h>).
#pragma once

#include <cstdint>

#include "wire/bytes.h"

namespace verbena::wire {

enum class TagOpcode : std::uint8_t {
  kNoTag = 0,
  kRendezvous = 1,  // the message is to be fetched: a RendezvousHeader follows
  kFinished = 2,    // it was
  kEager = 3,       // the message follows
};

struct TagHeader {
  std::uint8_t opcode = 0;  // TagOpcode, or anything else
  std::uint8_t reserved[3] = {};
  be32 context;  // the application's own; comes back with kFinished
  be64 tag;
};
static_assert(WireHeader<TagHeader> && sizeof(TagHeader) == 16);

// Where the message lies.
struct RendezvousHeader {
  be64 address;
  be32 key;
  be32 length;
};
static_assert(WireHeader<RendezvousHeader> && sizeof(RendezvousHeader) == 16);

}  // namespace verbena::wire
