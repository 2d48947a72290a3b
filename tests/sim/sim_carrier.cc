// SPDX-License-Identifier: MIT
#include "sim_carrier.h"

#include <algorithm>
#include <cstring>

#include "side.h"
#include "world.h"

namespace verbena::sim {

using qp::Answer;
using qp::OpIndex;
using qp::OpKind;
using qp::Refusal;
using queues::Completion;
using queues::CompletionKind;
using queues::Status;

namespace {

constexpr Duration kTimeout = Duration::microseconds(150);
constexpr std::size_t kGrhBytes = 40;

bool is_atomic(const qp::Operation& op) {
  return op.kind == OpKind::kCompareSwap || op.kind == OpKind::kFetchAdd;
}
bool reads(const qp::Operation& op) { return op.kind == OpKind::kRead || is_atomic(op); }

}  // namespace

void SimCarrier::arrived(Packet packet) {
  if (packet.request)
    requests_.push_back(std::move(*packet.request));
  else
    replies_.push_back(std::move(packet.reply));
}

// -- requester ----------------------------------------------------------------------------------

void SimCarrier::issue(qp::SendWindow& window, qp::Budget& budget, const Now& now) {
  wants_more_ = false;
  while (!budget.spent()) {
    const qp::Operation* op = window.next(now);
    side_.observe();
    if (!op) return;
    side_.sends().offered(*op);
    if (partial_of_ != op->index.value()) partial_.clear();
    partial_of_ = op->index.value();
    if (!reads(*op) && !gather(window, *op, budget)) {
      if (partial_of_) break;
      continue;
    }
    send(window, *op, now);
  }
  wants_more_ = true;
}

// False when it is not complete yet, or not to be had (then nothing is partial).
bool SimCarrier::gather(qp::SendWindow& window, const qp::Operation& op, qp::Budget& budget) {
  World& world = side_.world();
  while (partial_.size() < op.length) {
    if (budget.spent() || world.percent(world.plan.pauses_in_messages_percent)) return false;
    const std::size_t done = partial_.size();
    const auto size = std::min<std::size_t>(world.plan.piece, op.length - done);
    partial_.resize(done + size);
    budget.take(size);
    if (window.gather(op.index, done, std::span(partial_).subspan(done))) continue;
    side_.sends().memory_refused(op.index.value());
    partial_of_.reset();
    side_.observe();
    return false;
  }
  std::vector<std::byte> expected;
  for (const Sge& sge : side_.sends().at(op.index.value()).sges) {
    const auto part = side_.home().shadow_at(sge.address, sge.length);
    expected.insert(expected.end(), part.begin(), part.end());
  }
  world.failures.check(partial_ == expected, "gathered other bytes", op.index.value());
  budget.take(0);
  return true;
}

void SimCarrier::send(qp::SendWindow& window, const qp::Operation& op, Instant now) {
  const std::uint32_t index = op.index.value();
  if (side_.sends().cursor() == side_.sends().oldest()) last_progress_ = now;
  Packet packet{.to = side_.peer().number()};
  packet.request = Request{
      .index = index, .round = round_, .source = side_.number(), .op = op, .payload = partial_};
  partial_of_.reset();
  side_.sends().sent(index);
  window.issued(now);
  side_.observe();
  side_.world().transmit(std::move(packet));
}

void SimCarrier::collect(qp::SendWindow& window, qp::Budget& budget, const Now& now) {
  World& world = side_.world();
  if (lost_ && window.has_work()) {
    side_.sends().told_peer_lost();
    window.peer_lost(now);
    side_.observe();
  }
  while (!replies_.empty() && !budget.spent()) {
    const Reply reply = std::move(replies_.front());
    replies_.pop_front();
    budget.take(reply.data.size());
    take(window, reply, now);
  }
  if (world.percent(world.plan.bogus_answers_percent)) tell_nonsense(window, now);
  const std::optional<Instant> deadline = next_deadline();
  if (!deadline || now < *deadline) return;
  world.failures.check(
      window.has_outstanding() && window.oldest() == OpIndex(side_.sends().oldest()),
      "the window is not where it should be", side_.sends().oldest());
  tell(window, side_.sends().oldest(), Answer::kSilence, now);
  ++round_;
  last_progress_ = now;
}

std::optional<Instant> SimCarrier::next_deadline() const {
  const SendLedger& sends = side_.sends();
  if (!side_.is_reliable() || !sends.is_active() || sends.cursor() == sends.oldest())
    return std::nullopt;
  return last_progress_ + kTimeout;
}

void SimCarrier::take(qp::SendWindow& window, const Reply& reply, Instant now) {
  SendLedger& sends = side_.sends();
  // The answer of a READ before it was lost: it will be asked for again.
  if (sends.has_read_before(reply.index)) return;
  if (reply.answer == Answer::kNotReady && reply.round != round_) return;
  const bool is_old = reply.index < sends.oldest();
  if (reply.answer == Answer::kDone && !reply.data.empty() && !is_old && sends.is_active() &&
      !scatter(window, reply))
    return;
  tell(window, reply.index, reply.answer, now, reply.rnr_timer);
  if (is_old) return;
  last_progress_ = now;
  if (reply.answer == Answer::kNotReady) ++round_;
}

bool SimCarrier::scatter(qp::SendWindow& window, const Reply& reply) {
  World& world = side_.world();
  const std::vector<Sge>& sges = side_.sends().at(reply.index).sges;
  for (std::size_t done = 0; done < reply.data.size();) {
    const auto size = std::min<std::size_t>(world.plan.piece, reply.data.size() - done);
    const auto bytes = std::span(reply.data).subspan(done, size);
    if (!window.scatter(OpIndex(reply.index), done, bytes)) {
      side_.sends().memory_refused(reply.index);
      side_.observe();
      return false;
    }
    side_.home().shadow_scatter(sges, done, bytes);
    done += size;
  }
  return true;
}

void SimCarrier::tell(qp::SendWindow& window, std::uint32_t index, Answer answer, Instant now,
                      std::uint8_t rnr_timer) {
  side_.sends().told(index, answer);
  window.answered(OpIndex(index), answer, now, rnr_timer);
  side_.observe();
}

// Answers that are late or too early: nothing may come of them.
void SimCarrier::tell_nonsense(qp::SendWindow& window, Instant now) {
  World& world = side_.world();
  const auto answer = static_cast<Answer>(world.random.below(6));
  const std::uint32_t oldest = side_.sends().oldest();
  const auto distance = static_cast<std::uint32_t>(1 + world.random.below(5));
  const SendLedger& sends = side_.sends();
  if (world.random.one_in(2)) return tell(window, oldest - distance, answer, now);
  // What is being repeated is not refused again by an answer of the round before.
  if (sends.cursor() < sends.issued() && world.random.one_in(2))
    return tell(window, sends.cursor(),
                world.random.one_in(2) ? Answer::kNotReady : Answer::kSilence, now, 3);
  tell(window, side_.sends().issued() + distance - 1, answer, now);
}

// -- responder ----------------------------------------------------------------------------------

bool SimCarrier::serve(qp::Responder& responder, qp::Budget& budget, const Now&) {
  while (!requests_.empty() && !budget.spent()) {
    if (is_next(requests_.front()) &&
        execute(requests_.front(), responder, budget) == Step::kPaused)
      return true;
    execution_ = {};
    requests_.pop_front();
  }
  return !requests_.empty();
}

bool SimCarrier::is_next(const Request& request) {
  if (!side_.qp().responder().is_receiving()) return false;
  if (side_.qp().config().type == qp::QpType::kUd) return true;
  const qp::OpIndex index(request.index);
  const std::int32_t ahead = index - OpIndex(expected_);
  if (!side_.is_reliable()) return ahead >= 0;
  if (ahead == 0) return true;
  const auto known = answered_.find(request.index);
  if (ahead < 0 && known != answered_.end())
    side_.world().transmit({.to = side_.peer().number(), .reply = known->second});
  return false;
}

SimCarrier::Step SimCarrier::execute(const Request& request, qp::Responder& responder,
                                     qp::Budget& budget) {
  World& world = side_.world();
  std::optional<Refusal> refusal;
  if (!execution_.has_begun) {
    execution_.has_begun = true;
    refusal = begin(request, responder);
  }
  const std::uint64_t length = is_atomic(request.op) ? 0 : request.op.length;
  while (!refusal && execution_.offset < length) {
    if (budget.spent() || world.percent(world.plan.pauses_in_messages_percent))
      return Step::kPaused;
    // The rest of the message got lost.
    if (execution_.offset > 0 && world.is_faulty() && world.percent(world.plan.loss_percent)) {
      if (!side_.is_reliable()) expected_ = request.index + 1;
      return Step::kFinished;
    }
    const auto size = std::min<std::size_t>(world.plan.piece, length - execution_.offset);
    refusal = piece(request, responder, size);
    execution_.offset += size;
    budget.take(size);
  }
  if (!refusal) refusal = finish(request, responder);
  conclude(request, refusal, responder.rnr_timer());
  return Step::kFinished;
}

void SimCarrier::conclude(const Request& request, std::optional<Refusal> refusal,
                          std::uint8_t rnr_timer) {
  side_.observe();
  if (!side_.is_reliable()) {
    expected_ = request.index + 1;
    return;
  }
  Reply reply{.index = request.index, .round = request.round};
  if (refusal) {
    reply.answer = qp::answer_of(*refusal);
    reply.rnr_timer = rnr_timer;
  } else {
    reply.data = std::move(execution_.data);
  }
  if (refusal != Refusal::kNotReady) {
    expected_ = request.index + 1;
    answered_[request.index] = reply;
  }
  side_.world().transmit({.to = side_.peer().number(), .reply = std::move(reply)});
}

std::optional<Refusal> SimCarrier::compare(const Outcome& outcome, std::optional<Refusal> expected,
                                           const char* what) {
  const std::optional<Refusal> actual =
      outcome ? std::nullopt : std::optional<Refusal>(outcome.error());
  // A completion queue that is full ends everything.
  if (side_.home().overruns == 0)
    side_.world().failures.check(actual == expected, what,
                                 actual ? static_cast<unsigned>(*actual) : 99);
  return actual;
}

std::optional<Refusal> SimCarrier::predict(const qp::Operation& op) const {
  const std::uint32_t needed = op.kind == OpKind::kWrite  ? memory::kRemoteWrite
                               : op.kind == OpKind::kRead ? memory::kRemoteRead
                                                          : memory::kRemoteAtomic;
  if (!(side_.access() & needed)) return Refusal::kInvalidRequest;
  if (reads(op) && side_.world().plan.reads_in_max == 0) return Refusal::kInvalidRequest;
  if (is_atomic(op) && op.remote_address % 8 != 0) return Refusal::kInvalidRequest;
  if (op.length == 0) return std::nullopt;
  const Endpoint& home = side_.home();
  if (!home.may_touch(op.remote_key, home.pd, op.remote_address, op.length, needed))
    return Refusal::kAccess;
  return std::nullopt;
}

std::optional<Refusal> SimCarrier::begin(const Request& request, qp::Responder& responder) {
  const qp::Operation& op = request.op;
  if (op.kind == OpKind::kSend) return begin_receive(request, responder);
  side_.note_request();
  const std::optional<Refusal> expected = predict(op);
  if (expected && side_.is_reliable()) {
    side_.expect_stop();
    side_.expect_event(*expected == Refusal::kAccess ? qp::QpEvent::kAccessError
                                                     : qp::QpEvent::kRequestError);
  }
  if (is_atomic(op)) {
    if (!expected) return do_atomic(request, responder);
    const auto result = responder.atomic(op.remote_key, op.remote_address, {});
    side_.world().failures.check(!result && result.error() == *expected, "atomic not refused");
    return expected;
  }
  if (op.kind == OpKind::kWrite)
    return compare(responder.begin_write(op.remote_key, op.remote_address, op.length), expected,
                   "WRITE judged otherwise");
  return compare(responder.begin_read(op.remote_key, op.remote_address, op.length), expected,
                 "READ judged otherwise");
}

std::optional<Refusal> SimCarrier::begin_receive(const Request& request, qp::Responder& responder) {
  ReceiveLedger& receives = side_.receives();
  const bool is_datagram = side_.qp().config().type == qp::QpType::kUd;
  if (is_datagram) {
    const bool fits = request.op.remote_qkey == kQkey;
    side_.world().failures.check(responder.datagram_allowed(request.op.remote_qkey) == fits,
                                 "QKey judged otherwise");
    if (!fits) return Refusal::kAccess;
  }
  side_.note_request();
  const PostedReceive* receive = receives.front();
  std::optional<Refusal> expected;
  if (!receive)
    expected = Refusal::kNotReady;
  else if (request.op.length + (is_datagram ? kGrhBytes : 0) > receive->room())
    expected = Refusal::kInvalidRequest;
  else
    execution_.receive = receive->sges;
  const auto refusal =
      compare(responder.begin_receive(request.op.length), expected, "SEND judged otherwise");
  if (!receive) return refusal;
  receives.take();
  if (expected && (side_.is_reliable() || side_.world().plan.shared_receives)) {
    receives.ended({.status = Status::kLocalLength});
    side_.expect_stop();
  }
  if (refusal || !is_datagram) return refusal;
  // What is in it does not matter here, only where it goes.
  const std::vector<std::byte> grh(kGrhBytes, static_cast<std::byte>(request.index));
  return place(responder, grh, 0);
}

// `offset` counts from the start of the receive: 40 more than what the responder counts for
// datagrams.
std::optional<Refusal> SimCarrier::place(qp::Responder& responder, std::span<const std::byte> bytes,
                                         std::uint64_t offset) {
  ReceiveLedger& receives = side_.receives();
  const bool is_datagram = side_.qp().config().type == qp::QpType::kUd;
  const bool is_bad = receives.front() && receives.front()->has_bad_key;
  if (is_bad) {
    receives.ended({.status = Status::kLocalProtection});
    side_.expect_stop();
  }
  const Outcome placed = is_datagram && offset < kGrhBytes
                             ? responder.place_grh(bytes)
                             : responder.place(offset - (is_datagram ? kGrhBytes : 0), bytes);
  const auto refusal =
      compare(placed, is_bad ? std::optional(Refusal::kOperation) : std::nullopt, "placing");
  if (!refusal) side_.home().shadow_scatter(execution_.receive, offset, bytes);
  return refusal;
}

std::optional<Refusal> SimCarrier::piece(const Request& request, qp::Responder& responder,
                                         std::size_t size) {
  const qp::Operation& op = request.op;
  const std::uint64_t offset = execution_.offset;
  const bool is_datagram = side_.qp().config().type == qp::QpType::kUd;
  if (op.kind == OpKind::kSend)
    return place(responder, std::span(request.payload).subspan(offset, size),
                 offset + (is_datagram ? kGrhBytes : 0));
  Endpoint& home = side_.home();
  const std::uint64_t address = op.remote_address + offset;
  // It may have been revoked since the message began.
  const std::optional<Refusal> expected = home.may_touch(op.remote_key, home.pd, address, size, 0)
                                              ? std::nullopt
                                              : std::optional(Refusal::kAccess);
  if (expected && side_.is_reliable()) {
    side_.expect_stop();
    side_.expect_event(qp::QpEvent::kAccessError);
  }
  if (op.kind == OpKind::kWrite) {
    const auto bytes = std::span(request.payload).subspan(offset, size);
    const auto refusal =
        compare(responder.write(op.remote_key, address, bytes), expected, "writing");
    if (!refusal) home.shadow_write(address, bytes);
    return refusal;
  }
  std::vector<std::byte> bytes(size);
  const auto refusal = compare(responder.read(op.remote_key, address, bytes), expected, "reading");
  if (refusal) return refusal;
  side_.world().failures.check(bytes == home.shadow_at(address, size), "read other bytes");
  execution_.data.insert(execution_.data.end(), bytes.begin(), bytes.end());
  return refusal;
}

std::optional<Refusal> SimCarrier::do_atomic(const Request& request, qp::Responder& responder) {
  const qp::Operation& op = request.op;
  Endpoint& home = side_.home();
  std::uint64_t before = 0;
  std::memcpy(&before, home.shadow_at(op.remote_address, 8).data(), sizeof before);
  const bool add = op.kind == OpKind::kFetchAdd;
  const auto result = responder.atomic(op.remote_key, op.remote_address,
                                       {.add = add, .operand = op.compare_add, .swap = op.swap});
  if (!result) {
    side_.world().failures.add("good atomic refused");
    return result.error();
  }
  side_.world().failures.check(*result == before, "atomic gave another value", *result);
  const std::uint64_t after = add                        ? before + op.compare_add
                              : before == op.compare_add ? op.swap
                                                         : before;
  home.shadow_write(op.remote_address, std::as_bytes(std::span(&after, 1)));
  execution_.data.resize(sizeof *result);
  std::memcpy(execution_.data.data(), &*result, sizeof *result);
  return std::nullopt;
}

std::optional<Refusal> SimCarrier::finish(const Request& request, qp::Responder& responder) {
  const qp::Operation& op = request.op;
  const bool is_datagram = side_.qp().config().type == qp::QpType::kUd;
  const qp::Arrived arrived{.has_immediate = op.has_immediate,
                            .invalidates = op.invalidates,
                            .is_solicited = op.is_solicited,
                            .immediate = op.immediate,
                            .source_qp = request.source,
                            .has_grh = is_datagram};
  Completion completion;
  completion.byte_length = static_cast<std::uint32_t>(op.length + (is_datagram ? kGrhBytes : 0));
  if (op.has_immediate) completion.immediate = op.immediate;
  completion.flags = op.has_immediate ? queues::kHasImmediate : std::uint8_t{0};
  ReceiveLedger& receives = side_.receives();
  if (op.invalidates) {
    receives.ended({.status = Status::kRemoteInvalidRequest});
    side_.expect_stop();
    side_.expect_event(qp::QpEvent::kAccessError);
    return compare(responder.finish_receive(arrived), Refusal::kAccess, "invalidating");
  }
  if (op.kind == OpKind::kSend) {
    completion.kind = CompletionKind::kReceive;
    if (is_datagram) {
      completion.source_qp = request.source;
      completion.flags |= queues::kHasGrh;
    }
    receives.ended(completion);
    return compare(responder.finish_receive(arrived), std::nullopt, "finishing a SEND");
  }
  if (op.kind != OpKind::kWrite || !op.has_immediate) return std::nullopt;
  completion.kind = CompletionKind::kReceiveWithImmediate;
  std::optional<Refusal> expected;
  if (!receives.front())
    expected = Refusal::kNotReady;
  else
    receives.ended(completion);
  return compare(responder.finish_write_with_immediate(op.length, arrived), expected,
                 "finishing a WRITE with immediate");
}

}  // namespace verbena::sim
