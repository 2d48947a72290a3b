// SPDX-License-Identifier: MIT
// Waiting for rsockets and other descriptors: poll(2), select(2) and epoll(7); and the end of the
// program, which waits for what is on its way.
#pragma GCC visibility push(default)
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#pragma GCC visibility pop

#include <rdma/rsocket.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <ctime>
#include <vector>

#include "rspreload/descriptors.h"
#include "rspreload/late.h"
#include "rspreload/polling.h"
#include "rspreload/real.h"

namespace {

using namespace verbena::rspreload;  // NOLINT(google-build-using-namespace): this file is its door

// How long the end of the program waits for all its connections together, and for one.
constexpr time_t kEndSeconds = 10;
constexpr int kEndOfOneSeconds = 2;

// An rsocket, what may become one, or a set of epoll(7), which may have some.
bool is_waited_here(int fd) { return is_ours(fd) || is_set(fd); }

bool has_ours(const pollfd* fds, nfds_t count) {
  return std::any_of(fds, fds + count, [](const pollfd& each) { return is_waited_here(each.fd); });
}

bool has_ours(int count, const fd_set* all) {
  for (int fd = 0; all && fd < count; ++fd)
    if (FD_ISSET(fd, all) && is_waited_here(fd)) return true;
  return false;
}

int milliseconds(const timespec* time) {
  if (!time) return -1;
  const long long seconds = std::min<long long>(time->tv_sec, INT_MAX);
  const long long all = seconds * 1000 + (time->tv_nsec + 999'999) / 1'000'000;
  return static_cast<int>(std::min<long long>(all, INT_MAX));
}

int poll_once(pollfd* fds, nfds_t count, int timeout) {
  std::vector<pollfd> polled(fds, fds + count);
  std::vector<std::size_t> set_of;  // of each one beyond: which set it is in
  for (nfds_t i = 0; i < count; ++i) {
    const int rsocket = rsocket_for_wait(fds[i].fd, fds[i].events);
    if (rsocket >= 0) polled[i].fd = rsocket;
    if ((fds[i].events & POLLIN) == 0 || !has_rsockets(fds[i].fd)) continue;
    add_polled(fds[i].fd, polled);
    set_of.resize(polled.size() - count, i);
  }
  const int ready = rpoll(polled.data(), polled.size(), timeout);
  if (ready < 0) return ready;
  for (std::size_t i = 0; i < set_of.size(); ++i)
    if (polled[count + i].revents != 0) polled[set_of[i]].revents |= POLLIN;
  for (nfds_t i = 0; i < count; ++i)
    fds[i].revents = polled[i].revents;
  return static_cast<int>(
      std::count_if(fds, fds + count, [](const pollfd& each) { return each.revents != 0; }));
}

// What is in a set may change meanwhile, so there is a look at it now and then.
int poll_ours(pollfd* fds, nfds_t count, int timeout) {
  constexpr int kLook = 100;  // milliseconds
  const bool has_set =
      std::any_of(fds, fds + count, [](const pollfd& each) { return is_set(each.fd); });
  if (!has_set) return poll_once(fds, count, timeout);
  for (;;) {
    const int turn = timeout < 0 ? kLook : std::min(timeout, kLook);
    const int ready = poll_once(fds, count, turn);
    if (timeout >= 0) timeout -= turn;
    if (ready != 0 || timeout == 0) return ready;
  }
}

// select(2) by poll(2), as rselect(3) does it, for descriptors whose rsocket is another one.
int select_ours(int count, fd_set* readable, fd_set* writable, fd_set* exceptional, int timeout) {
  const auto is_set = [](const fd_set* all, int fd) { return all && FD_ISSET(fd, all); };
  std::vector<pollfd> fds;
  for (int fd = 0; fd < count; ++fd) {
    const int events = (is_set(readable, fd) ? POLLIN : 0) | (is_set(writable, fd) ? POLLOUT : 0) |
                       (is_set(exceptional, fd) ? POLLPRI : 0);
    if (events != 0) fds.push_back({fd, static_cast<short>(events), 0});
  }
  if (poll_ours(fds.data(), fds.size(), timeout) < 0) return -1;
  if (std::any_of(fds.begin(), fds.end(),
                  [](const pollfd& each) { return (each.revents & POLLNVAL) != 0; })) {
    errno = EBADF;
    return -1;
  }
  int ready = 0;
  const auto keep = [&ready](fd_set* all, const pollfd& each, int wanted, int meaning) {
    if ((each.events & wanted) == 0) return;
    if ((each.revents & meaning) != 0) {
      ++ready;
    } else {
      FD_CLR(each.fd, all);
    }
  };
  for (const pollfd& each : fds) {
    keep(readable, each, POLLIN, POLLIN | POLLHUP | POLLERR);
    keep(writable, each, POLLOUT, POLLOUT | POLLERR);
    keep(exceptional, each, POLLPRI, POLLPRI);
  }
  return ready;
}

// Who ends with a connection open has closed it, and what was sent before that arrives.
[[gnu::destructor]] void close_what_is_open() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const time_t end = now.tv_sec + kEndSeconds;
  for (int fd = next_rsocket(0); fd >= 0; fd = next_rsocket(fd + 1))
    rshutdown(rsocket_of(fd), SHUT_RDWR);
  const linger patience = {1, kEndOfOneSeconds};
  for (int fd = next_rsocket(0); fd >= 0 && now.tv_sec < end; fd = next_rsocket(fd + 1)) {
    const int last = forget(fd);
    if (last < 0) continue;
    rsetsockopt(last, SOL_SOCKET, SO_LINGER, &patience, sizeof patience);
    rclose(last);
    clock_gettime(CLOCK_MONOTONIC, &now);
  }
}

}  // namespace

extern "C" {

int poll(pollfd* fds, nfds_t count, int timeout) {
  return has_ours(fds, count) ? poll_ours(fds, count, timeout) : real::poll(fds, count, timeout);
}

int ppoll(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask) {
  if (!has_ours(fds, count)) return real::ppoll(fds, count, timeout, mask);
  return with_mask(mask, [&] { return poll_ours(fds, count, milliseconds(timeout)); });
}

int select(int count, fd_set* readable, fd_set* writable, fd_set* exceptional, timeval* timeout) {
  if (!has_ours(count, readable) && !has_ours(count, writable)) {
    return real::select(count, readable, writable, exceptional, timeout);
  }
  timespec time{};
  if (timeout) time = {timeout->tv_sec, timeout->tv_usec * 1000};
  return select_ours(count, readable, writable, exceptional,
                     milliseconds(timeout ? &time : nullptr));
}

int pselect(int count, fd_set* readable, fd_set* writable, fd_set* exceptional,
            const timespec* timeout, const sigset_t* mask) {
  if (!has_ours(count, readable) && !has_ours(count, writable)) {
    return real::pselect(count, readable, writable, exceptional, timeout, mask);
  }
  return with_mask(mask, [&] {
    return select_ours(count, readable, writable, exceptional, milliseconds(timeout));
  });
}

int epoll_ctl(int epoll, int operation, int fd, epoll_event* event) noexcept {
  if (!is_ours(fd) && rsocket_of(epoll) < 0) return real::epoll_ctl(epoll, operation, fd, event);
  return epoll_control(epoll, operation, fd, event);
}

int epoll_create(int size) noexcept {
  if (size > 0) return epoll_create1(0);
  errno = EINVAL;
  return -1;
}

int epoll_create1(int flags) noexcept {
  const int made = real::epoll_create1(flags);
  if (made >= 0 && !are_borrowed()) made_set(made);
  return made;
}

int epoll_wait(int epoll, epoll_event* events, int most, int timeout) {
  return epoll_pwait(epoll, events, most, timeout, nullptr);
}

int epoll_pwait(int epoll, epoll_event* events, int most, int timeout, const sigset_t* mask) {
  const timespec time = {timeout / 1000, timeout % 1000 * 1'000'000L};
  return epoll_wait_any({epoll, events, most, timeout < 0 ? nullptr : &time, mask},
                        [](const EpollWait& wait) {
                          return real::epoll_pwait(wait.epoll, wait.events, wait.most,
                                                   milliseconds(wait.timeout), wait.mask);
                        });
}

int epoll_pwait2(int epoll, epoll_event* events, int most, const timespec* timeout,
                 const sigset_t* mask) {
  return epoll_wait_any({epoll, events, most, timeout, mask}, [](const EpollWait& wait) {
    return real::epoll_pwait2(wait.epoll, wait.events, wait.most, wait.timeout, wait.mask);
  });
}
}
