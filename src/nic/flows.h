// SPDX-License-Identifier: MIT
// Flows of raw packet queue pairs (ibv_create_flow(3)).
#pragma once

#include "nic/objects.h"
#include "nic/raw_port.h"
#include "raw/flow_table.h"

namespace verbena::nic {

struct FlowHandle {
  Qp* qp = nullptr;
  RawPort* port = nullptr;
  raw::FlowId id{};
};
// `flow.to` is the queue pair. While it has flows it cannot be destroyed. kInvalid: it has no raw
// packets; kNotSupported: for the datagrams of UD queue pairs.
Result<FlowHandle*, Error> create_flow(Qp& qp, raw::Flow flow);
Result<void, Error> destroy_flow(FlowHandle* flow);

}  // namespace verbena::nic
