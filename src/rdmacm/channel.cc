// SPDX-License-Identifier: MIT
#include "rdmacm/channel.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/not_cancelled.h"
#include "rdmacm/id.h"
#include "rdmacm/manager.h"

namespace verbena::rdmacm {
namespace {

// Programs close descriptors that they do not know and open others in their place; all eventfds
// share one inode without a file type.
bool is_eventfd(int fd) {
  struct stat status{};
  return fstat(fd, &status) == 0 && (status.st_mode & S_IFMT) == 0;
}

void count_up(int fd) {
  const std::uint64_t one = 1;
  const int saved = errno;
  if (is_eventfd(fd)) [[maybe_unused]]
    const ssize_t ignored = write(fd, &one, sizeof one);
  errno = saved;
}
// Does not wait where it is zero already.
void count_down(int fd) {
  if (!is_eventfd(fd)) return;
  std::uint64_t count = 0;
  const iovec part{&count, sizeof count};
  const int saved = errno;
  [[maybe_unused]] const ssize_t ignored = preadv2(fd, &part, 1, -1, RWF_NOWAIT);
  errno = saved;
}

}  // namespace

Event::Event(Id& owner, rdma_cm_event_type type, int why) : rdma_cm_event{}, counted(&owner) {
  id = &owner;
  event = type;
  status = why;
}

void Event::set_private_data(std::span<const std::byte> bytes, bool is_datagram) {
  const std::size_t size = std::min(bytes.size(), data.size());
  std::copy_n(bytes.begin(), size, data.begin());
  const auto length = static_cast<std::uint8_t>(std::min<std::size_t>(size, 255));
  if (is_datagram) {
    param.ud.private_data = data.data();
    param.ud.private_data_len = length;
  } else {
    param.conn.private_data = data.data();
    param.conn.private_data_len = length;
  }
}

Channel::Owned Channel::create(Manager& manager) {
  const int fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
  if (fd < 0) return nullptr;
  Channel* const channel = manager.take_channel();
  channel->begin(fd);
  return Owned(channel);
}

void Channel::begin(int descriptor) {
  const std::lock_guard guard(lock_);
  fd = descriptor;
  is_gone_ = false;
}

void Channel::retire() {
  // A forked child has only a copy, whose lock some thread of the parent may have held.
  if (!manager.in_owner()) {
    if (is_eventfd(fd)) close(fd);
    return;
  }
  std::deque<std::unique_ptr<Event>> unfetched;
  {
    const std::lock_guard guard(lock_);
    if (is_gone_) return;
    is_gone_ = true;
    const int flags = fcntl(fd, F_GETFL);
    does_sleep_ = flags >= 0 && (flags & O_NONBLOCK) == 0;
    unfetched.swap(waiting_);
    if (takers_ != 0) return;
  }
  end();
}

void Channel::end() {
  const NotCancelled until_kept;
  if (is_eventfd(fd)) close(fd);
  fd = -1;
  manager.keep_channel(*this);
}

void Channel::push(std::unique_ptr<Event> event) {
  const UncancelledGuard guard(lock_);
  if (is_gone_) return;
  waiting_.push_back(std::move(event));
  count_up(fd);
}

// False: there is nothing to take any more.
bool Channel::enter() {
  const std::lock_guard guard(lock_);
  if (is_gone_) return false;
  ++takers_;
  return true;
}

void Channel::leave() {
  {
    const std::lock_guard guard(lock_);
    if (--takers_ != 0 || !is_gone_) return;
  }
  end();
}

// Of its own, for a thread sanitizer that sees no lock in a thread cancelled inside a call.
[[gnu::noinline]] void Channel::leave_cancelled() { leave(); }

int Channel::take(std::unique_ptr<Event>& event) {
  if (!enter()) return take_nothing();
  int error = 0;
  // It may be cancelled where it sleeps; this code has no exceptions, and so no destructor is run.
  pthread_cleanup_push([](void* channel) { static_cast<Channel*>(channel)->leave_cancelled(); },
                       this);
  error = next(event);
  pthread_cleanup_pop(0);
  leave();
  return error;
}

int Channel::take_nothing() {
  {
    const std::lock_guard guard(lock_);
    if (!does_sleep_) return EBADF;
  }
  poll(nullptr, 0, -1);
  return errno;
}

int Channel::next(std::unique_ptr<Event>& event) {
  for (;;) {
    std::uint64_t count = 0;
    const ssize_t got = read(fd, &count, sizeof count);
    if (got != static_cast<ssize_t>(sizeof count)) return got < 0 ? errno : EBADF;
    const std::lock_guard guard(lock_);
    if (waiting_.empty()) continue;  // withdrawn meanwhile
    event = std::move(waiting_.front());
    waiting_.pop_front();
    event->counted->delivered.fetch_add(1, std::memory_order_relaxed);
    return 0;
  }
}

bool Channel::has_waiting() {
  const std::lock_guard guard(lock_);
  return !waiting_.empty();
}

std::deque<std::unique_ptr<Event>> Channel::withdraw(
    const std::function<bool(const Event&)>& which) {
  std::deque<std::unique_ptr<Event>> taken;
  const UncancelledGuard guard(lock_);
  std::deque<std::unique_ptr<Event>> left;
  for (std::unique_ptr<Event>& each : waiting_) {
    const bool goes = which(*each);
    (goes ? taken : left).push_back(std::move(each));
    // A descriptor that stays readable without an event would send a program that polls into a read
    // that blocks.
    if (goes) count_down(fd);
  }
  waiting_ = std::move(left);
  return taken;
}

}  // namespace verbena::rdmacm
