// SPDX-License-Identifier: MIT
#include "side.h"

#include <algorithm>

#include "world.h"

namespace verbena::sim {

using qp::QpAttributes;
using qp::QpEvent;
using qp::QpState;
using queues::Completion;

namespace {

constexpr Duration kNextTurn = Duration::nanoseconds(200);
constexpr std::uint32_t kInitMask = qp::kPkeyIndex | qp::kPort;
constexpr std::uint32_t kRtrConnected =
    qp::kAddressVector | qp::kPathMtu | qp::kDestinationQp | qp::kReceivePsn;
constexpr std::uint32_t kRtrReliable = kRtrConnected | qp::kReadsInMax | qp::kRnrTimer;
constexpr std::uint32_t kRtsReliable =
    qp::kSendPsn | qp::kTimeout | qp::kRetryCount | qp::kRnrRetry | qp::kReadsOutMax;

}  // namespace

Side::Side(World& world, Endpoint& home, Endpoint& away, QpNum number)
    : world_(world), home_(home), number_(number), workload_(world.random, world.plan, home, away) {
  const Plan& plan = world.plan;
  qp_ = std::make_unique<qp::QueuePair>(qp::QpConfig{
      .type = plan.type,
      .number = number,
      .pd = home.pd,
      .receive_pd = home.pd,
      .signal_all = plan.signal_all,
      .send_depth = plan.send_depth,
      .send_sge_max = kSgeMax,
      .inline_max = kInlineMax,
      .receive_depth = 32,
      .receive_sge_max = kSgeMax,
      .send_completions = &home.sends,
      .receive_completions = &home.receives,
      .shared_receives = plan.shared_receives ? &home.shared : nullptr,
      .regions = &home.table,
      .events = this,
      .datagram_max = kDatagramMax,
  });
}

bool Side::is_reliable() const { return world_.plan.type == qp::QpType::kRc; }

// -- lives --------------------------------------------------------------------------------------

void Side::begin_life() {
  const Plan& plan = world_.plan;
  posted_ = 0;
  seen_ = QpState::kReset;
  has_reason_ = false;
  wake_.reset();
  events_.clear();
  expected_events_.clear();
  paused_until_ = Instant();
  carrier_ = std::make_unique<SimCarrier>(*this);
  sends_ = std::make_unique<SendLedger>(world_.failures,
                                        SendLedger::Limits{.depth = plan.send_depth,
                                                           .is_reliable = is_reliable(),
                                                           .signal_all = plan.signal_all,
                                                           .retry_count = plan.retry_count,
                                                           .rnr_retry = plan.rnr_retry,
                                                           .reads_out_max = plan.reads_out_max,
                                                           .is_revoked = &home_.is_revoked});
  receives_ = std::make_unique<ReceiveLedger>(
      world_.failures, plan.shared_receives ? home_.shared_posted : own_posted_,
      plan.shared_receives);
  access_ = memory::kRemoteWrite | memory::kRemoteRead | memory::kRemoteAtomic;
  if (plan.mischief == Mischief::kNotEnabled)
    access_ &= static_cast<std::uint32_t>(world_.random.next());
  const bool connected = plan.type != qp::QpType::kUd;
  modify(QpState::kInit, kInitMask | (connected ? qp::kAccessFlags : qp::kQkey));
  modify(QpState::kReadyToReceive, is_reliable() ? kRtrReliable : connected ? kRtrConnected : 0);
  if (!plan.stays_in_rtr || number_.value % 2 == 0) move_to_rts();
}

void Side::move_to_rts() {
  modify(QpState::kReadyToSend, is_reliable() ? kRtsReliable : std::uint32_t{qp::kSendPsn});
}

void Side::modify(QpState to, std::uint32_t mask, bool must_succeed) {
  const Plan& plan = world_.plan;
  QpAttributes wanted;
  wanted.state = to;
  wanted.path_mtu = 5;
  wanted.qkey = kQkey;
  wanted.destination = peer_->number();
  wanted.access = access_;
  wanted.path = {.has_grh = true, .port = 1};
  wanted.notify_drained = notify_drained_;
  wanted.reads_out_max = plan.reads_out_max;
  wanted.reads_in_max = plan.reads_in_max;
  wanted.rnr_timer = 3;
  wanted.port = 1;
  wanted.timeout = 5;
  wanted.retry_count = plan.retry_count;
  wanted.rnr_retry = plan.rnr_retry;
  const auto done = qp_->modify(wanted, mask | qp::kState);
  if (must_succeed) world_.failures.check(done.has_value(), "a move was refused");
  observe();
}

void Side::end_life() {
  if (is_dead() || home_.overruns > 0) {
    sends_->forget();
    receives_->forget();
  }
  if (is_dead()) return;
  if (qp_->state() != QpState::kError) {
    expect_stop();
    modify(QpState::kError, 0);
  }
  if (home_.overruns == 0) check_events();
}

void Side::to_reset() {
  modify(QpState::kReset, 0);
  own_posted_.clear();
}

void Side::die() {
  home_.is_dead = true;
  world_.clock.after(Duration::microseconds(50), [this] {
    peer_->carrier_->lose_peer();
    peer_->drive();
  });
}

// -- what the queue pair reports ----------------------------------------------------------------

void Side::qp_event(QpNum number, QpEvent event) {
  world_.failures.check(number == number_, "an event of another queue pair", number.value);
  events_.push_back(event);
}

void Side::note_request() {
  if (qp_->state() != QpState::kReadyToReceive) return;
  if (!std::ranges::count(expected_events_, QpEvent::kCommunicationEstablished))
    expect_event(QpEvent::kCommunicationEstablished);
}

void Side::observe() {
  const QpState now = qp_->state();
  if (home_.overruns > 0) return observe_overrun();
  if (now == QpState::kDrained && seen_ != now) sends_->draining();
  if (now == QpState::kDrained && notify_drained_ && !is_drained_told_ && sends_->is_drained()) {
    is_drained_told_ = true;
    expect_event(QpEvent::kSendQueueDrained);
  }
  if (now == seen_) return;
  const QpState before = seen_;
  seen_ = now;
  if (before == QpState::kDrained || before == QpState::kSendError)
    if (now == QpState::kReadyToSend) sends_->resumed();
  if (now != QpState::kError && now != QpState::kSendError) return;
  world_.failures.check(now == QpState::kError || !is_reliable(), "a reliable one in SQE");
  sends_->stopped(has_reason_);
  if (now != QpState::kError) return;
  receives_->flushed();
  if (world_.plan.shared_receives) expect_event(QpEvent::kLastReceiveReached);
}

// The queue pair that lost a completion has failed for good, and has said so. What is left is in
// nobody's books.
void Side::observe_overrun() {
  if (!home_.overrun_seen) {
    world_.failures.check(qp_->state() == QpState::kError, "lives on without its completion");
    world_.failures.check(std::ranges::count(events_, QpEvent::kFatal) == 1, "no fatal event");
  }
  home_.overrun_seen = true;
  seen_ = qp_->state();
  sends_->forget();
  receives_->forget();
}

void Side::completed(const Completion& completion) {
  const bool is_receive = completion.kind == queues::CompletionKind::kReceive ||
                          completion.kind == queues::CompletionKind::kReceiveWithImmediate;
  if (is_receive)
    receives_->completed(completion);
  else
    sends_->completed(completion);
}

void Side::check_events() {
  std::ranges::sort(events_);
  std::ranges::sort(expected_events_);
  world_.failures.check(events_ == expected_events_, "other events than expected", events_.size());
}

// -- the NIC ------------------------------------------------------------------------------------

void Side::drive() {
  if (is_dead() || home_.overruns > 0 || seen_ == QpState::kReset) return;
  const Instant now = world_.clock.now();
  if (now < paused_until_) return schedule_wake(false);
  const auto budget = [&] {
    return qp::Budget{.bytes = 64 + world_.random.below(4096),
                      .operations = 1 + static_cast<unsigned>(world_.random.below(16))};
  };
  qp::Budget collecting = budget();
  carrier_->collect(qp_->window(), collecting, now);
  qp::Budget issuing = budget();
  carrier_->issue(qp_->window(), issuing, now);
  qp::Budget serving = budget();
  const bool more = carrier_->serve(qp_->responder(), serving, now);
  schedule_wake(more || carrier_->wants_more() || !carrier_->is_idle());
}

void Side::schedule_wake(bool soon) {
  const Instant now = world_.clock.now();
  std::optional<Instant> when;
  const auto consider = [&when](std::optional<Instant> candidate) {
    if (candidate && (!when || *candidate < *when)) when = candidate;
  };
  consider(carrier_->next_deadline());
  consider(qp_->window().resume_at());
  if (soon) consider(now + kNextTurn);
  if (now < paused_until_) when = paused_until_;
  if (!when || (wake_ && *wake_ <= *when)) return;
  wake_ = when;
  const unsigned life = world_.life();
  world_.clock.at(*when, [this, life, at = *when] {
    if (life != world_.life() || wake_ != at) return;
    wake_.reset();
    drive();
  });
}

bool Side::is_finished() const {
  if (is_dead() || home_.overruns > 0) return true;
  const QpState state = qp_->state();
  const bool is_at_rest = state == QpState::kReadyToSend || state == QpState::kError;
  return posted_ == world_.plan.sends && is_at_rest && !qp_->window().has_work() &&
         carrier_->is_idle();
}

// -- the program --------------------------------------------------------------------------------

void Side::program() {
  if (is_dead() || home_.overruns > 0) return;
  World& world = world_;
  if (!world.mischief_done && world.is_faulty() && world.random.one_in(12)) make_mischief();
  if (is_dead()) return;
  change_state();
  post_receives();
  post_sends();
  const unsigned rarely = world.plan.mischief == Mischief::kSmallCompletionQueue ? 6 : 2;
  if (world.random.one_in(rarely)) world.poll(home_);
}

void Side::make_mischief() {
  World& world = world_;
  switch (world.plan.mischief) {
    case Mischief::kModifyToError:
      expect_stop();
      modify(QpState::kError, 0);
      break;
    case Mischief::kPeerDies: die(); break;
    case Mischief::kRevoke: home_.revoke(); return;
    case Mischief::kPause:
      paused_until_ = world.clock.now() +
                      Duration::microseconds(static_cast<std::int64_t>(world.random.below(800)));
      return;
    case Mischief::kNone:
    case Mischief::kBadLocalKey:
    case Mischief::kBadRequest:
    case Mischief::kBadReceive:
    case Mischief::kNotEnabled:
    case Mischief::kSmallCompletionQueue:
    case Mischief::kCount: return;
  }
  world.mischief_done = true;
}

void Side::change_state() {
  World& world = world_;
  switch (qp_->state()) {
    case QpState::kReadyToReceive:
      if (!world.is_faulty() || world.random.one_in(10)) move_to_rts();
      return;
    case QpState::kReadyToSend:
      if (!world.plan.drains || !world.is_faulty() || !world.random.one_in(10)) return;
      notify_drained_ = world.random.one_in(2);
      is_drained_told_ = false;
      return modify(QpState::kDrained, qp::kNotifyDrained);
    case QpState::kDrained: {
      world.failures.check(qp_->is_draining() != sends_->is_drained(), "draining or drained?");
      if (qp_->is_draining() || world.random.one_in(2)) return;
      return modify(QpState::kReadyToSend, 0);
    }
    case QpState::kSendError:
      if (world.random.one_in(2)) modify(QpState::kReadyToSend, 0);
      has_reason_ = false;
      return;
    case QpState::kReset:
    case QpState::kInit:
    case QpState::kError: return;
  }
}

void Side::post_sends() {
  World& world = world_;
  if (qp_->state() == QpState::kReadyToReceive) return;
  for (auto some = world.random.below(6); some > 0 && posted_ < world.plan.sends; --some) {
    if (home_.overruns > 0) return;
    if (!sends_->has_room()) {
      const auto refused = qp_->post_send({.opcode = queues::SendOpcode::kSend});
      return world.failures.check(!refused && refused.error() == qp::PostError::kFull,
                                  "a work request too many was not refused");
    }
    PostedSend send = workload_.next_send(next_id_++, peer_->number());
    std::vector<Sge> sges = send.sges;
    // Inline data is read through the program's own pointers.
    if (send.flags & queues::kInline)
      for (Sge& sge : sges)
        sge.address = reinterpret_cast<std::uintptr_t>(
            home_.bytes(sge.address - home_.address(0), sge.length).data());
    const qp::SendRequest request{.wr_id = send.wr_id,
                                  .opcode = send.opcode,
                                  .flags = send.flags,
                                  .immediate = send.immediate,
                                  .remote_address = send.remote_address,
                                  .remote_key = send.remote_key,
                                  .compare_add = send.compare_add,
                                  .swap = send.swap,
                                  .address_handle = send.address_handle,
                                  .remote_qp = send.remote_qp,
                                  .remote_qkey = send.remote_qkey,
                                  .sges = sges};
    sends_->posted(std::move(send));
    ++posted_;
    world.failures.check(qp_->post_send(request).has_value(), "a good work request was refused");
    observe();
  }
}

void Side::post_receives() {
  World& world = world_;
  const bool shared = world.plan.shared_receives;
  PostedReceives& posted = shared ? home_.shared_posted : own_posted_;
  if (!shared && qp_->state() == QpState::kError && !world.random.one_in(4)) return;
  for (auto some = world.random.below(5); some > 0 && posted.size() < world.plan.receives_max;
       --some) {
    PostedReceive receive = workload_.next_receive(next_id_++);
    const bool is_posted = shared ? !home_.shared.post(receive.wr_id, receive.sges)
                                  : qp_->post_receive(receive.wr_id, receive.sges).has_value();
    world.failures.check(is_posted, "a good receive was refused");
    posted.push_back(std::move(receive));
    // In ERR it is flushed at once.
    if (!shared && qp_->state() == QpState::kError) receives_->flushed();
    observe();
  }
}

}  // namespace verbena::sim
