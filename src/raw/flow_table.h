// SPDX-License-Identifier: MIT
// Flow steering (ibv_create_flow(3)): which queue pairs a frame is for.
//
// * Sniffers get a copy of every frame.
// * Then rules, by priority, 0 first. The first priority that has a rule for the frame decides: all
//   its rules that match get the frame, and nobody behind them, unless all of them let it pass on.
// * What no rule took goes to the default rules: multicast to those for multicast, and what is
// still
//   left to those for all.
//
// A frame that this host sends comes back to it where a port of an adapter, which is a switch,
// would turn it round: when it is multicast, or when a rule names its destination address, which
// tells the port who lives here.
//
// A flow counts (ibv_attach_counters_point_flow(3)) each frame that it applies to, also one that it
// drops and one for which nobody has a receive.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/types.h"
#include "raw/key.h"

namespace verbena::raw {

// Where a flow counts. Several flows may count in one place.
struct CountingPoint {
  std::atomic<std::uint64_t>* value = nullptr;
  bool counts_bytes = false;  // of whole frames; else frames
};

enum class FlowKind : std::uint8_t { kNormal, kAllDefault, kMulticastDefault, kSniffer };

struct Flow {
  FlowKind kind = FlowKind::kNormal;
  std::uint16_t priority = 0;
  bool passes_on = false;  // IBV_FLOW_ATTR_FLAGS_DONT_TRAP
  bool drops = false;      // nobody gets the frame
  QpNum to{};
  Key value{};  // of kNormal, with the next
  Key mask{};
  std::vector<CountingPoint> counting = {};
};

enum class FlowId : std::uint32_t {};

enum class Heading : std::uint8_t { kIn, kOut };  // from the link, or from this host

class FlowTable {
 public:
  explicit FlowTable(std::uint32_t flows_max) : flows_max_(flows_max) {}

  std::optional<FlowId> add(const Flow& flow);        // none: it is full
  std::optional<Flow> remove(FlowId id);              // none: there is no such flow
  bool count(FlowId id, const CountingPoint& point);  // false: there is no such flow
  // A frame as it is looked at.
  struct Seen {
    const Key& key;
    Heading heading;
    std::size_t length;
  };
  // Adds whom the frame is for, each once, however many rules say so.
  void find(const Seen& frame, std::vector<QpNum>& to) const;
  std::size_t size() const { return rules_.size() + others_.size(); }
  std::vector<Flow> flows() const;

 private:
  struct Entry {
    FlowId id;
    Flow flow;
  };
  bool apply_rules(const Seen& frame, std::vector<QpNum>& to) const;
  bool apply_others(FlowKind kind, const Seen& frame, std::vector<QpNum>& to) const;

  std::uint32_t flows_max_;
  std::uint32_t next_id_ = 1;
  std::vector<Entry> rules_;   // by priority; of one, the oldest first
  std::vector<Entry> others_;  // defaults and sniffers
};

}  // namespace verbena::raw
