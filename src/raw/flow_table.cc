// SPDX-License-Identifier: MIT
#include "raw/flow_table.h"

#include <algorithm>
#include <utility>

namespace verbena::raw {
namespace {

constexpr Mac kWholeMac = {0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF};

// False: the frame leaves, as far as this rule is concerned.
bool turns_round(const Flow& flow, const Key& key) {
  return is_multicast(key.destination_mac) || flow.mask.destination_mac == kWholeMac;
}

void count_frame(const Flow& flow, std::size_t length) {
  for (const CountingPoint& point : flow.counting)
    point.value->fetch_add(point.counts_bytes ? length : 1, std::memory_order_relaxed);
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
    Flow flow = std::move(at->flow);
    entries->erase(at);
    return flow;
  }
  return std::nullopt;
}

bool FlowTable::count(FlowId id, const CountingPoint& point) {
  for (auto* const entries : {&rules_, &others_}) {
    const auto at = std::ranges::find(*entries, id, &Entry::id);
    if (at == entries->end()) continue;
    at->flow.counting.push_back(point);
    return true;
  }
  return false;
}

std::vector<Flow> FlowTable::flows() const {
  std::vector<Flow> flows;
  for (const auto* const entries : {&rules_, &others_})
    for (const Entry& entry : *entries)
      flows.push_back(entry.flow);
  return flows;
}

void FlowTable::find(const Seen& frame, std::vector<QpNum>& to) const {
  apply_others(FlowKind::kSniffer, frame, to);
  if (apply_rules(frame, to)) return;
  const bool is_to_all = is_multicast(frame.key.destination_mac);
  if (is_to_all && apply_others(FlowKind::kMulticastDefault, frame, to)) return;
  if (is_to_all || frame.heading == Heading::kIn) apply_others(FlowKind::kAllDefault, frame, to);
}

// True: the frame was taken.
bool FlowTable::apply_rules(const Seen& frame, std::vector<QpNum>& to) const {
  for (auto begin = rules_.begin(); begin != rules_.end();) {
    const std::uint16_t priority = begin->flow.priority;
    bool is_taken = false;
    bool is_dropped = false;
    const std::size_t before = to.size();
    auto at = begin;
    for (; at != rules_.end() && at->flow.priority == priority; ++at) {
      const Flow& flow = at->flow;
      if (!matches(frame.key, flow.value, flow.mask)) continue;
      if (frame.heading == Heading::kOut && !turns_round(flow, frame.key)) continue;
      count_frame(flow, frame.length);
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
bool FlowTable::apply_others(FlowKind kind, const Seen& frame, std::vector<QpNum>& to) const {
  bool found = false;
  for (const Entry& entry : others_) {
    if (entry.flow.kind != kind) continue;
    found = true;
    count_frame(entry.flow, frame.length);
    if (!entry.flow.drops) add_once(entry.flow.to, to);
  }
  return found;
}

}  // namespace verbena::raw
