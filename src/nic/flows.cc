// SPDX-License-Identifier: MIT
#include "nic/flows.h"

#include <memory>
#include <mutex>
#include <utility>

#include "nic/engine.h"
#include "nic/nic_qp.h"
#include "nic/raw_nic.h"

namespace verbena::nic {
namespace {

raw::CountingPoint place(Counters& counters, const CounterPoint& point) {
  return {.value = &counters.values[point.index], .counts_bytes = point.what == Counted::kBytes};
}

// Counters that a flow holds: given up again unless the flow comes to be.
class Holds {
 public:
  void add(Counters& counters) {
    held_.push_back(&counters);
    counters.dependents.fetch_add(1);
  }
  ~Holds() { release(held_); }
  std::vector<Counters*> keep() { return std::exchange(held_, {}); }
  static void release(const std::vector<Counters*>& held) {
    for (Counters* const counters : held)
      counters->dependents.fetch_sub(1);
  }

 private:
  std::vector<Counters*> held_;
};

}  // namespace

Result<FlowHandle*, Error> create_flow(Qp& qp, raw::Flow flow,
                                       std::span<Counters* const> counters) {
  Context* const context = qp.pd().context;
  if (!context->is_usable()) return refuse(Error::kGone);
  if (qp.pair.config().type == qp::QpType::kUd) return refuse(Error::kNotSupported);
  RawPort* const port = qp.raw_port();
  if (!port) return refuse(Error::kInvalid);
  flow.to = qp.number();
  Holds holds;
  for (Counters* const each : counters) {
    if (each->context != context) return refuse(Error::kInvalid);
    const std::lock_guard guard(each->lock);
    holds.add(*each);
    for (const CounterPoint& point : each->points)
      flow.counting.push_back(place(*each, point));
  }
  auto handle = std::make_unique<FlowHandle>();
  const auto id = qp.engine().raw()->add(*port, flow);
  if (!id) return refuse(id.error());
  qp.flows.fetch_add(1);
  handle->qp = &qp;
  handle->port = port;
  handle->id = *id;
  handle->counters = holds.keep();
  return handle.release();
}

Result<void, Error> destroy_flow(FlowHandle* flow) {
  if (flow->qp->pd().context->is_usable()) flow->qp->engine().raw()->remove(*flow->port, flow->id);
  Holds::release(flow->counters);
  flow->qp->flows.fetch_sub(1);
  delete flow;
  return {};
}

Result<void, Error> attach(Counters& counters, const CounterPoint& point, FlowHandle& flow) {
  if (!counters.context->is_usable()) return refuse(Error::kGone);
  const bool is_of_context = flow.qp->pd().context == counters.context;
  if (!is_of_context || point.index >= Counters::kPlaces) return refuse(Error::kInvalid);
  const std::lock_guard guard(flow.lock);
  if (flow.counters.size() >= Counters::kPointsMax) return refuse(Error::kNoRoom);
  flow.counters.push_back(&counters);
  counters.dependents.fetch_add(1);
  flow.qp->engine().raw()->count(*flow.port, flow.id, place(counters, point));
  return {};
}

}  // namespace verbena::nic
