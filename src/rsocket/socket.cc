// SPDX-License-Identifier: MIT
#include "rsocket/socket.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <vector>

#include "base/fork_mutex.h"
#include "rsocket/option_value.h"

namespace verbena::rsocket {
namespace {

// Never destroyed: programs use sockets while the process ends.
struct Table {
  ForkMutex lock;
  std::vector<Socket*> sockets;
};
Table& table() {
  static Table* const all = new Table;
  return *all;
}

// How many forks lie between the first process and this one. getpid(2) would cost a system call in
// each call of ours.
std::atomic<unsigned> generation{0};

}  // namespace

// A fork may come while other threads are amid calls. What they hold stays held in the child, where
// they are not.
struct Forks {
  static void before() { table().lock.before_fork(); }
  static void in_parent() { table().lock.after_in_parent(); }
  static void in_child() {
    generation.fetch_add(1, std::memory_order_relaxed);
    for (Socket* each : table().sockets)
      if (each) each->free_in_child();
    table().lock.after_in_child();
  }
};

namespace {

unsigned current_generation() {
  static const bool is_counting =
      pthread_atfork(Forks::before, Forks::in_parent, Forks::in_child) == 0;
  return is_counting ? generation.load(std::memory_order_relaxed) : 0;
}

// By what a thread does itself: none comes while it sleeps.
bool is_fault(int signal) {
  return signal == SIGSEGV || signal == SIGBUS || signal == SIGILL || signal == SIGFPE ||
         signal == SIGTRAP || signal == SIGSYS || signal == SIGABRT;
}

// Whether calls go on after the handlers of this process (SA_RESTART). Which of them it was nobody
// tells: where one does not want it, they end.
bool do_handlers_restart() {
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action{};
    if (is_fault(signal)) continue;
    if (sigaction(signal, nullptr, &action) != 0) continue;  // the system's own
    const bool has_handler = (action.sa_flags & SA_SIGINFO) != 0 ||
                             (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
    if (has_handler && (action.sa_flags & SA_RESTART) == 0) return false;
  }
  return true;
}

}  // namespace

Socket::Socket(int family, int type)
    : settings(default_settings()),
      family_(family),
      type_(type),
      owner_(current_generation()),
      // Not by epoll_create1(), which under a preload is the program's.
      events_(static_cast<int>(syscall(SYS_epoll_create1, EPOLL_CLOEXEC))) {}

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
  if (advance()) wake_all();
}

void Socket::wake_all() {
  for (Waiting* each = waiting_; each; each = each->next)
    each->waiter->wake();
}

bool Socket::watch(int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  return syscall(SYS_epoll_ctl, events_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

Instant Socket::deadline_of(const std::atomic<std::int64_t>& patience) {
  const std::int64_t microseconds = patience.load(std::memory_order_relaxed);
  return microseconds == 0 ? Instant::never() : clock_now() + Duration::microseconds(microseconds);
}

void Socket::take_patience_of(const Socket& other) {
  receive_patience_.store(other.receive_patience_.load(std::memory_order_relaxed));
  send_patience_.store(other.send_patience_.load(std::memory_order_relaxed));
}

// As the kernel does it (socket(7)).
int Socket::set_timeout(int option, const void* value, socklen_t size) {
  constexpr std::int64_t kSecond = 1'000'000;
  constexpr std::int64_t kSecondsMax = 1'000'000'000;
  const auto time = read_option<timeval>(value, size);
  if (!time) return EINVAL;
  if (time->tv_usec < 0 || time->tv_usec >= kSecond) return EDOM;
  const std::int64_t seconds = std::min<std::int64_t>(time->tv_sec, kSecondsMax);
  // A negative time is one that is over at once; 0 is without end.
  const std::int64_t patience = seconds < 0 ? 1 : seconds * kSecond + time->tv_usec;
  (option == SO_RCVTIMEO ? receive_patience_ : send_patience_).store(patience);
  return 0;
}

int Socket::get_timeout(int option, void* value, socklen_t* size) const {
  const std::int64_t patience =
      (option == SO_RCVTIMEO ? receive_patience_ : send_patience_).load(std::memory_order_relaxed);
  const timeval time{patience / 1'000'000, patience % 1'000'000};
  return value && size ? write_option(time, value, size) : EFAULT;
}

bool Socket::is_nonblocking(int flags) const {
  return (flags & MSG_DONTWAIT) != 0 || (status_flags() & O_NONBLOCK) != 0;
}

void Socket::free_in_child() {
  std::construct_at(&lock);
  waiting_ = nullptr;
  uses_.store(1, std::memory_order_relaxed);
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
  const bool goes_on = error == EINTR && deadline == Instant::never() && do_handlers_restart();
  held.lock();
  waiter.clear();
  if (error != 0) return goes_on ? 0 : error;
  return count == 0 && clock_now() >= deadline ? EAGAIN : 0;
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
