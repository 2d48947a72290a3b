// SPDX-License-Identifier: MIT
// The bodies of EventQueue.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "base/assert.h"
#include "host/control.h"

namespace verbena::nic {

template <class Event>
Result<std::unique_ptr<EventQueue<Event>>, Error> EventQueue<Event>::create() {
  const int fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
  if (fd < 0) return refuse(errno == ENOMEM ? Error::kNoRoom : Error::kNoDescriptors);
  return std::unique_ptr<EventQueue>(new EventQueue(fd));
}

// Each of what waits has its count then, and each count its event; and who told does not come back.
// In a child after fork it would wait for a thread of the parent.
template <class Event>
void EventQueue<Event>::wait_until_told() const {
  if (made_by_ != getpid()) return;
  while (telling_.load(std::memory_order_acquire) != 0)
    sched_yield();
}

// Who takes an event may go on to end the queue before the thread that told of it is through.
template <class Event>
EventQueue<Event>::~EventQueue() {
  wait_until_told();
  if (is_still_ours()) close(fd_);
}

// Programs close descriptors that they do not know and open others in their place. All eventfds
// share one inode without a file type, so this tells an eventfd from files, pipes and sockets,
// which is where eight bytes would do harm.
template <class Event>
bool EventQueue<Event>::is_still_ours() const {
  struct stat status{};
  return fstat(fd_, &status) == 0 && (status.st_mode & S_IFMT) == 0;
}

template <class Event>
bool EventQueue<Event>::leave_parent() {
  telling_.store(0, std::memory_order_relaxed);
  made_by_ = getpid();
  // What waits is the parent's, one of whose threads may have been at it.
  std::construct_at(&lock_);
  std::construct_at(&waiting_);
  if (!is_still_ours()) return true;
  const int fresh = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC | (fcntl(fd_, F_GETFL) & O_NONBLOCK));
  if (fresh < 0) return false;
  const bool is_done = dup3(fresh, fd_, O_CLOEXEC) == fd_;
  close(fresh);
  return is_done;
}

// The reader is told without the lock: it may run at once, in place of this thread, and wants it.
template <class Event>
void EventQueue<Event>::push(const Event& event) {
  VERBENA_ASSERT(!host::Control::on_any_control_thread());
  {
    const std::lock_guard guard(lock_);
    waiting_.push_back(event);
    telling_.fetch_add(1, std::memory_order_relaxed);
  }
  tell();
  telling_.fetch_sub(1, std::memory_order_release);
}

// By system calls as such: write(2) of libc is where a thread is cancelled, and ours may be in the
// middle of anything.
template <class Event>
void EventQueue<Event>::tell() const {
  const std::uint64_t one = 1;
  const int saved = errno;
  if (is_still_ours()) syscall(SYS_write, fd_, &one, sizeof one);
  errno = saved;
}

template <class Event>
template <class Taken>
Result<Event, Error> EventQueue<Event>::take(Taken taken) {
  for (;;) {
    std::uint64_t count = 0;
    if (::read(fd_, &count, sizeof count) != static_cast<ssize_t>(sizeof count)) {
      if (errno == EAGAIN) return refuse(Error::kAgain);
      return refuse(errno == EINTR ? Error::kInterrupted : Error::kGone);
    }
    const std::lock_guard guard(lock_);
    if (waiting_.empty()) continue;  // withdrawn meanwhile
    const Event event = waiting_.front();
    waiting_.pop_front();
    taken(event);
    return event;
  }
}

template <class Event>
template <class Predicate>
void EventQueue<Event>::withdraw(Predicate gone) {
  const std::lock_guard guard(lock_);
  wait_until_told();
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (!gone(*it)) {
      ++it;
      continue;
    }
    it = waiting_.erase(it);
    drop_count();
  }
}

// A descriptor that stays readable without an event would send a program that polls into a read
// that blocks. None to take: a reader has it, and will find nothing.
template <class Event>
void EventQueue<Event>::drop_count() {
  if (!is_still_ours()) return;
  std::uint64_t count = 0;
  const iovec part{&count, sizeof count};
  const int saved = errno;
  syscall(SYS_preadv2, fd_, &part, 1, -1L, -1L, RWF_NOWAIT);
  errno = saved;
}

}  // namespace verbena::nic
