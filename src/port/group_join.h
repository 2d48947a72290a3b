// SPDX-License-Identifier: MIT
// A join under way: what socket_group.cc remembers between the messages of it.
#pragma once

#include <map>
#include <set>

#include "port/socket_group.h"

namespace verbena::port {

struct SocketGroup::Join {
  // Each ends when nobody is waited for any more.
  enum class Stage : std::uint8_t { kAsking, kFetching, kSpreading };
  struct Member {
    bool has_answered = false;
    bool was_asked = false;  // for its sockets
    std::uint16_t count = 0;
    std::uint64_t digest = 0;
  };

  SlotNumber slot;
  std::uint32_t round = 0;
  Stage stage = Stage::kAsking;
  std::map<host::PeerId, Member> members;
  std::set<host::PeerId> waiting;
  std::set<std::uint64_t> fetched;  // digests
  std::uint16_t position = 0;
  Instant deadline;
  Instant give_up;  // of the stage, while nothing is known of the group
};

}  // namespace verbena::port
