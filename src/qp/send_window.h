// SPDX-License-Identifier: MIT
// The requester's half of a queue pair's meaning, the same for all carriers: the order of the send
// queue, fences, the limit of outstanding READs, RNR and retry counters, completions and flush
// (IBTA vol 1, 10.8, 9.7.5, 10.7.3).
//
// A carrier takes operations with next()/issued(), moves them, and reports with answered().
// Operations complete in the order in which they were posted. Going back (RNR, silence) means that
// next() offers an operation again.
//
// Some operations are local: windows are bound and invalidated here, in their place of the order,
// and no carrier sees them. So the indices that it sees may leave some out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>

#include "base/result.h"
#include "base/serial_number.h"
#include "base/time.h"
#include "memory/region_table.h"
#include "qp/opcode.h"
#include "qp/operation.h"
#include "qp/reason.h"
#include "qp/state.h"
#include "queues/completion_queue.h"
#include "queues/work_queue.h"

namespace verbena::qp {

// Why a queue pair has to stop, for whoever owns it.
enum class WindowFault : std::uint8_t {
  kCompletionLost,  // the completion queue was full
  kFailed,  // an operation failed: the queue pair goes to its error state (RC: ERR; UC, UD: SQE)
};

class SendWindow {
 public:
  // What the window hears from and tells to its queue pair, with the queue pair's lock held.
  class Owner {
   public:
    virtual void window_failed(WindowFault fault) = 0;
    // What is outstanding is about to end as flushed.
    virtual void window_flushes() {}
    virtual void window_drained() = 0;  // SQD: everything outstanding is done
    // One of the queue pair's own work requests has ended. False: its completion is lost.
    virtual bool internal_done(std::uint64_t, OpKind, queues::Status, Reason) { return true; }

   protected:
    ~Owner() = default;
  };

  struct Config {
    QpType type = QpType::kRc;
    QpNum qp{};
    PdId pd{};
    bool is_xrc = false;
    bool signal_all = false;
    queues::SendQueue* queue = nullptr;
    queues::CompletionQueue* completions = nullptr;
    memory::RegionTable* regions = nullptr;
    Owner* owner = nullptr;
    // Operations fetched and not answered: at most all that the queue holds.
    std::uint32_t in_flight_max = ~std::uint32_t{0};
    std::uint32_t datagram_max = 4096;  // the path MTU of datagrams: that of the port; raw packets:
                                        // the longest frame, with its header
  };
  explicit SendWindow(const Config& config);

  // -- for carriers
  // Everything posted is done, and the next operation would be offered at once.
  bool is_caught_up() const { return is_idle() && has_place(); }
  // The same for whoever knows that it has a place.
  bool is_idle() const {
    return mode_ == Mode::kRunning && done_ == config_.queue->posted() && !resume_at_;
  }
  // Whether the `nth` work request from now on, from 0 on, finds its place free: what lay there
  // before is not waiting for the program to take its completion.
  bool has_place(std::uint32_t nth = 0) const {
    if (is_known_taken(last_place_)) [[likely]]
      return true;
    return is_taken(config_.queue->completed_at(config_.queue->posted() + nth));
  }
  // So many one behind the other do, of `most`.
  std::uint32_t places(std::uint32_t most) const {
    most = std::min(most, config_.queue->depth());
    if (is_known_taken(last_place_)) [[likely]]
      return most;
    std::uint32_t nth = 0;
    while (nth < most && has_place(nth))
      ++nth;
    return nth;
  }
  // Whether the work request of this index, however old, leaves its place to another one.
  bool has_left(std::uint32_t index) const {
    const queues::SendQueue& queue = *config_.queue;
    if (queue.posted() - index > queue.depth()) return true;
    return queue.posted() - index > queue.used() && is_taken(queue.completed_at(index));
  }
  // Of the next work request.
  std::uint32_t posted() const { return config_.queue->posted(); }
  // A work request that was executed as it was posted, while the window was caught up.
  // `length`: of what a READ brought.
  [[gnu::always_inline]] void done_at_once(std::uint64_t wr_id, queues::CompletionKind kind,
                                           bool is_signaled, std::uint32_t length = 0) {
    const std::uint32_t index = config_.queue->posted();
    config_.queue->post_done();
    done_ = cursor_ = issued_ = offered_ = fetched_ = config_.queue->posted();
    if (is_signaled || config_.signal_all) push_at_once(index, wr_id, kind, length);
  }
  // READs and atomics can be outstanding at all.
  bool may_read() const { return reads_out_max_ != 0; }
  // Everything posted is on its way or done, and one more could follow it at once.
  bool is_open() const {
    const std::uint32_t posted = config_.queue->posted();
    return mode_ == Mode::kRunning && cursor_ == posted && fetched_ == posted && !resume_at_ &&
           posted - done_ <= mask_ && config_.queue->used() < config_.queue->depth() && has_place();
  }
  // SENDs that are sent as they are posted, while the window is open: each is sent under the next
  // index from this one on, and written down; then the window is told. A carrier may ask for their
  // payload later as for any other.
  OpIndex open_index() const { return OpIndex(fetched_); }
  // How many, of `most`.
  std::uint32_t open_room(std::uint32_t most) const {
    if (!is_open()) return 0;
    const queues::SendQueue& queue = *config_.queue;
    return places(
        std::min({most, mask_ + 1 - (queue.posted() - done_), queue.depth() - queue.used()}));
  }
  // The `nth` of them, from 0 on. Only what needs no more checks than the caller made: of one piece
  // or inline, no fence, no datagram, not of XRC. Field by field: see verbs/post.cc.
  [[gnu::always_inline]] void write_down(std::uint32_t nth, std::uint64_t wr_id, std::uint8_t flags,
                                         Sge piece) {
    const std::uint32_t index = fetched_ + nth;
    const bool is_inline = flags & queues::kInline;
    auto& wqe = *new (wqe_room(index).data()) queues::SendWqe;
    wqe.wr_id = wr_id;
    wqe.opcode = static_cast<std::uint8_t>(queues::SendOpcode::kSend);
    wqe.flags = flags;
    wqe.sge_count = is_inline ? 0 : 1;
    wqe.inline_length = is_inline ? piece.length : 0;
    if (is_inline) {
      std::memcpy(queues::SendQueue::inline_room(wqe), reinterpret_cast<const void*>(piece.address),
                  piece.length);
    } else {
      Sge& sge = *queues::SendQueue::sge_room(wqe);
      sge.address = piece.address;
      sge.length = piece.length;
      sge.key = piece.key;
    }
    Entry& entry = *new (&at(index)) Entry;
    entry.wr_id = wr_id;
    entry.shape = shape_of(static_cast<std::uint8_t>(queues::SendOpcode::kSend));
    entry.is_signaled = config_.signal_all || flags & queues::kSignaled;
    entry.is_brief = true;
  }
  [[gnu::always_inline]] void issued_at_once(std::uint32_t count = 1) {
    config_.queue->post(count);
    cursor_ = issued_ = offered_ = fetched_ = config_.queue->posted();
    shown_ = cursor_ - 1;
    if (config_.type != QpType::kRc) [[unlikely]]
      complete_upto(cursor_);
  }
  // Exactly this one was issued at once and nothing else is outstanding or posted: it is done.
  // False, and nothing has happened: answered() finds out.
  [[gnu::always_inline]] bool complete_only(OpIndex op) {
    const std::uint32_t next = op.value() + 1;
    Entry& entry = at(op.value());
    const bool is_only = mode_ == Mode::kRunning && done_ == op.value() && cursor_ == next &&
                         issued_ == next && config_.queue->posted() == next;
    if (!is_only || !entry.is_brief || entry.status != queues::Status::kSuccess || lost_)
        [[unlikely]]
      return false;
    if (entry.is_signaled) push_done(entry);
    done_ = next;
    refill_counters();
    config_.queue->free_upto(next);
    if (lost_) [[unlikely]]
      settle();
    return true;
  }
  // The next operation to send, or null: nothing posted, not in a state that sends, a fence, too
  // many READs outstanding, the window is full, or an RNR timer runs. The same one until issued().
  const Operation* next(const Now& now);
  // What was posted and is not on its way.
  std::uint32_t waiting() const { return config_.queue->posted() - cursor_; }
  // Binds windows and invalidates, as far as it is their turn: these need no peer. next() does so,
  // too.
  void run_local(const Now& now);
  // The whole of next() is on its way.
  void issued(const Now& now);
  // What next() gave is more than this port sends just now: it ends as that.
  void too_long(OpIndex op);
  // All operations up to `upto` are done (kDone); or those before it are and it had this answer.
  // Answers to operations that are not outstanding are ignored (late, duplicate). `rnr_timer` goes
  // with kNotReady.
  void answered(OpIndex upto, Answer answer, const Now& now, std::uint8_t rnr_timer = 0);
  // The peer has not got this one nor any after it, through nobody's fault: next() offers them
  // again, and no counter tells. As answered(), those before it are done.
  void repeat_from(OpIndex op);
  // The peer has acknowledged a part of the oldest operation: it is there, so the counters begin
  // again (9.7.5.1.4), also within a long message.
  void progressed() {
    retries_left_ = retry_count_;
    rnr_left_ = rnr_retry_;
  }
  // The peer is gone for good: what is outstanding ends as retry exceeded, whatever the counters
  // say (see peer death, architecture section 3), also where nothing was issued yet but something
  // is posted.
  void peer_lost(const Now& now);

  // Payload of an outstanding operation: from its SGEs or inline bytes into `to`, starting at
  // `offset`. A refusal has already ended the operation (local protection) in order; the carrier
  // drops what it sent of it.
  Result<void, memory::RegionRefusal> gather_pieces(OpIndex op, std::uint64_t offset,
                                                    const Pieces& to);
  Result<void, memory::RegionRefusal> gather(OpIndex op, std::uint64_t offset,
                                             std::span<std::byte> to);
  // The answer of a READ or an atomic into the operation's SGEs.
  Result<void, memory::RegionRefusal> scatter(OpIndex op, std::uint64_t offset,
                                              std::span<const std::byte> from);
  // The SGE of an outstanding operation that has one, not empty, and no inline bytes.
  std::optional<Sge> only_sge(OpIndex op) const;
  // The memory of bytes [offset, offset + length) of its payload or answer, for whoever moves it in
  // another way: how many of `out` were filled. Good while the queue pair's lock is held. A refusal
  // ends nothing.
  Result<std::size_t, memory::RegionRefusal> memory_of(OpIndex op, std::uint64_t offset,
                                                       std::uint64_t length,
                                                       std::span<memory::Extent> out);

  // Issued and not answered. What has ended, flushed ones among it, is both.
  bool has_outstanding() const { return done_ != issued_; }
  bool has_on_its_way() const;  // the same, without what is to be issued once more
  // next() may have something now or later.
  bool has_unissued() const {
    if (cursor_ == config_.queue->posted()) return false;
    return mode_ == Mode::kDraining ? cursor_ != offered_ : mode_ == Mode::kRunning;
  }
  OpIndex oldest() const;  // the first one not answered; meaningful if has_work()
  bool has_work() const;   // outstanding, or next() may have something now or later
  const Operation* outstanding(OpIndex op) const;  // also while it is being issued; else null
  std::optional<Instant> resume_at() const;        // an RNR timer runs until then

  // -- for the queue pair
  void start(const QpAttributes& attributes);  // RTS, or new attributes in RTS and SQD
  void stop_new();                             // SQD: no new operations
  void flush();  // ERR, SQE: everything posted ends as flushed, also what is posted later
  void reset();  // RESET: everything is forgotten
  bool accepts_posts() const;

 private:
  enum class Mode : std::uint8_t { kIdle, kRunning, kDraining, kFlushing };
  // What is looked at of every operation; most are done before anybody asks for more.
  struct Entry {
    std::uint64_t wr_id = 0;
    const OpcodeShape* shape = nullptr;                // null: no such opcode
    queues::Status status = queues::Status::kSuccess;  // of a local error that waits for its turn
    Reason reason = Reason::kNone;
    bool is_signaled = false;
    bool is_fenced = false;
    bool is_executed = false;  // a local one
    bool is_brief = false;     // its Operation is written when somebody asks for it
  };
  struct LocalError {
    queues::Status status;
    Reason reason;
  };

  Entry& at(std::uint32_t index) const {
    return reinterpret_cast<Entry*>(entries_.get())[index & mask_];
  }
  Operation& operation_at(std::uint32_t index) const {
    return reinterpret_cast<Operation*>(operations_.get())[index & mask_];
  }
  std::span<std::byte> wqe_room(std::uint32_t index) {
    return {snapshots_.get() + (index & mask_) * stride_, stride_};
  }
  const queues::SendWqe& wqe(std::uint32_t index) const {
    return *reinterpret_cast<const queues::SendWqe*>(snapshots_.get() + (index & mask_) * stride_);
  }
  // Null unless fetched, not answered and without error.
  Entry* find(OpIndex op);
  const Entry* find(OpIndex op) const;

  bool fetch();
  // What is before cursor_ was offered. False: the one at cursor_ is not for carriers.
  bool pass_local(const Now& now);
  bool execute_local(const Now& now);
  std::optional<memory::WindowRefusal> change_window(std::uint32_t index);
  // Writes what a brief entry has left out.
  void complete_description(std::uint32_t index) const;
  Entry entry_of(const queues::SendWqe& wqe) const;
  Operation operation_of(const Entry& entry, const queues::SendWqe& wqe, OpIndex index) const;
  std::optional<LocalError> check(const Entry& entry, Operation& op,
                                  const queues::SendWqe& wqe) const;
  std::optional<LocalError> check_sges(const Entry& entry, const queues::SendWqe& wqe) const;

  bool is_known_taken(std::uint32_t place) const { return !is_after(place, taken_); }
  bool has_been_taken(std::uint32_t place) const;
  bool is_taken(std::uint32_t place) const {
    return is_known_taken(place) || has_been_taken(place);
  }
  // These may end in flush and a call of the owner; afterwards the mode tells.
  void push_at_once(std::uint32_t index, std::uint64_t wr_id, queues::CompletionKind kind,
                    std::uint32_t length);
  void complete_upto(std::uint32_t end);
  void settle();
  [[gnu::cold]] void fail_oldest(queues::Status status, Reason reason);
  [[gnu::cold]] void fail_locally(Entry& entry, queues::Status status, Reason reason);
  void retry_later(Answer answer, const Now& now, std::uint8_t rnr_timer);
  void wait_for_receiver(const Now& now, std::uint8_t rnr_timer);

  void push(const Entry& entry, queues::Status status, Reason reason);
  // Of the work request of this index; last_place_ is its completion's.
  [[gnu::always_inline]] void note_completion(std::uint32_t index) {
    config_.queue->completed(index, last_place_);
    // Others may have pushed half of all numbers since we looked.
    if (is_known_taken(last_place_)) [[unlikely]]
      taken_ = config_.completions->taken_upto();
  }
  [[gnu::always_inline]] void push_done(const Entry& entry) {
    const auto make = [&]() __attribute__((always_inline)) {
      return queues::Completion{
          .wr_id = entry.wr_id, .kind = entry.shape->completion, .qp = config_.qp};
    };
    if (!config_.completions->push(make, false, &last_place_)) [[unlikely]]
      lost_ = true;
    note_completion(done_);
  }
  void push_report(const Entry& entry, queues::Status status, Reason reason);
  [[gnu::cold]] void flush_rest();
  [[gnu::cold]] void tell_lost_completion();
  void go_back();
  void refill_counters();
  static bool is_local(const Entry& entry) { return entry.shape && entry.shape->is_local; }
  bool is_active() const { return mode_ == Mode::kRunning || mode_ == Mode::kDraining; }
  bool is_drained() const { return done_ == offered_; }

  Config config_;
  Mode mode_ = Mode::kIdle;
  Reason flush_reason_ = Reason::kFlushedByModify;
  std::uint32_t mask_;
  // Of what is fetched. Raw bytes: of a deep queue only as much is touched as is ever in flight.
  std::unique_ptr<std::byte[]> entries_;
  std::unique_ptr<std::byte[]> operations_;
  std::unique_ptr<std::byte[]> snapshots_;
  std::size_t stride_;

  // done_ <= cursor_ <= issued_ <= offered_ <= fetched_ <= posted, all wrapping at 2^32.
  std::uint32_t done_ = 0;     // the oldest not answered
  std::uint32_t cursor_ = 0;   // the next to issue; goes back to done_ for a retry
  std::uint32_t issued_ = 0;   // all below were issued at least once
  std::uint32_t offered_ = 0;  // all below were offered by next(): begun, in the sense of SQD
  std::uint32_t fetched_ = 0;
  std::uint32_t shown_ = 0;          // what next() gave last
  std::uint32_t last_place_ = 0;     // of the last completion; see SendQueue::completed()
  mutable std::uint32_t taken_ = 0;  // so far the program has taken completions, as last seen
  std::uint32_t reads_out_ = 0;      // READs and atomics in [done_, cursor_)

  std::uint32_t reads_out_max_ = 0;
  std::uint8_t retry_count_ = 0;
  std::uint8_t rnr_retry_ = 0;
  std::uint8_t retries_left_ = 0;
  std::uint8_t rnr_left_ = 0;
  bool drained_told_ = false;
  bool lost_ = false;
  bool lost_told_ = false;
  std::optional<Instant> resume_at_;
};

}  // namespace verbena::qp
