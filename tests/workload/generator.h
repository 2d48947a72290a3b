// SPDX-License-Identifier: MIT
// What one end of a connection does, computed from a seed alone: both ends of it, and whoever
// repeats it, know every request in advance, and so what the other end's memory must become.
#pragma once

#include <cstdint>

#include "base/random.h"
#include "request.h"

namespace verbena::workload {

// What kind of requests a program makes.
struct Habits {
  Service service = Service::kReliable;
  std::uint32_t requests = 1;
  std::uint32_t length_min = 0;  // of a message
  std::uint32_t length_max = 64;
  std::uint32_t inline_max = 0;
  std::uint32_t pieces_max = 2;
  std::uint32_t places = 1;  // of the peer
  std::uint32_t queues = 1;  // of the peer, for XRC
  bool unsignaled = false;
  bool fences = false;
  bool invalidates = false;  // SENDs that take a memory window of the peer away
  bool placement = true;     // FLUSH and ATOMIC WRITE
  bool bad_requests = false;
  bool revokes = false;
};

class Generator {
 public:
  Generator(std::uint64_t seed, const Habits& habits) : random_(seed), habits_(habits) {}

  bool is_over() const { return next_ == habits_.requests; }
  std::uint32_t left() const { return habits_.requests - next_; }
  // The rest is not wanted any more.
  void give_up() { next_ = habits_.requests; }
  Request next();

 private:
  Verb pick_verb();
  std::uint32_t pick_length(Verb verb);
  void cut_into_pieces(Request& request);
  void choose_regions(Request& request);
  Spoiled spoil(const Request& request);
  std::uint32_t below(std::uint32_t bound) {
    return static_cast<std::uint32_t>(random_.below(bound));
  }

  SeededRandom random_;
  Habits habits_;
  std::uint32_t next_ = 0;
};

}  // namespace verbena::workload
