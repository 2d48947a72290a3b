// SPDX-License-Identifier: MIT
#include "nic/flows.h"

#include <memory>

#include "nic/engine.h"
#include "nic/nic_qp.h"
#include "nic/raw_nic.h"

namespace verbena::nic {

Result<FlowHandle*, Error> create_flow(Qp& qp, raw::Flow flow) {
  if (!qp.pd().context->is_usable()) return refuse(Error::kGone);
  if (qp.pair.config().type == qp::QpType::kUd) return refuse(Error::kNotSupported);
  RawPort* const port = qp.raw_port();
  if (!port) return refuse(Error::kInvalid);
  flow.to = qp.number();
  auto handle = std::make_unique<FlowHandle>();
  const auto id = qp.engine().raw()->add(*port, flow);
  if (!id) return refuse(id.error());
  qp.flows.fetch_add(1);
  *handle = {.qp = &qp, .port = port, .id = *id};
  return handle.release();
}

Result<void, Error> destroy_flow(FlowHandle* flow) {
  if (flow->qp->pd().context->is_usable()) flow->qp->engine().raw()->remove(*flow->port, flow->id);
  flow->qp->flows.fetch_sub(1);
  delete flow;
  return {};
}

}  // namespace verbena::nic
