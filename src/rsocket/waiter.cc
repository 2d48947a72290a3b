// SPDX-License-Identifier: MIT
#include "rsocket/waiter.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <ctime>
#include <memory>
#include <mutex>

#include "base/mutex.h"

namespace verbena::rsocket {
namespace {

void register_child();

// Descriptors of those who slept before: sleeping is frequent, and has a few threads.
struct Pool {
  Mutex lock;
  std::array<int, 16> spare{};
  std::size_t count = 0;
  pid_t owner = 0;

  int take() {
    register_child();
    const std::lock_guard guard(lock);
    if (owner != getpid()) count = 0;  // the parent's
    owner = getpid();
    return count > 0 ? spare[--count] : -1;
  }
  bool give(int fd) {
    const std::lock_guard guard(lock);
    if (owner != getpid() || count == spare.size()) return false;
    spare[count++] = fd;
    return true;
  }
};
Pool pool;

// Another thread may hold it while this one forks.
void register_child() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { std::construct_at(&pool.lock); });
  static_cast<void>(registered);
}

}  // namespace

Instant clock_now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return Instant::at(now.tv_sec * 1'000'000'000LL + now.tv_nsec);
}

int milliseconds_until(Instant deadline) {
  if (deadline == Instant::never()) return -1;
  const std::int64_t left = (deadline - clock_now()).count_nanoseconds();
  return static_cast<int>(std::clamp<std::int64_t>((left + 999'999) / 1'000'000, 0, INT_MAX));
}

int poll_descriptors(pollfd* fds, nfds_t count, int timeout) {
  timespec time{timeout / 1000, timeout % 1000 * 1'000'000L};
  return static_cast<int>(
      syscall(SYS_ppoll, fds, count, timeout < 0 ? nullptr : &time, nullptr, std::size_t{8}));
}

Waiter::Waiter() : fd_(pool.take()) {
  if (fd_ < 0) fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

Waiter::~Waiter() {
  if (fd_ < 0) return;
  clear();
  if (!pool.give(fd_)) close(fd_);
}

// By system call: under a preload write() and read() are those of sockets.
void Waiter::wake() {
  const std::uint64_t one = 1;
  const int saved = errno;
  if (fd_ >= 0) syscall(SYS_write, fd_, &one, sizeof one);
  errno = saved;
}

void Waiter::clear() {
  std::uint64_t count = 0;
  const int saved = errno;
  if (fd_ >= 0) syscall(SYS_read, fd_, &count, sizeof count);
  errno = saved;
}

}  // namespace verbena::rsocket
