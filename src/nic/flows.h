// SPDX-License-Identifier: MIT
// Flows of raw packet queue pairs (ibv_create_flow(3)).
#pragma once

#include <span>
#include <vector>

#include "base/mutex.h"
#include "nic/counters.h"
#include "nic/objects.h"
#include "nic/raw_port.h"
#include "raw/flow_table.h"

namespace verbena::nic {

struct FlowHandle {
  Qp* qp = nullptr;
  RawPort* port = nullptr;
  raw::FlowId id{};
  Mutex lock;
  std::vector<Counters*> counters;  // with lock; each as often as it was attached
};
// `flow.to` is the queue pair, and it counts as these counters say. While it has flows it cannot be
// destroyed. kInvalid: it has no raw packets; kNotSupported: for the datagrams of UD queue pairs.
Result<FlowHandle*, Error> create_flow(Qp& qp, raw::Flow flow,
                                       std::span<Counters* const> counters = {});
Result<void, Error> destroy_flow(FlowHandle* flow);
// It counts there as well from now on. kInvalid: no such place. kNoRoom: it counts enough.
Result<void, Error> attach(Counters& counters, const CounterPoint& point, FlowHandle& flow);

}  // namespace verbena::nic
