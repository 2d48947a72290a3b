// SPDX-License-Identifier: MIT
// The carrier of connected queue pairs on one host: two conduits, one for each direction, executed
// by the target; and one-sided operations executed by ourselves (direct.h) where they may be and
// nothing of ours is on its way in the ring, so that the two keep their order.
//
//  outbound: unknown ─► attached ─► closed      the peer's conduit for our requests
//               └─► absent ─► attached          absent and closed: silence, so timeouts count (IBTA
//               vol 1, 9.7.5.1.4)
//            any ─► lost                        the peer's process is gone: what is outstanding
//            ends now
#pragma once

#include <cstdint>
#include <optional>

#include "base/time.h"
#include "host/doorbell.h"
#include "local/direct.h"
#include "local/ring_requester.h"
#include "local/ring_responder.h"
#include "qp/carrier.h"

namespace verbena::local {

// How to call the process at the other end. Borrowed: the owner of the carrier keeps the page
// mapped.
struct PeerBell {
  host::Doorbell* doorbell = nullptr;
  std::uint32_t index = 0;
  bool looks = true;  // without being called, where it has few connections
};

// The peer's memory, borrowed like the bell; null: everything takes the ring.
struct DirectPeer {
  PeerMemory* memory = nullptr;
  QpNum self;
  QpNum other;
  const PublishedTables* own = nullptr;  // where we publish our regions
};

class RingCarrier final : public qp::Carrier {
 public:
  // `glance` shows where to look for has_work(), and outlives us.
  explicit RingCarrier(qp::QpType type, Glance* glance = nullptr)
      : type_(type), requester_(type), responder_(type), glance_(glance) {}

  // Once the peer's process is known, before the first offer() or attach().
  void set_bell(PeerBell bell) { bell_ = bell; }
  // Our conduit for the peer's requests, as offered to it; also instead of one that was not used,
  // which comes back: somebody may be looking at it.
  Conduit offer(Conduit conduit, PeerBell bell, PeerMemory* peer = nullptr);
  std::uint64_t offered_id() const { return responder_.conduit_id(); }
  // The peer's conduit for our requests, and its memory where we may execute by ourselves.
  void attach(Conduit conduit, const DirectPeer& peer = {});
  bool may_attach() const { return !requester_.is_attached() && outbound_ != Outbound::kClosed; }
  // And the peer is still there.
  bool is_attached() const { return outbound_ == Outbound::kAttached && !requester_.is_closed(); }
  // Whoever took our conduit has left it; before, it may have sent something.
  bool peer_left() const { return responder_.is_left(); }
  bool was_used() const { return responder_.was_used(); }
  // The peer said, or its slot's emptiness says, that there is nobody connected to us there (yet).
  void peer_absent();
  // Work fails a little later (see collect()).
  void peer_lost() { lost_ = true; }
  bool is_lost() const { return lost_; }
  // Local ACK timeout; 0 is never.
  void set_timeout(Duration timeout) { timeout_ = timeout; }
  // Our queue pair takes no part any more.
  void close();
  // Before the program hears that what it posted has ended: from then on the peer takes nothing out
  // of its memory that was lent for that.
  void take_back_lent() { requester_.close(); }
  // There is such memory, and a peer that may be about to copy it.
  bool lends(const qp::SendWindow& window) const {
    return outbound_ == Outbound::kAttached && !lost_ && !requester_.is_closed() &&
           requester_.lends(window);
  }
  // It cannot be connected, for lack of memory: as if both had left.
  void give_up();

  void issue(qp::SendWindow& window, qp::Budget& budget, const Now& now) override;
  void collect(qp::SendWindow& window, qp::Budget& budget, const Now& now) override;
  bool serve(qp::Responder& responder, qp::Budget& budget, const Now& now) override;
  std::optional<Instant> next_deadline() const override { return deadline_; }
  bool quiesced() override { return true; }

  // Operations executed so far: in memory of the peer that we map, by process_vm_writev and _readv,
  // and by the peer.
  struct Counts {
    std::uint64_t mapped = 0;
    std::uint64_t reached = 0;
    std::uint64_t ring = 0;
  };
  Counts counts() const { return {direct_.mapped(), direct_.reached(), requester_.done()}; }
  // The peer lets us execute one-sided operations by ourselves.
  bool is_direct() const { return direct_.is_attached() && direct_.is_granted(); }

  // Something came since the last turn: a few loads.
  bool has_work() const {
    return requester_.has_answers() || responder_.has_requests() || has_farewell() ||
           has_unnoticed_end();
  }
  // The peer is gone, or has broken the rules, and collect() has not been called since.
  bool has_unnoticed_end() const {
    return (lost_ || requester_.is_broken() || responder_.is_broken()) && !fails_at_;
  }
  bool has_requests() const { return responder_.has_requests(); }
  bool has_answers() const { return requester_.has_answers(); }
  // Null unless a WRITE that is posted now may be executed by ourselves.
  Direct* direct_now(const qp::SendWindow& window) {
    const bool may = direct_.is_attached() && outbound_ == Outbound::kAttached && !lost_ &&
                     requester_.is_idle(window) && !requester_.is_closed();
    return may ? &direct_ : nullptr;
  }
  bool send_at_once(const RingRequester::AtOnce& message) {
    if (outbound_ != Outbound::kAttached || lost_ || requester_.is_closed()) [[unlikely]]
      return false;
    return requester_.send_at_once(message, responder_.acknowledged());
  }
  bool send_tiny(const RingRequester::Tiny& message);
  // Between these the peer sees what is sent at once together, and no bell is rung.
  void hold() { requester_.hold(); }
  RowRoom row_room() const { return requester_.row_room(); }
  void row_grew(std::uint32_t count) { requester_.row_grew(count); }
  void release() {
    requester_.release();
    ring_if_needed();
  }
  // Where that lies which is sent next.
  const std::byte* next_place() const { return requester_.next_place(); }
  // A message will be sent soon by send_at_once().
  void prepare_to_send() const {
    if (requester_.is_attached()) requester_.prepare();
  }
  bool peer_measures_pace() const { return responder_.peer_measures_pace(); }
  // See RingResponder: up to `most` requests by the short way, with the acknowledgement that came
  // along. How many there were.
  [[gnu::noinline]] std::uint32_t take_small(qp::Responder& responder, qp::SendWindow& window,
                                             std::uint32_t most, const Now& now);
  // One of them, where it is what most messages are (ring_tiny.h). False: take_small() has to look.
  bool take_tiny(qp::Responder& responder, qp::SendWindow& window);
  // Whoever has our conduit and is about to call process_vm_writev finds nothing to move.
  void stop_reaching() { responder_.stop_reaching(); }
  // After whatever may have changed has_work().
  void show() const;
  // Rings the peer's bell if this turn left something for it.
  void ring_if_needed();
  [[gnu::always_inline]] void ring_now_if_needed() {
    Signal signal = requester_.take_signal();
    raise(signal, responder_.take_signal());
    if (signal == Signal::kNone || !bell_.doorbell) [[unlikely]]
      return;
    if (signal == Signal::kMessage && bell_.looks) [[likely]]
      return bell_.doorbell->notify(bell_.index);
    bell_.doorbell->ring_and_wake(bell_.index);
  }

 private:
  enum class Outbound : std::uint8_t { kUnknown, kAbsent, kAttached, kClosed };
  // The peer left, and we have not noticed.
  bool has_farewell() const {
    return outbound_ == Outbound::kAttached ? requester_.is_closed()
                                            : outbound_ == Outbound::kUnknown && peer_left();
  }
  // Nothing has come, and nothing else changed that collect() looks at.
  bool is_quiet() const {
    return outbound_ == Outbound::kAttached && !lost_ && !requester_.has_answers() &&
           !requester_.is_closed() && !requester_.is_broken() && !responder_.is_broken();
  }
  void show_taken(bool has_acknowledged);
  void issue_attached(qp::SendWindow& window, qp::Budget& budget, const Now& now);
  // kLater: when the ring is empty, or in the next turn.
  enum class Directly : std::uint8_t { kDone, kLater, kNo };
  Directly issue_directly(qp::SendWindow& window, const qp::Operation& op, qp::Budget& budget,
                          const Now& now);
  void count_silence(qp::SendWindow& window, const Now& now);
  void fail_lost(qp::SendWindow& window, const Now& now);

  qp::QpType type_;
  RingRequester requester_;
  Direct direct_;
  RingResponder responder_;
  Glance* glance_;
  PeerBell bell_;
  Outbound outbound_ = Outbound::kUnknown;
  bool lost_ = false;
  std::optional<Instant> fails_at_;
  bool has_failed_ = false;
  Duration timeout_;
  std::optional<Instant> deadline_;
};

}  // namespace verbena::local
