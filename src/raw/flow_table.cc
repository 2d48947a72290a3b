// SPDX-License-Identifier: MIT
#include "raw/flow_table.h"

#include <algorithm>

namespace verbena::raw {
namespace {

constexpr Mac kWholeMac = {0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF};

// False: the frame leaves, as far as this rule is concerned.
bool turns_round(const Flow& flow, const Key& key) {
  return is_multicast(key.destination_mac) || flow.mask.destination_mac == kWholeMac;
}

void add_once(QpNum qp, std::vector<QpNum>& to) {
  if (std::ranges::find(to, qp) == to.end()) to.push_back(qp);
}

}  // namespace

std::optional<FlowId> FlowTable::add(const Flow& flow) {
  if (size() >= flows_max_) return std::nullopt;
  const FlowId id{next_id_++};
  if (flow.kind != FlowKind::kNormal) {
    others_.push_back({id, flow});
    return id;
  }
  const auto later = [](std::uint16_t priority, const Entry& entry) {
    return priority < entry.flow.priority;
  };
  const auto at = std::upper_bound(rules_.begin(), rules_.end(), flow.priority, later);
  rules_.insert(at, {id, flow});
  return id;
}

std::optional<Flow> FlowTable::remove(FlowId id) {
  for (auto* const entries : {&rules_, &others_}) {
    const auto at = std::ranges::find(*entries, id, &Entry::id);
    if (at == entries->end()) continue;
    const Flow flow = at->flow;
    entries->erase(at);
    return flow;
  }
  return std::nullopt;
}

std::vector<Flow> FlowTable::flows() const {
  std::vector<Flow> flows;
  for (const auto* const entries : {&rules_, &others_})
    for (const Entry& entry : *entries)
      flows.push_back(entry.flow);
  return flows;
}

void FlowTable::find(const Key& key, Heading heading, std::vector<QpNum>& to) const {
  apply_others(FlowKind::kSniffer, to);
  if (apply_rules(key, heading, to)) return;
  const bool is_to_all = is_multicast(key.destination_mac);
  if (is_to_all && apply_others(FlowKind::kMulticastDefault, to)) return;
  if (is_to_all || heading == Heading::kIn) apply_others(FlowKind::kAllDefault, to);
}

// True: the frame was taken.
bool FlowTable::apply_rules(const Key& key, Heading heading, std::vector<QpNum>& to) const {
  for (auto begin = rules_.begin(); begin != rules_.end();) {
    const std::uint16_t priority = begin->flow.priority;
    bool is_taken = false;
    bool is_dropped = false;
    const std::size_t before = to.size();
    auto at = begin;
    for (; at != rules_.end() && at->flow.priority == priority; ++at) {
      const Flow& flow = at->flow;
      if (!matches(key, flow.value, flow.mask)) continue;
      if (heading == Heading::kOut && !turns_round(flow, key)) continue;
      is_taken |= !flow.passes_on;
      is_dropped |= flow.drops;
      if (!flow.drops) add_once(flow.to, to);
    }
    if (is_dropped) to.resize(before);
    if (is_taken || is_dropped) return true;
    begin = at;
  }
  return false;
}

// True: there was one.
bool FlowTable::apply_others(FlowKind kind, std::vector<QpNum>& to) const {
  bool found = false;
  for (const Entry& entry : others_) {
    if (entry.flow.kind != kind) continue;
    found = true;
    if (!entry.flow.drops) add_once(entry.flow.to, to);
  }
  return found;
}

}  // namespace verbena::raw
