// SPDX-License-Identifier: MIT
// epoll(7) with rsockets: a wait for a set that has some (epoll_sets.h) is rpoll(3) on them and on
// the kernel's set. It costs a look at each of them.
//
// With EPOLLET what was told is not told again until the program has done something about it: read
// or accepted, or found no more room to write. That tells a little more than the kernel would,
// which a program for EPOLLET must bear.
#pragma once

#include <poll.h>
#include <sys/epoll.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <vector>

namespace verbena::rspreload {

// The arguments of epoll_pwait2(2). A timeout of null: without end.
struct EpollWait {
  int epoll;
  epoll_event* events;
  int most;
  const timespec* timeout;
  const sigset_t* mask;
};

// As the functions of epoll: -1 with errno, else what they return. `kernels` is libc's.
int epoll_control(int epoll, int operation, int fd, epoll_event* event);
int epoll_wait_any(const EpollWait& wait, int (*kernels)(const EpollWait&));

// The program made a set, or another descriptor of what may be one.
void made_set(int epoll);
void share_set(int epoll, int made);
// Whether it is a set, has rsockets, and what there is to be polled for it.
bool is_set(int epoll);
bool has_rsockets(int epoll);
void add_polled(int epoll, std::vector<pollfd>& polled);

// A connection of TCP, perhaps in sets, is an rsocket now.
void became_rsocket(int fd, int rsocket);
// A descriptor goes: of a set, or in one.
bool is_in_sets(int fd);
void left_sets(int fd);

// After calls that begin something, or move data, of which `wanted` were asked for: what was told
// may be told again. Give the result back; errno stays.
int after_beginning(int fd, int result);
ssize_t after_input(int fd, ssize_t result, int flags = 0);
ssize_t after_output(int fd, ssize_t result, std::size_t wanted);

// The mask holds while we wait, as nearly as one can in user space.
template <class Body>
int with_mask(const sigset_t* mask, Body body) {
  sigset_t before;
  if (mask) pthread_sigmask(SIG_SETMASK, mask, &before);
  const int result = body();
  const int error = errno;
  if (mask) pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return result;
}

}  // namespace verbena::rspreload
