// SPDX-License-Identifier: MIT
// New requests: of whom, for which listener, and those that show that a connection is stale.
#include <algorithm>

#include "cm/engine.h"

namespace verbena::cm {
namespace {

using wire::RejReason;

// Of a requester whose answer cannot be waited for otherwise (SIDR says nothing of its timeouts).
constexpr std::uint8_t kUsualResponseTimeout = 20;

// Nothing of what we do not have.
std::optional<RejReason> unsupported(const wire::Req& req) {
  const bool is_xrc =
      req.transport_type == wire::TransportType::kExtended && req.extended_transport == 1;
  if (req.transport_type != wire::TransportType::kRc &&
      req.transport_type != wire::TransportType::kUc && !is_xrc) {
    return RejReason::kInvalidTransportType;
  }
  if (req.path_mtu < 1 || req.path_mtu > 5) return RejReason::kInvalidMtu;
  return {};
}

}  // namespace

void Engine::take_request(const Arrival& arrival) {
  const auto& req = std::get<wire::Req>(arrival.mad.message);
  const Listeners::Wanted wanted{.service_id = req.service_id, .route = arrival.route};
  Listener* const listener = listeners_.match(wanted);
  if (listener == nullptr) {
    if (may_be_served_again(wanted, arrival.now)) return;
    return refuse_request(arrival, req, RejReason::kInvalidServiceId);
  }
  if (const auto reason = unsupported(req)) return refuse_request(arrival, req, *reason);
  if (is_stale(arrival, req)) return refuse_request(arrival, req, RejReason::kStaleConnection);
  if (listener->waiting >= listener->what.backlog) {
    return refuse_request(arrival, req, RejReason::kNoResources);
  }
  admit(arrival, req, *listener);
}

bool Engine::may_be_served_again(const Listeners::Wanted& wanted, Instant now) {
  const bool may = listeners_.was_taken(wanted, now);
  counters_.too_late += may ? 1 : 0;
  return may;
}

// 12.9.8.3.1: the peer says that its queue pair, or its id, is free for a new connection, where we
// believe in an old one. The old one ends, and the peer may ask again.
bool Engine::is_stale(const Arrival& arrival, const wire::Req& req) {
  const Gid& from = arrival.route.remote;
  Connection* old = connections_.by_remote(from, req.local_comm_id, Role::kPassive);
  if (old != nullptr) {
    if (old->state != State::kTimeWait && drop(*old, arrival.now)) return true;
    connections_.unlist_by_remote(*old);
  }
  if (req.local_qp.is_reserved()) return false;
  old = connections_.by_qp(from, req.local_qp);
  return old != nullptr && drop(*old, arrival.now);
}

// Whether there is still something to be done before the new one can be.
bool Engine::drop(Connection& c, Instant now) {
  ++counters_.stale;
  const Action action = decide(c.state, Input::kStale);
  if (action == Action::kDropDisconnecting) {
    end_connection(c, Ending::kStale, nullptr, now);
    return false;
  }
  if (action == Action::kDropEstablished) {
    c.is_stale = true;
    send_disconnect(c, {}, now);
  } else if (action == Action::kDropHalfOpen) {
    tell(c, EventKind::kRejected, nullptr);
    send_rejection(c, {.reason = RejReason::kStaleConnection}, now);
  }
  return true;
}

void Engine::admit(const Arrival& arrival, const wire::Req& req, Listener& listener) {
  Connection* const made = connections_.make();
  if (made == nullptr) return refuse_request(arrival, req, RejReason::kNoResources);
  Connection& c = *made;
  c.role = Role::kPassive;
  c.state = State::kRequestReceived;
  c.listener = listener.id;
  c.tag = listener.what.tag;
  c.is_in_backlog = true;
  ++listener.waiting;
  c.route = arrival.route;
  c.transaction = arrival.mad.transaction_id;
  c.knows_remote = true;
  c.remote_id = req.local_comm_id;
  c.remote_qp = req.local_qp;
  c.remote_psn = req.starting_psn;
  c.remote_guid = req.local_ca_guid;
  c.service_id = req.service_id;
  c.has_alternate = req.alternate != wire::CmPath{.local_lid = 0, .remote_lid = 0};
  c.retries_max = req.max_cm_retries;
  const Duration way = time_of(req.primary.ack_timeout);
  c.wait = bounded(time_of(req.local_cm_response_timeout) + way);
  c.peer_wait = bounded(time_of(req.remote_cm_response_timeout) + way);
  c.time_wait = std::min(way, settings_.time_wait_longest);
  connections_.list_by_remote(c);
  if (!req.local_qp.is_reserved()) connections_.list_by_qp(c);
  tell(c, EventKind::kRequest, &arrival.mad.message);
}

void Engine::refuse_request(const Arrival& arrival, const wire::Req& req, RejReason reason) {
  ++counters_.refused;
  say_aside(
      arrival.route,
      wire::Rej{
          .remote_comm_id = req.local_comm_id, .message = wire::RejOf::kReq, .reason = reason},
      arrival.mad.transaction_id);
}

void Engine::take_resolve_request(const Arrival& arrival) {
  const auto& req = std::get<wire::SidrReq>(arrival.mad.message);
  const auto refused = [&](wire::SidrStatus status) {
    ++counters_.refused;
    say_aside(
        arrival.route,
        wire::SidrRep{.request_id = req.request_id, .status = status, .service_id = req.service_id},
        arrival.mad.transaction_id);
  };
  const Listeners::Wanted wanted{
      .service_id = req.service_id, .route = arrival.route, .is_datagram = true};
  Listener* const listener = listeners_.match(wanted);
  if (listener == nullptr) {
    if (may_be_served_again(wanted, arrival.now)) return;
    return refused(wire::SidrStatus::kUnsupportedServiceId);
  }
  if (listener->waiting >= listener->what.backlog) return refused(wire::SidrStatus::kRejected);
  // The same id with another service: the requester has begun anew.
  Connection* const old =
      connections_.by_remote(arrival.route.remote, req.request_id, Role::kResolved);
  if (old != nullptr) connections_.unlist_by_remote(*old);
  Connection* const made = connections_.make();
  if (made == nullptr) return refused(wire::SidrStatus::kRejected);
  Connection& c = *made;
  c.role = Role::kResolved;
  c.state = State::kResolveReceived;
  c.listener = listener->id;
  c.tag = listener->what.tag;
  c.is_in_backlog = true;
  ++listener->waiting;
  c.route = arrival.route;
  c.transaction = arrival.mad.transaction_id;
  c.remote_id = req.request_id;
  c.service_id = req.service_id;
  c.time_wait = std::min(time_of(kUsualResponseTimeout + 1), settings_.time_wait_longest);
  connections_.list_by_remote(c);
  tell(c, EventKind::kResolveRequest, &arrival.mad.message);
}

}  // namespace verbena::cm
