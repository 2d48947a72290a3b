// SPDX-License-Identifier: MIT
// A thread that sleeps until something happens to one of several rsockets. Whoever takes the events
// of a socket tells the others who wait for it, each by a descriptor of its own: a shared one would
// be emptied by whoever comes first.
#pragma once

#include <poll.h>

#include <optional>

#include "base/time.h"
#include "base/unique_fd.h"

namespace verbena::rsocket {

Instant clock_now();

class Waiter {
 public:
  Waiter();
  ~Waiter();
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  void wake();   // from any thread
  void clear();  // by its own
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
};

// That a thread waits for one socket.
struct Waiting {
  explicit Waiting(Waiter& who) : waiter(&who) {}
  Waiter* waiter;
  Waiting* next = nullptr;
};

// poll(2) itself, which a preload may have replaced.
int poll_descriptors(pollfd* fds, nfds_t count, int timeout);

// As poll(2) wants it; -1: without end.
int milliseconds_until(Instant deadline);

}  // namespace verbena::rsocket
