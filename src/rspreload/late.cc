// SPDX-License-Identifier: MIT
#include "rspreload/late.h"

#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <mutex>

#include "base/mutex.h"
#include "rspreload/descriptors.h"
#include "rspreload/numbers.h"
#include "rspreload/polling.h"
#include "rspreload/real.h"

namespace verbena::rspreload {
namespace {

// Another child may listen at the same address just now: for as long as its client says nothing.
constexpr int kBindTries = 30'000;
constexpr timespec kBindPause = {0, 1'000'000};

// Of each buffer, unless the system's configuration says something else. Between two turns of the
// scheduler a connection moves no more than its buffers hold. With rsockets' own 128 KiB that is
// 0.3 Gbit/s where other programs want the processors as well; the buffers of TCP grow to
// megabytes.
constexpr int kBufferBytes = 1 << 20;
constexpr const char* kReceiveSize = "/etc/rdma/rsocket/mem_default";
constexpr const char* kSendSize = "/etc/rdma/rsocket/wmem_default";

// Several threads may want the first data of one connection.
std::array<Mutex, 64> locks;

// One of them may be amid that while this one forks, and is not in the child to let go.
[[gnu::constructor]] void watch_forks() {
  static_cast<void>(pthread_atfork(nullptr, nullptr, [] {
    for (Mutex& each : locks)
      std::construct_at(&each);
  }));
}

struct Address {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

// A server for both families sees IPv4 as a part of IPv6; rdma_cm does not.
void unmap(Address& address) {
  sockaddr_in6 six;
  std::memcpy(&six, &address.storage, sizeof six);
  if (address.storage.ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) return;
  sockaddr_in four{};
  four.sin_family = AF_INET;
  four.sin_port = six.sin6_port;
  std::memcpy(&four.sin_addr, &six.sin6_addr.s6_addr[12], sizeof four.sin_addr);
  address = {};
  std::memcpy(&address.storage, &four, sizeof four);
  address.size = sizeof four;
}

int make(const Address& address) {
  const int made = rsocket(address.storage.ss_family, SOCK_STREAM, 0);
  if (made >= 0) set_options(made);
  return made;
}

bool listen_at(int listener, Address& address) {
  const int yes = 1;
  rsetsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  bool is_bound = false;
  for (int i = 0; i < kBindTries; ++i) {
    is_bound = is_bound || rbind(listener, address.get(), address.size) == 0;
    if (is_bound && rlisten(listener, 1) == 0) return true;
    if (errno != EADDRINUSE) return false;
    nanosleep(&kBindPause, nullptr);
  }
  return false;
}

// Until the client connects by rdma_cm, or leaves.
int accept_instead_of(int fd, int listener) {
  pollfd both[2] = {{listener, POLLIN, 0}, {fd, POLLIN | POLLRDHUP, 0}};
  for (;;) {
    if (rpoll(both, 2, -1) < 0 && errno != EINTR) return -1;
    if (both[0].revents != 0) return raccept(listener, nullptr, nullptr);
    if (both[1].revents != 0) return -1;
  }
}

int become_passive(int fd) {
  Address own;
  if (real::getsockname(fd, own.get(), &own.size) != 0) return -1;
  unmap(own);
  const int listener = make(own);
  if (listener < 0) return -1;
  int made = -1;
  const std::uint32_t go = 0;
  if (listen_at(listener, own) &&
      real::send(fd, static_cast<const void*>(&go), sizeof go, MSG_NOSIGNAL) == sizeof go) {
    made = accept_instead_of(fd, listener);
  }
  rclose(listener);
  return made;
}

// Whether the peer says that it listens by rdma_cm; what it says stays where it is.
bool hears_go(int fd) {
  for (;;) {
    pollfd one = {fd, POLLIN, 0};
    if (real::poll(&one, nfds_t{1}, -1) < 0 && errno != EINTR) return false;
    std::uint32_t go = 1;
    const ssize_t got = real::recv(fd, static_cast<void*>(&go), sizeof go, MSG_PEEK | MSG_DONTWAIT);
    if (got == sizeof go) return go == 0;
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return false;
    if (got > 0) nanosleep(&kBindPause, nullptr);  // the rest is on its way
  }
}

int become_active(int fd) {
  Address peer;
  if (!hears_go(fd) || real::getpeername(fd, peer.get(), &peer.size) != 0) return -1;
  unmap(peer);
  const int made = make(peer);
  if (made < 0) return -1;
  if (rconnect(made, peer.get(), peer.size) == 0) return made;
  rclose(made);
  return -1;
}

bool is_connected(int fd) {
  Address peer;
  return real::getpeername(fd, peer.get(), &peer.size) == 0;
}

// The descriptor is the rsocket's from now on, with what the program has set on it.
void hand_over(int fd, int made) {
  int value = 0;
  socklen_t size = sizeof value;
  if (real::getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, static_cast<void*>(&value), &size) == 0) {
    rsetsockopt(made, IPPROTO_TCP, TCP_NODELAY, &value, size);
  }
  for (const int option : {SO_RCVTIMEO, SO_SNDTIMEO}) {
    timeval timeout{};
    socklen_t length = sizeof timeout;
    if (real::getsockopt(fd, SOL_SOCKET, option, static_cast<void*>(&timeout), &length) == 0) {
      rsetsockopt(made, SOL_SOCKET, option, &timeout, length);
    }
  }
  const int flags = real::fcntl(fd, F_GETFL, 0L);
  if ((flags & O_NONBLOCK) != 0) rfcntl(made, F_SETFL, O_NONBLOCK);
  const bool closes_on_exec = (real::fcntl(fd, F_GETFD, 0L) & FD_CLOEXEC) != 0;
  real::dup3(made, fd, closes_on_exec ? O_CLOEXEC : 0);
  set_rsocket(fd, made);
  became_rsocket(fd, made);
}

// Where that fails the connection stays one of TCP, and tells the program itself how it is. A
// client that waits to hear where to connect to must not wait for ever.
void become(int fd) {
  const int saved = errno;
  const std::lock_guard guard(locks[static_cast<std::size_t>(fd) % locks.size()]);
  const Late late = late_of(fd);
  if (late == Late::kNone || (late == Late::kConnected && !is_connected(fd))) return;
  const int made = late == Late::kAccepted ? become_passive(fd) : become_active(fd);
  if (made >= 0) {
    hand_over(fd, made);
  } else {
    set_late(fd, Late::kNone);
    if (late == Late::kAccepted) real::shutdown(fd, SHUT_RDWR);
  }
  errno = saved;
}

void set_from(int rsocket, int option, const char* variable) {
  const char* const text = std::getenv(variable);
  if (!text) return;
  const int value = read_number(text).value_or(0);
  if (value > 0) rsetsockopt(rsocket, SOL_RDMA, option, &value, sizeof value);
}

void set_buffer(int rsocket, int option, const char* configuration) {
  const int half = kBufferBytes / 2;  // the option counts what programs see; it is doubled
  if (access(configuration, F_OK) != 0) {
    rsetsockopt(rsocket, SOL_SOCKET, option, &half, sizeof half);
  }
}

}  // namespace

bool is_fork_safe() {
  static const bool is_asked_for = [] {
    const char* const text = std::getenv("RDMAV_FORK_SAFE");
    return text && read_number(text).value_or(0) != 0;
  }();
  return is_asked_for;
}

int rsocket_for_data(int fd) {
  const Late late = late_of(fd);
  if (late == Late::kAccepted || late == Late::kConnected) become(fd);
  return rsocket_of(fd);
}

int rsocket_for_wait(int fd, short events) {
  const Late late = late_of(fd);
  const bool waits_for_data = (events & (POLLIN | POLLRDNORM)) != 0;
  if (late == Late::kAccepted || (late == Late::kConnected && waits_for_data)) become(fd);
  return rsocket_of(fd);
}

void set_options(int rsocket) {
  const int saved = errno;
  set_buffer(rsocket, SO_RCVBUF, kReceiveSize);
  set_buffer(rsocket, SO_SNDBUF, kSendSize);
  errno = saved;
  set_from(rsocket, RDMA_SQSIZE, "RS_SQ_SIZE");
  set_from(rsocket, RDMA_RQSIZE, "RS_RQ_SIZE");
  set_from(rsocket, RDMA_INLINE, "RS_INLINE");
}

}  // namespace verbena::rspreload
