// SPDX-License-Identifier: MIT
// The connection manager of this process: the engine (cm/engine.h), and who drives it.
//
// A program's call does its work in its own thread: it gives the engine a command, and sends what
// comes out. What arrives is taken by a thread of ours, because it may come on threads that must
// not touch the program's descriptors; that thread also keeps the time, and sleeps without a
// descriptor while there is nothing.
//
// One lock guards the engine and all ids. Management datagrams leave after it is given back.
//
// Never taken down; a forked child gets one of its own, and what it inherited is dead there.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "base/contracts.h"
#include "base/mutex.h"
#include "base/not_cancelled.h"
#include "base/random.h"
#include "base/time.h"
#include "cm/engine.h"
#include "host/fork_guard.h"
#include "rdmacm/border.h"
#include "rdmacm/channel.h"
#include "rdmacm/closed_hosts.h"
#include "rdmacm/devices.h"
#include "rdmacm/id.h"
#include "rdmacm/interface_changes.h"
#include "rdmacm/ports.h"

namespace verbena::rdmacm {

Instant clock_now();

class Manager {
 public:
  // The one of this process. Null, and errno: there can be none.
  static Manager* current();

  bool in_owner() const { return guard_.in_owner(); }
  Devices& devices() { return devices_; }
  Ports& ports() { return ports_; }
  InterfaceChanges& changes() { return changes_; }
  // Takes a place on this host, for whoever is about to connect or listen. 0, or an errno.
  int open();
  // From exit(): peers hear that the connections end. Takes no lock, for the caller may hold any;
  // waits for our thread, but not long.
  static void leave();
  // With the lock, by a Turn: an id that has a connection, or has none any more.
  void enter(Id& id) { connections_.insert(&id); }
  void forget(Id& id);
  // Without the lock: RDMA_CM_EVENT_ADDR_RESOLVED when the neighbour on the way answers, or
  // RDMA_CM_EVENT_ADDR_ERROR when it does not, or not in time.
  void wait_for_neighbour(Id& id, Duration patience);
  std::uint64_t draw() { return random_.next(); }
  // Memory for a channel, and what a channel leaves (channel.h says why it is kept).
  Channel* take_channel();
  void keep_channel(Channel& channel);
  const GsiTable& table() const { return *table_; }
  // Requests of other hosts come from now on.
  void listen_on_wire(bool is_loopback);

 private:
  friend class Turn;

  explicit Manager(const GsiTable* table) : table_(table), ports_(*table) {}
  static void arrived(void* manager, const GsiMad* mad);
  static void gone(void* manager, std::uint32_t slot);
  static void interfaces_changed(void* manager);
  static void* run_thread(void* manager);
  void run();
  void receive(const std::vector<GsiMad>& mads, Instant now);
  void disconnect_from(SlotNumber slot, Instant now);
  void release_all(Instant now);
  void look_at_interfaces();
  // With the lock. When to come again.
  Instant look_for_neighbours(Instant now);
  // With the lock. The same.
  Instant look_for_closed_hosts(Instant now);
  // With the lock: events to ids, and what is to be sent to `outgoing`.
  void pump(std::vector<GsiMad>& outgoing);
  void send(const std::vector<GsiMad>& mads);
  void wake();

  const GsiTable* table_;
  host::ForkGuard guard_;
  Devices devices_;
  Ports ports_;
  InterfaceChanges changes_;

  Mutex opening_lock_;
  std::atomic<bool> is_open_{false};

  Mutex lock_;
  KernelRandom random_;
  std::unique_ptr<cm::Engine> engine_;
  std::set<Id*> connections_;
  static constexpr Duration kNeighbourPauseMin = Duration::milliseconds(2);
  struct Resolving {
    Id* id;
    Instant until;
    Instant next;
    Duration pause = kNeighbourPauseMin;
  };
  std::vector<Resolving> resolving_;
  ClosedHosts closed_hosts_;
  std::atomic<std::int64_t> sleeps_until_{0};  // nanoseconds; the thread's

  Mutex inbox_lock_;
  std::vector<GsiMad> inbox_;
  std::vector<SlotNumber> gone_;
  std::atomic<bool> have_interfaces_changed_{true};
  std::atomic<std::uint32_t> wakes_{0};

  Mutex channels_lock_;
  std::vector<std::unique_ptr<Channel>> channels_;  // that are gone

  // exit() is under way: 0, asked for, done; a futex.
  std::atomic<std::uint32_t> leaving_{0};
};

// The manager's lock, and what follows from what was done under it. The thread is not cancelled
// meanwhile.
class Turn {
 public:
  explicit Turn(Manager& manager) : manager_(manager) { manager_.lock_.lock(); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn();

  // After Manager::open().
  cm::Engine& engine() { return *manager_.engine_; }
  bool has_engine() const { return manager_.engine_ != nullptr; }
  Instant now() const { return now_; }

 private:
  const NotCancelled until_unlocked_;
  Manager& manager_;
  const Instant now_ = clock_now();
};

// What an event of the engine means for the id; in events.cc. With the lock.
void tell(cm::Engine& engine, const cm::Event& event, Instant now);

}  // namespace verbena::rdmacm
