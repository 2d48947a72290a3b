// SPDX-License-Identifier: MIT
// A queue pair as the NIC holds it: its meaning (qp), its carrier, and who is told what happens to
// it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/prefetch.h"
#include "base/time.h"
#include "local/answer_pace.h"
#include "local/datagram.h"
#include "local/ring_carrier.h"
#include "nic/links.h"
#include "nic/objects.h"
#include "nic/sharing.h"
#include "nic/work_queues.h"
#include "qp/queue_pair.h"

namespace verbena::nic {

class RawCarrier;
class TargetRelay;
class RawPort;
class WireNic;
class WireQp;

// How far the connection of a connected queue pair has come.
enum class ConnectStage : std::uint8_t {
  kNot,      // not in RTR yet, or not a connected type
  kLooking,  // the control thread looks for the peer's process
  kOffered,  // the peer's process has our offer, and has not refused it
  kRefused,  // it said that its queue pair is not ready for us
};

class Qp final : qp::QpEvents {
 public:
  // `raw_port`: of raw packets; none for work queues.
  Qp(Pd& domain, const QpRequest& request, QpNum number, RawPort* raw_port = nullptr);
  ~Qp();

  Pd& pd() { return *pd_; }
  Cq& send_cq() { return *send_cq_; }
  Cq& receive_cq() { return *receive_cq_; }
  Srq* srq() { return srq_; }
  QpNum number() const { return pair.config().number; }
  EventCount& async_events() { return async_events_; }
  Engine& engine() { return *engine_; }
  void* cookie() const { return cookie_; }
  // With the queue pair's lock: events are for another one from now on.
  void set_cookie(void* cookie) { cookie_ = cookie; }

  // -- with the queue pair's lock --------------------------------------------------------------
  // Takes answers, executes requests, sends. True: call again soon.
  bool turn(const Now& now);
  // Posts it by the short way (at_once.cc). False: it takes the general way.
  bool post_at_once(const qp::SendRequest& request);
  bool post_at_once(const qp::SmallRequest& request);
  // The same of a SEND, where it is what most messages are (local/ring_tiny.h). In at_once.cc only.
  bool send_tiny(std::uint64_t wr_id, std::uint8_t flags, Sge piece);
  // The same of several, one after the other, of which the peer hears together.
  void begin_row();
  bool post_in_row(const qp::SmallRequest& request);
  void end_row();
  // By what the last request of the row, a WRITE, was executed; null after any other.
  local::Direct* row_writes_by() { return row_writes_by_; }
  // A completion queue that overran ends also what was done at once.
  void end_what_overran() {
    if (pair.state() == qp::QpState::kError) [[unlikely]]
      end_after_overrun();
  }
  // Up to `most` small messages that have come, by the short way. False: turn() has to look.
  bool receive_at_once(std::uint32_t most, const Now& now);
  // After that: there is something to send or to take, or its end to tell of.
  bool wants_turn() const {
    return pair.window().has_unissued() || pair.state() == qp::QpState::kError ||
           glance.has_answer_or_farewell() || (ring_ && ring_->has_unnoticed_end());
  }
  // Sends what was just posted; true as turn().
  bool send(const Now& now);
  // When it wants a turn although nothing comes, or never; asked after a turn at `now`.
  Instant deadline(const Now& now);
  // Something came that nobody has looked at.
  bool has_incoming() const { return ring_ && ring_->has_work(); }
  bool has_requests() const { return ring_ && ring_->has_requests(); }
  bool has_answers() const { return ring_ && ring_->has_answers(); }

  // RTR: a new carrier for a new connection; `is_local`: the peer may be on this host.
  void begin_connection(bool is_local);
  // RTR: by the wire. Datagrams to this host go on as without it, unless it is for all.
  struct WireUse {
    bool is_local = false;  // the peer's address is one of this host's
    bool is_for_all = false;
    bool asks = false;  // whether the peer is one of ours
  };
  void begin_on_wire(WireNic& wire, const WireUse& use);
  // RTS and changes there.
  void set_timeout();
  // RESET, ERR and destruction: the peer learns that we are gone.
  void end_connection();
  // What the peer may do by itself follows the state; after any change of it.
  void settle_grant();
  // The lock under which the peer may be touching our memory; without lock where it cannot.
  PeerSection peer_section();
  // The peer does not leave this section: nothing is granted while it goes on, so that nothing new
  // is begun in it, and what was about to be moved is not. `is_for_good`: what was begun has ended,
  // too; nobody waits for this section again.
  void give_up(const PeerSection& section, const SectionLock::Watch& watch, bool is_for_good);
  bool has_given_up_for_good(const PeerSection& section) const;
  // Between RTR and RESET. Only the program's calls change it.
  bool is_connected() const { return ring_ != nullptr; }
  local::RingCarrier* ring() { return ring_.get(); }
  // As turn(), for a queue pair on the wire; what is to be answered waits for the next turn, or for
  // what the program posts.
  bool turn_without_answers(const Now& now);
  // As turn_without_answers(), where that may find something.
  bool wants_turn_on_wire() const;
  // The peer waits for an answer, which waits for something to go along with.
  bool owes_on_wire() const;
  // Answers that wait for something to go along with leave now: nothing will be posted, or polled.
  void answer_what_is_owed();
  // What the peer has not copied yet of messages that are lent. It is called.
  bool is_being_copied();
  // Null: it does not use the wire.
  WireQp* wire() { return wire_.get(); }

  // Raw packets. Which of these there are never changes.
  RawPort* raw_port() { return raw_port_; }
  void pace();  // at the rate of its attributes
  const Scaling* scaling() const { return scaling_ ? &*scaling_ : nullptr; }
  RwqTable* table() { return table_; }

  // XRC targets. Null: of others, and of hidden ones.
  TargetRelay* relay() { return relay_.get(); }
  // A hidden target: whose requests it executes.
  std::optional<QpNum> relayed_by() const { return relayed_by_; }

  // What end_connection() left. Nobody may be looking at it any more.
  void drop_former_ring() { former_ring_.reset(); }

  // Without the lock: waits for the answer that is due; true when something came.
  bool await_answer();
  // Also without the lock: a WRITE to this address of the peer is about to be posted. The line
  // takes as long to come as all that is looked at before it is written. Where the peer polls
  // there, it fetches the line back if it does not find it written soon: so this may be worth a
  // second time.
  void expect_write(std::uint64_t address) const {
    const std::uint64_t from = mapped_from_.load(std::memory_order_relaxed);
    if (from != 0) prefetch_for_writing(reinterpret_cast<const void*>(from + address));
  }

  // The same of a SEND: it will lie behind the last one.
  void expect_send() const {
    const std::byte* const place = next_place_.load(std::memory_order_relaxed);
    if (place) [[likely]]
      prefetch_for_writing(place);
  }

  alignas(64) local::Glance glance;
  local::AnswerPace answer_pace;
  qp::QueuePair pair;
  std::atomic<bool> awaits_answer{false};  // something is on its way; a hint
  std::atomic<bool> has_peer{false};       // since it was made
  std::atomic<std::uint32_t> flows{0};     // that bring it raw packets
  bool is_watched = false;                 // the engine's
  Qp* next_held = nullptr;                 // sharing_moves.cc
  ConnectStage connecting = ConnectStage::kNot;
  LinkRef link;                      // while connected, or connecting
  PeerSection leaving;               // of a connection that ends, until the peer has left it
  Instant timer = Instant::never();  // the entry in the engine's timers that counts

 private:
  void qp_event(QpNum number, qp::QpEvent event) override;
  void qp_flushes(QpNum number) override;
  void after_turn(const Now& now);
  bool wants_timer();
  // The grant is what it should be, and no turn changes that but by an error.
  bool is_grant_settled() const {
    return settled_connection_ != 0 && ring_ && ring_->offered_id() == settled_connection_;
  }
  bool write_at_once(const qp::SmallRequest& request);
  bool write_in_row(const qp::SmallRequest& request);
  bool write_by(local::Direct& direct, const qp::SmallRequest& request);
  bool read_at_once(const qp::SmallRequest& request);
  bool send_at_once(const qp::SmallRequest& request);
  bool put_at_once(const qp::SmallRequest& request);
  bool send_on_wire_at_once(const qp::SmallRequest& request);
  [[gnu::cold]] void end_after_overrun();
  void settle_relay();
  // qp_on_wire.cc
  bool turn_on_wire(const Now& now);
  bool send_on_wire(const Now& now);
  void collect_on_wire(const Now& now);
  bool issue_on_wire(const Now& now);
  void depart_with_answers(const Now& now);
  void finish_on_wire(const Now& now);

  Pd* pd_;
  Cq* send_cq_;
  Cq* receive_cq_;
  Srq* srq_;
  void* cookie_;
  std::uint32_t wanted_rights();
  // The peer's, as it publishes it. Null: it does not.
  const SectionLock* peer_lock() const;

  Engine* engine_;
  std::uint32_t granted_rights_ = 0;  // as published
  std::uint64_t granted_connection_ = 0;
  std::uint64_t settled_connection_ = 0;
  struct GivenUp {
    PeerSection section;
    SectionLock::Watch watch;
    bool is_for_good;
  };
  std::optional<GivenUp> given_up_;
  // Where the memory that was written last is mapped, less its address in the peer; 0: none yet. A
  // hint.
  std::atomic<std::uint64_t> mapped_from_{0};
  // Where the next message will lie in the ring; null: not known. A hint.
  std::atomic<const std::byte*> next_place_{nullptr};
  local::Direct* row_writes_by_ = nullptr;  // between begin_row() and end_row()
  EventCount async_events_;
  std::unique_ptr<local::RingCarrier> ring_;
  std::unique_ptr<local::RingCarrier> former_ring_;
  std::unique_ptr<local::DatagramCarrier> datagrams_;
  std::unique_ptr<WireQp> wire_;  // then there is no ring
  const std::optional<QpNum> relayed_by_;
  std::unique_ptr<TargetRelay> relay_;
  const bool is_work_queue_;
  RawPort* raw_port_;
  RwqTable* table_;
  std::optional<Scaling> scaling_;
  std::unique_ptr<RawCarrier> raw_;
};

}  // namespace verbena::nic
