// SPDX-License-Identifier: MIT
#include "nic/engine.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <bit>

#include "base/log.h"
#include "base/ticks.h"
#include "host/memory_file.h"
#include "nic/nic.h"
#include "nic/nic_qp.h"
#include "nic/raw_nic.h"
#include "nic/service_thread.h"
#include "nic/sharing.h"
#include "nic/wire_nic.h"

namespace verbena::nic {
namespace {

// So many polls in a row that find the NIC thread asleep make a lease: one wake-up costs as much as
// these.
constexpr std::uint32_t kPollsForLease = 64;
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
// Who takes a stream does other things for so many ticks, some microseconds: posts receives.
constexpr std::uint64_t kStreamPause = 14'000;
// Between a poller's looks at the timers, about two microseconds: much finer than any timer, and
// the clock takes a good part of what a look at a socket does.
constexpr std::uint64_t kTicksBetweenTimers = 5'000;
// So many, some tens of microseconds, before we let others have the core now and then.
constexpr std::uint32_t kIdlePollsForYield = 2048;
constexpr std::uint32_t kPollsBetweenYields = 256;
// After work the NIC thread looks again for so long before it sleeps: a ring that it empties is
// often filled again before a wake-up would be through.
constexpr Duration kLinger = Duration::microseconds(50);
constexpr Duration kLingerAlone = Duration::microseconds(10);
constexpr Duration kLingerPause = Duration::milliseconds(1);
constexpr Duration kLeaseCheckMin = Duration::milliseconds(1);
constexpr Duration kLeaseCheckMax = Duration::milliseconds(4);

Error error_of(host::ControlError error) {
  switch (error) {
    case host::ControlError::kNoSlot: return Error::kNoSlot;
    case host::ControlError::kNoDescriptor: return Error::kNoDescriptors;
    case host::ControlError::kDenied: return Error::kPermission;
    case host::ControlError::kNoAnswer: return Error::kGone;
    case host::ControlError::kNoThread:
    case host::ControlError::kNoMemory: return Error::kNoRoom;
  }
  return Error::kNoRoom;
}

int processor_count() {
  cpu_set_t allowed;
  return sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
}

}  // namespace

Instant clock_now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return Instant::at(std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec);
}

Engine::Engine(Nic& nic) : nic_(nic), gsi_(nic, *this), links_(nic, *this) {}

Result<Engine*, Error> Engine::start(Nic& nic) {
  std::unique_ptr<Engine> engine(new Engine(nic));
  engine->lease_check_ = kLeaseCheckMin;
  // Dear once there are threads. Without near fences no lock has an owner.
  const bool fences_far = join_far_fences();
  join_near_fences();
  auto control = host::Control::start(engine->links_, nic.random());
  if (!control) {
    LOG_ERROR("no place on this host: %s", host::to_string(control.error()));
    return refuse(error_of(control.error()));
  }
  engine->control_ = std::move(*control);
  engine->doorbell_ = std::make_unique<host::Doorbell>(engine->control_->page());
  engine->control_->page().fences_far.store(fences_far ? 1 : 0);
  engine->settle_scanning();

  if (!start_service_thread("verbena-nic", run_thread, engine.get())) {
    nic.sharing().stop();
    // A control thread that does not end goes on using what is here.
    if (!engine->control_->stop()) static_cast<void>(engine.release());
    return refuse(Error::kNoRoom);
  }
  // Not before: without its thread the slot would be free for others again.
  nic.queue_pairs().add_slot(engine->control_->first_slot());
  return engine.release();
}

void* Engine::run_thread(void* engine) {
  static_cast<Engine*>(engine)->run();
  return nullptr;
}

Result<QpNum, Error> Engine::reserve_number() {
  for (;;) {
    if (auto number = nic_.queue_pairs().reserve(nic_.random())) return *number;
    auto slot = control_->take_another_slot();
    if (!slot) return refuse(error_of(slot.error()));
    nic_.queue_pairs().add_slot(*slot);
  }
}

WireNic* Engine::wire_for(SlotNumber slot) {
  if (nic_.sharing().policy().line.is_wrong) return nullptr;
  WireNic* wire = nullptr;
  {
    const std::lock_guard guard(wire_lock_);
    wire = wire_.load(std::memory_order_relaxed);
    if (!wire) {
      auto made = std::make_unique<WireNic>(nic_, *this);
      if (!links_.use_wire(*made) || !made->start()) {
        // The control thread may use it already.
        static_cast<void>(made.release());
        return nullptr;
      }
      wire = made.release();
      wire_.store(wire, std::memory_order_release);
    }
  }
  return wire->receive_for(slot) ? wire : nullptr;
}

// Programs' descriptors are not to be touched by the control thread, which hears of it.
void Engine::interfaces_changed() {
  have_interfaces_changed_.store(true, std::memory_order_release);
  if (is_running_.load(std::memory_order_acquire)) {
    doorbell_->ring_and_wake(QpTable::kDatagramIndex);
  }
}

RawNic& Engine::make_raw() {
  const std::lock_guard guard(wire_lock_);
  RawNic* raw = raw_.load(std::memory_order_relaxed);
  if (!raw) {
    raw = new RawNic(nic_, *this);
    raw_.store(raw, std::memory_order_release);
  }
  return *raw;
}

void Engine::run() {
  is_running_.store(true, std::memory_order_release);
  const Duration linger = processor_count() > 1 ? kLinger : Duration();
  Instant lingers_until;
  Instant lingers_again;
  std::uint32_t polls = 0;
  for (;;) {
    host::MemoryFile::make_room_if_wanted();
    const Instant now = clock_now();
    fire_timers(now);
    if (have_interfaces_changed_.load(std::memory_order_acquire)) {
      have_interfaces_changed_.store(false, std::memory_order_relaxed);
      nic_.contexts().look();
    }
    if (moderations_.earliest() <= now) moderations_.end_due(now);
    // A program that polls now and then has a use for the core itself.
    if (polls_.load(std::memory_order_relaxed) != polls) {
      polls = polls_.load(std::memory_order_relaxed);
      lingers_again = now + kLingerPause;
    }
    if (is_leased()) {
      // Whoever ended the nap knows better than the lease: a program may poll a little and then
      // wait for something else.
      if (nap_while_leased()) work<Patience::kSome>();
    } else if (work<Patience::kSome>()) {
      lingers_until = now + linger;
    } else if (now < lingers_until && now >= lingers_again) {
      sched_yield();
      // Somebody else wanted this core. A wake-up gets it back sooner than a place in the queue.
      if (clock_now() - now > kLingerAlone) lingers_again = now + kLingerPause;
    } else {
      sleep_until_rung();
    }
  }
}

bool Engine::is_leased() {
  const std::uint32_t polls = polls_.load(std::memory_order_relaxed);
  const bool moved = polls != polls_seen_;
  polls_seen_ = polls;
  const std::uint32_t waits = this->waits();
  const bool is_awaited = std::exchange(waits_seen_, waits) != waits;
  return moved && !is_awaited;
}

void Engine::expect_no_polls() {
  waits_.fetch_add(1, std::memory_order_seq_cst);
  if (doorbell_->is_napping()) doorbell_->wake();
  if (WireNic* const wire = this->wire()) wire->watcher_nap().end_if_napping();
  if (RawNic* const packets = raw()) packets->watcher_nap().end_if_napping();
}

// False: it was ended by a peer that has waited for long, and a poller is at work: there is nothing
// to do but to take the core away from it.
bool Engine::nap_while_leased() {
  using Kind = host::Doorbell::NapKind;
  const Kind how = std::exchange(naps_on_, false) ? Kind::kOn : Kind::kUsual;
  Duration until = how == Kind::kOn ? kLeaseCheckMin : lease_check_;
  // Timers are the pollers' as well (poll_wire()), where there may be many: a queue pair on the
  // wire moves its own with every message.
  const Instant deadline = wire() ? moderations_.earliest() : next_alarm();
  if (deadline != Instant::never()) {
    const Instant now = clock_now();
    until = std::min(until, deadline > now ? deadline - now : Duration());
  }
  doorbell_->prepare_nap(how);
  const bool is_ended = waits() == waits_seen_ && doorbell_->nap(how, until);
  doorbell_->awake();
  lease_check_ = std::min(lease_check_ * 2, kLeaseCheckMax);
  naps_on_ = is_ended && waits() == waits_seen_ && is_driven();
  return !naps_on_;
}

// A poller is scanning, or was a moment ago.
bool Engine::is_driven() {
  const std::unique_lock guard(watched_lock_, std::try_to_lock);
  return !guard.owns_lock() || std::ranges::any_of(watched_, [](const Qp* qp) {
    return qp->glance.has_rested(kStreamPause);
  });
}

void Engine::sleep_until_rung() {
  lease_check_ = kLeaseCheckMin;
  naps_on_ = false;
  doorbell_->prepare_sleep();
  const Instant now = clock_now();
  const Instant deadline = next_alarm();
  if (anything_to_see() || deadline <= now) {
    doorbell_->awake();
    return;
  }
  if (deadline == Instant::never()) {
    doorbell_->sleep(std::nullopt);
  } else {
    doorbell_->sleep(deadline - now);
  }
  // A few polls while we slept are no lease.
  if (polls_while_asleep_.exchange(0, std::memory_order_relaxed) < kPollsForLease) {
    polls_seen_ = polls_.load(std::memory_order_relaxed);
  }
}

void Engine::drive() {
  // Several pollers may lose counts here; any change will do.
  polls_.store(polls_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  if (doorbell_->is_asleep()) take_lease();
  if (work<Patience::kNone>()) {
    idle_polls_.store(0, std::memory_order_relaxed);
    return;
  }
  const std::uint32_t idle = idle_polls_.load(std::memory_order_relaxed) + 1;
  idle_polls_.store(idle, std::memory_order_relaxed);
  if (idle >= kIdlePollsForNudge && std::has_single_bit(idle)) nudge_peers(idle);
  // Whoever we wait for may be waiting for this core. With a core for everybody this returns at
  // once.
  if (idle >= kIdlePollsForYield && idle % kPollsBetweenYields == 0) sched_yield();
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

template <Engine::Patience patience>
bool Engine::work() {
  const bool answered = doorbell_->any_ready() && answer_bells(patience);
  bool found = scan<patience>() || answered;
  if (RawNic* const packets = raw()) [[unlikely]]
    found |= packets->poll();
  WireNic* const wire = wire_.load(std::memory_order_acquire);
  if (wire) [[unlikely]]
    return poll_wire(*wire) || found;
  return found;
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
    if (qp.turn(Now(clock_now))) ring_again(index, patience);
  });
}

// The NIC thread comes back by itself. A poller may go and wait for an event, while the NIC thread
// found no bell, since the poller had taken it, and went to sleep.
void Engine::ring_again(std::uint32_t index, Patience patience) {
  if (patience == Patience::kSome) return doorbell_->ring(index);
  doorbell_->ring_and_wake(index);
}

template <Engine::Patience patience>
bool Engine::take(SectionLock& lock) {
  if (patience == Patience::kSome) lock.lock();
  return patience == Patience::kSome || lock.try_lock();
}

template <Engine::Patience patience>
bool Engine::scan() {
  if (!is_scanning_.load(std::memory_order_relaxed)) return false;
  if (!take<patience>(watched_lock_)) return false;
  const std::lock_guard guard(watched_lock_, std::adopt_lock);
  bool found = false;
  // Who has nothing else to look at waits for a peer that answers at once.
  const bool waits = patience == Patience::kNone && watched_.size() == 1 &&
                     watched_.front()->answer_pace.is_due() && !links_.has_receivers() && !wire() &&
                     !raw();
  for (Qp* qp : watched_) {
    const bool is_answered = waits && qp->await_answer();
    if (patience == Patience::kNone && !is_answered && !qp->glance.has_news()) continue;
    found |= visit<patience>(*qp);
  }
  if (links_.has_receivers()) {
    const QpTable::Reading reading(nic_.queue_pairs());
    const Links::Received received = links_.receive_datagrams();
    found |= received != Links::Received::kNone;
    if (received == Links::Received::kMore) ring_again(QpTable::kDatagramIndex, patience);
  }
  return found;
}

template <Engine::Patience patience>
bool Engine::visit(Qp& qp) {
  // Somebody is at it right now: as good as found.
  if (!take<patience>(qp.pair.lock())) return true;
  const std::lock_guard guard(qp.pair.lock(), std::adopt_lock);
  // Who answers each message is about to: no look yet at what may come behind it, since that is a
  // line of the peer's.
  const std::uint32_t most = finds_without_post_ < kFindsForMany ? 1 : kManyAtOnce;
  if (const Now now(clock_now); patience == Patience::kNone && qp.receive_at_once(most, now)) {
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

// With the queue pair's lock. A reader that is as fast as the writer looks at the very line that is
// being written, and both wait for that line at every message. In a stream that nobody answers it
// pays to let some come.
void Engine::rest_in_stream(Qp& qp) {
  const std::uint32_t posts = posts_.load(std::memory_order_relaxed);
  if (posts != posts_seen_) {
    posts_seen_ = posts;
    finds_without_post_ = 0;
  } else if (++finds_without_post_ >= kFindsForStream) {
    qp.glance.rest_from_requests(kStreamRest);
  }
}

// With the queue pair's lock.
bool Engine::take_turn(Qp& qp, Patience patience) {
  if (!qp.has_incoming()) return false;
  if (qp.turn(Now(clock_now))) ring_again(qp.number().index(), patience);
  return true;
}

// Before sleeping, when publishers know that they must wake us.
bool Engine::anything_to_see() {
  if (doorbell_->any_ready() || host::MemoryFile::is_room_wanted()) return true;
  if (!is_scanning_.load(std::memory_order_relaxed)) return false;
  const std::lock_guard guard(watched_lock_);
  for (Qp* qp : watched_) {
    const std::lock_guard qp_guard(qp->pair.lock());
    if (qp->has_incoming()) return true;
  }
  return links_.has_datagrams();
}

void Engine::watch(Qp& qp) {
  const std::lock_guard guard(watched_lock_);
  qp.drop_former_ring();
  if (qp.is_watched) return;
  qp.is_watched = true;
  watched_.push_back(&qp);
  settle_scanning();
}

void Engine::unwatch(Qp& qp) {
  const std::lock_guard guard(watched_lock_);
  qp.drop_former_ring();
  if (!qp.is_watched) return;
  qp.is_watched = false;
  std::erase(watched_, &qp);
  settle_scanning();
}

void Engine::settle_scanning() {
  const bool wanted = watched_.size() <= kScannedMax;
  if (wanted == is_scanning_.load(std::memory_order_relaxed)) return;
  is_scanning_.store(wanted, std::memory_order_relaxed);
  doorbell_->set_scans_all(wanted);
  if (wanted) return;
  for (Qp* qp : watched_)
    want_turn(qp->number());
  want_datagrams();
}

void Engine::want_turn(QpNum qp) { doorbell_->ring_and_wake(qp.index()); }

void Engine::want_datagrams() { doorbell_->ring_and_wake(QpTable::kDatagramIndex); }

void Engine::note_deadline(Qp& qp, const Now& now) {
  const Instant deadline = qp.deadline(now);
  if (deadline >= qp.timer) return;  // the earlier entry looks again
  const Instant before = std::exchange(qp.timer, deadline);
  if (!timers_.move(qp.number(), before, deadline)) return;
  // Who naps on the wire looks at the timers soon, and pollers do before that.
  if (wire()) {
    doorbell_->wake_if_asleep();
  } else {
    doorbell_->wake();
  }
}

void Engine::forget_deadline(Qp& qp) {
  timers_.remove(qp.number(), std::exchange(qp.timer, Instant::never()));
}

void Engine::fire_timers(Instant now) {
  if (timers_.earliest() > now) return;
  const QpTable::Reading reading(nic_.queue_pairs());
  for (const QpNum number : timers_.take_due(now)) {
    Qp* qp = nic_.queue_pairs().find(number);
    if (!qp) continue;
    const std::lock_guard guard(qp->pair.lock());
    if (qp->timer > now) continue;
    qp->timer = Instant::never();
    if (qp->turn(now)) doorbell_->ring(number.index());
  }
}

}  // namespace verbena::nic
