// SPDX-License-Identifier: MIT
#include "nic/work_queues.h"

#include <algorithm>
#include <bit>
#include <mutex>
#include <utility>

#include "nic/nic.h"
#include "nic/nic_qp.h"

namespace verbena::nic {
namespace {

using qp::QpState;

constexpr bool may_move(WqState from, WqState to) {
  switch (to) {
    case WqState::kReset: return true;
    case WqState::kReady: return from != WqState::kError;
    case WqState::kError: return from != WqState::kReset;
  }
  return false;
}

Result<void, Error> move(Qp& qp, QpState to) {
  qp::QpAttributes wanted;
  wanted.state = to;
  wanted.port = 1;
  const bool names_port = to == QpState::kInit;
  return modify_qp(qp, wanted, qp::kState | (names_port ? std::uint32_t{qp::kPort} : 0));
}

}  // namespace

Result<Wq*, Error> create_wq(Pd& pd, const WqRequest& request) {
  QpRequest of_qp;
  of_qp.type = qp::QpType::kRawPacket;
  of_qp.is_work_queue = true;
  of_qp.send_cq = of_qp.receive_cq = request.cq;
  of_qp.send_depth = of_qp.send_sge_max = 0;
  of_qp.receive_depth = request.depth;
  of_qp.receive_sge_max = request.sge_max;
  of_qp.cookie = request.cookie;
  auto wq = std::make_unique<Wq>();
  const auto made = create_qp(pd, of_qp);
  if (!made) return refuse(made.error());
  wq->qp = *made;
  return wq.release();
}

WqState state_of(Wq& wq) {
  const auto status = query_qp(*wq.qp);
  if (!status || status->attributes.state == QpState::kError) return WqState::kError;
  return status->attributes.state == QpState::kReset ? WqState::kReset : WqState::kReady;
}

Result<void, Error> modify_wq(Wq& wq, WqState to, const WqState* current) {
  if (!wq.qp->pd().context->is_usable()) return refuse(Error::kGone);
  const std::lock_guard guard(wq.moving);
  const WqState from = state_of(wq);
  if ((current && *current != from) || !may_move(from, to)) return refuse(Error::kInvalid);
  if (to == from) return {};
  switch (to) {
    case WqState::kReset: return move(*wq.qp, QpState::kReset);
    case WqState::kError: return move(*wq.qp, QpState::kError);
    case WqState::kReady: break;
  }
  if (const auto done = move(*wq.qp, QpState::kInit); !done) return done;
  return move(*wq.qp, QpState::kReadyToReceive);
}

Result<void, Error> destroy_wq(Wq* wq) {
  if (wq->dependents.load() != 0) return refuse(Error::kBusy);
  if (const auto done = destroy_qp(wq->qp); !done) return done;
  delete wq;
  return {};
}

Result<void, qp::PostError> post_receive(Wq& wq, std::uint64_t wr_id, std::span<const Sge> sges) {
  return post_receive(*wq.qp, wr_id, sges);
}

// -- tables -------------------------------------------------------------------------------------

RwqTable::RwqTable(Context& of, std::vector<Wq*> entries)
    : context(&of), queues(std::move(entries)), cq(of, 1, nullptr, nullptr) {}

Result<RwqTable*, Error> create_rwq_table(Context& context, std::span<Wq* const> queues) {
  if (!context.is_usable()) return refuse(Error::kGone);
  Nic& nic = context.nic();
  const Limits& limits = nic.limits();
  if (!std::has_single_bit(queues.size()) || queues.size() > limits.work_queues_in_table) {
    return refuse(Error::kInvalid);
  }
  const auto is_of_context = [&](Wq* wq) { return wq && wq->qp->pd().context == &context; };
  if (!std::ranges::all_of(queues, is_of_context)) return refuse(Error::kInvalid);
  Share share(nic.counts().work_queue_tables, limits.work_queue_tables);
  if (!share) return refuse(Error::kNoRoom);
  auto* const table = new RwqTable(context, {queues.begin(), queues.end()});
  share.keep();
  for (Wq* const wq : table->queues)
    wq->dependents.fetch_add(1);
  context.count_objects(1);
  return table;
}

Result<void, Error> destroy_rwq_table(RwqTable* table) {
  Context& context = *table->context;
  if (table->dependents.load() != 0) return refuse(Error::kBusy);
  for (Wq* const wq : table->queues)
    wq->dependents.fetch_sub(1);
  if (context.is_usable()) context.nic().counts().work_queue_tables.fetch_sub(1);
  context.count_objects(-1);
  delete table;
  return {};
}

Result<Qp*, Error> create_scaling_qp(Pd& pd, RwqTable& table, const raw::HashConfig& hashing,
                                     void* cookie) {
  if (table.context != pd.context) return refuse(Error::kInvalid);
  QpRequest request;
  request.type = qp::QpType::kRawPacket;
  request.table = &table;
  request.hashing = &hashing;
  request.send_cq = request.receive_cq = &table.cq;
  request.send_depth = request.send_sge_max = 0;
  request.receive_depth = request.receive_sge_max = 0;
  request.cookie = cookie;
  return create_qp(pd, request);
}

Scaling::Scaling(const RwqTable& table, const raw::HashConfig& hashing) : hashing_(hashing) {
  for (const Wq* const wq : table.queues)
    queues_.push_back(wq->qp->number());
}

}  // namespace verbena::nic
