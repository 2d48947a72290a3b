// SPDX-License-Identifier: MIT
// Who takes which requests.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "cm/types.h"

namespace verbena::cm {

struct Listener {
  Listening what;
  ListenerId id;
  std::uint32_t waiting = 0;  // requests that its owner has not answered
};

class Listeners {
 public:
  explicit Listeners(std::uint32_t max) : max_(max) {}

  Result<ListenerId, Refusal> add(const Listening& what);
  void remove(ListenerId id, Instant now);
  Listener* find(ListenerId id);

  struct Wanted {
    std::uint64_t service_id = 0;
    Route route{};
    bool is_datagram = false;
  };
  // The one that fits best (types.h).
  Listener* match(const Wanted& wanted);
  // Whether one that would have taken it went a moment ago: programs close their listener and open
  // it again while their peer connects anew.
  bool was_taken(const Wanted& wanted, Instant now) const;

 private:
  // Of one mask, by the bits of the service id that count.
  struct Group {
    std::uint64_t mask = 0;
    std::unordered_multimap<std::uint64_t, ListenerId> by_service;
  };
  struct Gone {
    Listening what;
    Instant when;
  };

  std::uint32_t max_;
  std::uint32_t next_id_ = 1;
  std::unordered_map<std::uint32_t, Listener> listeners_;
  std::vector<Group> groups_;  // as many as there are masks: one, nearly always
  std::deque<Gone> gone_;      // the last ones
};

}  // namespace verbena::cm
