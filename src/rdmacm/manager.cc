// SPDX-License-Identifier: MIT
#include "rdmacm/manager.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/futex.h"
#include "base/log.h"
#include "base/not_cancelled.h"
#include "host/interfaces.h"
#include "host/neighbours.h"
#include "rdmacm/gsi_table.h"
#include "rdmacm/patience.h"
#include "wire/cm.h"

namespace verbena::rdmacm {
namespace {

constinit std::atomic<Manager*> manager_of_process{nullptr};

constexpr std::uint32_t kAsked = 1;
constexpr std::uint32_t kDone = 2;
constexpr Duration kLeavingPatience = Duration::milliseconds(100);
constexpr Duration kNeighbourPauseMax = Duration::milliseconds(50);
constexpr std::size_t kInboxMax = 65'536;
constexpr std::size_t kStackSize = 256 * 1024;
constexpr std::size_t kStackSizeMax = 8 << 20;

// All signals are for the program's threads.
bool start_thread(void* (*run)(void*), void* argument) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread{};
  int failed = EINVAL;
  // A program with much thread-local storage needs a larger stack.
  for (const std::size_t size : {kStackSize, kStackSizeMax}) {
    if (failed != EINVAL) break;
    pthread_attr_setstacksize(&attributes, size);
    failed = pthread_create(&thread, &attributes, run, argument);
  }
  if (failed == 0) pthread_setname_np(thread, "verbena-cm");
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  return failed == 0;
}

Duration patience_from_environment() {
  const Duration usual = cm::Settings{}.asking_max;
  const char* const value = secure_getenv("VERBENA_CONNECT_SECONDS");
  if (!value || !*value) return usual;
  if (const auto patience = parse_patience(value)) return *patience;
  LOG_ERROR("VERBENA_CONNECT_SECONDS=%s: not a number of seconds", value);
  return usual;
}

GsiMad gsi_mad_of(const cm::Mad& mad) {
  return {.from = mad.route.local,
          .to = mad.route.remote,
          .interface = mad.route.port,
          .traffic_class = mad.route.traffic_class,
          .bytes = mad.bytes};
}

}  // namespace

Instant clock_now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return Instant::at(std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec);
}

Manager* Manager::current() {
  Manager* manager = manager_of_process.load(std::memory_order_acquire);
  while (!manager || !manager->in_owner()) {
    const GsiTable* const table = gsi_table();
    if (!table) {
      errno = ENODEV;
      return nullptr;
    }
    // No lock: in a forked child it might be held by a thread that is not there.
    auto* const fresh = new Manager(table);
    if (manager_of_process.compare_exchange_strong(manager, fresh, std::memory_order_acq_rel)) {
      return fresh;
    }
    delete fresh;
  }
  return manager;
}

int Manager::open() {
  if (is_open_.load(std::memory_order_acquire)) return 0;
  const UncancelledGuard guard(opening_lock_);
  if (is_open_.load(std::memory_order_relaxed)) return 0;
  std::uint32_t slot = 0;
  changes_.begin(host::all_interfaces());
  const GsiEvents events{
      .context = this, .arrived = arrived, .gone = gone, .interfaces_changed = interfaces_changed};
  if (const int error = table_->open(&events, &slot)) return error;
  {
    const std::lock_guard engine_guard(lock_);
    if (!engine_) {
      const cm::Settings settings{.slot = {static_cast<std::uint16_t>(slot)},
                                  .outgoing_max = 65'536,
                                  .asking_max = patience_from_environment()};
      engine_ = std::make_unique<cm::Engine>(settings, random_);
    }
  }
  if (!start_thread(run_thread, this)) return EAGAIN;
  is_open_.store(true, std::memory_order_release);
  return 0;
}

void Manager::listen_on_wire(bool is_loopback) {
  if (const int error = table_->listen_on_wire(is_loopback)) {
    LOG_WARN("other hosts cannot connect to this process: %d", error);
  }
}

Channel* Manager::take_channel() {
  const std::lock_guard guard(channels_lock_);
  if (channels_.empty()) return new Channel(*this);
  Channel* const channel = channels_.back().release();
  channels_.pop_back();
  return channel;
}

void Manager::keep_channel(Channel& channel) {
  const std::lock_guard guard(channels_lock_);
  channels_.emplace_back(&channel);
}

void Manager::arrived(void* context, const GsiMad* mad) {
  Manager& manager = *static_cast<Manager*>(context);
  {
    const std::lock_guard guard(manager.inbox_lock_);
    if (manager.inbox_.size() >= kInboxMax) return;
    manager.inbox_.push_back(*mad);
    if (manager.inbox_.size() > 1) return;  // somebody has woken it
  }
  manager.wake();
}

void Manager::gone(void* context, std::uint32_t slot) {
  Manager& manager = *static_cast<Manager*>(context);
  {
    const std::lock_guard guard(manager.inbox_lock_);
    manager.gone_.push_back({static_cast<std::uint16_t>(slot)});
  }
  manager.wake();
}

void Manager::interfaces_changed(void* context) {
  Manager& manager = *static_cast<Manager*>(context);
  manager.have_interfaces_changed_.store(true, std::memory_order_release);
  manager.wake();
}

void Manager::look_at_interfaces() {
  const auto present = host::find_interfaces();
  devices_.forget_addresses();
  const std::lock_guard guard(lock_);
  if (present) changes_.look(*present);
}

void Manager::wake() {
  wakes_.fetch_add(1, std::memory_order_release);
  futex_wake(wakes_, 1, FutexScope::kProcess);
}

void* Manager::run_thread(void* manager) {
  static_cast<Manager*>(manager)->run();
  return nullptr;
}

void Manager::run() {
  for (;;) {
    const std::uint32_t wakes = wakes_.load(std::memory_order_acquire);
    std::vector<GsiMad> mads;
    std::vector<SlotNumber> gone;
    {
      const std::lock_guard guard(inbox_lock_);
      mads.swap(inbox_);
      gone.swap(gone_);
    }
    if (have_interfaces_changed_.exchange(false, std::memory_order_acq_rel)) look_at_interfaces();
    const bool leaves = leaving_.load(std::memory_order_acquire) == kAsked;
    std::vector<GsiMad> outgoing;
    const Instant now = clock_now();
    Instant deadline;
    {
      const std::lock_guard guard(lock_);
      receive(mads, now);
      for (const SlotNumber slot : gone)
        disconnect_from(slot, now);
      if (leaves) release_all(now);
      const Instant look_again = std::min(look_for_neighbours(now), look_for_closed_hosts(now));
      pump(outgoing);
      deadline = std::min({engine_->next_deadline(), look_again, closed_hosts_.next_deadline()});
      sleeps_until_.store(deadline.nanoseconds(), std::memory_order_relaxed);
    }
    send(outgoing);
    if (leaves) {
      table_->flush();
      leaving_.store(kDone, std::memory_order_release);
      futex_wake(leaving_, 1, FutexScope::kProcess);
    }
    if (!mads.empty() || deadline <= now) continue;
    const auto left = deadline == Instant::never() ? std::optional<Duration>() : deadline - now;
    futex_wait(wakes_, wakes, FutexScope::kProcess, left);
  }
}

void Manager::receive(const std::vector<GsiMad>& mads, Instant now) {
  for (const GsiMad& mad : mads) {
    const cm::Route route{.port = mad.interface,
                          .local = mad.to,
                          .remote = mad.from,
                          .traffic_class = mad.traffic_class};
    engine_->receive(route, mad.bytes, now);
  }
  engine_->advance(now);
}

// A process of this host died before it could say so: what its connection manager would have sent
// for it (12.10.8: DREQ).
void Manager::disconnect_from(SlotNumber slot, Instant now) {
  for (const Id* const id : connections_) {
    // Where a request went is not known here, but its place on the host is empty now.
    if (id->stage == Stage::kConnecting && id->comm && host::is_local_address(id->way.remote)) {
      engine_->ask_again(*id->comm);
    }
    const bool is_open = id->stage == Stage::kConnected || id->stage == Stage::kAccepting;
    if (!is_open || !id->comm || id->is_datagram()) continue;
    if (cm::CommId{id->peer_comm}.value >> cm::CommId::kSlotShift != slot.value) continue;
    if (!host::is_local_address(id->way.remote)) continue;
    const wire::Dreq dreq{.local_comm_id = id->peer_comm,
                          .remote_comm_id = id->comm->value,
                          .remote_qp = {id->agreement.own_qp}};
    engine_->receive(id->way, wire::encode_cm({.transaction_id = 0, .message = dreq}), now);
  }
}

void Manager::wait_for_neighbour(Id& id, Duration patience) {
  host::ask_neighbour_towards(id.destination().gid(), id.destination().scope());
  {
    const std::lock_guard guard(lock_);
    const Instant now = clock_now();
    resolving_.push_back({.id = &id, .until = now + patience, .next = now + kNeighbourPauseMin});
  }
  wake();
}

// Tells those whose neighbour has answered, or will not.
Instant Manager::look_for_neighbours(Instant now) {
  Instant next = Instant::never();
  std::erase_if(resolving_, [&](Resolving& each) {
    if (now < each.next) {
      next = std::min(next, each.next);
      return false;
    }
    Id& id = *each.id;
    const host::Neighbour found =
        host::neighbour_towards(id.destination().gid(), id.destination().scope());
    if (found == host::Neighbour::kUnknown && now < each.until) {
      each.pause = std::min(each.pause * 2, kNeighbourPauseMax);
      each.next = std::min(now + each.pause, each.until);
      next = std::min(next, each.next);
      return false;
    }
    const bool is_there = found == host::Neighbour::kThere;
    // As with the kernel's an id keeps the address from which it asked.
    id.stage = is_there ? Stage::kAddressed : Stage::kBound;
    const int why = found == host::Neighbour::kFailed ? -EHOSTUNREACH : -ETIMEDOUT;
    id.events().push(std::make_unique<Event>(
        id, is_there ? RDMA_CM_EVENT_ADDR_RESOLVED : RDMA_CM_EVENT_ADDR_ERROR, is_there ? 0 : why));
    return true;
  });
  return next;
}

Instant Manager::look_for_closed_hosts(Instant now) {
  const auto is_waiting = [this](cm::CommId id) { return engine_->is_unanswered(id); };
  for (const cm::CommId id : closed_hosts_.look(now, is_waiting))
    engine_->nobody_there(id, now);
  return closed_hosts_.next_deadline();
}

void Manager::forget(Id& id) {
  changes_.remove(id);
  connections_.erase(&id);
  std::erase_if(resolving_, [&](const Resolving& each) { return each.id == &id; });
}

void Manager::release_all(Instant now) {
  for (Id* const id : connections_)
    if (id->comm) engine_->release(*id->comm, now);
}

void Manager::leave() {
  Manager* const manager = manager_of_process.load(std::memory_order_acquire);
  if (!manager || !manager->in_owner() || !manager->is_open_.load(std::memory_order_acquire)) {
    return;
  }
  manager->leaving_.store(kAsked, std::memory_order_release);
  manager->wake();
  futex_wait(manager->leaving_, kAsked, FutexScope::kProcess, kLeavingPatience);
}

// What an event brings about may be an event again.
void Manager::pump(std::vector<GsiMad>& outgoing) {
  cm::Event event;
  const Instant now = clock_now();
  while (engine_->next_event(event))
    tell(*engine_, event, now);
  cm::Mad mad;
  while (engine_->next_mad(mad)) {
    outgoing.push_back(gsi_mad_of(mad));
    if (mad.asks != cm::CommId{}) closed_hosts_.watch(outgoing.back(), mad.asks, now);
  }
}

void Manager::send(const std::vector<GsiMad>& mads) {
  for (const GsiMad& mad : mads)
    table_->send(&mad);
}

Turn::~Turn() {
  std::vector<GsiMad> outgoing;
  bool is_earlier = false;
  if (manager_.engine_) {
    manager_.pump(outgoing);
    const Instant deadline = manager_.engine_->next_deadline();
    is_earlier = deadline.nanoseconds() < manager_.sleeps_until_.load(std::memory_order_relaxed);
  }
  manager_.lock_.unlock();
  manager_.send(outgoing);
  if (is_earlier) manager_.wake();
}

namespace {

[[gnu::destructor]] void leave_at_exit() { Manager::leave(); }

}  // namespace
}  // namespace verbena::rdmacm
