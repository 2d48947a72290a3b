// SPDX-License-Identifier: MIT
// What the connection manager knows of one connection, or of one resolution.
#pragma once

#include <array>
#include <cstdint>

#include "cm/state.h"
#include "cm/types.h"

namespace verbena::cm {

enum class Role : std::uint8_t { kActive, kPassive, kResolver, kResolved };

struct Connection {
  static constexpr std::uint32_t kNowhere = ~0u;

  CommId id;
  std::uint32_t number = 0;      // its place among the connections
  std::uint32_t generation = 0;  // counts what had this place
  State state = State::kNone;
  Role role = Role::kActive;
  bool is_released = false;
  bool is_waiting = false;  // is one of those in time wait
  bool is_in_backlog = false;
  bool knows_remote = false;
  bool has_alternate = false;  // the peer named another path
  bool is_by_remote = false;   // found by the peer's id
  bool is_by_qp = false;       // found by the peer's queue pair
  bool has_resent_early = false;
  bool is_stale = false;  // its DREQ goes to a peer that has forgotten it
  std::uint8_t retries_max = 0;
  std::uint8_t retries_left = 0;
  std::uint8_t extensions_left = 0;  // MRAs that still count
  Ending ending = Ending::kNone;

  ListenerId listener;
  std::uint64_t tag = 0;
  Route route;
  std::uint32_t remote_id = 0;
  std::uint64_t transaction = 0;  // of the peer's message that we are answering
  // What tells a request that comes again from another one.
  std::uint64_t service_id = 0;
  std::uint64_t remote_guid = 0;
  QpNum remote_qp;
  std::uint32_t remote_psn = 0;

  std::uint64_t local_guid = 0;  // of who asks: a REQ that is given up names it
  QpNum local_qp;
  Duration wait;       // for an answer of the peer
  Duration peer_wait;  // of the peer for ours
  Duration time_wait;

  Instant asks_until = Instant::never();

  // Timer: its place in the heap.
  Instant deadline;
  std::uint32_t heap_place = kNowhere;
  // Its neighbours among those in time wait, oldest first.
  std::uint32_t older = kNowhere;
  std::uint32_t newer = kNowhere;

  wire::CmAttribute said = wire::CmAttribute::kReq;  // what `last` is
  bool has_said = false;
  std::array<std::byte, wire::kMadBytes> last{};  // the message that is repeated
};

}  // namespace verbena::cm
