// SPDX-License-Identifier: MIT
// Memory while an engine runs: what can be refused is refused now and then, and nothing else may be
// asked for, since nobody could say no on the path of packets.
#pragma once

#include <cstdint>

#include "base/random.h"

namespace verbena::fabric {

struct Scarcity {
  unsigned engines = 0;             // that run now
  SeededRandom* refuses = nullptr;  // where memory is scarce
  std::uint64_t demanded = 0;       // times that nobody could have said no
  std::uint64_t refused = 0;
};
// The one thread's.
Scarcity& scarcity();

class InEngine {
 public:
  InEngine() { ++scarcity().engines; }
  ~InEngine() { --scarcity().engines; }
  InEngine(const InEngine&) = delete;
  InEngine& operator=(const InEngine&) = delete;
};
// What an engine calls is the simulator's again.
class OutOfEngine {
 public:
  OutOfEngine() : engines_(scarcity().engines) { scarcity().engines = 0; }
  ~OutOfEngine() { scarcity().engines = engines_; }
  OutOfEngine(const OutOfEngine&) = delete;
  OutOfEngine& operator=(const OutOfEngine&) = delete;

 private:
  unsigned engines_;
};

}  // namespace verbena::fabric
