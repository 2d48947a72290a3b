// SPDX-License-Identifier: MIT
#include "rdmacm/channel.h"

#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "rdmacm/id.h"

namespace verbena::rdmacm {
namespace {

// Programs close descriptors that they do not know and open others in their place; all eventfds
// share one inode without a file type.
bool is_eventfd(int fd) {
  struct stat status{};
  return fstat(fd, &status) == 0 && (status.st_mode & S_IFMT) == 0;
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

std::unique_ptr<Channel> Channel::create(Manager& manager) {
  const int fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
  if (fd < 0) return nullptr;
  return std::make_unique<Channel>(manager, fd);
}

Channel::~Channel() {
  if (is_eventfd(fd)) close(fd);
}

void Channel::push(std::unique_ptr<Event> event) {
  const std::lock_guard guard(lock_);
  waiting_.push_back(std::move(event));
  const std::uint64_t one = 1;
  const int saved = errno;
  if (is_eventfd(fd)) [[maybe_unused]]
    const ssize_t ignored = write(fd, &one, sizeof one);
  errno = saved;
}

int Channel::take(std::unique_ptr<Event>& event) {
  for (;;) {
    std::uint64_t count = 0;
    if (read(fd, &count, sizeof count) != static_cast<ssize_t>(sizeof count)) return errno;
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
  const std::lock_guard guard(lock_);
  std::deque<std::unique_ptr<Event>> left;
  for (std::unique_ptr<Event>& each : waiting_) {
    const bool goes = which(*each);
    (goes ? taken : left).push_back(std::move(each));
    if (goes) drop_count();
  }
  waiting_ = std::move(left);
  return taken;
}

// A descriptor that stays readable without an event would send a program that polls into a read
// that blocks.
void Channel::drop_count() {
  if (!is_eventfd(fd)) return;
  std::uint64_t count = 0;
  const iovec part{&count, sizeof count};
  const int saved = errno;
  [[maybe_unused]] const ssize_t ignored = preadv2(fd, &part, 1, -1, RWF_NOWAIT);
  errno = saved;
}

}  // namespace verbena::rdmacm
