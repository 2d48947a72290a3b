// SPDX-License-Identifier: MIT
// The bodies of EventQueue.
#pragma once

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace verbena::nic {

template <class Event>
Result<std::unique_ptr<EventQueue<Event>>, Error> EventQueue<Event>::create() {
  const int fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
  if (fd < 0) return refuse(errno == ENOMEM ? Error::kNoRoom : Error::kNoDescriptors);
  return std::unique_ptr<EventQueue>(new EventQueue(fd));
}

template <class Event>
EventQueue<Event>::~EventQueue() {
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
void EventQueue<Event>::push(const Event& event) {
  {
    const std::lock_guard guard(lock_);
    waiting_.push_back(event);
  }
  const std::uint64_t one = 1;
  const int saved = errno;
  if (is_still_ours()) [[maybe_unused]]
    const ssize_t ignored = write(fd_, &one, sizeof one);
  errno = saved;
}

template <class Event>
Result<Event, Error> EventQueue<Event>::take() {
  for (;;) {
    std::uint64_t count = 0;
    if (read(fd_, &count, sizeof count) != static_cast<ssize_t>(sizeof count)) {
      if (errno == EAGAIN) return refuse(Error::kAgain);
      return refuse(errno == EINTR ? Error::kInterrupted : Error::kGone);
    }
    const std::lock_guard guard(lock_);
    if (waiting_.empty()) continue;  // withdrawn meanwhile
    const Event event = waiting_.front();
    waiting_.pop_front();
    return event;
  }
}

template <class Event>
template <class Predicate>
void EventQueue<Event>::withdraw(Predicate gone) {
  const std::lock_guard guard(lock_);
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    it = gone(*it) ? waiting_.erase(it) : it + 1;
  }
}

}  // namespace verbena::nic
