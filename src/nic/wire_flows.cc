// SPDX-License-Identifier: MIT
#include "nic/wire_flows.h"

namespace verbena::nic {

WireFlows::Entry& WireFlows::entry_of(const port::Received& packet) {
  if (!last_ || !is_of(packet, last_->flow)) [[unlikely]]
    last_ = &find(flow_of(packet));
  return *last_;
}

WireFlows::Entry& WireFlows::find(const wire::Flow& flow) {
  std::size_t place = flow.source_port;
  for (unsigned i = 8; i < 16; ++i)
    place = place * 31 + flow.source.bytes[i] * 7 + flow.destination.bytes[i];
  std::optional<Entry>& entry = entries_[place % kEntries];
  if (!entry || entry->flow != flow) entry.emplace(flow);
  return *entry;
}

bool WireFlows::is_intact(const port::Received& packet) {
  Entry& entry = entry_of(packet);
  const auto verified = entry.icrc.verify(packet.payload, entry.guess(packet));
  if (verified) note(packet, *verified);
  return verified.has_value();
}

wire::Unverified WireFlows::unverified(const port::Received& first,
                                       std::span<const std::byte> all) {
  Entry& entry = entry_of(first);
  return {entry.icrc, all, first.payload.size(), entry.guess(first)};
}

void WireFlows::note(const port::Received& packet, const wire::Verified& verified) {
  last_->last_id = verified.id;
  if (!verified.is_guess) last_->counts_on = verified.id != packet.segment;
}

}  // namespace verbena::nic
