// SPDX-License-Identifier: MIT
// Hidden targets: what another process's target gets for our shared receive queues.
#include <mutex>

#include "nic/engine.h"
#include "nic/nic.h"
#include "nic/nic_qp.h"
#include "nic/xrc.h"

namespace verbena::nic {
namespace {

// What the program's target does not allow, it does not relay.
constexpr std::uint32_t kEverything = memory::kRemoteWrite | memory::kRemoteRead |
                                      memory::kRemoteAtomic | memory::kFlushGlobal |
                                      memory::kFlushPersistent;

// False: it is none that can be connected.
bool make_ready(Qp& target, QpNum peer) {
  qp::QpAttributes wanted;
  wanted.port = 1;
  wanted.access = kEverything;
  wanted.path_mtu = 5;
  wanted.path.has_grh = true;
  wanted.path.port = 1;
  wanted.destination = peer;
  wanted.reads_in_max = 16;
  const std::lock_guard guard(target.pair.lock());
  wanted.state = qp::QpState::kInit;
  if (!target.pair.modify(wanted, qp::kState | qp::kPkeyIndex | qp::kPort | qp::kAccessFlags))
    return false;
  wanted.state = qp::QpState::kReadyToReceive;
  const std::uint32_t mask = qp::kState | qp::kAddressVector | qp::kPathMtu | qp::kDestinationQp |
                             qp::kReceivePsn | qp::kReadsInMax | qp::kRnrTimer;
  if (!target.pair.modify(wanted, mask)) return false;
  target.begin_connection(true);
  return true;
}

}  // namespace

Qp* create_hidden_target(Nic& nic, const FileIdentity& file, std::uint32_t queue,
                         QpNum relayed_by) {
  Xrcd* const xrcd = nic.xrc_domains().own_handle_for(file, queue);
  if (!xrcd) return nullptr;
  QpRequest request;
  request.xrc = qp::Xrc::kTarget;
  request.shared_queues = xrcd->domain;
  request.relayed_by = relayed_by;
  request.send_cq = request.receive_cq = &xrcd->cq;
  request.send_depth = request.send_sge_max = 0;
  request.receive_depth = request.receive_sge_max = 0;
  const auto made = create_qp(xrcd->pd, request);
  if (!made) return nullptr;
  if (!make_ready(**made, relayed_by)) {
    destroy_hidden_target(*made);
    return nullptr;
  }
  (*made)->engine().watch(**made);
  return *made;
}

void destroy_hidden_target(Qp* target) { static_cast<void>(destroy_qp(target)); }

}  // namespace verbena::nic
