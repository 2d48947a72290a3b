// SPDX-License-Identifier: MIT
// The queue pair of an id: made with all that it needs, and moved through its states as the
// connection comes about. Functions give 0 or an errno value.
#pragma once

#include "rdmacm/border.h"
#include "rdmacm/id.h"

namespace verbena::rdmacm {

// What ibv_modify_qp wants for the move to attributes.qp_state.
int fill_attributes(const Id& id, ibv_qp_attr& attributes, int& mask);
// An id with a connection that both ends want: to RTR and RTS.
int make_ready(Id& id);
// Nothing without a queue pair.
int move_to_error(Id& id);
int create_qp(Id& id, ibv_qp_init_attr_ex& attributes);
void destroy_qp(Id& id);
void destroy_srq(Id& id);

}  // namespace verbena::rdmacm
