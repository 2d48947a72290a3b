// SPDX-License-Identifier: MIT
// What events of the engine mean for ids, and what the program is told of them. Statuses are the
// kernel's: a negative errno, or the peer's own reason.
#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <variant>

#include "base/log.h"
#include "rdmacm/manager.h"
#include "rdmacm/path.h"
#include "wire/ip.h"

namespace verbena::rdmacm {
namespace {

Id& id_of(const cm::Event& event) { return *reinterpret_cast<Id*>(event.tag); }

ibv_ece ece_of(const wire::Ece& ece) {
  return {.vendor_id = ece.vendor_id, .options = ece.options, .comp_mask = 0};
}

// As with the kernel's rdma_cm nothing is told of an id before it is accepted, for the program may
// not know it yet; rdma_accept(3) is refused then.
void push(Id& id, rdma_cm_event_type type, int status) {
  if (id.awaits_accept) return;
  id.events().push(std::make_unique<Event>(id, type, status));
}

template <std::size_t kBytes>
void push(Id& id, rdma_cm_event_type type, int status,
          const std::array<std::byte, kBytes>& private_data) {
  if (id.awaits_accept) return;
  auto event = std::make_unique<Event>(id, type, status);
  event->set_private_data(private_data, id.is_datagram());
  id.events().push(std::move(event));
}

// A connection that was asked for: an id like its listener.
std::unique_ptr<Id> child_of(Id& listener, const cm::Event& event, Instant now) {
  auto child = std::make_unique<Id>(listener.manager, listener.ps, listener.made_for);
  child->channel = listener.channel;
  child->context = listener.context;
  child->traffic_class = event.route.traffic_class;
  child->ack_timeout = listener.ack_timeout;
  child->stage = Stage::kRequested;
  child->awaits_accept = true;
  child->comm = event.id;
  child->way = event.route;
  child->port = listener.manager.devices().find(event.route.local, event.route.port, now);
  if (!child->port) {
    child->port = listener.manager.devices().find(event.route.local, 0, now);
  }
  return child;
}

// What a listener finds in front of the private data: who asks, as the RDMA IP CM header says
// (annex A11). A listener on a GID finds none, and all is the program's. Nothing: the request is
// malformed.
struct Asker {
  wire::IpCm ip{};
  std::size_t private_data_at = 0;
};

template <std::size_t kBytes>
std::optional<Asker> asker_of(const Id& listener,
                              const std::array<std::byte, kBytes>& private_data) {
  if (listener.source().is_ib()) return Asker{};
  const auto ip = wire::parse_ip_cm(private_data);
  if (!ip) return std::nullopt;
  return Asker{.ip = *ip, .private_data_at = wire::IpCm::kBytes};
}

void name_ends(Id& child, const Id& listener, const cm::Event& event, const wire::IpCm& ip) {
  if (listener.source().is_ib()) {
    const std::uint64_t service = listener.source().service();
    child.set_source(Address::of_service(event.route.local, service, event.route.port));
    child.set_destination(Address::of_service(event.route.remote, 0, event.route.port));
    return;
  }
  child.set_source(Address::of(event.route.local, listener.source().port(), event.route.port));
  child.set_destination(Address::of(ip.source, ip.source_port, event.route.port));
}

bool is_family_wanted(const Id& listener, const Gid& address) {
  const Address source = listener.source();
  if (!source.is_any()) return true;
  if (source.is_ib()) return true;
  const bool is_ipv4 = wire::is_ipv4(address);
  if (source.family() == AF_INET) return is_ipv4;
  return !is_ipv4 || !listener.is_ipv6_only.value_or(false);
}

void refuse_request(cm::Engine& engine, const cm::Event& event, wire::RejReason reason,
                    Instant now) {
  static_cast<void>(engine.reject(event.id, {.reason = reason}, now));
  engine.release(event.id, now);
}

void take_request(cm::Engine& engine, const cm::Event& event, Instant now) {
  Id& listener = id_of(event);
  const auto& req = std::get<wire::Req>(event.message);
  const auto asker = asker_of(listener, req.private_data);
  if (!asker || !is_family_wanted(listener, event.route.local)) {
    return refuse_request(engine, event, wire::RejReason::kUnsupportedRequest, now);
  }
  auto child = child_of(listener, event, now);
  if (!child->port) return refuse_request(engine, event, wire::RejReason::kPrimaryGid, now);
  name_ends(*child, listener, event, asker->ip);
  Agreement& agreed = child->agreement;
  // Now, for a program may move its queue pair to RTR before it accepts.
  agreed.own_psn = static_cast<std::uint32_t>(listener.manager.draw()) & 0xFFFFFF;
  agreed.peer_psn = req.starting_psn;
  agreed.peer_qp = req.local_qp.value;
  child->peer_comm = req.local_comm_id;
  agreed.path_mtu = req.path_mtu;
  // Each side's answers are the other's questions.
  agreed.reads_in = std::min(req.initiator_depth, child->port->device->reads_in_max);
  agreed.reads_out = std::min(req.responder_resources, child->port->device->reads_out_max);
  agreed.retry_count = req.retry_count;
  agreed.rnr_retry_count = req.rnr_retry_count;
  agreed.timeout = req.primary.ack_timeout;
  child->remote_ece = ece_of(req.ece);
  bind_to_port(*child);
  auto told = std::make_unique<Event>(*child, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
  told->listen_id = &listener;
  told->counted = &listener;
  told->set_private_data(std::span(req.private_data).subspan(asker->private_data_at), false);
  told->param.conn.responder_resources = req.initiator_depth;
  told->param.conn.initiator_depth = req.responder_resources;
  told->param.conn.flow_control = req.end_to_end_flow_control;
  told->param.conn.retry_count = req.retry_count;
  told->param.conn.rnr_retry_count = req.rnr_retry_count;
  told->param.conn.srq = req.srq;
  told->param.conn.qp_num = req.local_qp.value;
  listener.manager.enter(*child);
  engine.set_tag(event.id, reinterpret_cast<std::uint64_t>(child.release()));
  listener.events().push(std::move(told));
}

void take_resolve_request(cm::Engine& engine, const cm::Event& event, Instant now) {
  Id& listener = id_of(event);
  const auto& request = std::get<wire::SidrReq>(event.message);
  const auto asker = asker_of(listener, request.private_data);
  auto child = child_of(listener, event, now);
  if (!asker || !child->port || !is_family_wanted(listener, event.route.local)) {
    static_cast<void>(engine.answer(event.id, {.status = wire::SidrStatus::kRejected}, now));
    return engine.release(event.id, now);
  }
  name_ends(*child, listener, event, asker->ip);
  child->requested_service = request.service_id;
  bind_to_port(*child);
  auto told = std::make_unique<Event>(*child, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
  told->listen_id = &listener;
  told->counted = &listener;
  told->set_private_data(std::span(request.private_data).subspan(asker->private_data_at), true);
  listener.manager.enter(*child);
  engine.set_tag(event.id, reinterpret_cast<std::uint64_t>(child.release()));
  listener.events().push(std::move(told));
}

void take_reply(const cm::Event& event) {
  Id& id = id_of(event);
  const auto& rep = std::get<wire::Rep>(event.message);
  Agreement& agreed = id.agreement;
  agreed.peer_psn = rep.starting_psn;
  agreed.peer_qp = rep.local_qp.value;
  id.peer_comm = rep.local_comm_id;
  agreed.reads_in = std::min(agreed.reads_in, rep.initiator_depth);
  agreed.reads_out = std::min(agreed.reads_out, rep.responder_resources);
  agreed.rnr_retry_count = rep.rnr_retry_count;
  id.remote_ece = ece_of(rep.ece);
  id.stage = Stage::kAnswered;
  auto told = std::make_unique<Event>(id, RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
  told->completes = true;
  told->set_private_data(rep.private_data, false);
  told->param.conn.responder_resources = rep.initiator_depth;
  told->param.conn.initiator_depth = rep.responder_resources;
  told->param.conn.flow_control = rep.end_to_end_flow_control;
  told->param.conn.rnr_retry_count = rep.rnr_retry_count;
  told->param.conn.srq = rep.srq;
  told->param.conn.qp_num = rep.local_qp.value;
  id.events().push(std::move(told));
}

void take_established(const cm::Event& event) {
  Id& id = id_of(event);
  id.stage = Stage::kConnected;
  const auto* const rtu = event.has_message ? std::get_if<wire::Rtu>(&event.message) : nullptr;
  rtu ? push(id, RDMA_CM_EVENT_ESTABLISHED, 0, rtu->private_data)
      : push(id, RDMA_CM_EVENT_ESTABLISHED, 0);
}

void take_rejected(const cm::Event& event) {
  Id& id = id_of(event);
  id.stage = Stage::kOver;
  const auto* const rej = event.has_message ? std::get_if<wire::Rej>(&event.message) : nullptr;
  if (!rej) {
    return push(id, RDMA_CM_EVENT_REJECTED, static_cast<int>(wire::RejReason::kStaleConnection));
  }
  push(id, RDMA_CM_EVENT_REJECTED, static_cast<int>(rej->reason), rej->private_data);
}

void take_resolved(const cm::Event& event) {
  Id& id = id_of(event);
  const auto& reply = std::get<wire::SidrRep>(event.message);
  if (reply.status != wire::SidrStatus::kValid) {
    id.stage = Stage::kOver;
    return push(id, RDMA_CM_EVENT_UNREACHABLE, static_cast<int>(reply.status), reply.private_data);
  }
  id.stage = Stage::kConnected;
  auto told = std::make_unique<Event>(id, RDMA_CM_EVENT_ESTABLISHED, 0);
  told->set_private_data(reply.private_data, true);
  told->param.ud.ah_attr = path_to_peer(id);
  told->param.ud.qp_num = reply.qp.value;
  told->param.ud.qkey = reply.qkey;
  id.events().push(std::move(told));
}

void take_disconnected(const cm::Event& event) {
  Id& id = id_of(event);
  id.stage = Stage::kOver;
  push(id, RDMA_CM_EVENT_DISCONNECTED, event.ending == cm::Ending::kSilence ? -ETIMEDOUT : 0);
}

}  // namespace

void tell(cm::Engine& engine, const cm::Event& event, Instant now) {
  LOG_DEBUG("connection 0x%x: %s", event.id.value, cm::name_of(event.kind));
  switch (event.kind) {
    case cm::EventKind::kRequest: return take_request(engine, event, now);
    case cm::EventKind::kResolveRequest: return take_resolve_request(engine, event, now);
    case cm::EventKind::kReply: return take_reply(event);
    case cm::EventKind::kEstablished: return take_established(event);
    case cm::EventKind::kRejected: return take_rejected(event);
    case cm::EventKind::kUnreachable:
      id_of(event).stage = Stage::kOver;
      return push(id_of(event), RDMA_CM_EVENT_UNREACHABLE,
                  event.ending == cm::Ending::kNobody ? -ECONNREFUSED : -ETIMEDOUT);
    case cm::EventKind::kDisconnected: return take_disconnected(event);
    case cm::EventKind::kTimeWaitOver:
      // Datagrams have no connection whose packets might still come.
      if (id_of(event).is_datagram()) return;
      return push(id_of(event), RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
    case cm::EventKind::kResolved: return take_resolved(event);
  }
}

}  // namespace verbena::rdmacm
