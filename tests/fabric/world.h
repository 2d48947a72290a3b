// SPDX-License-Identifier: MIT
// A run of the fabric: nodes, connections, the network between them, and everything that its seed
// decides. One thread, one virtual clock.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/test_clock.h"
#include "flow.h"
#include "manager.h"
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
  std::uint64_t established = 0;     // connections, by their managers
  std::uint64_t memory_refused = 0;  // to engines
  std::uint64_t overruns = 0;        // of completion queues
};

// Whoever was not told that a connection is over ends it after so long.
inline constexpr Duration kEndsByItself = Duration::milliseconds(20);

inline Duration microseconds_of(std::uint64_t count) {
  return Duration::microseconds(static_cast<std::int64_t>(count));
}

class World {
 public:
  World(std::uint64_t seed, const Plan& plan);
  Verdict run();

  // What its parts use.
  std::uint64_t next_id() { return ++last_id_; }
  void note(const queues::Completion& completion);
  // From the managers of connections, and from a queue pair whose peer's packets arrive.
  void managed(Node& node, const cm::Event& event);
  void heard(Pair& pair);
  // The network's next packet as an event of the clock.
  void pump();
  // Somebody heard nothing for longer than all retries take.
  bool was_long_silent() const;

  const Plan plan;
  SeededRandom random;
  sim::Clock clock;
  sim::Failures failures{clock};
  Network network;
  Watcher watcher{failures};

 private:
  static constexpr std::size_t kNear = 0;
  static constexpr std::size_t kFar = 1;
  struct End {  // of a connection that is managed
    Node* node = nullptr;
    cm::CommId id{};
    bool is_established = false;
    bool has_ended = false;
  };
  struct Link {  // a connection
    unsigned first = 0;
    unsigned second = 0;
    unsigned life = 0;
    std::size_t tag = 0;
    bool is_managed = false;
    bool may_be_rejected = false;
    bool may_be_ended = false;
    std::uint32_t service = kReliable;
    PairOptions mine{};
    PairOptions theirs{};
    std::array<End, 2> ends{};
    std::unique_ptr<Pair> near{};
    std::unique_ptr<Pair> far{};
    std::unique_ptr<Flow> there{};
    std::unique_ptr<Flow> back{};
    bool is_over = false;
  };

  void connect(unsigned first, unsigned second, unsigned life);
  PairOptions options_of(std::uint32_t service, QpNum self, QpNum peer, unsigned peer_node);
  void begin(Link& link);
  void watch(const Link& link);
  void schedule_program(Link& link);
  void step(Link& link);
  void end(Link& link);
  bool is_settled() const;

  // world_managed.cc
  void ask_to_connect(Link& link);
  void requested(Node& node, const cm::Event& event);
  void accept(Link& link);
  void replied(Link& link, const cm::Event& event);
  void ended(Link& link, std::size_t side);
  void disconnect(Link& link, std::size_t side);
  void close();
  void check_agreement(const Link& link);
  bool is_lost(const Link& link) const;
  bool is_closed(const Link& link) const;

  void plan_faults();
  void crash(unsigned number);
  void finish();
  void check_words(Node& node);
  void check_shared_receives(Node& node);

  std::uint64_t last_id_ = 0;
  std::uint32_t next_number_ = 0x100;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<std::unique_ptr<Node>> lost_;
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<bool> was_lost_;
  bool is_closing_ = false;
  Instant faults_end_;
  std::optional<Instant> pump_at_;
  Verdict verdict_{.trace = 0xCBF29CE484222325};
};

}  // namespace verbena::fabric
