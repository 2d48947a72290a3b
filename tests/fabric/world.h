// SPDX-License-Identifier: MIT
// A run of the fabric: nodes, connections, the network between them, and everything that its seed
// decides. One thread, one virtual clock.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/test_clock.h"
#include "flow.h"
#include "network.h"
#include "node.h"
#include "pair.h"
#include "plan.h"
#include "watcher.h"

namespace verbena::fabric {

struct Verdict {
  std::string failure{};    // empty: all is well
  std::uint64_t trace = 0;  // of everything that completed, in order
  WireCoverage coverage{};
  std::array<std::uint64_t, 32> statuses{};
};

class World {
 public:
  World(std::uint64_t seed, const Plan& plan);
  Verdict run();

  // What its parts use.
  std::uint64_t next_id() { return ++last_id_; }
  void note(const queues::Completion& completion);
  // Somebody heard nothing for longer than all retries take.
  bool was_long_silent() const;

  const Plan plan;
  SeededRandom random;
  sim::Clock clock;
  sim::Failures failures{clock};
  Network network;
  Watcher watcher{failures};

 private:
  struct Link {  // a connection
    unsigned first = 0;
    unsigned second = 0;
    unsigned life = 0;
    std::unique_ptr<Pair> near{};
    std::unique_ptr<Pair> far{};
    std::unique_ptr<Flow> there{};
    std::unique_ptr<Flow> back{};
    bool is_over = false;
  };

  void connect(unsigned first, unsigned second, unsigned life);
  PairOptions options_of(qp::QpType type, QpNum self, QpNum peer, unsigned peer_node);
  void watch(const Link& link, wire::Service service);
  void schedule_program(Link& link);
  void step(Link& link);
  void end(Link& link);
  bool is_settled() const;

  void plan_faults();
  void crash(unsigned number);
  void pump();
  void finish();
  void check_words(Node& node);
  void check_shared_receives(Node& node);

  std::uint64_t last_id_ = 0;
  std::uint32_t next_number_ = 0x100;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<std::unique_ptr<Node>> lost_;
  std::vector<std::unique_ptr<Link>> links_;
  Instant faults_end_;
  std::optional<Instant> pump_at_;
  Verdict verdict_{.trace = 0xCBF29CE484222325};
};

}  // namespace verbena::fabric
