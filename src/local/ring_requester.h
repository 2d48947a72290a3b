// SPDX-License-Identifier: MIT
// The requester's side of a conduit: puts the send window's operations into the request ring, takes
// answers out of the response ring and the acknowledgement counter.
//
// A refusal means: this operation was not executed, nor anything behind it. The requester then goes
// back: it raises its epoch, and the responder drops whatever still carries the refused one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/time.h"
#include "local/conduit.h"
#include "local/glance.h"
#include "local/published.h"
#include "qp/carrier.h"
#include "qp/operation.h"
#include "qp/send_window.h"

namespace verbena::local {

// Of a record that takes small SENDs of one length.
struct RowRoom {
  std::byte* at = nullptr;
  std::uint32_t length = 0;  // bytes of each
  std::uint32_t count = 0;
};

class RingRequester {
 public:
  explicit RingRequester(qp::QpType type) : type_(type) {}

  void attach(Conduit conduit);
  // Where we publish our own regions: the responder may take payload from there.
  void lend(const PublishedTables* own) {
    own_ = own;
    unnamed_ = kUnnamedMost;
  }
  bool is_attached() const { return static_cast<bool>(conduit_); }
  // The peer's queue pair left, or its process broke the rules.
  bool is_closed() const;
  bool is_broken() const { return broken_; }

  // Sends the operation that the window offers, or the next part of it. False: not all of it could
  // be sent now.
  bool issue(qp::SendWindow& window, const qp::Operation& op, qp::Budget& budget, const Now& now);
  // A SEND of one piece of memory, sent as it is posted. False: it takes the general way.
  struct AtOnce {
    qp::OpIndex index;
    const std::byte* from = nullptr;
    Sge source;  // where `from` lies; without key: it may not be lent
    bool is_solicited = false;
    bool is_first_out = false;  // nothing of ours is outstanding
    bool measures_pace = false;
  };
  // `acknowledged`: what we have executed for the peer.
  bool send_at_once(const AtOnce& message, Acknowledged acknowledged);
  // The same of what most messages are (ring_tiny.h). False also where only send_at_once() finds
  // out.
  struct Tiny {
    qp::OpIndex index;
    const std::byte* from = nullptr;
    std::uint32_t length = 0;
    bool is_first_out = false;
    bool measures_pace = false;
  };
  bool send_tiny(const Tiny& message, Acknowledged acknowledged);
  // As RingWriter: messages that are sent at once, one after the other.
  void hold() { requests_.hold(); }
  // Where the last of them left room for others of its length, which may just be put there, one
  // behind the other; row_grew() then says how many did, before anything else is asked of this.
  RowRoom row_room() const;
  void row_grew(std::uint32_t count) {
    row_.count += count;
    last_send_ = sending_ = qp::OpIndex(sending_.value() + count);
  }
  void release() {
    end_row();
    requests_.release();
  }
  void collect(qp::SendWindow& window, qp::Budget& budget, const Now& now);
  // Before a request of the peer is taken that says this: what it had executed before is told of
  // first, as on a wire. False: collect() has to look.
  bool take_acknowledgement(const Acknowledged& said, qp::SendWindow& window, const Now& now);
  // Nothing of ours is on its way: whatever else is done now comes after all that was sent.
  bool is_idle(const qp::SendWindow& window) const {
    return sent_ == 0 && !row_.record && !window.has_on_its_way() &&
           (type_ == qp::QpType::kRc || requests_.is_drained());
  }
  // The same of one more than before, where that was all that is on its way. False, and nothing has
  // happened: take_acknowledgement() has to look.
  bool take_tiny_acknowledgement(const Acknowledged& said, qp::SendWindow& window);
  Conduit& conduit() { return conduit_; }
  // The first part of this operation is on its way, and the rest has to follow.
  bool has_begun(const qp::Operation& op) const { return sent_ != 0 && sending_ == op.index; }
  // Of what is on its way something needs a receive.
  bool has_sends(const qp::SendWindow& window) const {
    return window.has_outstanding() && last_send_ && *last_send_ - window.oldest() >= 0;
  }
  // The peer may copy something of what is on its way out of the program's memory yet.
  bool lends(const qp::SendWindow& window) const;
  // Something may have come since the last collect: two loads.
  bool has_answers() const;
  // The same, but for acknowledgements.
  bool has_responses() const { return conduit_ && !broken_ && responses_.has_record(); }
  // Where has_answers() looks, and is_closed().
  void show(Glance::View& view) const {
    if (!conduit_ || broken_) return;
    view.response = &responses_.next_tag();
    view.response_tag = responses_.wanted_tag();
    view.executed = &conduit_.header().executed;
    view.executed_known = acknowledged_;
  }
  const std::atomic<std::uint32_t>& farewell() const { return conduit_.header().responder_closed; }
  std::uint32_t acknowledged() const { return acknowledged_; }
  // How many operations the peer has executed and said so.
  std::uint64_t done() const { return done_; }
  const std::byte* next_place() const { return requests_.next_place(); }
  // Something will be sent soon.
  void prepare() const { requests_.prepare(); }
  // What the responder's process should hear since the last call.
  Signal take_signal() { return std::exchange(signal_, Signal::kNone); }
  void close();
  // Starts over with this one, which the window offers next.
  void go_back(qp::OpIndex to);

 private:
  void acknowledge(std::uint32_t executed, qp::SendWindow& window, const Now& now);
  enum class Sent : std::uint8_t { kWhole, kLater, kEnded };
  Sent send(qp::SendWindow& window, const qp::Operation& op, qp::Budget& budget);
  Sent send_payload(qp::SendWindow& window, const qp::Operation& op, qp::Budget& budget);
  bool is_borrowed(MemoryKey key) const;
  void take(const ResponseRecord& record, const std::byte* payload, qp::SendWindow& window,
            const Now& now);
  void take_data(const ResponseRecord& record, const std::byte* payload, qp::SendWindow& window,
                 const Now& now);
  void answered_badly(qp::OpIndex index, qp::Answer how, qp::SendWindow& window, const Now& now);
  void fail_unanswered(qp::OpIndex behind, qp::SendWindow& window, const Now& now);
  // ring_requester_row.cc
  bool add_to_row(const AtOnce& message, Acknowledged acknowledged);
  bool begin_row(const AtOnce& message, Acknowledged acknowledged);
  void end_row();
  RequestRecord* reserve(std::uint32_t units);
  RequestRecord* reserve(std::uint32_t units, const qp::Operation& op);
  RequestRecord* reserve(std::uint32_t units, const AtOnce& message, Acknowledged acknowledged);
  void publish(std::uint32_t units, qp::OpKind kind, std::uint8_t flags);
  std::uint32_t executed() const;
  void begin_at(qp::OpIndex index);
  // In the ring operations have numbers of their own.
  std::uint32_t number_of(qp::OpIndex index) const { return index.value() - skipped_; }
  qp::OpIndex index_of(std::uint32_t number) const { return qp::OpIndex(number + skipped_); }

  qp::QpType type_;
  Conduit conduit_;
  const PublishedTables* own_ = nullptr;
  RingWriter requests_;
  RingReader responses_;
  qp::OpIndex sending_{UINT32_MAX};  // the last operation of which something was sent
  std::uint64_t sent_ = 0;           // bytes of it, while there are more
  // Messages that could have been lent, since one has named its source: the peer may be about to
  // map their memory, or not be able to.
  static constexpr std::uint32_t kUnnamedMost = 64;
  std::uint32_t unnamed_ = kUnnamedMost;
  std::optional<qp::OpIndex> last_send_;
  std::optional<qp::OpIndex> last_fetch_;  // a READ or an atomic
  std::optional<qp::OpIndex> last_lent_;
  // Of messages that are sent at once: the record that is being filled, and not published.
  struct Row {
    RequestRecord* record = nullptr;
    qp::OpIndex first;
    std::uint32_t length = 0;
    std::uint32_t count = 0;
  };
  Row row_;
  std::uint32_t epoch_ = 0;
  std::uint32_t skipped_ = 0;       // operations that did not take the ring
  std::uint32_t acknowledged_ = 0;  // the number behind the last that is
  std::uint64_t done_ = 0;
  qp::OpIndex reading_;         // the READ whose data come in
  std::uint64_t received_ = 0;  // bytes of it
  Signal signal_ = Signal::kNone;
  bool closed_ = false;  // by us
  bool broken_ = false;
};

}  // namespace verbena::local
