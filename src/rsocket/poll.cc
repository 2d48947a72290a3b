// SPDX-License-Identifier: MIT
// rpoll(3) and rselect(3): rsockets and other descriptors in one call.
#include "rsocket/poll.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "rsocket/socket.h"

namespace verbena::rsocket {
namespace {

// The sockets among the descriptors, held during the call.
class Polled {
 public:
  Polled(pollfd* fds, nfds_t count) : fds_(fds), count_(count) {
    others_.reserve(count + 1);
    for (nfds_t i = 0; i < count; ++i) {
      sockets_.push_back(std::make_unique<Held>(fds[i].fd));
      has_socket_ = has_socket_ || *sockets_.back();
    }
  }
  bool has_socket() const { return has_socket_; }

  // How many are ready, without waiting; -1 with errno.
  int look() {
    int ready = 0;
    others_.clear();
    for (nfds_t i = 0; i < count_; ++i) {
      pollfd& each = fds_[i];
      Held& socket = *sockets_[i];
      each.revents = socket ? socket->look(each.events) : short{0};
      if (each.revents != 0) ++ready;
      if (!socket) others_.push_back(each);
    }
    if (others_.empty()) return ready;
    const int more = poll_descriptors(others_.data(), others_.size(), 0);
    if (more < 0) return -1;
    auto other = others_.begin();
    for (nfds_t i = 0; i < count_; ++i) {
      if (!*sockets_[i]) fds_[i].revents = (other++)->revents;
    }
    return ready + more;
  }

  // Until something may have happened. 0 or an errno value.
  int sleep(Instant deadline, int longest) {
    Waiter waiter;
    std::vector<Waiting> waiting(count_, Waiting(waiter));
    nfds_t waits = 0;  // so many of them, from the first on
    bool is_ready = false;
    others_.clear();
    while (waits < count_ && !is_ready) {
      pollfd each = fds_[waits];
      if (Held& socket = *sockets_[waits]) {
        is_ready = socket->begin_wait(waiting[waits], each.events) != 0;
        each.events = POLLIN;
      }
      others_.push_back(each);
      ++waits;
    }
    int error = 0;
    if (!is_ready) {
      others_.push_back({waiter.fd(), POLLIN, 0});
      int timeout = milliseconds_until(deadline);
      if (longest > 0 && (timeout < 0 || timeout > longest)) timeout = longest;
      if (poll_descriptors(others_.data(), others_.size(), timeout) < 0) error = errno;
    }
    for (nfds_t i = 0; i < waits; ++i) {
      if (Held& socket = *sockets_[i]) socket->end_wait(waiting[i]);
    }
    return error;
  }

 private:
  pollfd* fds_;
  nfds_t count_;
  bool has_socket_ = false;
  std::vector<std::unique_ptr<Held>> sockets_;
  std::vector<pollfd> others_;
};

bool set(const fd_set* all, int fd) { return all && FD_ISSET(fd, all); }

}  // namespace

int poll_all(pollfd* fds, nfds_t count, Instant deadline) {
  Polled polled(fds, count);
  if (!polled.has_socket()) return poll_descriptors(fds, count, milliseconds_until(deadline));
  const Settings& settings = default_settings();
  const Instant begin = clock_now();
  const Instant spin_end = begin + Duration::microseconds(settings.polling_microseconds);
  for (;;) {
    const int ready = polled.look();
    if (ready != 0) return ready;
    const Instant now = clock_now();
    if (now >= deadline) return 0;
    if (now < spin_end) {
      spin_pause();
      continue;
    }
    const int longest =
        static_cast<int>(std::min<std::uint32_t>(settings.wake_up_milliseconds, INT_MAX));
    if (const int error = polled.sleep(deadline, longest)) {
      errno = error;
      return -1;
    }
  }
}

int select_all(int count, fd_set* readable, fd_set* writable, fd_set* exceptional,
               Instant deadline) {
  std::vector<pollfd> fds;
  for (int fd = 0; fd < count; ++fd) {
    int events = 0;
    if (set(readable, fd)) events |= POLLIN;
    if (set(writable, fd)) events |= POLLOUT;
    if (set(exceptional, fd)) events |= POLLPRI;
    if (events != 0) fds.push_back({fd, static_cast<short>(events), 0});
  }
  if (poll_all(fds.data(), fds.size(), deadline) < 0) return -1;
  for (const pollfd& each : fds) {
    if ((each.revents & POLLNVAL) == 0) continue;
    errno = EBADF;
    return -1;
  }
  int ready = 0;
  const auto keep = [&ready](fd_set* all, const pollfd& each, int wanted, int meaning) {
    if ((each.events & wanted) == 0) return;
    FD_CLR(each.fd, all);
    if ((each.revents & meaning) == 0) return;
    FD_SET(each.fd, all);
    ++ready;
  };
  for (const pollfd& each : fds) {
    keep(readable, each, POLLIN, POLLIN | POLLHUP | POLLERR);
    keep(writable, each, POLLOUT, POLLOUT | POLLERR);
    keep(exceptional, each, POLLPRI, POLLPRI);
  }
  return ready;
}

}  // namespace verbena::rsocket
