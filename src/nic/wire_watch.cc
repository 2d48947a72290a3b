// SPDX-License-Identifier: MIT
// The thread that receives when nobody polls.
#include <poll.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <utility>

#include "base/futex.h"
#include "base/log.h"
#include "nic/engine.h"
#include "nic/nic.h"
#include "nic/service_thread.h"
#include "nic/wire_nic.h"

namespace verbena::nic {
namespace {

// So long exit() waits for the watcher, which may be waiting for a lock that the caller holds.
constexpr Duration kLeavePatience = Duration::milliseconds(50);
constexpr Duration kWritePatience = Duration::milliseconds(500);
constexpr Duration kLinePatience = Duration::seconds(2);
// So many packets at a time are a stream: the next ones come within this, mostly, and being woken
// for them would cost their sender much of its time.
constexpr std::size_t kStream = 8;
constexpr Duration kStreamLinger = Duration::microseconds(50);
// Then it is time for what else there is to do.
constexpr Duration kLingerMost = Duration::milliseconds(1);
constexpr Duration kRest = Duration::microseconds(15);
// A packet that comes so soon after we went to sleep is one of many whose sender waits for each
// answer: being woken for the next one too would be most of what it waits for.
constexpr Duration kSoon = Duration::microseconds(40);
// Who has to wait so long for the core, because another thread has it, is not alone on it, and
// sleeps for a while between trains.
constexpr Duration kCoreWait = Duration::microseconds(10);
constexpr Duration kBetweenTrains = Duration::milliseconds(1);

// How often another thread has had this one's core. Interrupts take as long, and so does the host
// of a virtual machine, but they do not take turns with us.
long switches() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw + usage.ru_nivcsw;
}

}  // namespace

bool WireNic::start() {
  return wake_.open() && start_service_thread("verbena-wire", run_thread, this);
}

void* WireNic::run_thread(void* wire) {
  static_cast<WireNic*>(wire)->watch();
  return nullptr;
}

void WireNic::watch() {
  bool owes = false;
  DescriptorChecks checks;
  for (;;) {
    if (checks.is_due(clock_now())) mend_sockets();
    if (line_.records()) tend_recording();
    tend_talk();
    gauges_.fill([this](SlotNumber slot) { return group_.fetch_peers(slot, nic_.random()); });
    nap_.begin();
    const WatchPace::Seen seen{.polls = engine_.polls(),
                               .waits = engine_.waits(),
                               .busy = busy_.load(std::memory_order_relaxed),
                               .all = stamp()};
    const bool is_awaited = pace_.is_awaited(seen.waits);
    const bool is_polled = pace_.is_polled(seen, clock_now());
    if (is_polled || (owes && !is_awaited)) {
      // Awake before the lock of receiving: who still saw us nap has left its answers under that
      // lock.
      if (are_expected_.exchange(false, std::memory_order_relaxed)) pace_.begin_anew();
      naps_long_.store(pace_.nap() > WatchPace::kNapMin, std::memory_order_relaxed);
      const Rest rest = nap();
      const bool found = pace_.looks_after_nap(rest.is_late) && receive_after_nap() != 0;
      pace_.looked(rest.is_late, found);
      // Others poll a little between other things: they have a nap more to answer what they had not
      // looked for.
      owes = found && is_polled;
      if (!rest.is_ended) continue;
      owes = false;
    }
    nap_.stay_awake();
    pace_.begin_anew();
    const Instant asleep_since = clock_now();
    wait_for_packets();
    const bool came_soon = clock_now() - asleep_since < kSoon;
    const std::size_t found = receive_patiently();
    if (found >= kStream || (found != 0 && came_soon)) receive_while_they_come(found);
  }
}

// Who has not polled for long waits for its own WRITE, say, and then looks at memory for what its
// peer writes. What comes then waits for the end of a nap. (To be woken by packets instead would
// not help where program and watcher share a core: who is woken that often gets it only when the
// other one's slice is over.)
//
// Whether somebody polled is asked for the moment at which the nap was over. Where we share a core
// nobody can poll from then on, and waking up takes some 20 us.
auto WireNic::nap() -> Rest {
  const std::uint64_t begin = stamp();
  const Instant asleep_at = clock_now();
  const Duration limit = pace_.nap();
  const bool is_ended = nap_.sleep(limit);
  const auto stamps_slept = static_cast<double>(stamp() - begin);
  const auto slept = static_cast<double>((clock_now() - asleep_at).count_nanoseconds());
  const auto allowed = static_cast<double>(limit.count_nanoseconds());
  const double in_time = slept > allowed ? allowed / slept : 1;
  const std::uint64_t end = begin + static_cast<std::uint64_t>(stamps_slept * in_time);
  const std::uint64_t driven_at = driven_at_.load(std::memory_order_relaxed);
  const bool is_late = end > driven_at && end - driven_at > WatchPace::kLong;
  return {.is_ended = is_ended, .is_late = is_late};
}

// Of a stream: looks again now and then, after a rest, and not all the time. Each look takes the
// socket away from who sends to it, and what has gathered meanwhile has one acknowledgement.
void WireNic::receive_while_they_come(std::size_t found) {
  const std::uint32_t polls = engine_.polls();
  Instant now = clock_now();
  if (now < lingers_again_) return;
  const Instant latest = now + kLingerMost;
  const long switches_before = switches();
  Instant until = now + kStreamLinger;
  while (now < std::min(until, latest) && engine_.polls() == polls) {
    const std::size_t more = receive_what_lies();
    if (more != 0) {
      found = more;
      now = clock_now();
      until = now + kStreamLinger;
      continue;
    }
    const Instant look = now + (found >= kStream ? kRest : Duration());
    do {
      sched_yield();
      const Instant before = std::exchange(now, clock_now());
      if (now - before > kCoreWait && switches() != switches_before) {
        lingers_again_ = now + kBetweenTrains;
        return;
      }
    } while (now < look);
  }
}

void WireNic::wait_for_packets() {
  std::vector<pollfd>& watched = watched_;
  watched.assign(1, {wake_.descriptor(), POLLIN, 0});
  {
    const std::lock_guard guard(receive_lock_);
    answer_owed();  // of who held the lock when we came from a nap
    for (const int fd : port_.descriptors())
      watched.push_back({fd, POLLIN, 0});
  }
  std::optional<Duration> patience = line_.patience();
  // Where a descriptor was closed and its number is something else's by now, we sleep on that.
  if (connections_.load(std::memory_order_relaxed) != 0 || watched[0].fd < 0)
    patience = std::min(patience.value_or(WatchPace::kSleepUnwoken), WatchPace::kSleepUnwoken);
  timespec limit{};
  if (patience) limit.tv_nsec = patience->count_nanoseconds();
  if (ppoll(watched.data(), watched.size(), patience ? &limit : nullptr, nullptr) <= 0) return;
  if (watched[0].revents != 0) wake_.drain();
  const bool is_closed = std::ranges::any_of(
      watched, [](const pollfd& each) { return (each.revents & (POLLNVAL | POLLERR)) != 0; });
  if (is_closed) mend_sockets();
}

void WireNic::leave() {
  const Instant begin = clock_now();
  is_leaving_.store(true, std::memory_order_release);
  if (!wait_to_leave(is_owing_, begin + kLeavePatience)) return;
  // A line outlives who sent along it.
  const std::atomic<std::uint32_t> nothing{0};
  while (line_.has_underway() && clock_now() < begin + kLinePatience)
    futex_wait(nothing, 0, FutexScope::kProcess, WatchPace::kNapMin);
  if (!line_.records()) return;
  is_unwritten_.store(1, std::memory_order_release);
  wait_to_leave(is_unwritten_, clock_now() + kWritePatience);
}

// False: the watcher has not done it in time.
bool WireNic::wait_to_leave(const std::atomic<std::uint32_t>& undone, Instant limit) {
  while (undone.load(std::memory_order_acquire) != 0) {
    const Instant now = clock_now();
    if (now >= limit) return false;
    look_again();
    futex_wait(undone, 1, FutexScope::kProcess, std::min(limit - now, WatchPace::kNapMax));
  }
  return true;
}

void WireNic::tend_recording() {
  const bool is_last = is_unwritten_.load(std::memory_order_acquire) != 0;
  line_.tend(clock_now(), is_last);
  if (!is_last) return;
  is_unwritten_.store(0, std::memory_order_release);
  futex_wake(is_unwritten_, 1, FutexScope::kProcess);
}

void WireNic::look_again() {
  wake_.wake();
  nap_.end();
}

// The group keeps the sockets, so those that the program closed are to be had again.
void WireNic::mend_sockets() {
  for (;;) {
    std::optional<SlotNumber> closed;
    {
      const std::lock_guard guard(receive_lock_);
      closed = udp_.check_sockets();
    }
    if (!closed) return;
    LOG_WARN("the program closed the socket of slot %u", closed->value);
    auto socket = group_.fetch(*closed, nic_.random());
    if (!socket || !add_receiver(*closed, std::move(*socket))) return;
  }
}

}  // namespace verbena::nic
