// SPDX-License-Identifier: MIT
#include "rdmacm/interface_changes.h"

#include <algorithm>
#include <memory>
#include <mutex>

#include "rdmacm/channel.h"
#include "rdmacm/id.h"

namespace verbena::rdmacm {
namespace {

void tell(Id& id, rdma_cm_event_type type) {
  id.events().push(std::make_unique<Event>(id, type, 0));
}

}  // namespace

InterfaceChanges::HardwareAddress InterfaceChanges::hardware_address_of(
    const host::Interface& interface) {
  HardwareAddress address = 0;
  for (const std::uint8_t byte : interface.mac)
    address = address << 8 | byte;
  return address;
}

void InterfaceChanges::begin(std::span<const host::Interface> present) {
  const std::lock_guard guard(lock_);
  known_.clear();
  for (const host::Interface& each : present)
    known_[each.index] = hardware_address_of(each);
}

void InterfaceChanges::add(Id& id) {
  const std::lock_guard guard(lock_);
  ids_.insert(&id);
}

void InterfaceChanges::remove(Id& id) {
  const std::lock_guard guard(lock_);
  ids_.erase(&id);
}

void InterfaceChanges::look(std::span<const host::Interface> present) {
  {
    const std::lock_guard guard(lock_);
    for (Id* const id : ids_) {
      if (id->awaits_accept) continue;
      const auto found = std::ranges::find(present, id->port->interface, &host::Interface::index);
      if (found == present.end()) {
        if (!id->is_device_gone) tell(*id, RDMA_CM_EVENT_DEVICE_REMOVAL);
        id->is_device_gone = true;
        continue;
      }
      if (found->is_loopback) continue;
      const bool has_left =
          std::ranges::find(found->addresses, id->source().gid()) == found->addresses.end();
      const auto before = known_.find(found->index);
      const bool is_other = before != known_.end() && before->second != hardware_address_of(*found);
      if ((has_left && !id->has_address_left) || is_other) tell(*id, RDMA_CM_EVENT_ADDR_CHANGE);
      id->has_address_left = has_left;
    }
  }
  begin(present);
}

}  // namespace verbena::rdmacm
