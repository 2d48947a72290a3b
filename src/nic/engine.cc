// SPDX-License-Identifier: MIT
#include "nic/engine.h"

#include <sched.h>
#include <time.h>

#include <algorithm>

#include "base/log.h"
#include "host/memory_file.h"
#include "nic/nic.h"
#include "nic/nic_qp.h"
#include "nic/raw_nic.h"
#include "nic/service_thread.h"
#include "nic/sharing.h"
#include "nic/wire_nic.h"

namespace verbena::nic {
namespace {

// Who takes a stream does other things for so many ticks, some microseconds: posts receives.
constexpr std::uint64_t kStreamPause = 14'000;
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
    // A poller may have come here, which may go and wait for an event.
    if (qp->turn(now)) doorbell_->ring_and_wake(number.index());
  }
}

}  // namespace verbena::nic
