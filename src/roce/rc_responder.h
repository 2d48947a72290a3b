// SPDX-License-Identifier: MIT
// The responder of a reliable connection (IBTA vol 1, 9.7.4, 9.7.5.1, 9.7.5.2): every packet is
// first classified by its PSN, then acted upon.
//
//   expected    carried out, and what waited for it               -> ACK, answer, or NAK
//   duplicate   SEND, WRITE: acknowledged again                   -> ACK
//               READ: executed again                              -> answer, or a NAK and no more
//               atomic: answered from a table, never executed twice
//               FLUSH, ATOMIC WRITE: answered, never executed twice
//   ahead       kept if there is a buffer, else dropped           -> NAK, once a gap
//
// A request of an XRC connection for a queue of another process goes on to that one, and counts as
// carried out when that one says so (rc_responder_relay.cc):
//
//   passed on   up to expected_; what is acknowledged stays behind
//   held        expected, but others are to be answered first: waits with those that are ahead
//
// What is to be sent waits for serve(): one ACK for all that came in a batch, behind the answers of
// READs that come before it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "base/time.h"
#include "qp/carrier.h"
#include "roce/agreement.h"
#include "roce/answer_queue.h"
#include "roce/assembly.h"
#include "roce/piggyback.h"
#include "roce/reorder_buffer.h"
#include "roce/repairs.h"
#include "roce/settings.h"
#include "roce/taken.h"
#include "roce/wire.h"
#include "wire/icrc.h"

namespace verbena::roce {

struct ResponderCounters {
  std::uint64_t packets = 0;  // requests, of any standing
  std::uint64_t duplicates = 0;
  std::uint64_t ahead = 0;
  std::uint64_t acks = 0;
  std::uint64_t naks = 0;       // sequence errors
  std::uint64_t not_ready = 0;  // RNR NAKs
  std::uint64_t refused = 0;    // requests that end the connection
  std::uint64_t gone = 0;  // READs that came again, and what they ask for is not there any more
};

class RcResponder final : public Owing {
 public:
  RcResponder(const Settings& settings, Wire& wire, Agreement& agreement);

  void receive(const wire::Packet& packet, qp::Responder& responder, const Now& now);
  // The same of a message that is the next one and needs nothing that others do not. False: nothing
  // has happened.
  bool receive_at_once(const wire::WholeSend& message, qp::Responder& responder);
  bool receive_at_once(const wire::Middle& piece, qp::Responder& responder);
  // `piece` is the first one of them.
  Taken receive_run(const wire::Middle& piece, wire::Unverified& packets, qp::Responder& responder);
  // A packet for us that parse refused, with the right ICRC (wire::deserves_nak).
  [[gnu::cold]] void receive_broken(Psn psn, qp::Responder& responder);
  // True: there is more to send.
  bool serve(qp::Responder& responder, qp::Budget& budget, const Now& now);
  Instant next_deadline() const { return gap_at_; }  // or never
  const ResponderCounters& counters() const { return counters_; }

  // Whether serve() has something to send.
  bool owes() const override {
    return ack_due_ || refusal_ || !answers_.is_empty() || !gaps_.is_empty() || is_relaying();
  }
  std::optional<Piggyback> owed() const override;
  void went_along() override;
  // Whether a request with this PSN is the next one.
  bool expects(Psn psn) const { return psn == expected_; }

 private:
  // A requester that does not ask is acknowledged after so many packets (9.7.5.1.1 lets us).
  static constexpr std::uint32_t kUnacknowledgedMax = 32;
  bool is_selective() const { return agreement_.is_agreed() && settings_.reorder_packets != 0; }

  enum class Standing : std::uint8_t { kExpected, kDuplicate, kAhead };
  Standing classify(Psn psn) const;

  bool accept(const wire::Packet& packet, qp::Responder& responder);
  void accepted(std::uint32_t psns, bool ends_message);
  bool is_just_next(Psn psn, const qp::Responder& responder) const;
  void accepted_at_once(std::uint32_t packets, bool ends_message, bool asks_for_acknowledge);
  void want_acknowledge(bool is_asked, std::uint32_t packets = 1);
  void accept_kept(qp::Responder& responder, const Now& now);
  void nothing_is_kept();
  Result<void, qp::Refusal> execute(const wire::Packet& packet, qp::Responder& responder);
  Result<void, qp::Refusal> execute_read(const wire::Packet& packet, qp::Responder& responder);
  Result<void, qp::Refusal> execute_atomic(const wire::Packet& packet, qp::Responder& responder);
  Result<void, qp::Refusal> execute_flush(const wire::Packet& packet, qp::Responder& responder);
  Result<void, qp::Refusal> execute_atomic_write(const wire::Packet& packet,
                                                 qp::Responder& responder);
  [[gnu::cold]] bool refuse_packet(qp::Refusal refusal, qp::Responder& responder);
  [[gnu::cold]] void repeat(const wire::Packet& packet);
  void repeat_read(const wire::Packet& packet);
  OwedAnswer answer_of_read(const wire::Packet& packet, wire::Msn msn) const;
  void keep(const wire::Packet& packet, const Now& now);

  // Packets passed on and not answered, and what is fetched for READs, in their order.
  struct Passed {
    Psn psn;
    wire::Msn msn;             // before it
    Assembly before;           // so it was
    bool is_fetch = false;     // of bytes that a READ is answered with
    bool is_answered = false;  // by an answer of its own
    bool wants_ack = false;
    std::optional<std::uint64_t> value = {};  // of an atomic
  };
  // What a READ of memory of another process brought, a part at a time. As long as one is asked for
  // no other one is, whatever becomes of the READ it is for.
  struct Fetched {
    enum class State : std::uint8_t { kNone, kAsked, kHere };
    State state = State::kNone;
    std::uint32_t shared_queue = 0;
    MemoryKey key{};
    std::uint64_t address = 0;
    std::vector<std::byte> bytes;

    // All of these bytes are here.
    bool has(const OwedAnswer& answer, std::uint32_t offset, std::size_t length) const {
      const std::uint64_t from = answer.address + offset - address;
      return state == State::kHere && shared_queue == answer.shared_queue && key == answer.key &&
             from <= bytes.size() && length <= bytes.size() - from;
    }
  };
  struct Relaying {
    qp::Relay* to = nullptr;
    std::deque<Passed> passed;
    Fetched fetched;
    std::optional<std::uint32_t> held;  // the expected packet waits, for this queue
    std::optional<Psn> missed;          // the last of what was dropped meanwhile
  };
  enum class Fetch : std::uint8_t { kHere, kLater, kNowhere };
  bool is_relaying() const { return relaying_ && !relaying_->passed.empty(); }
  // What is missing is not lost.
  bool is_waiting() const { return is_relaying() || (relaying_ && relaying_->held); }
  Psn acknowledged_upto() const {
    return is_relaying() ? relaying_->passed.front().psn : expected_;
  }
  wire::Msn acknowledged_msn() const {
    return is_relaying() ? relaying_->passed.front().msn : msn_;
  }
  Relaying& relaying_by(qp::Relay& relay);
  [[gnu::cold]] bool hold(const wire::Packet& packet);
  void miss(Psn psn);
  bool pass_on(const wire::Packet& packet, qp::Relay& relay, qp::Responder& responder);
  bool pass_read(const wire::Packet& packet, qp::Responder& responder);
  qp::RelayPiece piece_of(const wire::Packet& packet) const;
  static qp::Flush flush_of(const wire::Packet& packet);
  void take_relayed(qp::Responder& responder, qp::Budget& budget, const Now& now);
  void take_reply(const qp::RelayReply& reply, qp::Responder& responder);
  void relayed(const Passed& done);
  void refuse_relayed(qp::Answer answer, qp::Responder& responder);
  void refuse_fetch(const Passed& fetch, qp::Answer answer, qp::Responder& responder);
  Fetch fetch_for(const OwedAnswer& answer, qp::Responder& responder);
  Fetch fetch(const OwedAnswer& answer, std::uint32_t offset, qp::Relay& relay);
  void refuse_answer(qp::Refusal refusal, qp::Responder& responder);
  bool copy_fetched(const OwedAnswer& answer, std::uint32_t offset, std::span<std::byte> to) const;

  void name_gaps(Instant now);
  void name_one_gap();
  void name_all_gaps(Instant now);

  // kWaits: for another process, with all that comes behind.
  enum class Progress : std::uint8_t { kDone, kMore, kWaits };
  bool send_due(qp::Responder& responder, qp::Budget& budget);
  Progress send_answers(qp::Responder& responder, qp::Budget& budget);
  std::uint32_t next_bytes(const OwedAnswer& answer) const;
  Wire::Sent send_answer(OwedAnswer& answer, qp::Responder& responder, qp::Budget& budget);
  Wire::Sent send_gone(const OwedAnswer& answer);
  Result<void, qp::Refusal> read(const OwedAnswer& answer, std::uint32_t offset,
                                 qp::Responder& responder, std::span<std::byte> to) const;
  Progress send_gaps();
  Progress send_acknowledge();
  Wire::Sent transmit_acknowledge(Psn psn, wire::Syndrome syndrome);
  Wire::Sent transmit_gap(const Repairs::Range& gap);
  Wire::Sent transmit(const Outgoing& packet);
  wire::Head head_of(wire::Code code, Psn psn) const;
  std::uint32_t psns_of(const wire::Packet& packet) const;

  Settings settings_;
  Wire& wire_;
  Agreement& agreement_;
  Psn expected_;
  wire::Msn msn_;
  Assembly assembly_;
  AnswerQueue answers_;
  AtomicReplay atomics_;
  ReadHistory reads_;

  bool ack_due_ = false;
  std::uint32_t unacknowledged_ = 0;       // packets
  std::optional<wire::Syndrome> refusal_;  // of expected_, not sent yet
  bool is_not_ready_ = false;              // an RNR NAK went out, and its packet has not come again
  bool waits_ = false;                     // the same for a sequence NAK
  Psn last_ahead_;

  ReorderBuffer kept_;
  Psn highest_;                        // of what is ahead
  Psn named_upto_;                     // gaps before this were named
  Psn due_upto_;                       // those before this are named when the patience ends
  Instant gap_at_ = Instant::never();  // the end of the patience
  unsigned times_named_ = 0;
  Repairs gaps_;                        // to be named now
  std::unique_ptr<Relaying> relaying_;  // since the first request for another process
  ResponderCounters counters_;
};

}  // namespace verbena::roce
