// SPDX-License-Identifier: MIT
// The connection manager: the protocol of IBTA vol 1, chapter 12, as an engine without I/O, clock
// or randomness of its own.
//
// Takes MADs, commands and a time; gives MADs, events and a deadline. The order of a turn:
//
//   engine.receive(route, payload, now)         any number of MADs, or
//   engine.connect(...), accept(...), ...       any number of commands, or
//   engine.advance(now)                         when next_deadline() has come
//   while (engine.next_mad(mad)) send it        what there is now
//   while (engine.next_event(event)) tell it    they may be answered by commands at once
//
// An id is the caller's from connect(), resolve(), kRequest or kResolveRequest on until release(),
// which may come at any time, and which ends properly what still stands (a REJ or DREQ goes out and
// is repeated as it has to be). Nothing else ends an id, so commands on one that the peer has
// closed meanwhile are refused and harmless. Not thread-safe: its owner guards it.
//
// A command may cross an event that still waits for next_event(): then it is refused with
// kWrongState, and the event says why.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/random.h"
#include "base/result.h"
#include "base/time.h"
#include "cm/connections.h"
#include "cm/listeners.h"
#include "cm/ring.h"
#include "cm/state.h"
#include "cm/timers.h"
#include "cm/types.h"

namespace verbena::cm {

class Engine {
 public:
  // `random` stays the caller's and outlives the engine.
  Engine(const Settings& settings, RandomSource& random);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // --- Listening. A listener that goes takes no more requests. Those that next_event() has given
  // stay; those that it has not are rejected instead. What comes just after is not answered, as the
  // listener may come back, and whoever asks will ask again. ---
  Result<ListenerId, Refusal> listen(const Listening& what);
  void unlisten(ListenerId id, Instant now) { listeners_.remove(id, now); }

  // --- Active ---
  // Sends a REQ: all its fields are the caller's but the local communication id (the RDMA IP CM
  // header too: wire::encode_ip_cm to the front of the private data). It is repeated up to
  // `req.max_cm_retries` times when nothing came for `req.remote_cm_response_timeout` and the way
  // (`req.primary.ack_timeout`). Then kReply, kRejected or kUnreachable.
  Result<CommId, Refusal> connect(const Route& route, const wire::Req& req, std::uint64_t tag,
                                  Instant now);
  // After kReply: sends the RTU. The connection is established with that. At most 224 bytes.
  Result<void, Refusal> confirm(CommId id, std::span<const std::byte> private_data, Instant now);
  // Sends a SIDR_REQ; the request id is the engine's. Then kResolved or kUnreachable.
  Result<CommId, Refusal> resolve(const Route& route, const wire::SidrReq& request,
                                  const Patience& patience, std::uint64_t tag, Instant now);

  // --- Passive ---
  // After kRequest: sends the REP, all its fields the caller's but the communication ids. Repeated
  // until kEstablished, kRejected or kUnreachable.
  Result<void, Refusal> accept(CommId id, const wire::Rep& rep, Instant now);
  // The peer's packets arrive: as good as an RTU (12.9.6, "communication established").
  Result<void, Refusal> established(CommId id, Instant now);
  // After kResolveRequest: sends the SIDR_REP; the request id is the engine's.
  Result<void, Refusal> answer(CommId id, const wire::SidrRep& reply, Instant now);

  // --- Both ---
  // After kRequest or kReply.
  Result<void, Refusal> reject(CommId id, const Rejection& rejection, Instant now);
  // After kRequest or kReply: tells the peer now that an answer takes `service_timeout` (MRA). When
  // the peer asks again it is told anyway.
  Result<void, Refusal> ask_for_time(CommId id, std::uint8_t service_timeout, Instant now);
  // After kRequest or kResolveRequest: the consumer has it, and decides. It waits in the listener's
  // backlog no more.
  void taken(CommId id);
  // Of an established connection: sends the DREQ. At most 220 bytes. Then kDisconnected. A DREQ of
  // the peer is answered at once and needs nothing from the caller.
  Result<void, Refusal> disconnect(CommId id, std::span<const std::byte> private_data, Instant now);
  // Says once more what waits for an answer, and counts it as nothing: whoever was to answer may
  // have died, and somebody else knows.
  void ask_again(CommId id);
  // Nobody will answer, as far as the caller knows from elsewhere: gives up, if the peer has said
  // nothing yet. Then kUnreachable.
  void nobody_there(CommId id, Instant now);
  // Whether it has asked, and heard nothing.
  bool is_unanswered(CommId id);
  // No more events of this id, not even those that wait for next_event(). Unknown ids are ignored.
  void release(CommId id, Instant now);
  // What later events of the connection bring along (after kRequest it is the listener's).
  void set_tag(CommId id, std::uint64_t tag);

  // --- MADs and time ---
  // Any bytes that came to queue pair 1. `route.remote` is who sent them.
  void receive(const Route& route, std::span<const std::byte> payload, Instant now);
  // Does what is due.
  void advance(Instant now);
  // When advance() has something to do; Instant::never() without.
  Instant next_deadline() const { return timers_.next(); }
  // False: none. Those that are not fetched are kept up to `outgoing_max`.
  bool next_mad(Mad& mad);
  // False: none. Without limit of its own, but no connection gives more than a few.
  bool next_event(Event& event);

  const Counters& counters() const { return counters_; }
  // Which cells of the table of states (cm/state.h) were used how often.
  const Coverage& coverage() const { return coverage_; }
  // Connections that talk, wait for their caller, or are in time wait.
  std::size_t connections() const { return connections_.size(); }
  std::size_t memory_bytes() const;

 private:
  // A message that has come.
  struct Arrival {
    const Route& route;
    const wire::CmMad& mad;
    Instant now;
  };
  // Which connection a message is about; none is an answer, too.
  struct Match {
    Connection* connection = nullptr;
    bool is_discarded = false;
  };
  struct QueuedEvent {
    Event event;
    std::uint32_t number = 0;
    std::uint32_t generation = 0;
  };

  Action decide(State state, Input input);
  // The connection, where the command fits its state.
  Connection* make_asking(const Route& route, std::uint64_t service_id, std::uint64_t tag,
                          Instant now);
  static bool waits_unanswered(const Connection& c) {
    return c.state == State::kRequestSent || c.state == State::kResolving;
  }
  void set_timer(Connection& c, Instant when) { timers_.set(c, std::min(when, c.asks_until)); }
  Result<Connection*, Refusal> allowed(CommId id, Input command);

  // Classify: engine_match.cc.
  Match match(const Arrival& arrival);
  Match match_request(const Arrival& arrival, const wire::Req& req);
  Match match_rejection(const Arrival& arrival, const wire::Rej& rej);
  Match match_resolution(const Arrival& arrival, const wire::SidrRep& rep);
  template <class Message>
  Match match_ids(const Arrival& arrival, const Message& message);
  void refuse_version(const Route& route, std::span<const std::byte> payload);

  // Act: engine_messages.cc, engine_requests.cc.
  void act(Action action, Connection* connection, const Arrival& arrival);
  void take_request(const Arrival& arrival);
  bool is_stale(const Arrival& arrival, const wire::Req& req);
  bool drop(Connection& connection, Instant now);
  void admit(const Arrival& arrival, const wire::Req& req, Listener& listener);
  void refuse_request(const Arrival& arrival, const wire::Req& req, wire::RejReason reason);
  bool may_be_served_again(const Listeners::Wanted& wanted, Instant now);
  void take_resolve_request(const Arrival& arrival);
  void take_reply(Connection& connection, const Arrival& arrival);
  void take_resolution(Connection& connection, const Arrival& arrival);
  void take_rejection(Connection& connection, const Arrival& arrival);
  void take_disconnect(Connection& connection, const Arrival& arrival);
  void end_connection(Connection& connection, Ending ending, const wire::CmMessage* message,
                      Instant now);
  void establish(Connection& connection, const wire::CmMessage* message, Instant now);
  void wait_longer(Connection& connection, const wire::Mra& mra, Instant now);
  void deny(const Connection* connection, const Arrival& arrival);
  void answer_disconnect(Connection* connection, const Arrival& arrival);
  void refuse_path(const Connection* connection, const Arrival& arrival);
  void say_wait(const Connection& connection, std::uint8_t service_timeout);

  // Time, and what both sides do: engine_common.cc.
  void retry(Connection& connection, Instant now);
  void give_up(Connection& connection, Instant now);
  void await_answer(Connection& connection, Instant now);
  void send_disconnect(Connection& connection, std::span<const std::byte> private_data,
                       Instant now);
  void send_rejection(Connection& connection, const Rejection& rejection, Instant now);
  void turn_down(Connection& connection, Instant now);
  void send_withdrawal(Connection& connection, Instant now);
  void enter_time_wait(Connection& connection, Duration hold, Instant now);
  void end_time_wait(Connection& connection);
  void close(Connection& connection);
  void leave_backlog(Connection& connection);
  bool is_wanted(const QueuedEvent& queued);
  std::uint64_t next_transaction(const Connection& connection);
  void say(Connection& connection, const wire::CmMessage& message, std::uint64_t transaction);
  void say_again(const Connection& connection);
  void say_aside(const Route& route, const wire::CmMessage& message, std::uint64_t transaction);
  void send(const Route& route, const std::array<std::byte, wire::kMadBytes>& bytes,
            CommId asks = {});
  void tell(const Connection& connection, EventKind kind, const wire::CmMessage* message);
  Duration bounded(Duration wait) const;

  Settings settings_;
  Connections connections_;
  Listeners listeners_;
  Timers timers_;
  Ring<Mad> outgoing_;
  Ring<QueuedEvent> events_;
  Instant latest_;  // time that we were told
  std::uint32_t transactions_ = 0;
  Counters counters_;
  Coverage coverage_;
};

}  // namespace verbena::cm
