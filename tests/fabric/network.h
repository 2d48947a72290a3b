// SPDX-License-Identifier: MIT
// The network between the nodes: a line from each to one switch, a port of the switch for each,
// with a queue that is finite; and all that can happen to a packet on the way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <queue>
#include <vector>

#include "base/random.h"
#include "base/time.h"
#include "plan.h"

namespace verbena::fabric {

// What travels: BTH to ICRC.
struct Frame {
  unsigned from = 0;
  unsigned to = 0;
  bool is_ecn_capable = false;
  bool is_marked = false;
  bool is_whole = true;  // as it was sent
  std::vector<std::byte> bytes{};
};

class Network {
 public:
  Network(const Plan& plan, SeededRandom& random);

  // Whether the line of a node is so busy that nothing more may wait for it; and until when.
  bool has_no_room(unsigned from, Instant now) const { return lines_[from] > now + kBacklog; }
  Instant room_at(unsigned from) const {
    return Instant::at(lines_[from].nanoseconds() - kBacklog.count_nanoseconds());
  }
  void send(Frame frame, Instant now);

  // When the next packet arrives; never where none is on its way.
  Instant next() const { return on_way_.empty() ? Instant::never() : on_way_.top().at; }
  Frame take();
  // Buffers that are no longer needed.
  std::vector<std::byte> spare();
  void give_back(std::vector<std::byte> bytes) { spare_.push_back(std::move(bytes)); }

  // Nothing more of the plan's faults; and a node that nothing reaches.
  void heal() { is_faulty_ = false; }
  void cut(std::optional<unsigned> node) { cut_ = node; }
  bool has_dropped() const { return dropped_ != 0; }

 private:
  static constexpr Duration kBacklog = Duration::microseconds(4);
  static constexpr std::size_t kAround = 20 + 8 + 38;  // IP, UDP, and Ethernet's own

  struct OnWay {
    Instant at;
    std::uint64_t order;
    Frame frame;
  };
  struct Later {
    bool operator()(const OnWay& a, const OnWay& b) const {
      return a.at != b.at ? a.at > b.at : a.order > b.order;
    }
  };
  bool chance(std::uint32_t of) { return is_faulty_ && of != 0 && random_.below(kOneIn) < of; }
  Duration time_of(std::size_t bytes) const;
  void damage(Frame& frame);
  void forward(Frame frame, Instant at);

  const Plan& plan_;
  SeededRandom& random_;
  bool is_faulty_ = true;
  std::optional<unsigned> cut_;
  std::vector<Instant> lines_;  // busy until
  std::vector<Instant> ports_;
  std::priority_queue<OnWay, std::vector<OnWay>, Later> on_way_;
  std::uint64_t order_ = 0;
  std::uint64_t dropped_ = 0;
  std::vector<std::vector<std::byte>> spare_;
};

}  // namespace verbena::fabric
