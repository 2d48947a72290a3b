// SPDX-License-Identifier: MIT
// The responder's side of a conduit: executes the requests in its ring, in order, each as a whole
// before the next, and answers. It stops where an answer has no room, and goes on when the
// requester made some.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "local/conduit.h"
#include "local/glance.h"
#include "local/peer_memory.h"
#include "qp/carrier.h"
#include "qp/operation.h"
#include "qp/responder.h"

namespace verbena::local {

class RingResponder {
 public:
  explicit RingResponder(qp::QpType type) : type_(type) {}

  void offer(Conduit conduit);
  // The requester's memory, where payload may be taken from; lives as long as this.
  void borrow_from(PeerMemory* peer) { peer_ = peer; }
  Conduit give_up_conduit() { return std::exchange(conduit_, {}); }
  bool is_offered() const { return static_cast<bool>(conduit_); }
  bool is_broken() const { return broken_; }
  std::uint64_t conduit_id() const { return conduit_.id(); }

  // Executes and acknowledges. True when there is more to do that needs no answer from the
  // requester.
  bool serve(qp::Responder& responder, qp::Budget& budget);
  // To copy so much takes much longer than to tell of it: who waits learns at once, not when all
  // that came behind is done too. While as much again lies there to be copied, there is time until
  // so much is done.
  static constexpr std::size_t kAcknowledgedAtOnce = 64 * 1024;
  static constexpr std::size_t kAcknowledgedLatest = 4 * kAcknowledgedAtOnce;
  // `untold`: bytes that were copied, `last`: of the last message.
  bool must_tell(std::size_t untold, std::size_t last) const {
    if (untold < kAcknowledgedAtOnce) [[likely]]
      return false;
    const std::size_t as_many_behind = kAcknowledgedAtOnce / std::max<std::size_t>(last, 1);
    return untold >= kAcknowledgedLatest ||
           !requests_.has_record_behind(static_cast<std::uint32_t>(as_many_behind));
  }
  // The short way of what comes most: a SEND in one piece while nothing else is under way. The next
  // request where it may be one, else null; what it says has been executed is to be told of first.
  // Then it is taken, or `most` of those in its record; none: serve() has to look. And after the
  // last of several the peer is told.
  const std::byte* next_small();
  static Acknowledged said_with(const std::byte* small) {
    constexpr std::size_t kAt = offsetof(RequestRecord, acknowledged);
    return {.executed = read_once(small, kAt + offsetof(Acknowledged, executed)),
            .conduit = read_once(small, kAt + offsetof(Acknowledged, conduit))};
  }
  struct SmallTaken {
    std::uint32_t messages = 0;
    std::size_t bytes = 0;
  };
  std::optional<SmallTaken> take_small(const std::byte* small, std::uint32_t most,
                                       qp::Responder& responder);
  void small_were_taken() {
    used_ = true;
    acknowledge();
    if (requests_.give_back_in_quarters()) [[unlikely]]
      raise(signal_, Signal::kRoom);
  }
  // The same of what most messages are (ring_tiny.h).
  const std::byte* next_tiny() const;
  bool take_tiny(const std::byte* tiny, qp::Responder& responder);
  // How much was executed, for a record that says so.
  Acknowledged acknowledged() const {
    return {executed_, static_cast<std::uint32_t>(conduit_.id())};
  }
  // Something lies there that serve() would take now.
  bool has_requests() const {
    return conduit_ && !closed_ && !broken_ && !stalled_ && requests_.has_record();
  }
  // Where has_requests() looks.
  void show(Glance::View& view) const {
    if (!conduit_ || closed_ || broken_ || stalled_) return;
    view.request = &requests_.next_tag();
    view.request_tag = requests_.wanted_tag();
  }
  bool is_plain() const { return is_plain_; }
  const std::atomic<std::uint32_t>& next_tag() const { return requests_.next_tag(); }
  std::uint32_t wanted_tag() const { return requests_.wanted_tag(); }
  std::uint32_t last_lines() const { return requests_.last_lines(); }
  // As the last small message said.
  bool peer_measures_pace() const { return peer_measures_pace_; }
  // The peer that took our conduit has left.
  bool is_left() const {
    return conduit_ && conduit_.header().requester_closed.load(std::memory_order_acquire) != 0;
  }
  const std::atomic<std::uint32_t>& farewell() const { return conduit_.header().requester_closed; }
  // A request came, of whatever kind.
  bool was_used() const { return used_; }
  // Empties the iovecs by which the requester reaches our memory.
  void stop_reaching();
  // What the requester's process should hear since the last call.
  Signal take_signal() { return std::exchange(signal_, Signal::kNone); }
  void close();

 private:
  // kStalled: the same record again, when the response ring has room, or another process answered.
  enum class Step : std::uint8_t { kConsumed, kStalled };
  struct Request;

  // SENDs that lie together in one record (ring_responder_row.cc).
  struct RowView {
    std::uint32_t units;
    std::uint32_t length;
    std::uint32_t count;
  };
  bool is_row(const RowView& row) const;
  bool take_apart(Request& request, const RowView& row) const;
  void consume_of_row(const RowView& row, std::uint32_t messages);
  std::optional<SmallTaken> take_small_of_row(const std::byte* front, std::uint32_t most,
                                              qp::Responder& responder);
  struct SmallName {
    std::uint32_t index;
    std::uint32_t epoch;
  };
  // Done, or refused, and then false: serve() tells the peer of that.
  bool took_small(const SmallName& name, qp::Responder::Small done,
                  const qp::Responder& responder) {
    if (done != qp::Responder::Small::kDone) [[unlikely]]
      return refused_small(name, responder);
    executed_ = name.index + 1;
    return true;
  }
  [[gnu::cold]] bool refused_small(const SmallName& name, const qp::Responder& responder);
  Step execute(const Request& request, qp::Responder& responder);
  bool is_usual(const Request& request) const;
  Step execute_whole_send(const Request& request, qp::Responder& responder);
  Step execute_send(const Request& request, qp::Responder& responder);
  Step execute_write(const Request& request, qp::Responder& responder);
  Step execute_read(const Request& request, qp::Responder& responder);
  Step execute_flush(const Request& request, qp::Responder& responder);
  Step execute_atomic_write(const Request& request, qp::Responder& responder);
  Step execute_atomic(const Request& request, qp::Responder& responder);
  bool follows(const Request& request) const;
  struct Lent {
    const std::byte* payload;
    std::uint64_t identity;  // of the region
  };
  static std::optional<Lent> lent_in(const PeerMemory::Region& region, std::uint64_t address,
                                     std::uint32_t length);
  qp::Responder::Small receive_lent(const std::byte* front, std::uint32_t length,
                                    const qp::Arrived& arrived, qp::Responder& responder) const;
  void find_source(Request& request);
  bool still_lent(const Request& request) const;
  bool is_still_lent(MemoryKey key, std::uint64_t identity) const;
  Step refuse_source(const Request& request);
  Step refuse_request(const Request& request, qp::Refusal refusal, const qp::Responder& responder);
  void finished(const Request& request);
  void acknowledge() {
    if (acknowledged_ == executed_) [[unlikely]]
      return;
    acknowledged_ = executed_;
    conduit_.header().executed.store(executed_, std::memory_order_release);
    raise(signal_, Signal::kMessage);
  }
  bool send_refusal();
  bool continue_read(qp::Responder& responder, qp::Budget& budget);
  ResponseRecord* reserve(std::uint32_t units, std::uint32_t index);
  void publish(std::uint32_t units, ResponseKind kind);
  // Records of a target that relays (ring_responder_relay.cc), and what we relay as a target.
  bool is_relaying() const { return relaying_ && !relaying_->pieces.empty(); }
  bool may_resume(const Request& request, qp::Refusal refusal) const;
  Step piece_done(const Request& request);
  Step relay(const Request& request, qp::Relay& to, qp::Responder& responder);
  Step wait_with(const Request& request);
  Step refuse_lent(const Request& request);
  bool take_relayed(qp::Responder& responder, qp::Budget& budget);
  bool answer_relayed(const qp::RelayReply& reply, qp::Responder& responder);
  bool fetch_lent(const Request& request, std::uint32_t length);

  struct Refused {
    std::uint32_t index;
    qp::Answer answer;
    std::uint8_t rnr_timer;
    ResponseKind kind = ResponseKind::kRefusal;
  };
  struct Reading {
    std::uint32_t index;
    std::uint32_t epoch;
    MemoryKey key;
    std::uint64_t address;
    std::uint32_t length;
    std::uint32_t done;
  };

  // A piece that another process has not answered.
  struct Relayed {
    std::uint32_t index;
    std::uint32_t epoch;
    bool ends;  // the operation
  };
  struct Relaying {
    qp::Relay* to = nullptr;
    std::deque<Relayed> pieces;
    std::uint32_t done = 0;  // bytes of the record that is being relayed
    std::unique_ptr<std::byte[]> lent;
  };

  qp::QpType type_;
  Conduit conduit_;
  PeerMemory* peer_ = nullptr;
  RingReader requests_;
  RingWriter responses_;
  std::uint32_t row_taken_ = 0;  // messages of the record at the front
  std::uint32_t executed_ = 0;
  std::uint32_t acknowledged_ = 0;  // of executed_
  std::optional<Refused> refused_;  // waits for room
  std::optional<std::uint32_t>
      drop_epoch_;  // RC: what carries this epoch comes after a refused request
  std::optional<Reading> reading_;
  std::optional<std::uint32_t> message_;  // the index of the message in progress
  std::uint32_t progress_ = 0;            // bytes of it
  bool dropping_ = false;                 // UC: the rest of this message is dropped
  std::unique_ptr<Relaying> relaying_;    // since the first request for another process
  Signal signal_ = Signal::kNone;
  bool is_plain_ = false;  // nothing is under way, and requests need no choice of a queue
  bool peer_measures_pace_ = false;
  bool used_ = false;
  bool stalled_ = false;  // until the requester makes room, and rings for it
  bool closed_ = false;   // by us
  bool broken_ = false;
};

}  // namespace verbena::local
