// SPDX-License-Identifier: MIT
// What a message does to the connection that it is about.
#include <algorithm>

#include "cm/engine.h"

namespace verbena::cm {
namespace {

using enum Action;

// 12.8.2, table of APR's status.
constexpr std::uint8_t kPathsOfNoConnection = 1;
constexpr std::uint8_t kPathsNotSupported = 2;

struct Ids {
  std::uint32_t ours = 0;
  std::uint32_t theirs = 0;
};

// The ids as a message has them that may name a connection which nobody knows.
Ids ids_of(const wire::CmMessage& message) {
  return std::visit(
      [](const auto& m) -> Ids {
        if constexpr (requires { m.remote_comm_id; }) {
          return {m.remote_comm_id, m.local_comm_id};
        } else {
          return {};
        }
      },
      message);
}

}  // namespace

void Engine::act(Action action, Connection* c, const Arrival& arrival) {
  switch (action) {
    case kIgnore: return;
    case kTakeRequest: return take_request(arrival);
    case kTakeResolveRequest: return take_resolve_request(arrival);
    case kTakeReply: return take_reply(*c, arrival);
    case kTakeResolution: return take_resolution(*c, arrival);
    case kTakeRejection: return take_rejection(*c, arrival);
    case kWaitLonger: return wait_longer(*c, std::get<wire::Mra>(arrival.mad.message), arrival.now);
    case kAskForTime: return say_wait(*c, settings_.service_timeout);
    case kEstablish: return establish(*c, &arrival.mad.message, arrival.now);
    case kTakeLateDisconnect:
      tell(*c, EventKind::kEstablished, nullptr);
      return take_disconnect(*c, arrival);
    case kTakeDisconnect: return take_disconnect(*c, arrival);
    case kTakeDisconnectAnswer:
      return end_connection(*c, Ending::kAnswered, &arrival.mad.message, arrival.now);
    case kTakeUnknown:
      return end_connection(*c, Ending::kUnknown, &arrival.mad.message, arrival.now);
    case kRepeat: return say_again(*c);
    case kRepeatRejection:
      if (c->said != wire::CmAttribute::kRej) return;
      timers_.set(*c, arrival.now + c->time_wait + c->peer_wait);
      return say_again(*c);
    case kDeny: return deny(c, arrival);
    case kAnswerDisconnect: return answer_disconnect(c, arrival);
    case kRefusePath: return refuse_path(c, arrival);
    case kRefuse:
    case kAllow:
    case kRetry:
    case kEndTimeWait:
    case kDropHalfOpen:
    case kDropEstablished:
    case kDropDisconnecting:
    case kWithdraw:
    case kTurnDown:
    case kWindDown:
    case kStartDisconnect:
    case kLetGo:
    case kForget: VERBENA_ASSERT(false);  // an action of no message
  }
}

void Engine::take_reply(Connection& c, const Arrival& arrival) {
  const auto& rep = std::get<wire::Rep>(arrival.mad.message);
  timers_.cancel(c);
  c.knows_remote = true;
  c.remote_id = rep.local_comm_id;
  c.remote_qp = rep.local_qp;
  c.transaction = arrival.mad.transaction_id;
  Connection* const old =
      rep.local_qp.is_reserved() ? nullptr : connections_.by_qp(arrival.route.remote, rep.local_qp);
  if (old != nullptr && drop(*old, arrival.now)) {  // 12.9.8.3.1
    tell(c, EventKind::kRejected, nullptr);
    return send_rejection(c, {.reason = wire::RejReason::kStaleConnection}, arrival.now);
  }
  if (!rep.local_qp.is_reserved()) connections_.list_by_qp(c);
  c.state = State::kReplyReceived;
  c.asks_until = Instant::never();
  tell(c, EventKind::kReply, &arrival.mad.message);
}

void Engine::take_resolution(Connection& c, const Arrival& arrival) {
  tell(c, EventKind::kResolved, &arrival.mad.message);
  close(c);
}

// A requester may ask once more before it knows of its own REJ.
void Engine::take_rejection(Connection& c, const Arrival& arrival) {
  tell(c, EventKind::kRejected, &arrival.mad.message);
  const Duration again = c.role == Role::kPassive ? c.peer_wait : Duration();
  enter_time_wait(c, c.time_wait + again, arrival.now);
}

// Answered at once: the consumer has nothing to add.
void Engine::take_disconnect(Connection& c, const Arrival& arrival) {
  const auto& dreq = std::get<wire::Dreq>(arrival.mad.message);
  c.knows_remote = true;
  c.remote_id = dreq.local_comm_id;
  say(c, wire::Drep{.local_comm_id = c.id.value, .remote_comm_id = c.remote_id},
      arrival.mad.transaction_id);
  end_connection(c, c.is_stale ? Ending::kStale : Ending::kPeer, &arrival.mad.message, arrival.now);
}

void Engine::end_connection(Connection& c, Ending ending, const wire::CmMessage* message,
                            Instant now) {
  c.ending = c.is_stale ? Ending::kStale : ending;
  tell(c, EventKind::kDisconnected, message);
  enter_time_wait(c, c.time_wait, now);
}

void Engine::establish(Connection& c, const wire::CmMessage* message, Instant now) {
  timers_.cancel(c);
  c.state = State::kEstablished;
  if (c.is_released) return send_disconnect(c, {}, now);
  tell(c, EventKind::kEstablished, message);
}

// 12.6.6. The peer can do this only so often: its answer comes in bounded time.
void Engine::wait_longer(Connection& c, const wire::Mra& mra, Instant now) {
  if (c.extensions_left == 0) return;
  --c.extensions_left;
  c.knows_remote = true;
  c.remote_id = mra.local_comm_id;
  c.state = c.role == Role::kActive ? State::kReplyWait : State::kReadyWait;
  c.has_resent_early = true;
  set_timer(c, now + bounded(time_of(mra.service_timeout)) + c.wait);
}

void Engine::deny(const Connection* c, const Arrival& arrival) {
  if (c != nullptr && c->has_said && c->said == wire::CmAttribute::kRej) return say_again(*c);
  const Ids ids = ids_of(arrival.mad.message);
  const bool is_rep = std::holds_alternative<wire::Rep>(arrival.mad.message);
  say_aside(arrival.route,
            wire::Rej{.local_comm_id = ids.ours,
                      .remote_comm_id = ids.theirs,
                      .message = is_rep ? wire::RejOf::kRep : wire::RejOf::kOther,
                      .reason = wire::RejReason::kInvalidCommId},
            arrival.mad.transaction_id);
}

void Engine::answer_disconnect(Connection* c, const Arrival& arrival) {
  if (c != nullptr && c->has_said && c->said == wire::CmAttribute::kDrep) return say_again(*c);
  const Ids ids = ids_of(arrival.mad.message);
  say_aside(arrival.route, wire::Drep{.local_comm_id = ids.ours, .remote_comm_id = ids.theirs},
            arrival.mad.transaction_id);
}

void Engine::refuse_path(const Connection* c, const Arrival& arrival) {
  const bool stands = c != nullptr && c->state == State::kEstablished;
  const Ids ids = ids_of(arrival.mad.message);
  say_aside(arrival.route,
            wire::Apr{.local_comm_id = ids.ours,
                      .remote_comm_id = ids.theirs,
                      .status = stands ? kPathsNotSupported : kPathsOfNoConnection},
            arrival.mad.transaction_id);
}

void Engine::say_wait(const Connection& c, std::uint8_t service_timeout) {
  say_aside(c.route,
            wire::Mra{.local_comm_id = c.id.value,
                      .remote_comm_id = c.remote_id,
                      .message = c.role == Role::kPassive ? wire::MraOf::kReq : wire::MraOf::kRep,
                      .service_timeout = service_timeout},
            c.transaction);
}

}  // namespace verbena::cm
