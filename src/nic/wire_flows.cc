// SPDX-License-Identifier: MIT
#include "nic/wire_flows.h"

namespace verbena::nic {

WireFlows::Entry& WireFlows::entry_of(const wire::Flow& flow) {
  if (last_ && last_->flow == flow) return *last_;
  std::size_t place = flow.source_port;
  for (unsigned i = 8; i < 16; ++i)
    place = place * 31 + flow.source.bytes[i] * 7 + flow.destination.bytes[i];
  std::optional<Entry>& entry = entries_[place % kEntries];
  if (!entry || entry->flow != flow) entry.emplace(flow);
  last_ = &*entry;
  return *entry;
}

bool WireFlows::is_intact(const port::Received& packet) {
  Entry& entry = entry_of(flow_of(packet));
  const auto following = static_cast<std::uint16_t>(entry.last_id + 1);
  const auto verified =
      entry.icrc.verify(packet.payload, entry.counts_on ? following : packet.segment);
  if (!verified) return false;
  entry.last_id = verified->id;
  if (!verified->is_guess) entry.counts_on = verified->id != packet.segment;
  return true;
}

}  // namespace verbena::nic
