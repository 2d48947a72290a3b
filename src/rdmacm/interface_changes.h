// SPDX-License-Identifier: MIT
// Ids that are bound to a device, and what becomes of the network interface that it stands for:
// RDMA_CM_EVENT_DEVICE_REMOVAL when that goes away, RDMA_CM_EVENT_ADDR_CHANGE when the address that
// the id is bound to leaves it, or its hardware address is another (rdma_get_cm_event(3)). Of the
// loopback interface nothing is told: on one host its addresses always work.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>

#include "base/mutex.h"
#include "host/interfaces.h"

namespace verbena::rdmacm {

struct Id;

class InterfaceChanges {
 public:
  // What there is now, before any id is bound.
  void begin(std::span<const host::Interface> present);
  void add(Id& id);
  void remove(Id& id);
  // With the manager's lock: events for the ids that are concerned.
  void look(std::span<const host::Interface> present);

 private:
  // Locally administered, universal, or none; as it lies in the message.
  using HardwareAddress = std::uint64_t;
  static HardwareAddress hardware_address_of(const host::Interface& interface);

  Mutex lock_;  // after the manager's
  std::set<Id*> ids_;
  std::map<std::uint32_t, HardwareAddress> known_;  // by index of the interface
};

}  // namespace verbena::rdmacm
