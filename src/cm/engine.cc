// SPDX-License-Identifier: MIT
// The commands, and how MADs and events come out.
#include "cm/engine.h"

#include <algorithm>

namespace verbena::cm {
namespace {

// 12.6.8, of the alternate path: we have none.
constexpr std::uint8_t kFailoverAccepted = 0;
constexpr std::uint8_t kFailoverNotSupported = 1;

// The front of a message's private data; the rest is zeros.
template <std::size_t kBytes>
bool fill(std::array<std::byte, kBytes>& to, std::span<const std::byte> from) {
  if (from.size() > kBytes) return false;
  std::ranges::copy(from, to.begin());
  return true;
}

bool can_be_sent(const wire::Req& req) {
  const bool is_known =
      req.transport_type != wire::TransportType::kRd &&
      (req.transport_type != wire::TransportType::kExtended || req.extended_transport == 1);
  return is_known && req.path_mtu >= 1 && req.path_mtu <= 5 && req.max_cm_retries <= 15 &&
         req.local_cm_response_timeout <= 31 && req.remote_cm_response_timeout <= 31 &&
         req.primary.ack_timeout <= 31;
}

}  // namespace

Engine::Engine(const Settings& settings, RandomSource& random)
    : settings_(settings),
      connections_(settings.slot, settings.connections_max, settings.time_wait_max, random),
      listeners_(settings.listeners_max) {}

Action Engine::decide(State state, Input input) {
  coverage_.count(state, input);
  return action_for(state, input);
}

Result<Connection*, Refusal> Engine::allowed(CommId id, Input command) {
  Connection* const connection = connections_.by_id(id);
  if (connection == nullptr || connection->is_released) return refuse(Refusal::kNoSuchId);
  if (decide(connection->state, command) != Action::kAllow) return refuse(Refusal::kWrongState);
  return connection;
}

Result<ListenerId, Refusal> Engine::listen(const Listening& what) { return listeners_.add(what); }

// A connection of ours that is about to ask. Null: there is no room.
Connection* Engine::make_asking(const Route& route, std::uint64_t service_id, std::uint64_t tag,
                                Instant now) {
  Connection* const made = connections_.make();
  if (made == nullptr) return nullptr;
  made->tag = tag;
  made->route = route;
  made->service_id = service_id;
  made->asks_until = now + settings_.asking_max;
  return made;
}

Result<CommId, Refusal> Engine::connect(const Route& route, const wire::Req& req, std::uint64_t tag,
                                        Instant now) {
  if (!can_be_sent(req)) return refuse(Refusal::kInvalid);
  Connection* const made = make_asking(route, req.service_id, tag, now);
  if (made == nullptr) return refuse(Refusal::kNoRoom);
  Connection& c = *made;
  c.role = Role::kActive;
  c.state = State::kRequestSent;
  c.local_guid = req.local_ca_guid;
  c.local_qp = req.local_qp;
  c.retries_max = req.max_cm_retries;
  const Duration way = time_of(req.primary.ack_timeout);
  c.wait = bounded(time_of(req.remote_cm_response_timeout) + way);
  c.peer_wait = bounded(time_of(req.local_cm_response_timeout) + way);
  c.time_wait = std::min(way, settings_.time_wait_longest);
  wire::Req said = req;
  said.local_comm_id = c.id.value;
  say(c, said, next_transaction(c));
  await_answer(c, now);
  return c.id;
}

Result<CommId, Refusal> Engine::resolve(const Route& route, const wire::SidrReq& request,
                                        const Patience& patience, std::uint64_t tag, Instant now) {
  if (patience.response_timeout > 31) return refuse(Refusal::kInvalid);
  Connection* const made = make_asking(route, request.service_id, tag, now);
  if (made == nullptr) return refuse(Refusal::kNoRoom);
  Connection& c = *made;
  c.role = Role::kResolver;
  c.state = State::kResolving;
  c.retries_max = patience.retries_max;
  c.wait = bounded(time_of(patience.response_timeout));
  wire::SidrReq said = request;
  said.request_id = c.id.value;
  say(c, said, next_transaction(c));
  await_answer(c, now);
  return c.id;
}

Result<void, Refusal> Engine::confirm(CommId id, std::span<const std::byte> private_data,
                                      Instant /*now*/) {
  const auto found = allowed(id, Input::kConfirm);
  if (!found) return refuse(found.error());
  Connection& c = **found;
  wire::Rtu rtu{.local_comm_id = c.id.value, .remote_comm_id = c.remote_id};
  if (!fill(rtu.private_data, private_data)) return refuse(Refusal::kTooLong);
  c.state = State::kEstablished;
  say(c, rtu, c.transaction);
  return {};
}

Result<void, Refusal> Engine::accept(CommId id, const wire::Rep& rep, Instant now) {
  const auto found = allowed(id, Input::kAccept);
  if (!found) return refuse(found.error());
  Connection& c = **found;
  leave_backlog(c);
  c.state = State::kReplySent;
  c.local_qp = rep.local_qp;
  wire::Rep said = rep;
  if (c.has_alternate && said.failover_accepted == kFailoverAccepted) {
    said.failover_accepted = kFailoverNotSupported;
  }
  said.local_comm_id = c.id.value;
  said.remote_comm_id = c.remote_id;
  say(c, said, c.transaction);
  await_answer(c, now);
  return {};
}

Result<void, Refusal> Engine::established(CommId id, Instant now) {
  const auto found = allowed(id, Input::kTraffic);
  if (!found) return refuse(found.error());
  establish(**found, nullptr, now);
  return {};
}

Result<void, Refusal> Engine::answer(CommId id, const wire::SidrRep& reply, Instant now) {
  const auto found = allowed(id, Input::kAnswer);
  if (!found) return refuse(found.error());
  Connection& c = **found;
  leave_backlog(c);
  wire::SidrRep said = reply;
  said.request_id = c.remote_id;
  said.service_id = c.service_id;
  say(c, said, c.transaction);
  enter_time_wait(c, c.time_wait, now);
  return {};
}

Result<void, Refusal> Engine::reject(CommId id, const Rejection& rejection, Instant now) {
  const auto found = allowed(id, Input::kReject);
  if (!found) return refuse(found.error());
  constexpr wire::Rej kRej;
  if (rejection.info.size() > kRej.info.size() ||
      rejection.private_data.size() > kRej.private_data.size()) {
    return refuse(Refusal::kTooLong);
  }
  leave_backlog(**found);
  send_rejection(**found, rejection, now);
  return {};
}

Result<void, Refusal> Engine::ask_for_time(CommId id, std::uint8_t service_timeout,
                                           Instant /*now*/) {
  const auto found = allowed(id, Input::kAskForTime);
  if (!found) return refuse(found.error());
  if (service_timeout > 31) return refuse(Refusal::kInvalid);
  say_wait(**found, service_timeout);
  return {};
}

Result<void, Refusal> Engine::disconnect(CommId id, std::span<const std::byte> private_data,
                                         Instant now) {
  const auto found = allowed(id, Input::kDisconnect);
  if (!found) return refuse(found.error());
  if (private_data.size() > wire::Dreq{}.private_data.size()) return refuse(Refusal::kTooLong);
  send_disconnect(**found, private_data, now);
  return {};
}

void Engine::release(CommId id, Instant now) {
  Connection* const found = connections_.by_id(id);
  if (found == nullptr || found->is_released) return;
  Connection& c = *found;
  c.is_released = true;
  leave_backlog(c);
  const Action action = decide(c.state, Input::kRelease);
  if (action == Action::kWithdraw) {
    send_withdrawal(c, now);
  } else if (action == Action::kTurnDown) {
    turn_down(c, now);
  } else if (action == Action::kStartDisconnect) {
    send_disconnect(c, {}, now);
  } else if (action == Action::kForget) {
    close(c);
  } else {
    VERBENA_ASSERT(action == Action::kLetGo || action == Action::kWindDown);
  }
}

void Engine::ask_again(CommId id) {
  Connection* const c = connections_.by_id(id);
  const bool waits =
      c != nullptr && (c->state == State::kRequestSent || c->state == State::kReplyWait ||
                       c->state == State::kResolving);
  if (waits) say_again(*c);
}

void Engine::taken(CommId id) {
  Connection* const c = connections_.by_id(id);
  if (c != nullptr) leave_backlog(*c);
}

bool Engine::is_unanswered(CommId id) {
  const Connection* const c = connections_.by_id(id);
  return c != nullptr && waits_unanswered(*c);
}

void Engine::nobody_there(CommId id, Instant now) {
  if (!is_unanswered(id)) return;
  Connection& c = *connections_.by_id(id);
  timers_.cancel(c);
  c.ending = Ending::kNobody;
  give_up(c, now);
}

void Engine::set_tag(CommId id, std::uint64_t tag) {
  Connection* const found = connections_.by_id(id);
  if (found != nullptr) found->tag = tag;
}

void Engine::advance(Instant now) {
  latest_ = now;
  while (timers_.next() <= now) {
    Connection& c = timers_.first();
    timers_.cancel(c);
    if (decide(c.state, Input::kTimer) == Action::kRetry) {
      retry(c, now);
    } else {
      VERBENA_ASSERT(c.state == State::kTimeWait);
      end_time_wait(c);
    }
  }
}

bool Engine::next_mad(Mad& mad) {
  if (outgoing_.empty()) return false;
  mad = outgoing_.front();
  outgoing_.pop();
  return true;
}

bool Engine::next_event(Event& event) {
  while (!events_.empty()) {
    const bool is_told = is_wanted(events_.front());
    if (is_told) {
      event = events_.front().event;
      event.tag = connections_.at(events_.front().number).tag;
    }
    events_.pop();
    if (is_told) return true;
  }
  return false;
}

// Not of what is released; and no request for a listener that has gone meanwhile.
bool Engine::is_wanted(const QueuedEvent& queued) {
  const Connection& c = connections_.at(queued.number);
  if (c.generation != queued.generation || c.is_released) return false;
  const EventKind kind = queued.event.kind;
  const bool is_request = kind == EventKind::kRequest || kind == EventKind::kResolveRequest;
  if (!is_request || listeners_.find(c.listener) != nullptr) return true;
  release(c.id, latest_);
  return false;
}

std::size_t Engine::memory_bytes() const {
  return connections_.memory_bytes() + outgoing_.room() * sizeof(Mad) +
         events_.room() * sizeof(QueuedEvent);
}

}  // namespace verbena::cm
