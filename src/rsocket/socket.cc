// SPDX-License-Identifier: MIT
#include "rsocket/socket.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

namespace verbena::rsocket {
namespace {

// Never destroyed: programs use sockets while the process ends.
struct Table {
  Mutex lock;
  std::vector<Socket*> sockets;
};
Table& table() {
  static Table* const all = new Table;
  return *all;
}

// How many forks lie between the first process and this one. getpid(2) would cost a system call in
// each call of ours.
std::atomic<unsigned> generation{0};

unsigned current_generation() {
  static const bool is_counting = pthread_atfork(nullptr, nullptr, [] {
                                    generation.fetch_add(1, std::memory_order_relaxed);
                                  }) == 0;
  return is_counting ? generation.load(std::memory_order_relaxed) : 0;
}

}  // namespace

Socket::Socket(int family, int type)
    : settings(default_settings()),
      family_(family),
      type_(type),
      owner_(current_generation()),
      events_(epoll_create1(EPOLL_CLOEXEC)) {}

Socket::~Socket() = default;

bool Socket::in_owner() const { return owner_ == generation.load(std::memory_order_relaxed); }

Result<off_t, int> Socket::map(std::span<std::byte>, int, off_t) { return refuse(EOPNOTSUPP); }
int Socket::unmap(std::span<std::byte>) { return EOPNOTSUPP; }
Result<std::size_t, int> Socket::write_mapped(std::span<const std::byte>, off_t, int) {
  return refuse(EOPNOTSUPP);
}

short Socket::look(short wanted) {
  const Lock held(lock);
  step();
  return static_cast<short>(readiness() & (wanted | POLLERR | POLLHUP));
}

short Socket::begin_wait(Waiting& waiting, short wanted) {
  const Lock held(lock);
  add(waiting);
  arm();
  step();
  return static_cast<short>(readiness() & (wanted | POLLERR | POLLHUP));
}

void Socket::end_wait(Waiting& waiting) {
  const Lock held(lock);
  remove(waiting);
}

void Socket::step() {
  if (!advance()) return;
  for (Waiting* each = waiting_; each; each = each->next)
    each->waiter->wake();
}

bool Socket::watch(int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  return epoll_ctl(events_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

bool Socket::is_nonblocking(int flags) const {
  return (flags & MSG_DONTWAIT) != 0 || (status_flags() & O_NONBLOCK) != 0;
}

void Socket::add(Waiting& waiting) {
  waiting.next = waiting_;
  waiting_ = &waiting;
}

void Socket::remove(Waiting& waiting) {
  Waiting** at = &waiting_;
  while (*at != &waiting)
    at = &(*at)->next;
  *at = waiting.next;
}

int Socket::sleep(Lock& held, Waiter& waiter, Instant deadline) {
  pollfd both[2] = {{fd(), POLLIN, 0}, {waiter.fd(), POLLIN, 0}};
  // What else may go wrong, a look now and then finds out.
  const int longest =
      static_cast<int>(std::min<std::uint32_t>(settings.wake_up_milliseconds, 1'000'000));
  int timeout = milliseconds_until(deadline);
  if (longest > 0 && (timeout < 0 || timeout > longest)) timeout = longest;
  held.unlock();
  const int count = poll_descriptors(both, 2, timeout);
  const int error = count < 0 ? errno : 0;
  held.lock();
  waiter.clear();
  if (error != 0) return error;
  return count == 0 && clock_now() >= deadline ? ETIMEDOUT : 0;
}

Held::Held(int fd) {
  if (fd < 0) return;
  Table& all = table();
  const std::lock_guard guard(all.lock);
  if (static_cast<std::size_t>(fd) >= all.sockets.size()) return;
  socket_ = all.sockets[static_cast<std::size_t>(fd)];
  if (socket_) socket_->uses_.fetch_add(1, std::memory_order_relaxed);
}

Held::~Held() {
  if (socket_) drop(socket_);
}

void Held::drop(Socket* socket) {
  if (socket->uses_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  if (socket->in_owner()) {
    delete socket;
  } else {
    socket->events_.reset();  // all else is the parent's
  }
}

Result<int, int> enter(Socket* socket) {
  const int fd = socket->fd();
  if (fd < 0) {
    delete socket;
    return refuse(EMFILE);
  }
  Table& all = table();
  const std::lock_guard guard(all.lock);
  const auto index = static_cast<std::size_t>(fd);
  if (index >= all.sockets.size()) all.sockets.resize(std::max(index + 1, all.sockets.size() * 2));
  all.sockets[index] = socket;
  return fd;
}

void take_out(int fd) {
  Socket* socket = nullptr;
  {
    Table& all = table();
    const std::lock_guard guard(all.lock);
    std::swap(socket, all.sockets[static_cast<std::size_t>(fd)]);
  }
  if (socket) Held::drop(socket);
}

}  // namespace verbena::rsocket
