// SPDX-License-Identifier: MIT
// Retries, endings, and how messages and events leave.
#include <algorithm>

#include "cm/engine.h"
#include "wire/bytes.h"

namespace verbena::cm {
namespace {

using wire::RejReason;

constexpr Duration kShortestWait = Duration::milliseconds(1);
constexpr std::uint8_t kExtensionsMax = 16;

// Which message a REJ is about.
wire::RejOf message_of(const Connection& c) {
  if (c.role == Role::kActive) return wire::RejOf::kRep;
  return c.state == State::kRequestReceived ? wire::RejOf::kReq : wire::RejOf::kOther;
}

}  // namespace

Duration Engine::bounded(Duration wait) const {
  return std::clamp(wait, kShortestWait, std::max(kShortestWait, settings_.wait_max));
}

void Engine::await_answer(Connection& c, Instant now) {
  c.retries_left = c.retries_max;
  c.extensions_left = kExtensionsMax;
  c.has_resent_early = c.wait <= settings_.early_resend || settings_.early_resend == Duration();
  set_timer(c, now + (c.has_resent_early ? c.wait : settings_.early_resend));
}

// 12.9.8.5. What waits longer falls back to the state in which it would have waited.
void Engine::retry(Connection& c, Instant now) {
  const bool is_early = !c.has_resent_early;
  if ((!is_early && c.retries_left == 0) || now >= c.asks_until) return give_up(c, now);
  if (!is_early) --c.retries_left;
  c.has_resent_early = true;
  if (c.state == State::kReplyWait) c.state = State::kRequestSent;
  if (c.state == State::kReadyWait) c.state = State::kReplySent;
  ++counters_.resent;
  send(c.route, c.last, waits_unanswered(c) ? c.id : CommId{});
  set_timer(c, is_early ? now + (c.wait + settings_.early_resend * -1) : now + c.wait);
}

void Engine::give_up(Connection& c, Instant now) {
  if (c.state == State::kDisconnectSent) {
    return end_connection(c, Ending::kSilence, nullptr, now);
  }
  tell(c, EventKind::kUnreachable, nullptr);
  if (c.state == State::kResolving) return close(c);
  if (c.role == Role::kActive) {
    send_withdrawal(c, now);
  } else {
    send_rejection(c, {.reason = RejReason::kTimeout}, now);
  }
}

void Engine::send_disconnect(Connection& c, std::span<const std::byte> private_data, Instant now) {
  wire::Dreq dreq{
      .local_comm_id = c.id.value, .remote_comm_id = c.remote_id, .remote_qp = c.remote_qp};
  std::ranges::copy(private_data, dreq.private_data.begin());
  c.state = State::kDisconnectSent;
  say(c, dreq, next_transaction(c));
  await_answer(c, now);
}

// What is rejected stays for as long as the peer may ask again.
void Engine::send_rejection(Connection& c, const Rejection& rejection, Instant now) {
  wire::Rej rej{.local_comm_id = c.id.value,
                .remote_comm_id = c.remote_id,
                .message = message_of(c),
                .info_length = static_cast<std::uint8_t>(rejection.info.size()),
                .reason = rejection.reason};
  std::ranges::copy(rejection.info, rej.info.begin());
  std::ranges::copy(rejection.private_data, rej.private_data.begin());
  say(c, rej, c.transaction);
  enter_time_wait(c, c.time_wait + c.peer_wait, now);
}

// A REQ that is given up: the peer finds what it has of it by our id and, in the additional
// information, our channel adapter (12.6.7.2, reason 4).
void Engine::send_withdrawal(Connection& c, Instant now) {
  const wire::be64 guid(c.local_guid);
  wire::Rej rej{.local_comm_id = c.id.value,
                .remote_comm_id = c.remote_id,
                .message = wire::RejOf::kReq,
                .info_length = sizeof guid,
                .reason = RejReason::kTimeout};
  std::ranges::copy(std::as_bytes(std::span(&guid, 1)), rej.info.begin());
  say(c, rej, next_transaction(c));
  enter_time_wait(c, c.time_wait + c.peer_wait, now);
}

void Engine::turn_down(Connection& c, Instant now) {
  if (c.role != Role::kResolved) return send_rejection(c, {}, now);
  say(c,
      wire::SidrRep{.request_id = c.remote_id,
                    .status = wire::SidrStatus::kRejected,
                    .service_id = c.service_id},
      c.transaction);
  enter_time_wait(c, c.time_wait, now);
}

void Engine::enter_time_wait(Connection& c, Duration hold, Instant now) {
  connections_.unlist_by_qp(c);
  c.state = State::kTimeWait;
  connections_.enter_time_wait(c);
  timers_.set(c, now + hold);
  if (Connection* const oldest = connections_.too_many()) {
    ++counters_.time_wait_cut;
    timers_.cancel(*oldest);
    end_time_wait(*oldest);
  }
}

void Engine::end_time_wait(Connection& c) {
  connections_.leave_time_wait(c);
  tell(c, EventKind::kTimeWaitOver, nullptr);
  close(c);
}

void Engine::close(Connection& c) {
  timers_.cancel(c);
  connections_.unlist_by_remote(c);
  connections_.unlist_by_qp(c);
  c.state = State::kClosed;
  if (c.is_released) connections_.free(c);
}

void Engine::leave_backlog(Connection& c) {
  if (!c.is_in_backlog) return;
  c.is_in_backlog = false;
  Listener* const listener = listeners_.find(c.listener);
  if (listener != nullptr) --listener->waiting;
}

std::uint64_t Engine::next_transaction(const Connection& c) {
  return std::uint64_t{c.id.value} << 32 | ++transactions_;
}

void Engine::say(Connection& c, const wire::CmMessage& message, std::uint64_t transaction) {
  c.said = wire::attribute_of(message);
  c.has_said = true;
  c.last = wire::encode_cm({.transaction_id = transaction, .message = message});
  send(c.route, c.last);
}

void Engine::say_again(const Connection& c) { send(c.route, c.last); }

void Engine::say_aside(const Route& route, const wire::CmMessage& message,
                       std::uint64_t transaction) {
  send(route, wire::encode_cm({.transaction_id = transaction, .message = message}));
}

void Engine::send(const Route& route, const std::array<std::byte, wire::kMadBytes>& bytes,
                  CommId asks) {
  if (outgoing_.size() >= settings_.outgoing_max) {
    ++counters_.outgoing_lost;
    return;
  }
  ++counters_.sent;
  Mad& mad = outgoing_.push();
  mad.route = route;
  mad.bytes = bytes;
  mad.asks = asks;
}

void Engine::tell(const Connection& c, EventKind kind, const wire::CmMessage* message) {
  if (c.is_released) return;
  QueuedEvent& queued = events_.push();
  queued.number = c.number;
  queued.generation = c.generation;
  Event& event = queued.event;
  event.kind = kind;
  const bool is_end = kind == EventKind::kDisconnected || kind == EventKind::kUnreachable;
  event.ending = is_end ? c.ending : Ending::kNone;
  event.has_message = message != nullptr;
  event.id = c.id;
  event.listener = c.listener;
  event.route = c.route;
  if (message != nullptr) event.message = *message;
}

}  // namespace verbena::cm
