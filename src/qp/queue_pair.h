// SPDX-License-Identifier: MIT
// A queue pair: its state, its attributes, its two queues and the two halves of its meaning.
// Guarded by its lock; never two of these locks at once.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

#include "base/result.h"
#include "base/section_lock.h"
#include "qp/carrier.h"
#include "qp/rendezvous.h"
#include "qp/responder.h"
#include "qp/send_window.h"
#include "qp/state.h"

namespace verbena::qp {

// Affiliated asynchronous events (11.6.3).
enum class QpEvent : std::uint8_t {
  kFatal,
  kRequestError,
  kAccessError,
  kCommunicationEstablished,
  kSendQueueDrained,
  kLastReceiveReached,  // a queue pair with a shared receive queue is in ERR and takes no more of
                        // its receives
};

class QpEvents {
 public:
  // With the queue pair's lock held: only note it, and tell the program later or from a queue.
  virtual void qp_event(QpNum qp, QpEvent event) = 0;
  // The same, of a reliable one: it goes to ERR, and what is outstanding is about to be flushed.
  virtual void qp_flushes(QpNum) {}

 protected:
  ~QpEvents() = default;
};

struct QpConfig {
  QpType type = QpType::kRc;
  Xrc xrc = Xrc::kNo;
  QpNum number{};
  PdId pd{};
  PdId receive_pd{};  // of the shared receive queue, or pd
  bool signal_all = false;
  std::uint32_t send_depth = 1;
  std::uint32_t send_sge_max = 1;
  std::uint32_t inline_max = 0;
  std::uint32_t receive_depth = 1;
  std::uint32_t receive_sge_max = 1;
  queues::CompletionQueue* send_completions = nullptr;  // borrowed
  queues::CompletionQueue* receive_completions = nullptr;
  queues::ReceiveQueue* shared_receives = nullptr;  // borrowed; null: it has its own
  TagMatcher* tags = nullptr;  // borrowed; of the shared receive queue: RC, of the same domain
  SharedQueues* shared_queues = nullptr;  // XRC targets: of their domain
  memory::RegionTable* regions = nullptr;
  SectionLock* lock = nullptr;  // borrowed, where others watch it; null: it has its own
  QpEvents* events = nullptr;
  std::optional<QpNum> receives_as = {};  // its receives complete as this one's
  std::uint32_t datagram_max = 4096;  // bytes in one datagram: the port's MTU; or in one raw packet
};

enum class PostError : std::uint8_t {
  kWrongState,
  kFull,
  kTooManySges,
  kInlineTooLong,
  kBadOpcode,
  kTooLong
};

// A work request as a program posts it.
struct SendRequest {
  std::uint64_t wr_id = 0;
  queues::SendOpcode opcode = queues::SendOpcode::kSend;
  std::uint8_t flags = 0;  // queues::SendFlag
  std::uint32_t immediate = 0;
  std::uint64_t remote_address = 0;
  MemoryKey remote_key{};
  std::uint64_t compare_add = 0;  // binding a window: its length
  std::uint64_t swap = 0;         // and its access rights
  Flush flush{};
  std::uint32_t shared_queue = 0;  // XRC: of the peer
  std::uint32_t address_handle = 0;
  QpNum remote_qp{};
  std::uint32_t remote_qkey = 0;
  PdId address_pd{};               // of the address handle; none: the queue pair's
  std::span<const Sge> sges = {};  // with kInline: what they name is copied now, keys do not matter
};

// What most of them are: one piece of memory, nothing else to say.
struct SmallRequest {
  std::uint64_t wr_id = 0;
  queues::SendOpcode opcode = queues::SendOpcode::kSend;  // or kWrite, kRead
  std::uint8_t flags = 0;                                 // queues::SendFlag
  Sge sge{};
  std::uint64_t remote_address = 0;
  MemoryKey remote_key{};
};

class QueuePair final : SendWindow::Owner, Responder::Owner {
 public:
  explicit QueuePair(const QpConfig& config);

  // Its holding is an access section.
  SectionLock& lock() { return *lock_; }

  // All below: with the lock held.
  // Checks the move and the attributes, then acts: start, drain, flush, reset. The carrier is the
  // owner's business: it looks at state() afterwards.
  Result<void, ModifyError> modify(const QpAttributes& wanted, std::uint32_t mask);
  QpState state() const { return attributes_.state; }
  const QpAttributes& attributes() const { return attributes_; }
  const QpConfig& config() const { return config_; }
  // Work requests may be executed as they are posted, past the queue.
  bool may_bypass_queue() const { return may_bypass_queue_; }
  // So many work requests can be posted.
  bool has_room(std::size_t count) const {
    return count <= config_.send_depth - used() &&
           window_.places(static_cast<std::uint32_t>(count)) == count && has_program_places(count);
  }
  // Nothing is received any more, and what was being received never was: it is about to go.
  void abandon();
  // SQD, and something begun before is not done yet (sq_draining of a query).
  bool is_draining() const;

  Result<void, PostError> post_send(const SendRequest& request);
  // Not with the lock: a receive queue has its own. kWrongState in RESET, and with a shared receive
  // queue. In ERR the receive is flushed.
  Result<void, PostError> post_receive(std::uint64_t wr_id, std::span<const Sge> sges) {
    const bool has_own = own_receives_ && config_.xrc == Xrc::kNo;
    if (!has_own || receive_state_.load(std::memory_order_acquire) == QpState::kReset) [[unlikely]]
      return refuse(PostError::kWrongState);
    if (const auto error = own_receives_->post(wr_id, sges)) [[unlikely]] {
      return refuse(*error == queues::ReceiveQueue::PostError::kFull ? PostError::kFull
                                                                     : PostError::kTooManySges);
    }
    // Looked at after the queue's lock was taken: whoever goes to ERR later waits for that lock.
    if (receive_state_.load(std::memory_order_relaxed) == QpState::kError) [[unlikely]]
      flush_late_receive();
    return {};
  }

  // Most receives are posted by ReceiveQueue::PostsAlone: into this one, while that holds. Null:
  // only post_receive() will do.
  queues::ReceiveQueue* own_receives() const {
    return config_.xrc == Xrc::kNo ? own_receives_.get() : nullptr;
  }
  bool may_post_receives() const {
    const QpState state = receive_state_.load(std::memory_order_relaxed);
    return state != QpState::kReset && state != QpState::kError;
  }
  [[gnu::always_inline]] bool post_one_receive(std::uint64_t wr_id, Sge sge) {
    queues::ReceiveQueue* const queue = own_receives();
    if (!queue) [[unlikely]]
      return false;
    queues::ReceiveQueue::PostsAlone posts(*queue, [this] { return may_post_receives(); });
    return posts.post(wr_id, sge);
  }

  SendWindow& window() { return window_; }
  const SendWindow& window() const { return window_; }
  Responder& responder() { return responder_; }
  queues::SendQueue& send_queue() { return send_queue_; }

  // Something unforeseen (the completion queue overran, the carrier broke): ERR with the event.
  void fail(QpEvent event);
  // Writes a work request as the queue holds it: into the stride of this queue pair's queue.
  void fill(queues::SendWqe& wqe, const SendRequest& request) const;

 private:
  void window_failed(WindowFault fault) override;
  void window_flushes() override;
  void window_drained() override;
  bool internal_done(std::uint64_t wr_id, OpKind kind, queues::Status status,
                     Reason reason) override;
  void responder_failed(ResponderFault fault) override;
  void communication_established() override;
  void rendezvous_matched(TagHandle entry) override;
  bool may_fetch() const override { return attributes_.reads_out_max != 0; }

  // Places of the send queue that the program has filled.
  std::uint32_t used() const {
    return send_queue_.used() - (rendezvous_ ? rendezvous_->places() : 0);
  }
  // As many as it has, where the send queue has more.
  bool has_program_places(std::size_t count) const;
  void post_rendezvous();
  void take_values(const QpAttributes& wanted, std::uint32_t mask);
  void enter(QpState to);
  void set_state(QpState to);
  void enter_error();
  void start_afresh();
  void flush_late_receive();
  void tell(QpEvent event);

  SectionLock own_lock_;
  SectionLock* lock_;
  QpConfig config_;
  QpAttributes attributes_;
  bool fatal_told_ = false;
  const bool may_bypass_queue_;
  std::atomic<QpState> receive_state_{QpState::kReset};  // for post_receive, which has no lock
  queues::SendQueue send_queue_;
  std::unique_ptr<queues::ReceiveQueue> own_receives_;
  SendWindow window_;
  Responder responder_;
  std::unique_ptr<RendezvousQueue> rendezvous_;  // where tags are matched,
  std::unique_ptr<ProgramPlaces> program_;       // and who else posts there
};

}  // namespace verbena::qp
