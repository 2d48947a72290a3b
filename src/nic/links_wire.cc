// SPDX-License-Identifier: MIT
// What links do for the wire: messages and news of processes that share its UDP port, and time.
#include <algorithm>
#include <utility>

#include "nic/engine.h"
#include "nic/links.h"
#include "nic/wire_nic.h"

namespace verbena::nic {

bool Links::use_wire(WireNic& wire) {
  return control_->submit([this, &wire] { wire_ = &wire; });
}

void Links::plan_tick() {
  const Instant wire = wire_ ? wire_->group().next_deadline() : Instant::never();
  control_->call_at(std::min({offers_at_, wire, engine_.gsi().next_deadline()}));
}

void Links::tick(Instant now) {
  if (now >= offers_at_) try_offers(now);
  if (wire_) wire_->group().tick(now);
  engine_.gsi().tick(now);
  plan_tick();
}

void Links::wire_slot_answered(SlotNumber slot, host::PeerId holder) {
  if (!wire_) return;
  wire_->group().slot_answered(slot, holder);
  plan_tick();
}

void Links::wire_slot_refused(SlotNumber slot, host::Refusal why) {
  if (!wire_) return;
  wire_->group().slot_refused(slot, why);
  plan_tick();
}

void Links::wire_peer_down(host::PeerId id) {
  if (!wire_) return;
  wire_->group().peer_down(id);
  plan_tick();
}

bool Links::is_for_wire(host::PeerId from, std::span<const std::byte> bytes,
                        host::PrivateFd& attachment) {
  const bool is_group = WireGroup::is_message(bytes);
  if (!is_group && !WireNic::is_handed_over(bytes)) return false;
  if (!wire_) return true;
  if (is_group) {
    wire_->group().message(from, bytes, std::move(attachment));
    plan_tick();
  } else {
    wire_->take_handed_over(bytes);
  }
  return true;
}

}  // namespace verbena::nic
