// SPDX-License-Identifier: MIT
// The responder's half of a queue pair's meaning, the same for all carriers: which receive a
// message takes, the one check of a remote request, invalidation, receive completions, and which
// error goes to which side (IBTA vol 1, 9.7.4, 9.9.3, 10.7.3).
//
// One message is being received at a time: begin, place its bytes as they come, finish.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/result.h"
#include "memory/region_reach.h"
#include "memory/region_table.h"
#include "qp/operation.h"
#include "qp/reason.h"
#include "qp/relay.h"
#include "qp/state.h"
#include "qp/tag_matcher.h"
#include "queues/completion_queue.h"
#include "queues/work_queue.h"

namespace verbena::qp {

// A fault that the responder's own queue pair suffers (9.9.3.1: RC responders go to the error
// state).
enum class ResponderFault : std::uint8_t {
  kAccess,          // affiliated event: QP access error
  kRequest,         // affiliated event: QP request error
  kReceive,         // the receive itself completed in error; no event
  kCompletionLost,  // the completion queue was full
};

// The shared receive queues of an XRC domain, by number (annex A14.2.3). Called with the lock of a
// queue pair; what it gives is good until forget_queue() was called for each of them.
struct SharedQueue {
  queues::ReceiveQueue* queue = nullptr;
  queues::CompletionQueue* completions = nullptr;
  PdId pd{};
};
class SharedQueues {
 public:
  virtual Result<SharedQueue, Reason> find(std::uint32_t number) = 0;
  // It may be one of another process.
  virtual bool is_elsewhere(std::uint32_t /*number*/) const { return false; }

 protected:
  ~SharedQueues() = default;
};

class Responder {
 public:
  class Owner {
   public:
    virtual void responder_failed(ResponderFault fault) = 0;
    virtual void communication_established() = 0;  // the first message in RTR
    // A message has matched that is to be fetched. The entry is the owner's.
    virtual void rendezvous_matched(TagHandle) {}
    virtual bool may_fetch() const { return false; }

   protected:
    ~Owner() = default;
  };
  struct Config {
    QpType type = QpType::kRc;
    Xrc xrc = Xrc::kNo;
    QpNum qp{};
    PdId pd{};
    queues::ReceiveQueue* queue = nullptr;  // its own, or a shared one
    bool is_shared = false;
    SharedQueues* shared_queues = nullptr;
    TagMatcher* tags = nullptr;  // of a shared queue that matches them; its completions go there
    PdId receive_pd{};           // of the shared receive queue; else the same as pd
    queues::CompletionQueue* completions = nullptr;
    memory::RegionTable* regions = nullptr;
    Owner* owner = nullptr;
  };
  explicit Responder(const Config& config);

  // XRC targets: each request begins with choose(), also in the middle of a message, and what is
  // answered later with choose_domain(). It gives the receives, and the domain of all that is
  // touched (annex A14.4.1). An unknown number: kInvalidRequest.
  bool must_choose() const { return config_.xrc == Xrc::kTarget; }
  Result<void, Refusal> choose(std::uint32_t shared_queue);
  Result<void, Refusal> choose_domain(std::uint32_t shared_queue);
  // Requests for queues of other processes go there; null: they are refused.
  void relay_by(Relay* relay) { relay_ = relay; }
  // Null: it is one of ours, or of nobody.
  Relay* relay_for(std::uint32_t shared_queue) const;
  // Whether the queue pair takes such a request. The second one is its refusal, or lets it through.
  bool may_relay(const RelayPiece& piece) const;
  Result<void, Refusal> admit_relayed(const RelayPiece& piece);
  // Of the other process. Never success.
  Result<void, Refusal> refuse_relayed(Answer answer);
  // The queue is about to go.
  void forget_queue(const queues::ReceiveQueue& queue);

  // -- for carriers; all answer kInvalidRequest in a state that does not receive
  // A SEND of `length` bytes begins: takes a receive. kNotReady: there is none (RC: RNR NAK; UC,
  // UD: drop it). Datagrams: `length` without the 40 bytes of the GRH; the QKey was checked by
  // datagram_allowed.
  Result<void, Refusal> begin_receive(std::uint64_t length);
  // The same where only the end of a message tells its length, as on a wire: it is bounded by the
  // receive. length_known() comes before finish_receive.
  Result<void, Refusal> begin_receive_of_any_length();
  void length_known(std::uint64_t length) { current_.length = length; }
  // The next bytes of it. `offset` counts from the first byte of the message (datagrams: byte 0 is
  // after the GRH).
  Result<void, Refusal> place(std::uint64_t offset, std::span<const std::byte> bytes);
  // The same of several packets. False: some may have been placed, but nothing else has happened,
  // and place() finds out why.
  bool place_pieces(std::uint64_t offset, const ConstPieces& pieces);
  // Datagrams: the 40 bytes before the payload.
  Result<void, Refusal> place_grh(std::span<const std::byte> grh);
  // The message is complete: invalidates if asked, completes the receive.
  Result<void, Refusal> finish_receive(const Arrived& arrived);

  // These three for a message that is here as a whole; not for datagrams.
  Result<void, Refusal> receive_whole(std::span<const std::byte> bytes, const Arrived& arrived);

  // The same for the most usual ones. kNo: receive_whole() finds out, and nothing has happened.
  // kLost: the completion queue was full, and the message is refused (Refusal::kOperation).
  enum class Small : std::uint8_t { kNo, kDone, kLost };
  Small receive_small(std::span<const std::byte> bytes, const Arrived& arrived);
  // The same in two steps, where it shows only afterwards that the bytes were the right ones. Until
  // the second nothing has happened that a program can see but in the receive's memory.
  queues::ReceiveQueue::Simple put_small(std::span<const std::byte> bytes, const Arrived& arrived);
  Small finish_small(queues::ReceiveQueue::Simple receive, std::size_t length,
                     const Arrived& arrived);
  // The same of up to `most` messages of `length` bytes, not 0, that lie one behind the other, as
  // far as nothing about them is unusual: how many were received.
  std::uint32_t receive_alike(const std::byte* bytes, std::uint32_t length, std::uint32_t most);

  // A WRITE of `length` bytes begins: the whole range is checked. A length of 0 is not (9.7.4.1.2).
  // `has_immediate`: it is seen to be one with immediate, so that a receive fails with it.
  Result<void, Refusal> begin_write(MemoryKey key, std::uint64_t address, std::uint64_t length,
                                    bool has_immediate = false);
  Result<void, Refusal> write(MemoryKey key, std::uint64_t address,
                              std::span<const std::byte> bytes, bool has_immediate = false);
  bool write_pieces(MemoryKey key, std::uint64_t address, const ConstPieces& pieces);  // likewise
  // WRITE with immediate: a receive is taken and completed, its SGEs are not used. kNotReady as for
  // SEND: the carrier asks before the first byte is written? No: IBTA takes it with the last
  // packet; a retry repeats the whole WRITE.
  Result<void, Refusal> finish_write_with_immediate(std::uint64_t length, const Arrived& arrived);

  // Also in the middle of a message: a READ may come again while the next message comes in.
  Result<void, Refusal> begin_read(MemoryKey key, std::uint64_t address, std::uint64_t length);
  Result<void, Refusal> read(MemoryKey key, std::uint64_t address, std::span<std::byte> to);
  // These two for a READ that was executed once. False: what it needs is not there any more, which
  // is nothing to the queue pair.
  bool find_domain(std::uint32_t shared_queue);
  bool read_again(MemoryKey key, std::uint64_t address, std::span<std::byte> to);
  // The value before. Misaligned: kInvalidRequest.
  Result<std::uint64_t, Refusal> atomic(MemoryKey key, std::uint64_t address,
                                        memory::AtomicRequest request);

  // Eight bytes, all at once (annex A19). Misaligned: kInvalidRequest.
  Result<void, Refusal> atomic_write(MemoryKey key, std::uint64_t address,
                                     const memory::Word& word);
  // Whatever came before is where it asks for.
  Result<void, Refusal> flush(MemoryKey key, std::uint64_t address, const Flush& what);

  // What came is no request that can be (9.7.4.1: opcodes out of order, a length that does not
  // fit). RC: the queue pair goes to its error state.
  void broken_request() { static_cast<void>(bad_request(Reason::kBrokenRequest)); }

  // Datagrams: whether the QKey fits (10.2.5). A wrong one is dropped in silence and counted.
  bool datagram_allowed(std::uint32_t qkey) const;

  std::uint8_t rnr_timer() const;                   // the code to send with kNotReady
  bool is_receiving() const { return receiving_; }  // in RTR, RTS, SQD, SQE
  // In RTR the first message is an event; until then nothing may come in silence.
  bool awaits_first_message() const { return in_rtr_ && !first_message_seen_; }
  Reason last_refusal() const { return last_refusal_; }  // why, in detail
  std::uint64_t wrong_qkeys() const { return wrong_qkeys_; }

  // -- for the queue pair
  void start(const QpAttributes& attributes);  // RTR, or changed attributes
  // The message in progress, if there is one, was never received: destruction.
  void abandon();
  // ERR: the message in progress and (unless shared) everything posted completes as flushed.
  void flush();
  void reset();

 private:
  // Of a message: taken when it begins, kept when it is abandoned, so that no receive is lost.
  struct Current {
    bool has_receive = false;
    bool in_progress = false;
    std::uint64_t length = 0;
    queues::Receive receive;
  };

  // The same of a message that begins with a tag's header. The header tells which receive is
  // taken, so that is known when the first bytes come (responder_tags.cc).
  struct Tagged {
    enum class Phase : std::uint8_t {
      kHeader,      // nothing has come yet
      kWhole,       // all of it, into a receive of the queue
      kEager,       // what follows the header, into the entry's buffers
      kRendezvous,  // it only says where the message is
      kLeft,        // the same, and the program has to fetch it: what follows the header, if room
    };
    Phase phase = Phase::kHeader;
    bool is_unexpected = false;      // counted as that
    std::optional<TagHandle> entry;  // that has matched
    queues::Receive receive;         // its buffers
    Rendezvous message;              // its tag and context, also of one that came
  };
  Result<void, Refusal> begin_tagged(std::uint64_t length);
  Result<void, Refusal> place_tagged(std::uint64_t offset, std::span<const std::byte> bytes);
  Result<void, Refusal> know_receive(std::span<const std::byte> first_bytes);
  Result<void, Refusal> find_receive(std::span<const std::byte> bytes);
  Result<void, Refusal> take_whole(queues::CompletionKind kind);
  Result<void, Refusal> take_rendezvous(std::span<const std::byte> bytes);
  Result<void, Refusal> scatter_tagged(std::uint64_t offset, std::span<const std::byte> bytes);
  Result<void, Refusal> finish_tagged(const Arrived& arrived);
  void leave_tagged();
  void receive_is_over();

  bool takes_small() const;
  queues::ReceiveQueue::Simple simple_receive(std::uint64_t length) const;
  memory::RegionReach reach_of(const Sge& to, std::uint32_t length) const;
  bool put(const Sge& to, std::span<const std::byte> bytes);
  bool take_receive();
  Result<void, Reason> set_domain(std::uint32_t shared_queue);
  void note_first_message();
  // Whether the queue pair does this at all. `access` is 0 for SEND.
  Result<void, Refusal> admit(std::uint32_t access, std::uint64_t length);
  Result<void, Refusal> admit_answered(std::uint32_t access, std::uint64_t length);
  Result<void, Refusal> check_range(MemoryKey key, std::uint64_t address, std::uint64_t length,
                                    std::uint32_t access, bool has_immediate = false);

  // The one place for each kind of refusal.
  Result<void, Refusal> drop(Reason reason);  // nothing happens here
  Result<void, Refusal> not_ready();
  [[gnu::cold]] Result<void, Refusal> bad_request(Reason reason);
  [[gnu::cold]] Result<void, Refusal> bad_access(Reason reason);
  [[gnu::cold]] Result<void, Refusal> bad_range(memory::RegionRefusal refusal,
                                                bool has_immediate = false);
  [[gnu::cold]] Result<void, Refusal> bad_receive(queues::Status status, Reason reason,
                                                  Refusal refusal);
  [[gnu::cold]] Result<void, Refusal> too_short();

  queues::Completion completion_of_receive() const;
  Result<void, Refusal> complete(const queues::Completion& completion, bool is_solicited);
  [[gnu::cold]] Result<void, Refusal> completion_lost();
  [[gnu::cold]] void complete_failed(queues::Status status, Reason reason);
  void tell_lost_completion();
  std::uint32_t grh_room() const;
  memory::RemoteUser user() const { return {config_.pd, config_.qp}; }

  Config config_;
  std::optional<std::uint32_t> chosen_;         // whose queue is in config_
  std::optional<std::uint32_t> chosen_domain_;  // whose domain is
  Relay* relay_ = nullptr;
  bool receiving_ = false;
  bool in_rtr_ = false;
  bool first_message_seen_ = false;
  bool lost_ = false;
  bool lost_told_ = false;
  std::uint32_t access_ = 0;
  std::uint32_t qkey_ = 0;
  std::uint8_t rnr_timer_ = 0;
  std::uint8_t reads_in_max_ = 0;
  Reason last_refusal_ = Reason::kNone;
  mutable std::uint64_t wrong_qkeys_ = 0;
  Current current_;
  queues::CompletionKind whole_kind_ = queues::CompletionKind::kReceive;
  std::unique_ptr<Tagged> tagged_;  // where there are tags
};

}  // namespace verbena::qp
