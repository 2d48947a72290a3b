// SPDX-License-Identifier: MIT
// What fortified programs call instead: the size of their buffer is among the arguments. The
// headers do not declare these for everybody.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdarg>
#include <cstddef>
#include <ctime>

extern "C" {

[[noreturn]] void __chk_fail();
[[gnu::visibility("default")]] ssize_t __read_chk(int fd, void* buffer, size_t size, size_t room);
[[gnu::visibility("default")]] ssize_t __recv_chk(int fd, void* buffer, size_t size, size_t room,
                                                  int flags);
// Its last two are the address and its size.
[[gnu::visibility("default")]] ssize_t __recvfrom_chk(int fd, void* buffer, size_t size,
                                                      size_t room, int flags, ...);
[[gnu::visibility("default")]] int __poll_chk(pollfd* fds, nfds_t count, int timeout, size_t room);
[[gnu::visibility("default")]] int __ppoll_chk(pollfd* fds, nfds_t count, const timespec* timeout,
                                               const sigset_t* mask, size_t room);
}

namespace {

void check(size_t wanted, size_t room) {
  if (wanted > room) __chk_fail();
}

}  // namespace

ssize_t __read_chk(int fd, void* buffer, size_t size, size_t room) {
  check(size, room);
  return read(fd, buffer, size);
}

ssize_t __recv_chk(int fd, void* buffer, size_t size, size_t room, int flags) {
  check(size, room);
  return recv(fd, buffer, size, flags);
}

ssize_t __recvfrom_chk(int fd, void* buffer, size_t size, size_t room, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  auto* const from = va_arg(arguments, sockaddr*);
  auto* const length = va_arg(arguments, socklen_t*);
  va_end(arguments);
  check(size, room);
  return recvfrom(fd, buffer, size, flags, from, length);
}

int __poll_chk(pollfd* fds, nfds_t count, int timeout, size_t room) {
  check(count * sizeof *fds, room);
  return poll(fds, count, timeout);
}

int __ppoll_chk(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask,
                size_t room) {
  check(count * sizeof *fds, room);
  return ppoll(fds, count, timeout, mask);
}
