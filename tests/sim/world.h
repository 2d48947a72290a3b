// SPDX-License-Identifier: MIT
// A run of the simulator: two endpoints, the link between them, and everything that its seed
// decides.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/test_clock.h"
#include "endpoint.h"
#include "side.h"
#include "workload.h"

namespace verbena::sim {

// How often each completion status came, in all runs together: shows what a set of seeds has
// reached.
using StatusCounts = std::array<std::uint64_t, 32>;

struct Verdict {
  std::string plan;
  std::string failure;      // empty: all is well
  std::uint64_t trace = 0;  // of everything that happened, in order
  StatusCounts statuses{};
};

class World {
 public:
  explicit World(std::uint64_t seed);
  Verdict run();

  void transmit(Packet packet);
  // Takes what is in the completion queues of an endpoint.
  void poll(Endpoint& endpoint);
  void note(std::uint64_t what) { trace_ = (trace_ ^ what) * 0x100000001B3; }
  // The link and the programs make trouble for a while only.
  bool is_faulty() const { return clock.now() < faults_end_; }
  bool percent(unsigned chance) { return chance != 0 && random.below(100) < chance; }
  bool is_finished() const;
  unsigned life() const { return life_; }

  Clock clock;
  SeededRandom random;
  Failures failures{clock};
  const Plan plan;
  Endpoint near;
  Endpoint far;
  bool mischief_done = false;

 private:
  void run_life();
  void schedule_program(Side& side);
  Side* find(QpNum number);
  void deliver(const Packet& packet);

  std::vector<std::unique_ptr<Side>> sides_;
  Instant faults_end_;
  unsigned life_ = 0;
  std::uint64_t trace_ = 0xCBF29CE484222325;
  StatusCounts statuses_{};
};

}  // namespace verbena::sim
