// SPDX-License-Identifier: MIT
// The functions that stand before libc's: an rsocket goes to librdmacm, everything else on to libc.
// Streams over IP become rsockets, or what /etc/rdma/rsocket/preload_config names. The descriptor
// of an rsocket is one of the kernel's, so close on exec and numbers work as ever.
#pragma GCC visibility push(default)
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>
#pragma GCC visibility pop

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <rdma/rsocket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdlib>
#include <memory>

#include "rspreload/descriptors.h"
#include "rspreload/late.h"
#include "rspreload/polling.h"
#include "rspreload/real.h"
#include "rspreload/rules.h"
#include "rspreload/system_call.h"

namespace {

using namespace verbena::rspreload;  // NOLINT(google-build-using-namespace): this file is its door

constexpr std::size_t kPeekMax = 1 << 20;

int fail(int error) {
  errno = error;
  return -1;
}

int accept_any(int fd, sockaddr* address, socklen_t* size, int flags) {
  const int listener = rsocket_of(fd);
  if (listener < 0) {
    const int made = real::accept4(fd, address, size, flags);
    if (made >= 0 && late_of(fd) == Late::kFresh) set_late(made, Late::kAccepted);
    return made;
  }
  const int made = raccept(listener, address, size);
  after_input(fd, 1);
  if (made < 0) return made;
  if ((flags & SOCK_NONBLOCK) != 0) rfcntl(made, F_SETFL, O_NONBLOCK);
  set_rsocket(made, made);
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
                               : real::read(from, static_cast<void*>(bytes.data()), wanted);
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

ssize_t send_file_any(int to, int from, off64_t* offset, size_t count) {
  const int rsocket = rsocket_for_data(to);
  if (rsocket < 0) return real::sendfile(to, from, offset, count);
  return after_output(to, send_file(rsocket, from, offset, count), count);
}

size_t size_of(const iovec* parts, size_t count) {
  size_t sum = 0;
  for (size_t i = 0; i < count; ++i)
    sum += parts[i].iov_len;
  return sum;
}

// A descriptor that was made of another.
int share(int from, int made) {
  if (are_borrowed()) return made;
  const int rsocket = rsocket_of(from);
  if (made >= 0 && rsocket >= 0) set_rsocket(made, rsocket);
  if (made >= 0 && rsocket < 0) set_late(made, late_of(from));
  if (made >= 0) share_set(from, made);
  return made;
}

bool is_nobodys(int fd) { return !is_ours(fd) && !is_in_sets(fd) && !is_needed(fd); }

int duplicate_at(int from, int to, int flags) {
  if (from == to || (is_nobodys(from) && is_nobodys(to)) || are_borrowed())
    return real::dup3(from, to, flags);
  if (rsocket_of(from) >= 0 && rsocket_of(from) == rsocket_of(to)) {
    return real::fcntl(to, F_SETFD, (flags & O_CLOEXEC) != 0 ? long{FD_CLOEXEC} : 0L) == 0 ? to
                                                                                           : -1;
  }
  // The number that an rsocket needs for its other descriptors.
  if (is_needed(to)) return fail(EBUSY);
  // Of nothing there is no duplicate: then the other stays open.
  if (real::fcntl(from, F_GETFD, 0L) < 0) return -1;
  left_sets(to);
  const int last = forget(to);
  if (last == to) {
    // Its number stays taken meanwhile, so that nobody else gets it.
    const Replacing replacing(to);
    rclose(last);
  } else if (last >= 0) {
    rclose(last);
  }
  return share(from, real::dup3(from, to, flags));
}

// What lies there to be read; no more than can be looked at.
int readable(int rsocket) {
  const std::unique_ptr<char, decltype(&free)> bytes(static_cast<char*>(malloc(kPeekMax)), &free);
  if (!bytes) return fail(ENOMEM);
  const ssize_t got = rrecv(rsocket, bytes.get(), kPeekMax, MSG_PEEK | MSG_DONTWAIT);
  return got < 0 && errno != EAGAIN ? -1 : static_cast<int>(std::max<ssize_t>(got, 0));
}

int unacknowledged(int rsocket) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (rgetsockopt(rsocket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return -1;
  return static_cast<int>(info.tcpi_bytes_sent - info.tcpi_bytes_acked);
}

int answer(int value, void* to) {
  if (value < 0) return -1;
  *static_cast<int*>(to) = value;
  return 0;
}

int control_rsocket(int rsocket, unsigned long request, void* argument) {
  if (request == FIONREAD) return answer(readable(rsocket), argument);
  if (request == SIOCOUTQ) return answer(unacknowledged(rsocket), argument);
  if (request != FIONBIO) return fail(ENOTTY);
  return rfcntl(rsocket, F_SETFL, *static_cast<const int*>(argument) != 0 ? O_NONBLOCK : 0);
}

int fcntl_any(int fd, int command, long argument) {
  const int rsocket = rsocket_of(fd);
  const bool makes_another = command == F_DUPFD || command == F_DUPFD_CLOEXEC;
  if (makes_another) return share(fd, real::fcntl(fd, command, argument));
  const bool is_status = command == F_GETFL || command == F_SETFL;
  if (rsocket < 0 || !is_status) return real::fcntl(fd, command, argument);
  return rfcntl(rsocket, command, argument);
}

}  // namespace

// All descriptors of an rsocket are the program's; the last takes it along.
int verbena::rspreload::close_descriptor(int fd, const void* caller) {
  if (is_kept(fd) && (is_own_code(caller) || is_replaced_here(fd))) return drop_kept(fd);
  if ((is_ours(fd) || is_in_sets(fd)) && are_borrowed()) return real::close(fd);
  left_sets(fd);
  const int rsocket = rsocket_of(fd);
  // What the program has closed before; the rsocket needs the number for its other descriptors.
  if (rsocket < 0 && is_needed(fd) && !is_own_code(caller)) return fail(EBADF);
  const int last = forget(fd);  // first: the number may be somebody else's at once
  if (rsocket < 0) return real::close(fd);
  if (fd != rsocket) real::close(fd);
  return last >= 0 ? rclose(last) : 0;
}

extern "C" {

int socket(int domain, int type, int protocol) noexcept {
  const void* const caller = __builtin_return_address(0);
  const int kind = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (!is_wanted({domain, kind, protocol}, caller)) return real::socket(domain, type, protocol);
  if (is_fork_safe() && kind == SOCK_STREAM) {
    const int made = real::socket(domain, type, protocol);
    if (made >= 0) set_late(made, Late::kFresh);
    return made;
  }
  const int made = rsocket(domain, type, protocol);
  if (made < 0) return real::socket(domain, type, protocol);
  if ((type & SOCK_CLOEXEC) == 0) real::fcntl(made, F_SETFD, 0L);
  set_options(made);
  set_rsocket(made, made);
  return made;
}

int bind(int fd, const sockaddr* address, socklen_t size) noexcept {
  const int rsocket = rsocket_of(fd);
  return rsocket >= 0 ? rbind(rsocket, address, size) : real::bind(fd, address, size);
}

int listen(int fd, int backlog) noexcept {
  const int rsocket = rsocket_of(fd);
  return rsocket >= 0 ? after_beginning(fd, rlisten(rsocket, backlog)) : real::listen(fd, backlog);
}

int accept(int fd, sockaddr* address, socklen_t* size) { return accept_any(fd, address, size, 0); }

int accept4(int fd, sockaddr* address, socklen_t* size, int flags) {
  return accept_any(fd, address, size, flags);
}

int connect(int fd, const sockaddr* address, socklen_t size) {
  const int rsocket = rsocket_of(fd);
  if (rsocket >= 0) return after_beginning(fd, rconnect(rsocket, address, size));
  const int done = real::connect(fd, address, size);
  if (late_of(fd) == Late::kFresh && (done == 0 || errno == EINPROGRESS)) {
    set_late(fd, Late::kConnected);
  }
  return done;
}

ssize_t recv(int fd, void* buffer, size_t size, int flags) {
  const int rsocket = rsocket_for_data(fd);
  if (rsocket < 0) return real::recv(fd, buffer, size, flags);
  return after_input(fd, rrecv(rsocket, buffer, size, flags), flags);
}

ssize_t recvfrom(int fd, void* buffer, size_t size, int flags, sockaddr* from, socklen_t* length) {
  const int rsocket = rsocket_for_data(fd);
  if (rsocket < 0) return real::recvfrom(fd, buffer, size, flags, from, length);
  return after_input(fd, rrecvfrom(rsocket, buffer, size, flags, from, length), flags);
}

ssize_t recvmsg(int fd, msghdr* message, int flags) {
  const int rsocket = rsocket_for_data(fd);
  if (rsocket < 0) return real::recvmsg(fd, message, flags);
  return after_input(fd, rrecvmsg(rsocket, message, flags), flags);
}

int recvmmsg(int fd, mmsghdr* messages, unsigned count, int flags, timespec* timeout) {
  const int rsocket = rsocket_for_data(fd);
  if (rsocket < 0) return real::recvmmsg(fd, messages, count, flags, timeout);
  unsigned done = 0;
  while (done < count) {
    const int how = flags & ~MSG_WAITFORONE;
    const bool may_wait = done == 0 || (flags & MSG_WAITFORONE) == 0;
    const ssize_t got = recvmsg(fd, &messages[done].msg_hdr, may_wait ? how : how | MSG_DONTWAIT);
    if (got < 0) return done > 0 ? static_cast<int>(done) : -1;
    messages[done++].msg_len = static_cast<unsigned>(got);
    if (got == 0) break;
  }
  return static_cast<int>(done);
}

ssize_t read(int fd, void* buffer, size_t size) {
  const int rsocket = rsocket_for_data(fd);
  return rsocket < 0 ? real::read(fd, buffer, size) : after_input(fd, rread(rsocket, buffer, size));
}

ssize_t readv(int fd, const iovec* parts, int count) {
  const int rsocket = rsocket_for_data(fd);
  return rsocket < 0 ? real::readv(fd, parts, count)
                     : after_input(fd, rreadv(rsocket, parts, count));
}

ssize_t send(int fd, const void* buffer, size_t size, int flags) {
  const int rsocket = rsocket_for_data(fd);
  if (rsocket < 0) return real::send(fd, buffer, size, flags);
  return after_output(fd, rsend(rsocket, buffer, size, flags), size);
}

ssize_t sendto(int fd, const void* buffer, size_t size, int flags, const sockaddr* to,
               socklen_t length) {
  const int rsocket = rsocket_for_data(fd);
  if (rsocket < 0) return real::sendto(fd, buffer, size, flags, to, length);
  return after_output(fd, rsendto(rsocket, buffer, size, flags, to, length), size);
}

ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  const int rsocket = rsocket_for_data(fd);
  if (rsocket < 0) return real::sendmsg(fd, message, flags);
  const size_t size = message ? size_of(message->msg_iov, message->msg_iovlen) : 0;
  return after_output(fd, rsendmsg(rsocket, message, flags), size);
}

int sendmmsg(int fd, mmsghdr* messages, unsigned count, int flags) {
  const int rsocket = rsocket_for_data(fd);
  if (rsocket < 0) return real::sendmmsg(fd, messages, count, flags);
  unsigned done = 0;
  while (done < count) {
    const msghdr& next = messages[done].msg_hdr;
    const ssize_t sent = sendmsg(fd, &next, flags);
    if (sent < 0) return done > 0 ? static_cast<int>(done) : -1;
    messages[done++].msg_len = static_cast<unsigned>(sent);
    if (static_cast<size_t>(sent) < size_of(next.msg_iov, next.msg_iovlen)) break;
  }
  return static_cast<int>(done);
}

ssize_t write(int fd, const void* buffer, size_t size) {
  const int rsocket = rsocket_for_data(fd);
  return rsocket < 0 ? real::write(fd, buffer, size)
                     : after_output(fd, rwrite(rsocket, buffer, size), size);
}

ssize_t writev(int fd, const iovec* parts, int count) {
  const int rsocket = rsocket_for_data(fd);
  if (rsocket < 0) return real::writev(fd, parts, count);
  const size_t size = count > 0 ? size_of(parts, static_cast<size_t>(count)) : 0;
  return after_output(fd, rwritev(rsocket, parts, count), size);
}

ssize_t sendfile(int to, int from, off_t* offset, size_t count) noexcept {
  return send_file_any(to, from, offset, count);
}

ssize_t sendfile64(int to, int from, off64_t* offset, size_t count) noexcept {
  return send_file_any(to, from, offset, count);
}

int shutdown(int fd, int how) noexcept {
  // What was sent before it moves to the rsocket first.
  const int rsocket = how == SHUT_RD ? rsocket_of(fd) : rsocket_for_data(fd);
  return rsocket >= 0 ? rshutdown(rsocket, how) : real::shutdown(fd, how);
}

int close(int fd) { return close_descriptor(fd, __builtin_return_address(0)); }

int close_range(unsigned first, unsigned last, int flags) noexcept {
  if ((flags & ~CLOSE_RANGE_UNSHARE) == 0 && first <= last && !are_borrowed()) {
    const int end = static_cast<int>(std::min<unsigned>(last, INT_MAX));
    const int begin = static_cast<int>(std::min<unsigned>(first, INT_MAX));
    for (int fd = next_ours(begin, end, is_in_sets); fd >= 0;
         fd = next_ours(fd + 1, end, is_in_sets))
      close_descriptor(fd, nullptr);
  }
  return real::close_range(first, last, flags);
}

void closefrom(int first) noexcept {
  close_range(static_cast<unsigned>(std::max(first, 0)), UINT_MAX, 0);
}

int dup(int fd) noexcept { return share(fd, real::dup(fd)); }

int dup2(int from, int to) noexcept {
  if (is_nobodys(from) && is_nobodys(to)) return real::dup2(from, to);
  return from == to ? to : duplicate_at(from, to, 0);
}

int dup3(int from, int to, int flags) noexcept { return duplicate_at(from, to, flags); }

int getpeername(int fd, sockaddr* address, socklen_t* size) noexcept {
  const int rsocket = rsocket_of(fd);
  return rsocket >= 0 ? rgetpeername(rsocket, address, size) : real::getpeername(fd, address, size);
}

int getsockname(int fd, sockaddr* address, socklen_t* size) noexcept {
  const int rsocket = rsocket_of(fd);
  return rsocket >= 0 ? rgetsockname(rsocket, address, size) : real::getsockname(fd, address, size);
}

int setsockopt(int fd, int level, int option, const void* value, socklen_t size) noexcept {
  const int rsocket = rsocket_of(fd);
  if (rsocket < 0) return real::setsockopt(fd, level, option, value, size);
  const int done = rsetsockopt(rsocket, level, option, value, size);
  return done != 0 && errno == ENOPROTOOPT && is_harmless(level, option) ? 0 : done;
}

int getsockopt(int fd, int level, int option, void* value, socklen_t* size) noexcept {
  const int rsocket = rsocket_of(fd);
  return rsocket >= 0 ? rgetsockopt(rsocket, level, option, value, size)
                      : real::getsockopt(fd, level, option, value, size);
}

int ioctl(int fd, unsigned long request, ...) noexcept {
  va_list arguments;
  va_start(arguments, request);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  const int rsocket = rsocket_of(fd);
  return rsocket >= 0 ? control_rsocket(rsocket, request, argument)
                      : real::ioctl(fd, request, argument);
}

int fcntl64(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  const long argument = va_arg(arguments, long);
  va_end(arguments);
  return fcntl_any(fd, command, argument);
}

int fcntl(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  const long argument = va_arg(arguments, long);
  va_end(arguments);
  return fcntl_any(fd, command, argument);
}
}
