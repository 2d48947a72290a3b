// SPDX-License-Identifier: MIT
// Ids and their events, for the functions that programs call. All give 0 or an errno value.
#pragma once

#include "rdmacm/border.h"
#include "rdmacm/channel.h"
#include "rdmacm/id.h"

namespace verbena::rdmacm {

int create_id(rdma_event_channel* channel, rdma_cm_id** made, void* context, rdma_port_space space,
              ibv_qp_type type);
int destroy_id(Id& id);
int migrate_id(Id& id, rdma_event_channel* channel);
void acknowledge(rdma_cm_event* event);
// Waits for it, as the channel's descriptor does.
int next_event(Channel& channel, rdma_cm_event** event);
// Of an id without a channel: the next one, acknowledged with the one after it.
int next_own_event(Id& id);
// An id without a channel waits here for what it has begun.
int complete(Id& id);
// What has to be done in the program's thread before it sees an event; in connect.cc. An errno:
// there is nothing to see, and what the event was of has gone.
int settle(Event& event);

}  // namespace verbena::rdmacm
