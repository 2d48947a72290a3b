// SPDX-License-Identifier: MIT
// The requester's timers, and what it does about loss.
#include "roce/requester.h"

#include <algorithm>

namespace verbena::roce {

namespace {

// A probe of a READ asks for no more than so many packets.
constexpr std::uint32_t kProbePackets = 16;
constexpr std::uint32_t kTrainsInFlight = 4;

}  // namespace

Requester::Requester(const Settings& settings, Wire& wire, Congestion* congestion,
                     Agreement& agreement, Owing& owing)
    : settings_(settings),
      wire_(wire),
      congestion_(congestion),
      agreement_(agreement),
      owing_(owing),
      line_(settings.operations_max) {
  set_in_flight(settings.in_flight);
}

void Requester::start(const qp::QpAttributes& attributes) {
  timeout_ = qp::ack_timeout(attributes.timeout);
  reads_.set_most(attributes.reads_out_max);
  if (started_) return;
  started_ = true;
  trains_upto_ = finished_ = acknowledged_ = send_ = high_ = next_ = evidence_ = repaired_ =
      went_back_to_ = asked_upto_ = Psn(attributes.send_psn);
}

void Requester::set_in_flight(const InFlight& most) {
  most_.packets = std::clamp(most.packets, 1u, kInFlightPacketsMax);
  most_.bytes = std::max(most.bytes, settings_.path_mtu);
  // Several are on their way at a time, or each would wait for the last one's answer.
  const std::uint32_t packets = std::min(most_.packets, most_.bytes / settings_.path_mtu);
  most_.train = std::clamp(most.train, 1u, std::max(1u, packets / kTrainsInFlight));
}

std::uint64_t Requester::bytes_at(const Flight& flight, Psn psn) const {
  const auto packets = static_cast<std::uint64_t>(psn - flight.first);
  return flight.before + std::min(packets * settings_.path_mtu, flight.length);
}

bool Requester::is_done(const Flight& flight, Psn psn) const {
  if (psn - finished_ < 0) return true;
  return flight.brings_back ? arrived_.has(psn) : psn - acknowledged_ < 0;
}

// Answers in a row that are missing, at most `most`.
std::uint32_t Requester::missing_run(const Flight& flight, Psn psn, std::uint32_t most) const {
  std::uint32_t count = 0;
  while (count < most && flight.contains(psn + count) && !arrived_.has(psn + count))
    ++count;
  return count;
}

void Requester::collect(qp::SendWindow& window, const Now& now) {
  follow(window);
  const Instant at = timers_.next();
  if (at == Instant::never() || now < at) return;
  const Instant instant = now;
  if (timers_.resume <= instant) timers_.resume = Instant::never();
  if (timers_.departure <= instant) timers_.departure = Instant::never();
  if (timers_.retry <= instant) return time_out(window, now);
  if (timers_.repair <= instant) repair_gaps(instant);
  if (timers_.probe <= instant) probe(instant);
}

// The queue pair stopped, or begins again: nothing is on its way any more.
void Requester::follow(qp::SendWindow& window) {
  if (line_.is_empty() || window.has_outstanding()) return;
  forget_all();
}

void Requester::forget_all() {
  line_.clear();
  arrived_.clear();
  finished_ = acknowledged_ = send_ = high_ = evidence_ = repaired_ = asked_upto_ = next_;
  bytes_finished_ = bytes_begun_;
  reads_.finished_upto(finished_);
  repairs_.clear();
  probed_upto_.reset();
  timed_.reset();
  timers_ = {};
}

// Something is on its way. Who has asked waits for an answer from the first time on: what is sent
// after it does not make the answer come later.
void Requester::arm(Instant now) {
  if (timers_.retry == Instant::never() && timeout_ != Duration()) timers_.retry = now + timeout_;
  const bool is_asked = asked_upto_ - acknowledged_ > 0;
  if (is_asked && timers_.probe == Instant::never()) {
    const bool has_begun = line_.oldest().brings_back && line_.oldest().first != finished_;
    timers_.probe = now + (has_begun ? round_trip_.probe_rest_after() : round_trip_.probe_after());
  }
}

// -- loss ---------------------------------------------------------------------------------------

// An answer has jumped over those of a READ or an atomic: they are late, or lost (an implied NAK,
// 9.7.5.1.1).
void Requester::note_gap(Instant now) {
  if (evidence_ - finished_ <= 0) {
    timers_.repair = Instant::never();
    return;
  }
  if (timers_.repair != Instant::never()) return;
  timers_.repair = now + settings_.reorder_patience;
  if (settings_.reorder_patience == Duration()) repair_gaps(now);
}

// Asks for what is missing before the latest answer, and is not asked for again already.
void Requester::repair_gaps(Instant now) {
  Psn from = later(finished_, repaired_);
  if (evidence_ - from <= 0) from = finished_;
  while (evidence_ - from > 0) {
    const Flight* flight = line_.find(from);
    if (!flight) break;
    if (!flight->brings_back) {
      from = flight->end();
      continue;
    }
    const std::uint32_t run =
        missing_run(*flight, from, static_cast<std::uint32_t>(evidence_ - from));
    if (run != 0) ++counters_.naks;
    repairs_.add(from, run);
    from = from + std::max(1u, run);
  }
  repaired_ = evidence_;
  timers_.repair = now + round_trip_.probe_after();
}

// Silence: the first missing packet and the last one once more. Where only the last was lost, that
// is all; else the first closes the gap of which a NAK was lost, and the last shows the next one.
// Silence after an answer to the probe alone: what lies behind it was lost, too, and is sent again.
void Requester::probe(Instant now) {
  timers_.probe = Instant::never();
  if (!is_in_flight() || timers_.resume != Instant::never()) return;
  const Flight* flight = line_.find(finished_);
  Psn missing = finished_;
  if (flight && !flight->brings_back) {
    missing = acknowledged_;
    flight = line_.find(missing);
  }
  if (!flight || missing - high_ >= 0) return;
  if (probed_upto_ == missing && missing - send_ < 0) {
    send_ = missing;
    probed_upto_.reset();
    return;
  }
  const auto behind = static_cast<std::uint32_t>(high_ - missing);
  const std::uint32_t count =
      flight->brings_back ? missing_run(*flight, missing, std::min(kProbePackets, behind)) : 1;
  ++counters_.probes;
  repairs_.clear();
  repairs_.add(missing, count);
  const Flight* last = line_.find(high_.previous());
  if (last && !last->brings_back) repairs_.add(high_.previous(), 1);
  probed_upto_ = missing + count;
  round_trip_.probed_in_vain();
  timers_.probe = now + round_trip_.probe_after();
}

void Requester::time_out(qp::SendWindow& window, const Now& now) {
  timers_.retry = Instant::never();
  if (!is_in_flight() || timers_.resume != Instant::never()) return;
  ++counters_.timeouts;
  if (congestion_) congestion_->timed_out(now);
  window.answered(window.oldest(), qp::Answer::kSilence, now);
  start_over(window);
}

// The send window went back.
void Requester::start_over(qp::SendWindow& window) {
  follow(window);
  if (line_.is_empty()) return;
  cursor_ = window.oldest();
  go_back(finished_);
  starts_over_at_ = finished_;
  timers_ = {};
  timers_.resume = window.resume_at().value_or(Instant::never());
}

void Requester::go_back(Psn to) {
  send_ = to;
  repairs_.clear();
  probed_upto_.reset();
  repaired_ = finished_;
  timed_.reset();
}

}  // namespace verbena::roce
