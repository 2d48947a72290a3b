// SPDX-License-Identifier: MIT
// The requester of a reliable connection (IBTA vol 1, 9.7.2, 9.7.3, 9.7.5): operations become
// packets, answers become progress, and what is lost is sent again.
//
//      finished_      acknowledged_      send_          high_            next_
//         |--executed there--|--on its way--|--to repeat--|--not sent yet--|
//
// finished_: everything before is over. acknowledged_: everything before is executed by the
// responder, but answers of READs and atomics may be missing. send_: what is sent next; behind
// high_ it is a repetition. next_: where the next operation begins.
//
// Loss shows in one of four ways. A NAK names the gap: what follows it is sent at once. An answer
// jumps over one of a READ: just that is asked for again. Silence of a round trip and a half: the
// first missing packet and the last are sent once more and ask for an acknowledgement (a probe; the
// last packet of a message has nobody behind it that would show its loss). Silence of the local ACK
// timeout: all that is not finished is sent again, and the send window counts it (9.7.5.1.4).
//
// Where both ends agreed on it (agreement.h), the responder keeps what comes behind a gap, a NAK
// that names a gap carries its length in place of the MSN, acknowledges nothing, and only the gap
// is repeated.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/time.h"
#include "qp/carrier.h"
#include "roce/agreement.h"
#include "roce/congestion.h"
#include "roce/engine.h"
#include "roce/flight_line.h"
#include "roce/piggyback.h"
#include "roce/psn_set.h"
#include "roce/read_quota.h"
#include "roce/repairs.h"
#include "roce/round_trip.h"
#include "roce/settings.h"
#include "roce/wire.h"

namespace verbena::roce {

struct RequesterCounters {
  std::uint64_t packets = 0;      // sent in all
  std::uint64_t repeated = 0;     // of these, sent before
  std::uint64_t naks = 0;         // sequence errors that made us go back, or repair
  std::uint64_t probes = 0;       //
  std::uint64_t timeouts = 0;     //
  std::uint64_t strays = 0;       // answers to nothing: late, twice, or never asked for
  std::uint64_t bad_answers = 0;  // of another kind, or with another length, than was asked for
};

class Requester {
 public:
  // What `owing` owes may go along with what is sent.
  Requester(const Settings& settings, Wire& wire, Congestion* congestion, Agreement& agreement,
            Owing& owing);

  // RTS, or changed attributes.
  void start(const qp::QpAttributes& attributes);
  void set_in_flight(const InFlight& most);
  void set_congestion(Congestion* congestion) { congestion_ = congestion; }

  void issue(qp::SendWindow& window, qp::Budget& budget, const Now& now);
  // As Engine's, of the same names (requester_at_once.cc).
  bool transmit_at_once(const Engine::AtOnce& message, const qp::SendWindow& window);
  void sent_at_once(const Engine::AtOnce& message, const Now& now);
  // An acknowledgement that came along with a request.
  void acknowledged_along(const Piggyback& along, qp::SendWindow& window, const Now& now);
  // An acknowledgement, or the answer of a READ or an atomic.
  void receive(const wire::Packet& packet, qp::SendWindow& window, const Now& now);
  // Timers.
  void collect(qp::SendWindow& window, const Now& now);
  Instant next_deadline() const { return timers_.next(); }  // or never

  // A repetition, or the rest of what has begun.
  bool wants_to_send() const { return !repairs_.is_empty() || send_ != next_; }
  // Something that could leave waits for the next answer.
  bool is_holding() const { return is_holding_; }
  // Whether an answer with this PSN can be one to what is on its way.
  bool expects(Psn psn) const { return psn - finished_ >= 0 && psn - high_ < 0; }
  // The responder has executed everything before.
  Psn acknowledged() const { return acknowledged_; }

  const RequesterCounters& counters() const { return counters_; }
  const RoundTrip& round_trip() const { return round_trip_; }

 private:
  // What to send next: `most` packets from `psn` on.
  struct Step {
    Psn psn;
    std::uint32_t most = 1;
    bool is_repair = false;
    bool is_measured = true;  // if its answer is the next one
  };
  struct Timers {
    Instant retry = Instant::never();
    Instant probe = Instant::never();
    Instant repair = Instant::never();     // a gap in answers has lasted long enough
    Instant departure = Instant::never();  // congestion control lets nothing leave before
    Instant resume = Instant::never();     // RNR
    Instant next() const { return std::min({retry, probe, repair, departure, resume}); }
  };

  // Sending.
  std::optional<Step> next_step(qp::SendWindow& window, const Now& now);
  bool seek(qp::SendWindow& window, const Now& now);
  bool begin(qp::SendWindow& window, const Now& now);
  bool admit(qp::SendWindow& window, const Now& now);
  std::uint32_t packets_most() const;
  std::uint32_t room_at(const Flight& flight, Psn psn);
  bool waits_for_train(const Flight& flight, std::uint32_t room) const;
  bool waits_for_company(const Flight& flight, const qp::SendWindow& window) const;
  bool send(const Step& step, qp::SendWindow& window, qp::Budget& budget, const Now& now);
  bool send_run(const Step& step, qp::SendWindow& window, qp::Budget& budget, const Now& now);
  std::uint32_t run_of(const Flight& flight, const Step& step, const qp::Budget& budget) const;
  std::uint32_t asks_every() const;
  bool is_answer_due(std::uint32_t count, bool ends_train) const;
  std::optional<Piggyback> goes_along(const Flight& flight, const qp::Operation& op,
                                      const qp::SendWindow& window) const;
  Wire::Sent send_data(const Flight& flight, Psn psn, bool asks, qp::SendWindow& window);
  Wire::Sent send_request(const Flight& flight, Psn psn, std::uint32_t count,
                          qp::SendWindow& window);
  wire::Head head_of(const qp::Operation& op, Psn psn) const;
  std::uint32_t count_to_ask(const Flight& flight, const Step& step);
  bool asks_for_answer(const Flight& flight, const Step& step);
  void sent(const Step& step, std::size_t bytes, bool asks, Instant now);
  bool may_depart(const Now& now);

  bool is_open(const qp::SendWindow& window) const;
  Flight flight_of(const Engine::AtOnce& message) const;

  // Answers.
  bool hears(Psn psn, qp::SendWindow& window);
  void take_acknowledge(const wire::Packet& packet, qp::SendWindow& window, const Now& now);
  void take_positive(Psn psn, qp::SendWindow& window, const Now& now);
  void take_nak(const wire::Packet& packet, qp::SendWindow& window, const Now& now);
  void take_sequence_nak(Psn expected, const Now& now);
  void take_gap(Psn first, std::uint32_t count, Instant now);
  void take_refusal(Psn at, qp::Answer answer, std::uint8_t rnr_timer, qp::SendWindow& window,
                    const Now& now);
  void take_answer(const wire::Packet& packet, std::span<const std::byte> bytes,
                   qp::SendWindow& window, const Now& now);
  void answered_badly(const Flight& flight, qp::Answer how, qp::SendWindow& window, const Now& now);
  void acknowledge_upto(Psn psn, qp::SendWindow& window, const Now& now);
  void advance(qp::SendWindow& window, const Now& now);
  void all_is_done(qp::SendWindow& window, const Now& now);
  std::optional<Duration> take_measurement(const Now& now);
  void made_progress(std::uint64_t bytes, const Now& now);

  // Loss.
  bool is_done(const Flight& flight, Psn psn) const;
  std::uint32_t missing_run(const Flight& flight, Psn psn, std::uint32_t most) const;
  void note_gap(Instant now);
  void repair_gaps(Instant now);
  void probe(Instant now);
  void time_out(qp::SendWindow& window, const Now& now);
  void start_over(qp::SendWindow& window);
  void go_back(Psn to);
  void follow(qp::SendWindow& window);
  [[gnu::cold]] void forget_all();
  void arm(Instant now);
  void ask_when_stalled(Instant now);

  std::uint64_t bytes_at(const Flight& flight, Psn psn) const;
  bool is_in_flight() const { return high_ - finished_ > 0; }

  Settings settings_;
  Wire& wire_;
  Congestion* congestion_;
  Agreement& agreement_;
  Owing& owing_;
  InFlight most_;
  std::uint32_t train_left_ = 0;  // packets that leave with the last one, if there are as many
  bool has_left_ = false;         // something new, in this turn
  bool could_not_leave_ = false;  // what was to be next, in the last turn
  bool has_heard_ = false;        // an answer, since the last turn
  bool is_holding_ = false;       // what could be sent, until there is more or an answer
  Duration timeout_;
  bool started_ = false;

  Psn finished_;
  Psn acknowledged_;
  Psn send_;
  Psn high_;
  Psn next_;
  FlightLine line_;
  Psn trains_upto_;     // what is before this may have left in a train
  qp::OpIndex cursor_;  // what the send window offers next, if anything
  std::uint64_t bytes_begun_ = 0;
  std::uint64_t bytes_finished_ = 0;

  PsnSet arrived_;  // answers ahead of finished_
  Psn evidence_;    // the responder has answered something before this
  Psn repaired_;    // gaps before this are being repaired
  Repairs repairs_;
  std::optional<Psn> probed_upto_;
  std::optional<Psn> starts_over_at_;  // after a timeout
  Psn went_back_to_;
  Instant went_back_at_;

  ReadQuota reads_;
  RoundTrip round_trip_;
  struct Timed {
    Psn psn;
    Instant at;
    bool is_doubtful = false;
  };
  std::optional<Timed> timed_;
  std::uint32_t unasked_ = 0;  // packets since one asked for an acknowledgement
  Psn asked_upto_;             // an acknowledgement was asked for of what is before this
  Timers timers_;
  RequesterCounters counters_;
};

}  // namespace verbena::roce
