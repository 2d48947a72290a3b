// SPDX-License-Identifier: MIT
// Multicast groups of an id. On Ethernet there is nobody to ask: a group is an address, and joining
// it is attaching the queue pair, which also tells the network (IGMP, MLD).
#pragma once

#include "rdmacm/border.h"
#include "rdmacm/channel.h"
#include "rdmacm/id.h"

namespace verbena::rdmacm {

// Before the program sees that it joined: attaches the id's queue pair.
void attach_to_group(Event& event);
void leave_all_groups(Id& id);

}  // namespace verbena::rdmacm
