// SPDX-License-Identifier: MIT
// The functions that stand before libc's: an rsocket goes to librdmacm, everything else on to libc.
// Streams over IP become rsockets; the descriptor of an rsocket is one of the kernel's, so close on
// exec and numbers work as ever.
#pragma GCC visibility push(default)
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>
#pragma GCC visibility pop

#include <rdma/rsocket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdarg>

#include "rspreload/managed.h"
#include "rspreload/real.h"

namespace {

using namespace verbena::rspreload;  // NOLINT(google-build-using-namespace): this file is its door

constinit Real<int(int, int, int)> real_socket("socket");
constinit Real<int(int, const sockaddr*, socklen_t)> real_bind("bind");
constinit Real<int(int, int)> real_listen("listen");
constinit Real<int(int, sockaddr*, socklen_t*)> real_accept("accept");
constinit Real<int(int, sockaddr*, socklen_t*, int)> real_accept4("accept4");
constinit Real<int(int, const sockaddr*, socklen_t)> real_connect("connect");
constinit Real<ssize_t(int, void*, size_t, int)> real_recv("recv");
constinit Real<ssize_t(int, void*, size_t, int, sockaddr*, socklen_t*)> real_recvfrom("recvfrom");
constinit Real<ssize_t(int, msghdr*, int)> real_recvmsg("recvmsg");
constinit Real<ssize_t(int, void*, size_t)> real_read("read");
constinit Real<ssize_t(int, const iovec*, int)> real_readv("readv");
constinit Real<ssize_t(int, const void*, size_t, int)> real_send("send");
constinit Real<ssize_t(int, const void*, size_t, int, const sockaddr*, socklen_t)> real_sendto(
    "sendto");
constinit Real<ssize_t(int, const msghdr*, int)> real_sendmsg("sendmsg");
constinit Real<ssize_t(int, const void*, size_t)> real_write("write");
constinit Real<ssize_t(int, const iovec*, int)> real_writev("writev");
constinit Real<int(pollfd*, nfds_t, int)> real_poll("poll");
constinit Real<int(pollfd*, nfds_t, const timespec*, const sigset_t*)> real_ppoll("ppoll");
constinit Real<int(int, fd_set*, fd_set*, fd_set*, timeval*)> real_select("select");
constinit Real<int(int, fd_set*, fd_set*, fd_set*, const timespec*, const sigset_t*)> real_pselect(
    "pselect");
constinit Real<int(int, int)> real_shutdown("shutdown");
constinit Real<int(int)> real_close("close");
constinit Real<int(int, int)> real_dup2("dup2");
constinit Real<int(int, sockaddr*, socklen_t*)> real_getpeername("getpeername");
constinit Real<int(int, sockaddr*, socklen_t*)> real_getsockname("getsockname");
constinit Real<int(int, int, int, const void*, socklen_t)> real_setsockopt("setsockopt");
constinit Real<int(int, int, int, void*, socklen_t*)> real_getsockopt("getsockopt");
constinit Real<int(int, int, long)> real_fcntl("fcntl64");
constinit Real<int(int, unsigned long, void*)> real_ioctl("ioctl");
constinit Real<ssize_t(int, int, off64_t*, size_t)> real_sendfile("sendfile64");

bool has_managed(const pollfd* fds, nfds_t count) {
  return std::any_of(fds, fds + count, [](const pollfd& each) { return is_managed(each.fd); });
}

bool has_managed(int count, const fd_set* all) {
  for (int fd = 0; all && fd < count; ++fd)
    if (FD_ISSET(fd, all) && is_managed(fd)) return true;
  return false;
}

int milliseconds(const timespec* time) {
  if (!time) return -1;
  const long long all = time->tv_sec * 1000LL + (time->tv_nsec + 999'999) / 1'000'000;
  return static_cast<int>(std::min<long long>(all, INT_MAX));
}

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

int accept_managed(int fd, sockaddr* address, socklen_t* size, int flags) {
  const int made = raccept(fd, address, size);
  if (made < 0) return made;
  if ((flags & SOCK_NONBLOCK) != 0) rfcntl(made, F_SETFL, O_NONBLOCK);
  manage(made);
  return made;
}

// Some that programs set, and that change nothing here.
bool is_harmless(int level, int option) {
  return (level == SOL_SOCKET && option != SO_REUSEADDR) || level == IPPROTO_TCP ||
         level == IPPROTO_IP || level == IPPROTO_IPV6;
}

ssize_t send_file(int to, int from, off64_t* offset, size_t count) {
  std::array<char, 65536> bytes;
  size_t sent = 0;
  while (sent < count) {
    const size_t wanted = std::min(count - sent, bytes.size());
    const ssize_t got = offset ? pread64(from, bytes.data(), wanted, *offset)
                               : real_read(from, bytes.data(), wanted);
    if (got <= 0) return sent > 0 ? static_cast<ssize_t>(sent) : got;
    const ssize_t done = rsend(to, bytes.data(), static_cast<size_t>(got), 0);
    const ssize_t kept = std::max<ssize_t>(done, 0);
    if (offset) *offset += kept;
    if (!offset && kept < got) lseek64(from, kept - got, SEEK_CUR);
    sent += static_cast<size_t>(kept);
    if (done < 0) return sent > 0 ? static_cast<ssize_t>(sent) : -1;
    if (done < got) break;
  }
  return static_cast<ssize_t>(sent);
}

}  // namespace

extern "C" {

int socket(int domain, int type, int protocol) noexcept {
  const void* const caller = __builtin_return_address(0);
  if (!is_wanted(domain, type, protocol, caller)) return real_socket(domain, type, protocol);
  const int fd = rsocket(domain, type, protocol);
  if (fd < 0) return real_socket(domain, type, protocol);
  set_options(fd);
  manage(fd);
  return fd;
}

int bind(int fd, const sockaddr* address, socklen_t size) noexcept {
  return is_managed(fd) ? rbind(fd, address, size) : real_bind(fd, address, size);
}

int listen(int fd, int backlog) noexcept {
  return is_managed(fd) ? rlisten(fd, backlog) : real_listen(fd, backlog);
}

int accept(int fd, sockaddr* address, socklen_t* size) {
  return is_managed(fd) ? accept_managed(fd, address, size, 0) : real_accept(fd, address, size);
}

int accept4(int fd, sockaddr* address, socklen_t* size, int flags) {
  return is_managed(fd) ? accept_managed(fd, address, size, flags)
                        : real_accept4(fd, address, size, flags);
}

int connect(int fd, const sockaddr* address, socklen_t size) {
  return is_managed(fd) ? rconnect(fd, address, size) : real_connect(fd, address, size);
}

ssize_t recv(int fd, void* buffer, size_t size, int flags) {
  return is_managed(fd) ? rrecv(fd, buffer, size, flags) : real_recv(fd, buffer, size, flags);
}

ssize_t recvfrom(int fd, void* buffer, size_t size, int flags, sockaddr* from, socklen_t* length) {
  return is_managed(fd) ? rrecvfrom(fd, buffer, size, flags, from, length)
                        : real_recvfrom(fd, buffer, size, flags, from, length);
}

ssize_t recvmsg(int fd, msghdr* message, int flags) {
  return is_managed(fd) ? rrecvmsg(fd, message, flags) : real_recvmsg(fd, message, flags);
}

ssize_t read(int fd, void* buffer, size_t size) {
  return is_managed(fd) ? rread(fd, buffer, size) : real_read(fd, buffer, size);
}

ssize_t readv(int fd, const iovec* parts, int count) {
  return is_managed(fd) ? rreadv(fd, parts, count) : real_readv(fd, parts, count);
}

ssize_t send(int fd, const void* buffer, size_t size, int flags) {
  return is_managed(fd) ? rsend(fd, buffer, size, flags) : real_send(fd, buffer, size, flags);
}

ssize_t sendto(int fd, const void* buffer, size_t size, int flags, const sockaddr* to,
               socklen_t length) {
  return is_managed(fd) ? rsendto(fd, buffer, size, flags, to, length)
                        : real_sendto(fd, buffer, size, flags, to, length);
}

ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  return is_managed(fd) ? rsendmsg(fd, message, flags) : real_sendmsg(fd, message, flags);
}

ssize_t write(int fd, const void* buffer, size_t size) {
  return is_managed(fd) ? rwrite(fd, buffer, size) : real_write(fd, buffer, size);
}

ssize_t writev(int fd, const iovec* parts, int count) {
  return is_managed(fd) ? rwritev(fd, parts, count) : real_writev(fd, parts, count);
}

ssize_t sendfile(int to, int from, off_t* offset, size_t count) noexcept {
  return is_managed(to) ? send_file(to, from, offset, count)
                        : real_sendfile(to, from, offset, count);
}

ssize_t sendfile64(int to, int from, off64_t* offset, size_t count) noexcept {
  return is_managed(to) ? send_file(to, from, offset, count)
                        : real_sendfile(to, from, offset, count);
}

int poll(pollfd* fds, nfds_t count, int timeout) {
  return has_managed(fds, count) ? rpoll(fds, count, timeout) : real_poll(fds, count, timeout);
}

int ppoll(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask) {
  if (!has_managed(fds, count)) return real_ppoll(fds, count, timeout, mask);
  return with_mask(mask, [&] { return rpoll(fds, count, milliseconds(timeout)); });
}

int select(int count, fd_set* readable, fd_set* writable, fd_set* exceptional, timeval* timeout) {
  if (has_managed(count, readable) || has_managed(count, writable)) {
    return rselect(count, readable, writable, exceptional, timeout);
  }
  return real_select(count, readable, writable, exceptional, timeout);
}

int pselect(int count, fd_set* readable, fd_set* writable, fd_set* exceptional,
            const timespec* timeout, const sigset_t* mask) {
  if (!has_managed(count, readable) && !has_managed(count, writable)) {
    return real_pselect(count, readable, writable, exceptional, timeout, mask);
  }
  timeval time{};
  if (timeout) time = {timeout->tv_sec, (timeout->tv_nsec + 999) / 1000};
  return with_mask(mask, [&] {
    return rselect(count, readable, writable, exceptional, timeout ? &time : nullptr);
  });
}

int shutdown(int fd, int how) noexcept {
  return is_managed(fd) ? rshutdown(fd, how) : real_shutdown(fd, how);
}

int close(int fd) {
  if (!is_managed(fd)) return real_close(fd);
  forget(fd);  // first: librdmacm closes the descriptor
  return rclose(fd);
}

int dup2(int from, int to) noexcept {
  if (!is_managed(from) && !is_managed(to)) return real_dup2(from, to);
  if (is_managed(from)) {
    errno = EOPNOTSUPP;
    return -1;
  }
  close(to);
  return real_dup2(from, to);
}

int getpeername(int fd, sockaddr* address, socklen_t* size) noexcept {
  return is_managed(fd) ? rgetpeername(fd, address, size) : real_getpeername(fd, address, size);
}

int getsockname(int fd, sockaddr* address, socklen_t* size) noexcept {
  return is_managed(fd) ? rgetsockname(fd, address, size) : real_getsockname(fd, address, size);
}

int setsockopt(int fd, int level, int option, const void* value, socklen_t size) noexcept {
  if (!is_managed(fd)) return real_setsockopt(fd, level, option, value, size);
  const int done = rsetsockopt(fd, level, option, value, size);
  return done != 0 && errno == ENOPROTOOPT && is_harmless(level, option) ? 0 : done;
}

int getsockopt(int fd, int level, int option, void* value, socklen_t* size) noexcept {
  return is_managed(fd) ? rgetsockopt(fd, level, option, value, size)
                        : real_getsockopt(fd, level, option, value, size);
}

int ioctl(int fd, unsigned long request, ...) noexcept {
  va_list arguments;
  va_start(arguments, request);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  if (!is_managed(fd)) return real_ioctl(fd, request, argument);
  if (request != FIONBIO) {
    errno = ENOTTY;
    return -1;
  }
  return rfcntl(fd, F_SETFL, *static_cast<const int*>(argument) != 0 ? O_NONBLOCK : 0);
}

int fcntl64(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  const long argument = va_arg(arguments, long);
  va_end(arguments);
  return is_managed(fd) ? rfcntl(fd, command, argument) : real_fcntl(fd, command, argument);
}

int fcntl(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  const long argument = va_arg(arguments, long);
  va_end(arguments);
  return is_managed(fd) ? rfcntl(fd, command, argument) : real_fcntl(fd, command, argument);
}

// What fortified programs call: the size of their buffer comes last.
ssize_t __read_chk(int fd, void* buffer, size_t size, size_t room);
ssize_t __recv_chk(int fd, void* buffer, size_t size, size_t room, int flags);
int __poll_chk(pollfd* fds, nfds_t count, int timeout, size_t room);
int __ppoll_chk(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask,
                size_t room);
[[noreturn]] void __chk_fail();
}

namespace {

void check(size_t wanted, size_t room) {
  if (wanted > room) __chk_fail();
}

}  // namespace

extern "C" {

[[gnu::visibility("default")]] ssize_t __read_chk(int fd, void* buffer, size_t size, size_t room) {
  check(size, room);
  return read(fd, buffer, size);
}

[[gnu::visibility("default")]] ssize_t __recv_chk(int fd, void* buffer, size_t size, size_t room,
                                                  int flags) {
  check(size, room);
  return recv(fd, buffer, size, flags);
}

[[gnu::visibility("default")]] int __poll_chk(pollfd* fds, nfds_t count, int timeout, size_t room) {
  check(count * sizeof *fds, room);
  return poll(fds, count, timeout);
}

[[gnu::visibility("default")]] int __ppoll_chk(pollfd* fds, nfds_t count, const timespec* timeout,
                                               const sigset_t* mask, size_t room) {
  check(count * sizeof *fds, room);
  return ppoll(fds, count, timeout, mask);
}
}
