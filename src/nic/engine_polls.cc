// SPDX-License-Identifier: MIT
// What is done in each look at the NIC: by pollers, who have no time, and by the NIC thread.
#include <sched.h>

#include <algorithm>
#include <bit>

#include "base/ticks.h"
#include "nic/engine.h"
#include "nic/nic.h"
#include "nic/nic_qp.h"
#include "nic/raw_nic.h"
#include "nic/wire_nic.h"

namespace verbena::nic {
namespace {

// So many polls without anything to do, some microseconds, before we wake whom we wait for; and
// again at each doubling.
constexpr std::uint32_t kIdlePollsForNudge = 256;
// One more for so many bytes of what we wait for, up to a MiB of it: a peer that copies is at it,
// and its NIC thread would only take the core away from it.
constexpr std::uint64_t kBytesForIdlePoll = 256;
constexpr std::uint64_t kCopiedMax = 1 << 20;
// So many times requests are found, and nothing is posted between, before it is a stream. Then so
// many ticks, a quarter of a microsecond, until the next look.
constexpr std::uint32_t kFindsForStream = 32;
// So many times, before more than one message is taken at a time; and then how many.
constexpr std::uint32_t kFindsForMany = 4;
constexpr std::uint32_t kManyAtOnce = 64;
constexpr std::uint64_t kStreamRest = 700;
// Between a poller's looks at the timers, about two microseconds: much finer than any timer, and
// the clock takes a good part of what a look at a socket does.
constexpr std::uint64_t kTicksBetweenTimers = 5'000;
// So many, some tens of microseconds, before we let others have the core now and then.
constexpr std::uint32_t kIdlePollsForYield = 2048;
constexpr std::uint32_t kPollsBetweenYields = 256;

}  // namespace

void Engine::drive() {
  // Several pollers may lose counts here; any change will do.
  polls_.store(polls_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  if (doorbell_->is_asleep()) [[unlikely]]
    take_lease();
  if (work<Patience::kNone>()) {
    idle_polls_.store(0, std::memory_order_relaxed);
    return;
  }
  const std::uint32_t idle = idle_polls_.load(std::memory_order_relaxed) + 1;
  idle_polls_.store(idle, std::memory_order_relaxed);
  if (idle >= kIdlePollsForNudge && std::has_single_bit(idle)) [[unlikely]]
    nudge_peers(idle);
  // Whoever we wait for may be waiting for this core. With a core for everybody this returns at
  // once.
  if (idle >= kIdlePollsForYield && idle % kPollsBetweenYields == 0) [[unlikely]]
    sched_yield();
}

// We wait for answers, and wait long. The peer's thread that polled a moment ago may do something
// else now, while its NIC thread still believes in the lease.
void Engine::nudge_peers(std::uint32_t idle_polls) {
  const QpTable::Reading reading(nic_.queue_pairs());
  Link* last = nullptr;
  nic_.queue_pairs().each([&](Qp& qp) {
    if (!qp.awaits_answer.load(std::memory_order_relaxed)) return;
    const std::unique_lock guard(qp.pair.lock(), std::try_to_lock);
    if (!guard.owns_lock() || !qp.link || qp.link.get() == last) return;
    const qp::SendWindow& window = qp.pair.window();
    const qp::Operation* const awaited = window.outstanding(window.oldest());
    const std::uint64_t copied = awaited ? std::min(awaited->length, kCopiedMax) : 0;
    if (idle_polls < kIdlePollsForNudge + copied / kBytesForIdlePoll) return;
    last = qp.link.get();
    last->doorbell().nudge();
  });
}

void Engine::take_lease() {
  const std::uint32_t polls = polls_while_asleep_.load(std::memory_order_relaxed) + 1;
  polls_while_asleep_.store(polls, std::memory_order_relaxed);
  if (polls == kPollsForLease) doorbell_->wake();
}

bool Engine::poll_wire(WireNic& wire) {
  if (wire.poll()) return true;
  if (timers_.earliest() == Instant::never()) return false;
  const std::uint64_t now = ticks();
  const std::uint64_t before = timers_looked_at_.load(std::memory_order_relaxed);
  if (now - before < kTicksBetweenTimers && now != 0) return false;
  timers_looked_at_.store(now, std::memory_order_relaxed);
  fire_timers(clock_now());
  return false;
}

bool Engine::answer_bells(Patience patience) {
  const QpTable::Reading reading(nic_.queue_pairs());
  return doorbell_->take([&](std::uint32_t index) { take_turns(index, patience); });
}

void Engine::take_turns(std::uint32_t index, Patience patience) {
  if (index == QpTable::kDatagramIndex) {
    if (links_.receive_datagrams() == Links::Received::kMore) ring_again(index, patience);
    links_.resume_datagram_senders();
    return;
  }
  nic_.queue_pairs().each_at(index, [&](Qp& qp) {
    std::unique_lock guard(qp.pair.lock(), std::defer_lock);
    if (patience == Patience::kSome) {
      guard.lock();
    } else if (!guard.try_lock()) {
      // Whoever holds it may have looked before this bell; so another turn.
      ring_again(index, patience);
      return;
    }
    const Now now(clock_now);
    // Else a stream that has come here once would stay in the general way.
    const bool is_taken = patience == Patience::kNone && qp.receive_at_once(kManyAtOnce, now) &&
                          !qp.wants_turn() && !qp.has_answers();
    // Who scans finds what is left by itself.
    const bool is_more = is_taken ? qp.has_requests() && !is_scanning_.load() : qp.turn(now);
    if (is_more) ring_again(index, patience);
  });
}

// The NIC thread comes back by itself. A poller may go and wait for an event, while the NIC thread
// found no bell, since the poller had taken it, and went to sleep.
void Engine::ring_again(std::uint32_t index, Patience patience) {
  if (patience == Patience::kSome) return doorbell_->ring(index);
  doorbell_->ring_and_wake(index);
}

// With the queue pair's lock. A reader that is as fast as the writer looks at the very line that is
// being written, and both wait for that line at every message. In a stream that nobody answers it
// pays to let some come.
inline void Engine::rest_in_stream(Qp& qp) {
  const std::uint32_t posts = posts_.load(std::memory_order_relaxed);
  if (posts != posts_seen_) {
    posts_seen_ = posts;
    finds_without_post_ = 0;
  } else if (++finds_without_post_ >= kFindsForStream) [[unlikely]] {
    qp.glance.rest_from_requests(kStreamRest);
  }
}

template <Engine::Patience patience>
[[gnu::always_inline]] inline bool Engine::visit(Qp& qp) {
  // Somebody is at it right now: as good as found.
  if (!take<patience>(qp.pair.lock())) [[unlikely]]
    return true;
  const std::lock_guard guard(qp.pair.lock(), std::adopt_lock);
  // Who answers each message is about to: no look yet at what may come behind it, since that is a
  // line of the peer's.
  const std::uint32_t most = finds_without_post_ < kFindsForMany ? 1 : kManyAtOnce;
  if (const Now now(clock_now); patience == Patience::kNone && qp.receive_at_once(most, now))
      [[likely]] {
    if (qp.wants_turn() && qp.turn(now)) [[unlikely]]
      ring_again(qp.number().index(), patience);
    rest_in_stream(qp);
    return true;
  }
  const bool had_requests = qp.has_requests();
  const bool found = take_turn(qp, patience);
  if (had_requests && patience == Patience::kNone) rest_in_stream(qp);
  return found;
}

template <Engine::Patience patience>
Engine::Scanned Engine::scan() {
  if (!is_scanning_.load(std::memory_order_relaxed)) [[unlikely]]
    return Scanned::kNothing;
  if (!take<patience>(watched_lock_)) [[unlikely]]
    return Scanned::kNothing;
  const std::lock_guard guard(watched_lock_, std::adopt_lock);
  bool found = false;
  // Who has nothing else to look at waits for a peer that answers at once.
  const bool waits = patience == Patience::kNone && watched_.size() == 1 &&
                     watched_.front()->answer_pace.is_due() && !links_.has_receivers() && !wire() &&
                     !raw();
  for (Qp* qp : watched_) {
    const bool is_answered = waits && qp->await_answer();
    if (patience == Patience::kNone && !is_answered && !qp->glance.has_news()) continue;
    if (patience == Patience::kNone) qp->glance.fetch_rest_of_request();
    found |= visit<patience>(*qp);
    if (is_answered) return Scanned::kAll;
  }
  if (links_.has_receivers()) [[unlikely]] {
    const QpTable::Reading reading(nic_.queue_pairs());
    const Links::Received received = links_.receive_datagrams();
    found |= received != Links::Received::kNone;
    if (received == Links::Received::kMore) ring_again(QpTable::kDatagramIndex, patience);
  }
  return found ? Scanned::kSomething : Scanned::kNothing;
}

template <Engine::Patience patience>
bool Engine::work() {
  bool answered = false;
  if (doorbell_->any_ready()) [[unlikely]]
    answered = answer_bells(patience);
  const Scanned scanned = scan<patience>();
  if (scanned == Scanned::kAll) return true;
  bool found = scanned == Scanned::kSomething || answered;
  if (RawNic* const packets = raw()) [[unlikely]]
    found |= packets->poll();
  WireNic* const wire = wire_.load(std::memory_order_acquire);
  if (wire) [[unlikely]]
    return poll_wire(*wire) || found;
  return found;
}

// With the queue pair's lock.
bool Engine::take_turn(Qp& qp, Patience patience) {
  if (!qp.has_incoming()) return false;
  if (qp.turn(Now(clock_now))) ring_again(qp.number().index(), patience);
  return true;
}

template bool Engine::work<Engine::Patience::kSome>();

}  // namespace verbena::nic
