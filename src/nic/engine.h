// SPDX-License-Identifier: MIT
// Who drives the NIC. Whoever polls a completion queue does the NIC's work in that call; the NIC
// thread does it when nobody polls, and sleeps when there is none.
//
// A thread that polls all the time holds a lease: a counter that it moves with every poll. While
// the counter moves, the NIC thread naps; now and then it looks after timers and after the counter.
// A few polls do not count as a lease: the NIC thread then sleeps on the doorbell as ever, and
// whoever comes first does the work. A peer that waits long for an answer ends the nap: the program
// may have polled a little and then begun to wait for something else.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "base/section_lock.h"
#include "base/time.h"
#include "base/types.h"
#include "host/control.h"
#include "host/doorbell.h"
#include "nic/error.h"
#include "nic/gsi.h"
#include "nic/links.h"
#include "nic/qp_table.h"

namespace verbena::nic {

class Nic;
class Qp;
class RawNic;
class WireNic;
class Cq;

Instant clock_now();

// Deadlines of queue pairs, one for each. An entry that is no longer the queue pair's own does
// nothing.
class Timers {
 public:
  // `before`: its entry so far, or never. True when it is now the earliest.
  bool move(QpNum qp, Instant before, Instant when);
  void remove(QpNum qp, Instant when);
  Instant earliest() const { return Instant::at(earliest_.load(std::memory_order_acquire)); }
  // Takes those that are due.
  std::vector<QpNum> take_due(Instant now);

 private:
  Mutex lock_;
  std::set<std::pair<Instant, QpNum>> entries_;
  std::atomic<std::int64_t> earliest_{Instant::never().nanoseconds()};
};

// Completion queues whose completions wait to be told of together: when they wait no longer.
class Moderations {
 public:
  // True when it is now the earliest.
  bool move(Cq& cq, Instant when);
  void remove(Cq& cq);
  Instant earliest() const { return Instant::at(earliest_.load(std::memory_order_acquire)); }
  void end_due(Instant now);

 private:
  void settle();

  Mutex lock_;  // before any completion queue's; so nobody's queue goes away meanwhile
  std::vector<std::pair<Cq*, Instant>> entries_;
  std::atomic<std::int64_t> earliest_{Instant::never().nanoseconds()};
};

class Engine {
 public:
  static Result<Engine*, Error> start(Nic& nic);

  Links& links() { return links_; }
  Gsi& gsi() { return gsi_; }
  host::Control& control() { return *control_; }
  // A new number for a queue pair, taking another slot when the slots are full.
  Result<QpNum, Error> reserve_number();

  // The wire, ready for packets to queue pairs of this slot of ours. Null: it is not to be had. The
  // first call takes some milliseconds; without any lock.
  WireNic* wire_for(SlotNumber slot);
  // Null before the first wire_for().
  WireNic* wire() const { return wire_.load(std::memory_order_acquire); }
  // Raw packets, made ready by the first call.
  RawNic& make_raw();
  // Null before that.
  RawNic* raw() const { return raw_.load(std::memory_order_acquire); }
  void wake() { doorbell_->wake(); }
  void wake_for_wire() { doorbell_->ring_and_wake(QpTable::kDatagramIndex); }
  // Network interfaces or their addresses may have changed: the NIC thread looks, and tells.
  void interfaces_changed();
  // Moves while somebody polls.
  std::uint32_t polls() const { return polls_.load(std::memory_order_relaxed); }
  // The program is about to wait for events: none of our threads leaves its work to polls now.
  void expect_no_polls();
  // Moves with each of those.
  std::uint32_t waits() const { return waits_.load(std::memory_order_seq_cst); }

  // From ibv_poll_cq on an empty queue: does the NIC's work.
  void drive();
  // A connected queue pair that peers may write to, until unwatch. Without any queue pair's lock.
  void watch(Qp& qp);
  void unwatch(Qp& qp);
  // Whoever looked at queue pairs without their locks has ended.
  void wait_for_scan() { const std::lock_guard guard(watched_lock_); }
  // A queue pair wants a turn soon, from whoever drives; wakes the NIC thread if nobody does.
  void want_turn(QpNum qp);
  // The program posts sends. Several threads may lose counts; any change will do.
  void note_post() {
    posts_.store(posts_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  // The same for the datagrams that have come.
  void want_datagrams();
  // With the queue pair's lock, after anything that may have changed its deadline.
  void note_deadline(Qp& qp, const Now& now);
  void forget_deadline(Qp& qp);
  // The first completion of several came that are told of together.
  void note_moderation(Cq& cq);
  void forget_moderation(Cq& cq) { moderations_.remove(cq); }

 private:
  explicit Engine(Nic& nic);
  static void* run_thread(void* engine);
  void run();
  // Whoever may wait for locks; a poller leaves to others what they are just doing.
  enum class Patience : std::uint8_t { kNone, kSome };
  // For each of the two by itself: pollers do nothing else than this.
  template <Patience patience>
  static bool take(SectionLock& lock) {
    if (patience == Patience::kSome) lock.lock();
    return patience == Patience::kSome || lock.try_lock();
  }
  template <Patience>
  bool work();
  // kAll: and there is nothing else to look at.
  enum class Scanned : std::uint8_t { kNothing, kSomething, kAll };
  template <Patience>
  Scanned scan();
  template <Patience>
  bool visit(Qp& qp);
  bool poll_wire(WireNic& wire);
  bool answer_bells(Patience patience);
  bool take_turn(Qp& qp, Patience patience);
  bool anything_to_see();
  void settle_scanning();
  void fire_timers(Instant now);
  Instant next_alarm() const { return std::min(timers_.earliest(), moderations_.earliest()); }
  void take_turns(std::uint32_t index, Patience patience);
  [[gnu::cold]] void ring_again(std::uint32_t index, Patience patience);
  void rest_in_stream(Qp& qp);
  bool is_leased();
  bool nap_while_leased();
  bool is_driven();
  void sleep_until_rung();
  [[gnu::cold]] void take_lease();
  [[gnu::cold]] void nudge_peers(std::uint32_t idle_polls);

  Nic& nic_;
  Gsi gsi_;
  Links links_;
  std::unique_ptr<host::Control> control_;
  std::unique_ptr<host::Doorbell> doorbell_;
  Timers timers_;
  Moderations moderations_;
  std::atomic<WireNic*> wire_{nullptr};
  std::atomic<RawNic*> raw_{nullptr};
  Mutex wire_lock_;  // to make these

  // With few connected queue pairs, whoever drives looks at each one's rings; with many, peers ring
  // bells.
  static constexpr std::size_t kScannedMax = 8;
  // So many polls in a row that find the NIC thread asleep make a lease: one wake-up costs as much
  // as these.
  static constexpr std::uint32_t kPollsForLease = 64;
  SectionLock watched_lock_;  // before any queue pair's
  std::vector<Qp*> watched_;
  std::uint32_t posts_seen_ = 0;          // with watched_lock_
  std::uint32_t finds_without_post_ = 0;  // with watched_lock_
  std::atomic<bool> is_scanning_{false};

  std::atomic<bool> is_running_{false};  // the NIC thread
  std::atomic<bool> have_interfaces_changed_{true};

  alignas(64) std::atomic<std::uint32_t> polls_{0};  // the lease
  std::atomic<std::uint32_t> posts_{0};
  std::atomic<std::uint32_t> polls_while_asleep_{0};
  std::atomic<std::uint64_t> timers_looked_at_{0};  // by a poller, in ticks
  std::atomic<std::uint32_t> waits_{0};             // for events
  std::uint32_t polls_seen_ = 0;                    // the NIC thread's
  std::uint32_t waits_seen_ = 0;                    // the NIC thread's
  Duration lease_check_;                      // the NIC thread's: how long until the next look
  bool naps_on_ = false;                      // the NIC thread's
  std::atomic<std::uint32_t> idle_polls_{0};  // since a poll last found something to do
};

}  // namespace verbena::nic
