// SPDX-License-Identifier: MIT
// Asynchronous events (ibv_get_async_event(3)).
#include "verbs/border.h"
#include "verbs/objects.h"

namespace verbena::verbs {
namespace {

ibv_async_event of_cq(void* cookie, ibv_event_type type) {
  return {.element = {.cq = static_cast<Cq*>(cookie)->plain()}, .event_type = type};
}

ibv_async_event of_srq(void* cookie, ibv_event_type type) {
  return {.element = {.srq = &static_cast<Srq*>(cookie)->face}, .event_type = type};
}

ibv_async_event of_qp(void* cookie, ibv_event_type type) {
  return {.element = {.qp = static_cast<Qp*>(cookie)->plain()}, .event_type = type};
}

// Each device has one port.
ibv_async_event of_port(ibv_event_type type) {
  ibv_async_event event{};
  event.element.port_num = 1;
  event.event_type = type;
  return event;
}

ibv_async_event of_wq(void* cookie, ibv_event_type type) {
  return {.element = {.wq = &static_cast<Wq*>(cookie)->face}, .event_type = type};
}

ibv_async_event translate(const nic::AsyncEvent& event) {
  switch (event.kind) {
    case nic::AsyncKind::kCqError: return of_cq(event.cookie, IBV_EVENT_CQ_ERR);
    case nic::AsyncKind::kSrqLimitReached: return of_srq(event.cookie, IBV_EVENT_SRQ_LIMIT_REACHED);
    case nic::AsyncKind::kWqFatal: return of_wq(event.cookie, IBV_EVENT_WQ_FATAL);
    case nic::AsyncKind::kQpFatal: return of_qp(event.cookie, IBV_EVENT_QP_FATAL);
    case nic::AsyncKind::kQpRequestError: return of_qp(event.cookie, IBV_EVENT_QP_REQ_ERR);
    case nic::AsyncKind::kQpAccessError: return of_qp(event.cookie, IBV_EVENT_QP_ACCESS_ERR);
    case nic::AsyncKind::kCommunicationEstablished: return of_qp(event.cookie, IBV_EVENT_COMM_EST);
    case nic::AsyncKind::kSendQueueDrained: return of_qp(event.cookie, IBV_EVENT_SQ_DRAINED);
    case nic::AsyncKind::kLastReceiveReached:
      return of_qp(event.cookie, IBV_EVENT_QP_LAST_WQE_REACHED);
    case nic::AsyncKind::kDeviceFatal: return of_port(IBV_EVENT_DEVICE_FATAL);
    case nic::AsyncKind::kPortError: return of_port(IBV_EVENT_PORT_ERR);
    case nic::AsyncKind::kPortActive: return of_port(IBV_EVENT_PORT_ACTIVE);
    case nic::AsyncKind::kGidChange: return of_port(IBV_EVENT_GID_CHANGE);
  }
  return of_qp(event.cookie, IBV_EVENT_QP_FATAL);
}

}  // namespace
}  // namespace verbena::verbs

using namespace verbena;

int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  return verbs::minus_one_at_border([&]() -> Result<void, nic::Error> {
    const auto next = nic::next_async_event(*verbs::own(context).nic);
    if (!next) return refuse(next.error());
    *event = verbs::translate(*next);
    return {};
  });
}

// Whoever destroys the object may go on once the NIC's count is complete: it comes last.
void ibv_ack_async_event(ibv_async_event* event) {
  switch (event->event_type) {
    case IBV_EVENT_CQ_ERR: {
      ibv_cq* const cq = event->element.cq;
      if (verbs::is_inherited(cq)) return;
      verbs::note_acknowledged(*cq, cq->async_events_completed, 1);
      return verbs::own(cq).nic->async_events.acknowledged(1);
    }
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED: {
      ibv_srq* const srq = event->element.srq;
      if (verbs::is_inherited(srq)) return;
      verbs::note_acknowledged(*srq, srq->events_completed, 1);
      return verbs::own(srq).nic->async_events.acknowledged(1);
    }
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED: {
      ibv_qp* const qp = event->element.qp;
      if (verbs::is_inherited(qp)) return;
      verbs::note_acknowledged(*qp, qp->events_completed, 1);
      return nic::async_events_of(*verbs::own(qp).nic).acknowledged(1);
    }
    case IBV_EVENT_WQ_FATAL: {
      ibv_wq* const wq = event->element.wq;
      if (verbs::is_inherited(wq)) return;
      verbs::note_acknowledged(*wq, wq->events_completed, 1);
      return nic::async_events_of(*verbs::own(wq).nic->qp).acknowledged(1);
    }
    case IBV_EVENT_DEVICE_FATAL:
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
    case IBV_EVENT_GID_CHANGE: return;  // not of an object that we make
  }
}
