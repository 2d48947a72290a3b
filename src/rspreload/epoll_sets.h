// SPDX-License-Identifier: MIT
// The sets of epoll(7) that the program has, and which rsockets are in them: the kernel cannot know
// what an rsocket is ready for. A set may have several descriptors (dup(2)), and there may be
// threads in the kernel's own epoll_wait(2) when its first rsocket comes; these are called out.
#pragma once

#include <poll.h>
#include <sys/epoll.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/fork_mutex.h"

namespace verbena::rspreload {

// What has the same value and meaning for poll(2).
constexpr std::uint32_t kPolled = EPOLLIN | EPOLLPRI | EPOLLOUT | EPOLLRDNORM | EPOLLRDBAND |
                                  EPOLLWRNORM | EPOLLWRBAND | EPOLLRDHUP;
constexpr std::uint32_t kAlways = EPOLLERR | EPOLLHUP;
static_assert(EPOLLIN == POLLIN && EPOLLOUT == POLLOUT && EPOLLERR == POLLERR);
static_assert(EPOLLHUP == POLLHUP && EPOLLRDHUP == POLLRDHUP && EPOLLPRI == POLLPRI);

struct Watch {
  int fd;
  int rsocket;  // -1: still the kernel's
  epoll_event wanted;
  std::uint32_t told;  // with EPOLLET
  bool is_spent;       // with EPOLLONESHOT

  bool is_polled() const { return rsocket >= 0 && !is_spent && (told & kAlways) == 0; }
  short polled() const { return static_cast<short>(wanted.events & kPolled & ~told); }
};

struct EpollSet;
using SetNumber = std::uint64_t;  // from 1 on; 0: none

// A thread that waits for a set, with what was in it when it began. One for each thread, which it
// outlives no longer than the thread itself: programs jump out of a wait, or are cancelled there.
class Sleeper {
 public:
  // Of this thread; null: there is no descriptor to be had.
  static Sleeper* own();
  static void forget_own_in_child();

  Sleeper() = default;
  ~Sleeper();
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

  int fd() const { return fd_; }  // readable when it is woken
  // Under the lock.
  void begin(EpollSet& set);
  void end();
  bool has_seen(std::uint64_t changes) const { return changes_ == changes; }
  bool is_woken() const { return is_woken_; }
  void wake();

 private:
  static Sleeper& of_thread();

  int fd_ = -1;
  bool is_woken_ = false;
  std::uint64_t changes_ = 0;
  SetNumber set_ = 0;
};

// Under the lock of all of them.
struct EpollSet {
  const SetNumber number;
  std::vector<Watch> watches;
  std::size_t first = 0;     // whose turn it is to be first
  bool kernel_first = true;  // and whether the kernel's descriptors are before rsockets

  bool has_rsockets = false;  // or had some
  std::uint64_t changes = 0;
  std::vector<Sleeper*> sleepers;

  int outside = 0;            // who waits in the kernel alone
  int alarm = -1;             // in the kernel's set, and readable, until these have left
  long long alarm_since = 0;  // nanoseconds

  explicit EpollSet(SetNumber its) : number(its) {}
  EpollSet(const EpollSet&) = delete;
  EpollSet& operator=(const EpollSet&) = delete;
  ~EpollSet();

  Watch* find(int fd);
  // That it has changed. One who waits looks anew; it wakes another one when it leaves.
  void tell();
  void wake_one();
  void wake_all();
};

// An eventfd(2) beyond the numbers that programs use; -1 with errno.
int make_event(unsigned count);

class EpollSets {
 public:
  static EpollSets& all();  // never destroyed: programs wait while the process ends

  ForkMutex lock;
  // Under it.
  EpollSet* find(int epoll) const;  // null: that is no set
  EpollSet* get(SetNumber number) const;
  EpollSet& enter(int epoll);
  void share(int epoll, int made);
  void leave(int fd);  // a descriptor goes: of a set, or in one
  auto begin() const { return sets_.begin(); }
  auto end() const { return sets_.end(); }

 private:
  EpollSets();
  void free_in_child();

  void forget(int epoll);

  std::unordered_map<SetNumber, std::unique_ptr<EpollSet>> sets_;
  std::unordered_map<int, SetNumber> numbers_;  // of descriptors
  SetNumber last_ = 0;
};

// Without the lock: whether a descriptor is of a set, in one, or an rsocket in one. Others cost a
// look here only.
bool is_known(int fd);
void know(int fd);

}  // namespace verbena::rspreload
