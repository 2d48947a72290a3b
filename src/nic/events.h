// SPDX-License-Identifier: MIT
// Events for programs: completion channels and asynchronous events (IBTA vol 1, 11.6). A descriptor
// that a program can poll becomes readable while something waits; what waits is kept here.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>

#include "base/mutex.h"
#include "base/result.h"
#include "nic/error.h"

namespace verbena::nic {

// Events that were handed to the program and not acknowledged yet. An object is destroyed only when
// there are none; so the last acknowledgement must not touch this once it is counted.
class EventCount {
 public:
  void delivered() { delivered_.fetch_add(kOne, std::memory_order_relaxed); }
  void acknowledged(std::uint32_t count);
  // Sleeps until all that was delivered is acknowledged.
  void wait_until_acknowledged();

 private:
  // Both count by two. The lowest bit of the second says that somebody sleeps on it.
  static constexpr std::uint32_t kOne = 2;
  static constexpr std::uint32_t kAwaited = 1;
  std::atomic<std::uint32_t> delivered_{0};
  std::atomic<std::uint32_t> acknowledged_{0};
};

// A queue of events with a descriptor: an eventfd in semaphore mode, one count for each event that
// waits.
template <class Event>
class EventQueue {
 public:
  static Result<std::unique_ptr<EventQueue>, Error> create();
  ~EventQueue();
  int fd() const { return fd_; }

  void push(const Event& event);
  // Blocks as the descriptor does (O_NONBLOCK: kAgain; a signal: kInterrupted). `taken(event)` runs
  // before a withdrawal can miss the event: whoever destroys its object sees it as delivered.
  template <class Taken>
  Result<Event, Error> take(Taken taken);
  // Takes back what nobody has fetched, when `gone(event)` says so.
  template <class Predicate>
  void withdraw(Predicate gone);
  // In a child after fork: under the same number, which the program knows, a descriptor that the
  // parent does not have. False: there is none left.
  bool leave_parent();

 private:
  explicit EventQueue(int fd) : fd_(fd), made_by_(getpid()) {}
  bool is_still_ours() const;
  void tell() const;
  void wait_until_told() const;
  void drop_count();

  Mutex lock_;
  int fd_;
  pid_t made_by_;
  std::deque<Event> waiting_;
  std::atomic<std::uint32_t> telling_{0};  // of these, the descriptor is about to be told
};

}  // namespace verbena::nic

#include "nic/events_inline.h"
