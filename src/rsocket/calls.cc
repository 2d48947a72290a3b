// SPDX-License-Identifier: MIT
// The C border of rsockets: the functions of <rdma/rsocket.h>.
#pragma GCC visibility push(default)
#include <rdma/rsocket.h>
#pragma GCC visibility pop

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstring>
#include <memory>

#include "base/not_cancelled.h"
#include "rsocket/datagram_socket.h"
#include "rsocket/poll.h"
#include "rsocket/socket.h"
#include "rsocket/stream_socket.h"

namespace verbena::rsocket {
namespace {

int answer(int error) {
  if (error == 0) return 0;
  errno = error;
  return -1;
}

ssize_t answer(const Result<std::size_t, int>& done) {
  if (done) return static_cast<ssize_t>(*done);
  errno = done.error();
  return -1;
}

// An address as a program takes it: as much as fits, and how long it is.
void give_address(const sockaddr_storage& address, socklen_t size, sockaddr* to, socklen_t* room) {
  if (!to || !room) return;
  std::memcpy(to, &address, std::min(size, *room));
  *room = size;
}

std::unique_ptr<Socket> make_socket(int family, int type) {
  if (type == SOCK_STREAM) return StreamSocket::create(family);
  return DatagramSocket::create(family);
}

// Wants an open socket.
template <class Body>
auto with(int fd, Body body) -> decltype(body(std::declval<Socket&>())) {
  // Locks are held here and below, and nothing is unwound.
  const NotCancelled during_call;
  const Held socket(fd);
  if (!socket) return static_cast<decltype(body(*socket.get()))>(answer(EBADF));
  return body(*socket.get());
}

ssize_t receive(int fd, std::span<const iovec> parts, int flags, sockaddr* from, socklen_t* size) {
  return with(fd, [&](Socket& socket) -> ssize_t {
    Sender sender;
    const auto done = socket.receive(parts, flags, &sender);
    if (done && from && size) {
      if (sender.size == 0) socket.peer_name(sender.address, sender.size);
      give_address(sender.address, sender.size, from, size);
    }
    return answer(done);
  });
}

ssize_t send(int fd, std::span<const iovec> parts, int flags, const sockaddr* to, socklen_t size) {
  return with(fd, [&](Socket& socket) { return answer(socket.send(parts, flags, to, size)); });
}

// A program may ask for longer than nanoseconds count.
Instant deadline_of(const timeval& timeout) {
  constexpr std::int64_t kYears = 1'000'000'000;  // seconds
  const auto seconds = std::clamp<std::int64_t>(timeout.tv_sec, -kYears, kYears);
  const auto more = std::clamp<std::int64_t>(timeout.tv_usec, -kYears, kYears);
  return clock_now() + Duration::seconds(seconds) + Duration::microseconds(more);
}

bool is_timeout(int level, int option) {
  return level == SOL_SOCKET && (option == SO_RCVTIMEO || option == SO_SNDTIMEO);
}

bool is_too_many(int count) { return count < 0 || count > IOV_MAX; }

std::span<const iovec> parts_of(const iovec* parts, int count) {
  return {parts, static_cast<std::size_t>(count)};
}

}  // namespace
}  // namespace verbena::rsocket

using verbena::Duration;
using verbena::Instant;
namespace impl = verbena::rsocket;

extern "C" {

int rsocket(int domain, int type, int protocol) {
  const int kind = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (domain != PF_INET && domain != PF_INET6 && domain != PF_IB) return impl::answer(EAFNOSUPPORT);
  const bool is_stream = kind == SOCK_STREAM && (protocol == 0 || protocol == IPPROTO_TCP);
  const bool is_datagram =
      kind == SOCK_DGRAM && (protocol == 0 || protocol == IPPROTO_UDP) && domain != PF_IB;
  if (!is_stream && !is_datagram) return impl::answer(EPROTONOSUPPORT);
  std::unique_ptr<impl::Socket> made = impl::make_socket(domain, kind);
  if (!made) return -1;
  if ((type & SOCK_NONBLOCK) != 0) made->set_status_flags(O_NONBLOCK);
  const auto fd = impl::enter(made.release());
  return fd ? *fd : impl::answer(fd.error());
}

int rbind(int socket, const sockaddr* address, socklen_t size) {
  return impl::with(socket, [&](impl::Socket& s) { return impl::answer(s.bind(address, size)); });
}

int rlisten(int socket, int backlog) {
  return impl::with(socket, [&](impl::Socket& s) { return impl::answer(s.listen(backlog)); });
}

int raccept(int socket, sockaddr* address, socklen_t* size) {
  return impl::with(socket, [&](impl::Socket& s) {
    const auto made = s.accept();
    if (!made) return impl::answer(made.error());
    impl::Sender peer;
    if (address && size && (*made)->peer_name(peer.address, peer.size) == 0) {
      impl::give_address(peer.address, peer.size, address, size);
    }
    const auto fd = impl::enter(*made);
    return fd ? *fd : impl::answer(fd.error());
  });
}

int rconnect(int socket, const sockaddr* address, socklen_t size) {
  return impl::with(socket,
                    [&](impl::Socket& s) { return impl::answer(s.connect(address, size)); });
}

int rshutdown(int socket, int how) {
  return impl::with(socket, [&](impl::Socket& s) { return impl::answer(s.shutdown(how)); });
}

int rclose(int socket) {
  const int closed = impl::with(socket, [](impl::Socket& s) {
    s.close();
    return 0;
  });
  if (closed == 0) impl::take_out(socket);
  return closed;
}

ssize_t rrecv(int socket, void* buffer, size_t size, int flags) {
  const iovec part{buffer, size};
  return impl::receive(socket, {&part, 1}, flags, nullptr, nullptr);
}

ssize_t rrecvfrom(int socket, void* buffer, size_t size, int flags, sockaddr* from,
                  socklen_t* from_size) {
  const iovec part{buffer, size};
  return impl::receive(socket, {&part, 1}, flags, from, from_size);
}

ssize_t rrecvmsg(int socket, msghdr* message, int flags) {
  if (!message || message->msg_iovlen > IOV_MAX) return impl::answer(EINVAL);
  message->msg_controllen = 0;
  message->msg_flags = 0;
  auto* const from = static_cast<sockaddr*>(message->msg_name);
  return impl::receive(socket, {message->msg_iov, message->msg_iovlen}, flags, from,
                       from ? &message->msg_namelen : nullptr);
}

ssize_t rsend(int socket, const void* buffer, size_t size, int flags) {
  const iovec part{const_cast<void*>(buffer), size};
  return impl::send(socket, {&part, 1}, flags, nullptr, 0);
}

ssize_t rsendto(int socket, const void* buffer, size_t size, int flags, const sockaddr* to,
                socklen_t to_size) {
  const iovec part{const_cast<void*>(buffer), size};
  return impl::send(socket, {&part, 1}, flags, to, to_size);
}

ssize_t rsendmsg(int socket, const msghdr* message, int flags) {
  if (!message || message->msg_iovlen > IOV_MAX) return impl::answer(EINVAL);
  if (message->msg_controllen != 0) return impl::answer(EOPNOTSUPP);
  return impl::send(socket, {message->msg_iov, message->msg_iovlen}, flags,
                    static_cast<const sockaddr*>(message->msg_name), message->msg_namelen);
}

ssize_t rread(int socket, void* buffer, size_t count) { return rrecv(socket, buffer, count, 0); }

ssize_t rreadv(int socket, const iovec* parts, int count) {
  if (impl::is_too_many(count)) return impl::answer(EINVAL);
  return impl::receive(socket, impl::parts_of(parts, count), 0, nullptr, nullptr);
}

ssize_t rwrite(int socket, const void* buffer, size_t count) {
  return rsend(socket, buffer, count, 0);
}

ssize_t rwritev(int socket, const iovec* parts, int count) {
  if (impl::is_too_many(count)) return impl::answer(EINVAL);
  return impl::send(socket, impl::parts_of(parts, count), 0, nullptr, 0);
}

int rpoll(pollfd* fds, nfds_t count, int timeout) {
  const verbena::NotCancelled during_call;
  const Instant deadline =
      timeout < 0 ? Instant::never() : impl::clock_now() + Duration::milliseconds(timeout);
  return impl::poll_all(fds, count, deadline);
}

int rselect(int count, fd_set* readable, fd_set* writable, fd_set* exceptional, timeval* timeout) {
  if (count < 0 || count > FD_SETSIZE) return impl::answer(EINVAL);
  const verbena::NotCancelled during_call;
  const Instant deadline = timeout ? impl::deadline_of(*timeout) : Instant::never();
  return impl::select_all(count, readable, writable, exceptional, deadline);
}

int rgetpeername(int socket, sockaddr* address, socklen_t* size) {
  return impl::with(socket, [&](impl::Socket& s) {
    impl::Sender peer;
    if (!address || !size) return impl::answer(EFAULT);
    if (const int error = s.peer_name(peer.address, peer.size)) return impl::answer(error);
    impl::give_address(peer.address, peer.size, address, size);
    return 0;
  });
}

int rgetsockname(int socket, sockaddr* address, socklen_t* size) {
  return impl::with(socket, [&](impl::Socket& s) {
    impl::Sender own;
    if (!address || !size) return impl::answer(EFAULT);
    if (const int error = s.name(own.address, own.size)) return impl::answer(error);
    impl::give_address(own.address, own.size, address, size);
    return 0;
  });
}

int rsetsockopt(int socket, int level, int option, const void* value, socklen_t size) {
  return impl::with(socket, [&](impl::Socket& s) {
    if (impl::is_timeout(level, option)) return impl::answer(s.set_timeout(option, value, size));
    return impl::answer(s.set_option(level, option, value, size));
  });
}

int rgetsockopt(int socket, int level, int option, void* value, socklen_t* size) {
  return impl::with(socket, [&](impl::Socket& s) {
    if (impl::is_timeout(level, option)) return impl::answer(s.get_timeout(option, value, size));
    return impl::answer(s.get_option(level, option, value, size));
  });
}

int rfcntl(int socket, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  const long argument = va_arg(arguments, long);
  va_end(arguments);
  return impl::with(socket, [&](impl::Socket& s) {
    switch (command) {
      case F_GETFL: return O_RDWR | s.status_flags();
      case F_SETFL: s.set_status_flags(static_cast<int>(argument) & O_NONBLOCK); return 0;
      case F_GETFD:
      case F_SETFD: return fcntl(socket, command, argument);
      default: return impl::answer(EINVAL);
    }
  });
}

off_t riomap(int socket, void* buffer, size_t size, int protection, int flags, off_t offset) {
  return impl::with(socket, [&](impl::Socket& s) -> off_t {
    if (flags != 0) return impl::answer(EINVAL);
    const auto done = s.map({static_cast<std::byte*>(buffer), size}, protection, offset);
    return done ? *done : impl::answer(done.error());
  });
}

int riounmap(int socket, void* buffer, size_t size) {
  return impl::with(socket, [&](impl::Socket& s) {
    return impl::answer(s.unmap({static_cast<std::byte*>(buffer), size}));
  });
}

size_t riowrite(int socket, const void* buffer, size_t count, off_t offset, int flags) {
  return static_cast<size_t>(impl::with(socket, [&](impl::Socket& s) {
    return impl::answer(
        s.write_mapped({static_cast<const std::byte*>(buffer), count}, offset, flags));
  }));
}

}  // extern "C"
