// SPDX-License-Identifier: MIT
// The requester's way out: what is sent next, and how an operation becomes packets.
#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "roce/data_head.h"
#include "roce/requester.h"

namespace verbena::roce {

using qp::Operation;
using qp::OpKind;
using wire::Code;
using wire::Opcode;

namespace {

// A long message asks for acknowledgements this often: within what may be on its way, and at least
// every so many packets.
constexpr std::uint32_t kAsksPerWindow = 4;
constexpr std::uint32_t kAskAtLeastEvery = 16;
// Where trains are long, each answer costs both ends about half of what a train does: less often
// within a window, and after so many of them.
constexpr std::uint32_t kAsksPerWindowOfTrains = 3;
constexpr std::uint32_t kTrainsPerAskLeast = 2;
constexpr std::uint32_t kTrainsPerAskMost = 5;
// With so many operations on their way, what is posted waits for company; and with so many that
// wait, it leaves.
constexpr std::uint32_t kAloneMost = 8;
constexpr std::uint32_t kCompany = 32;
// Parts of a long READ that are asked for at a time, where the responder takes so many.
constexpr std::uint32_t kReadParts = 4;

// SEND and WRITE: describe_data() has more to say.
constexpr Code request_code(OpKind kind) {
  switch (kind) {
    case OpKind::kRead: return Code::kReadRequest;
    case OpKind::kCompareSwap: return Code::kCompareSwap;
    case OpKind::kFetchAdd: return Code::kFetchAdd;
    case OpKind::kFlush: return Code::kFlush;
    case OpKind::kAtomicWrite: return Code::kAtomicWrite;
    case OpKind::kSend:
    case OpKind::kWrite:
    case OpKind::kBindWindow:
    case OpKind::kLocalInvalidate: break;
  }
  return Code::kSendOnly;
}

}  // namespace

void Requester::issue(qp::SendWindow& window, qp::Budget& budget, const Now& now) {
  follow(window);
  timers_.departure = Instant::never();
  train_left_ = 0;
  has_left_ = std::exchange(could_not_leave_, false);
  is_holding_ = false;
  while (!budget.spent()) {
    const std::optional<Step> step = next_step(window, now);
    if (!step) ask_when_stalled(now);
    if (!step) break;
    if (send_run(*step, window, budget, now) || send(*step, window, budget, now)) continue;
    could_not_leave_ = has_left_;
    break;
  }
  // A pause that is over and was not used waits for something else: for room on the way out.
  const std::optional<Instant> resume = window.resume_at();
  timers_.resume = resume && *resume > now ? *resume : Instant::never();
  has_heard_ = false;
}

std::optional<Requester::Step> Requester::next_step(qp::SendWindow& window, const Now& now) {
  while (!repairs_.is_empty()) {
    const Repairs::Range& range = repairs_.front();
    const Flight* flight = range.first - finished_ < 0 ? nullptr : line_.find(range.first);
    if (flight && !is_done(*flight, range.first)) return Step{range.first, range.count, true};
    repairs_.take(1);
  }
  if (!seek(window, now)) return std::nullopt;
  const Flight& flight = *line_.find(send_);
  const std::uint32_t room = room_at(flight, send_);
  if (room == 0 || waits_for_train(flight, room)) return std::nullopt;
  is_holding_ = waits_for_company(flight, window);
  if (is_holding_) return std::nullopt;
  if (train_left_ == 0) train_left_ = most_.train;
  if (flight.begins_longer && send_ == flight.first) train_left_ = std::min(most_.train, 2u);
  has_left_ = true;
  return Step{send_, room, false};
}

// An answer is on its way that makes more room.
bool Requester::waits_for_train(const Flight& flight, std::uint32_t room) const {
  if (train_left_ != 0 || flight.brings_back || asked_upto_ - acknowledged_ <= 0) return false;
  const auto left = static_cast<std::uint32_t>(flight.end() - send_);
  return room < std::min(most_.train, left);
}

// A program that keeps many small messages on their way posts them one by one; alone, each would
// cost both ends a call of the system. It waits for the next answer, and for no longer: that is
// under way (decision 27).
bool Requester::waits_for_company(const Flight& flight, const qp::SendWindow& window) const {
  const bool is_new = send_ == high_ && send_ == flight.first;
  if (has_left_ || has_heard_ || !is_new || !round_trip_.is_known()) return false;
  if (line_.size() <= kAloneMost || asked_upto_ - acknowledged_ <= 0) return false;
  // What is of another kind than the one before tells of it, mostly.
  const Operation* const op = window.outstanding(flight.index);
  const Operation* const before = window.outstanding(line_.newest_but_one().index);
  if (!op || !before || op->kind != before->kind) return false;
  if (op->has_immediate || op->is_solicited) return false;
  const std::uint64_t in_train = std::uint64_t{most_.train} * settings_.path_mtu;
  const std::uint64_t enough = in_train / std::max<std::uint64_t>(flight.length, 1);
  return window.waiting() + 1 < std::min<std::uint64_t>(enough, kCompany);
}

// Puts send_ on a packet that may be sent and has to be.
bool Requester::seek(qp::SendWindow& window, const Now& now) {
  while (admit(window, now)) {
    const Flight& flight = *line_.find(send_);
    if (!is_done(flight, send_)) return true;
    send_ = flight.brings_back ? send_.next() : earlier(acknowledged_, flight.end());
  }
  return false;
}

// An operation that is not on the line yet.
bool Requester::begin(qp::SendWindow& window, const Now& now) {
  if (line_.is_full() || !started_) return false;
  const Operation* op = window.next(now);
  if (!op) return false;
  const bool is_data = op->kind == OpKind::kSend || op->kind == OpKind::kWrite;
  Flight flight{.index = op->index, .first = next_, .length = op->length, .before = bytes_begun_};
  flight.brings_back = !is_data;
  // The answer says that it is done, and no more.
  if (op->kind == OpKind::kAtomicWrite) flight.length = 0;
  if (is_data || op->kind == OpKind::kRead)
    flight.packets = wire::packets_of(op->length, settings_.path_mtu);
  flight.begins_longer = op->kind == OpKind::kWrite && flight.packets > 1;
  const std::uint32_t window_packets = std::min(most_.packets, most_.bytes / settings_.path_mtu);
  flight.part = std::max(1u, window_packets / std::clamp(reads_.most(), 1u, kReadParts));
  // All PSNs on their way fit in one half of the circle (9.7.1).
  if (static_cast<std::uint32_t>(next_ - finished_) + flight.packets >= wire::kPsnRegion) {
    return false;
  }
  if (line_.is_empty()) cursor_ = op->index;
  line_.push(flight);
  next_ = trains_upto_ = flight.end();
  bytes_begun_ += flight.length;
  return true;
}

// The window lets go of an operation with its first packet: it is outstanding from then on, also
// when the peer falls silent in the middle of it.
bool Requester::admit(qp::SendWindow& window, const Now& now) {
  if (send_ == next_ && !begin(window, now)) return false;
  const Flight& flight = *line_.find(send_);
  if (flight.index - cursor_ < 0) return true;
  const Operation* op = window.next(now);
  if (!op || op->index != flight.index) return false;
  window.issued(now);
  cursor_ = flight.index.next();
  return true;
}

std::uint32_t Requester::packets_most() const {
  return agreement_.is_agreed() ? std::min(most_.packets, kAgreedSpan) : most_.packets;
}

// How many packets may leave from `psn` on, or answers be asked for. One always may when nothing is
// on its way.
std::uint32_t Requester::room_at(const Flight& flight, Psn psn) {
  const auto out = static_cast<std::uint32_t>(psn - finished_);
  const std::uint32_t most = packets_most();
  if (out >= most) return 0;
  std::uint64_t bytes_max = most_.bytes;
  if (congestion_) bytes_max = std::min<std::uint64_t>(bytes_max, congestion_->window());
  const std::uint64_t bytes_out = bytes_at(flight, psn) - bytes_finished_;
  const std::uint64_t wanted = std::min<std::uint64_t>(
      settings_.path_mtu, flight.before + flight.length - bytes_at(flight, psn));
  if (out != 0 && bytes_out + wanted > bytes_max) return 0;
  const std::uint64_t left = bytes_max - std::min(bytes_max, bytes_out);
  const std::uint64_t fits = std::max<std::uint64_t>(1, left / settings_.path_mtu);
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(fits, most - out));
}

// What may be on its way became less, and nobody was asked to acknowledge what is: the last packet
// once more, and asking, after the pause of a probe.
void Requester::ask_when_stalled(Instant now) {
  if (is_in_flight() && asked_upto_ - acknowledged_ <= 0 && timers_.probe == Instant::never()) {
    timers_.probe = now + round_trip_.probe_after();
  }
}

bool Requester::may_depart(const Now& now) {
  if (!congestion_) return true;
  const Instant at = congestion_->next_departure(now);
  if (at <= now) return true;
  timers_.departure = at;
  return false;
}

bool Requester::send(const Step& step, qp::SendWindow& window, qp::Budget& budget, const Now& now) {
  const Flight& flight = *line_.find(step.psn);
  if (!window.outstanding(flight.index) || !may_depart(now)) return false;
  Step actual = step;
  actual.most = 1;
  std::size_t bytes = 0;
  bool asks = true;
  Wire::Sent outcome{};
  if (flight.brings_back) {
    actual.most = count_to_ask(flight, step);
    if (actual.most == 0) return false;
    outcome = send_request(flight, step.psn, actual.most, window);
  } else {
    bytes =
        static_cast<std::size_t>(bytes_at(flight, step.psn.next()) - bytes_at(flight, step.psn));
    asks = asks_for_answer(flight, step);
    outcome = send_data(flight, step.psn, asks, window);
  }
  if (outcome != Wire::Sent::kSent) return false;
  budget.take(bytes);
  sent(actual, bytes, asks, now);
  return true;
}

// Requests keep to the parts in which a READ is asked for the first time: one that begins in a part
// that the responder has executed, and ends in one that it has not, is neither a duplicate nor
// expected (9.7.4.1.1). Less than the rest of a part only where it has been executed. 0: not now.
std::uint32_t Requester::count_to_ask(const Flight& flight, const Step& step) {
  const auto to_end = static_cast<std::uint32_t>(flight.part_end(step.psn) - step.psn);
  const std::uint32_t run = missing_run(flight, step.psn, to_end);
  if (step.is_repair) return evidence_ - step.psn > 0 ? std::min(run, step.most) : run;
  if (!reads_.has_room(step.psn)) return 0;
  return step.most >= run || step.psn == finished_ ? run : 0;
}

std::uint32_t Requester::asks_every() const {
  const std::uint32_t window = std::min(packets_most(), most_.bytes / settings_.path_mtu);
  const std::uint32_t of_trains =
      std::clamp(window / kAsksPerWindowOfTrains, kTrainsPerAskLeast * most_.train,
                 kTrainsPerAskMost * most_.train);
  return std::clamp(most_.packets / kAsksPerWindow, 1u, std::max(kAskAtLeastEvery, of_trains));
}

// Of `count` packets that nobody was asked about. Where one is due soon it is asked for by the last
// packet of a train, so that no train is cut for it.
bool Requester::is_answer_due(std::uint32_t count, bool ends_train) const {
  const std::uint32_t every = asks_every();
  return count >= every + (most_.train - 1) || (ends_train && count + most_.train / 2 >= every);
}

bool Requester::asks_for_answer(const Flight& flight, const Step& step) {
  // The first packet of all measures the way while nothing of ours waits on it.
  if (!round_trip_.is_known() && !timed_) return true;
  // And the first after a timeout shows whether the peer is there.
  if (starts_over_at_ == step.psn) return true;
  const bool is_last = step.psn.next() == flight.end();
  return is_last || step.most == 1 || is_answer_due(unasked_ + 1, train_left_ <= 1);
}

wire::Head Requester::head_of(const Operation& op, Psn psn) const {
  wire::Head head;
  head.opcode = Opcode::of(service_of(settings_), request_code(op.kind));
  head.srq_number = op.shared_queue;
  head.pkey = settings_.pkey;
  head.dest_qp = settings_.peer;
  head.psn = psn;
  head.mark = agreement_.mark(false);
  return head;
}

// The middle of a long message, sent for the first time: packets that differ in their PSNs only, up
// to the next that asks for an answer. 0: this one is of its own.
std::uint32_t Requester::run_of(const Flight& flight, const Step& step,
                                const qp::Budget& budget) const {
  const bool is_middle = step.psn != flight.first && !flight.brings_back;
  const bool is_new = step.psn == high_ && !step.is_repair && starts_over_at_ != step.psn;
  const bool is_timed = round_trip_.is_known() || timed_;
  const bool is_settled = agreement_.state() != Agreement::State::kAsking;
  if (!is_middle || !is_new || !is_timed || !is_settled || congestion_) return 0;
  const auto before_last = static_cast<std::uint32_t>(flight.end() - step.psn) - 1;
  const bool asks_at_end = is_answer_due(unasked_ + train_left_, true);
  return std::min({kRunMost, before_last, step.most - 1, train_left_ - (asks_at_end ? 1 : 0),
                   std::uint32_t{budget.operations},
                   static_cast<std::uint32_t>(budget.bytes / settings_.path_mtu)});
}

bool Requester::send_run(const Step& step, qp::SendWindow& window, qp::Budget& budget,
                         const Now& now) {
  const Flight& flight = *line_.find(step.psn);
  const qp::Operation* const op = window.outstanding(flight.index);
  const std::uint32_t most = op ? run_of(flight, step, budget) : 0;
  if (most < 2) return false;
  Outgoing packet{.head = head_of(*op, step.psn), .is_ecn_capable = true};
  describe_data(*op, false, false, packet.head);
  packet.payload_bytes = settings_.path_mtu;
  const qp::OpIndex index = flight.index;
  const std::uint64_t from = bytes_at(flight, step.psn) - flight.before;
  const std::uint32_t count =
      wire_.transmit_run(packet, most, settings_.path, [&](std::uint32_t first, const Pieces& to) {
        const std::uint64_t offset = from + std::uint64_t{first} * settings_.path_mtu;
        return window.gather_pieces(index, offset, to).has_value();
      });
  if (count == 0) return false;
  for (std::uint32_t i = 0; i < count; ++i)
    budget.take(settings_.path_mtu);
  counters_.packets += count;
  unasked_ += count;
  train_left_ -= std::min(train_left_, count);
  send_ = high_ = step.psn + count;
  arm(now);
  return true;
}

Wire::Sent Requester::send_data(const Flight& flight, Psn psn, bool asks, qp::SendWindow& window) {
  const Operation& op = *window.outstanding(flight.index);
  VERBENA_ASSERT(op.kind == OpKind::kSend || op.kind == OpKind::kWrite);
  Outgoing packet{.head = head_of(op, psn), .is_ecn_capable = true};
  packet.head.ack_request = asks;
  describe_data(op, psn == flight.first, psn.next() == flight.end(), packet.head);
  const std::uint64_t offset = bytes_at(flight, psn) - flight.before;
  packet.payload_bytes =
      static_cast<std::size_t>(bytes_at(flight, psn.next()) - flight.before - offset);
  const std::optional<Piggyback> along = goes_along(flight, op, window);
  if (along) {
    packet.head.mark = kPiggybackMark;
    packet.payload_bytes += kPiggybackBytes;
  }
  const qp::OpIndex index = flight.index;
  const auto outcome = wire_.transmit(packet, settings_.path, [&](std::span<std::byte> to) {
    if (along) {
      encode(*along, to.last<kPiggybackBytes>());
      to = to.first(to.size() - kPiggybackBytes);
    }
    return to.empty() || window.gather(index, offset, to).has_value();
  });
  if (along && outcome == Wire::Sent::kSent) owing_.went_along();
  return outcome;
}

// Where a packet by itself would be half of the work. Of more messages it ends the train, which a
// longer one at its begin would cut: all but the last packet of a train have one length.
std::optional<Piggyback> Requester::goes_along(const Flight& flight, const Operation& op,
                                               const qp::SendWindow& window) const {
  const bool is_possible = agreement_.is_agreed() && op.kind == OpKind::kSend &&
                           flight.packets == 1 && window.waiting() <= 1 &&
                           flight.length + kPiggybackBytes <= settings_.path_mtu;
  return is_possible ? owing_.owed() : std::nullopt;
}

// What is answered by itself: a READ of `count` packets from here on, or an operation of one
// packet. A part of a READ has the PSNs that its
// answers would have had in the whole (9.7.3.1).
Wire::Sent Requester::send_request(const Flight& flight, Psn psn, std::uint32_t count,
                                   qp::SendWindow& window) {
  const Operation& op = *window.outstanding(flight.index);
  Outgoing packet{.head = head_of(op, psn), .is_ecn_capable = true};
  const std::uint64_t offset = bytes_at(flight, psn) - flight.before;
  packet.head.ack_request = true;
  packet.head.remote_address = op.remote_address + offset;
  packet.head.remote_key = op.remote_key;
  packet.head.dma_length =
      static_cast<std::uint32_t>(bytes_at(flight, psn + count) - flight.before - offset);
  const bool is_swap = op.kind == OpKind::kCompareSwap;
  packet.head.swap_or_add = is_swap ? op.swap : op.compare_add;
  packet.head.compare = is_swap ? op.compare_add : 0;
  if (op.kind == OpKind::kFlush) {
    packet.head.dma_length = op.flush.length;
    packet.head.placement = {.global_visibility = op.flush.global_visibility,
                             .persistence = op.flush.persistence};
    packet.head.selectivity =
        op.flush.whole_region ? wire::Selectivity::kRegion : wire::Selectivity::kRange;
  }
  if (op.kind == OpKind::kAtomicWrite) {
    packet.payload_bytes = packet.head.dma_length = sizeof(std::uint64_t);
  }
  const qp::OpIndex index = flight.index;
  return wire_.transmit(packet, settings_.path, [&](std::span<std::byte> to) {
    return to.empty() || window.gather(index, 0, to).has_value();
  });
}

void Requester::sent(const Step& step, std::size_t bytes, bool asks, Instant now) {
  ++counters_.packets;
  agreement_.sent();
  unasked_ = asks ? 0 : unasked_ + 1;
  if (starts_over_at_ == step.psn) starts_over_at_.reset();
  const Psn end = step.psn + step.most;
  const bool is_new = end - high_ > 0;
  if (is_new) {
    high_ = end;
    if (asks && step.is_measured && !timed_) timed_ = Timed{.psn = step.psn, .at = now};
  } else {
    ++counters_.repeated;
    // The answer may be to this sending, or to the first (Karn). After a probe it is the first when
    // nothing was lost.
    if (timed_ && timed_->psn - step.psn >= 0) {
      timed_->is_doubtful = true;
      if (!step.is_repair || !probed_upto_) timed_.reset();
    }
  }
  if (step.is_repair) {
    repairs_.take(step.most);
  } else {
    train_left_ -= std::min(train_left_, 1u);
    const Flight& flight = *line_.find(step.psn);
    if (flight.brings_back) reads_.asked_upto(end);
    send_ = end;
  }
  if (congestion_) congestion_->sent(bytes, now);
  if (asks && end - asked_upto_ > 0) asked_upto_ = end;
  arm(now);
}

}  // namespace verbena::roce
