// SPDX-License-Identifier: MIT
#include "rspreload/polling.h"

#include <fcntl.h>
#include <rdma/rsocket.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "rspreload/descriptors.h"
#include "rspreload/late.h"
#include "rspreload/real.h"

namespace verbena::rspreload {
namespace {

// What has the same value and meaning for poll(2).
constexpr std::uint32_t kPolled = EPOLLIN | EPOLLPRI | EPOLLOUT | EPOLLRDNORM | EPOLLRDBAND |
                                  EPOLLWRNORM | EPOLLWRBAND | EPOLLRDHUP;
constexpr std::uint32_t kAlways = EPOLLERR | EPOLLHUP;
static_assert(EPOLLIN == POLLIN && EPOLLOUT == POLLOUT && EPOLLERR == POLLERR);
static_assert(EPOLLHUP == POLLHUP && EPOLLRDHUP == POLLRDHUP && EPOLLPRI == POLLPRI);
constexpr std::uint32_t kInput = EPOLLIN | EPOLLRDNORM | EPOLLRDHUP;
constexpr std::uint32_t kOutput = EPOLLOUT | EPOLLWRNORM;

struct Watch {
  int fd;
  int rsocket;  // -1: still the kernel's
  epoll_event wanted;
  std::uint32_t told;  // with EPOLLET
  bool is_spent;       // with EPOLLONESHOT

  // Nothing: it is not looked at.
  short polled() const {
    if (rsocket < 0 || is_spent || (told & kAlways) != 0) return 0;
    return static_cast<short>(wanted.events & kPolled & ~told);
  }
  bool is_polled() const { return rsocket >= 0 && !is_spent && (told & kAlways) == 0; }
};

struct Set {
  std::vector<Watch> watches;
  int changed = -1;  // tells those who wait
  int waiting = 0;
  std::size_t first = 0;  // whose turn it is to be first

  Watch* find(int fd) {
    const auto found = std::find_if(watches.begin(), watches.end(),
                                    [fd](const Watch& each) { return each.fd == fd; });
    return found == watches.end() ? nullptr : &*found;
  }
  void tell() const {
    const std::uint64_t one = 1;
    if (waiting > 0) syscall(SYS_write, changed, &one, sizeof one);
  }
};

// Never destroyed: programs wait while the process ends.
struct All {
  Mutex lock;
  std::unordered_map<int, std::unique_ptr<Set>> sets;
};
All& all() {
  static All* const made = new All;
  return *made;
}

constexpr std::size_t kKnownMax = 1 << 20;
// Of descriptors that are sets, or in one: others cost a look here only.
std::array<std::atomic<std::uint64_t>, kKnownMax / 64> known;

bool is_known(int fd) {
  const auto at = static_cast<std::size_t>(fd);
  return fd >= 0 && at < kKnownMax &&
         (known[at / 64].load(std::memory_order_relaxed) >> (at % 64) & 1) != 0;
}
void know(int fd) {
  const auto at = static_cast<std::size_t>(fd);
  known[at / 64].fetch_or(std::uint64_t{1} << (at % 64), std::memory_order_relaxed);
}
void unknow(int fd) {
  const auto at = static_cast<std::size_t>(fd);
  known[at / 64].fetch_and(~(std::uint64_t{1} << (at % 64)), std::memory_order_relaxed);
}

int fail(int error) {
  errno = error;
  return -1;
}

Set* set_of(int epoll) {
  const auto found = all().sets.find(epoll);
  return found == all().sets.end() ? nullptr : found->second.get();
}

// A set says that a descriptor is not in it, anything else that it is no set.
bool is_epoll(int fd, int other) {
  epoll_event nothing{};
  return real::epoll_ctl(fd, EPOLL_CTL_DEL, other, &nothing) == -1 && errno == ENOENT;
}

int add(int epoll, int fd, int rsocket, const epoll_event& event) {
  Set* set = set_of(epoll);
  if (!set) {
    auto made = std::make_unique<Set>();
    made->changed = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (made->changed < 0) return -1;
    if (!is_epoll(epoll, made->changed)) {
      const int error = errno;
      syscall(SYS_close, made->changed);
      return fail(error == EBADF ? EBADF : EINVAL);
    }
    set = made.get();
    all().sets[epoll] = std::move(made);
    know(epoll);
  }
  if (set->find(fd)) return fail(EEXIST);
  set->watches.push_back({fd, rsocket, event, 0, false});
  know(fd);
  set->tell();
  return 0;
}

int change(int epoll, int fd, const epoll_event& event) {
  Set* const set = set_of(epoll);
  Watch* const watch = set ? set->find(fd) : nullptr;
  if (!watch) return fail(ENOENT);
  watch->wanted = event;
  watch->told = 0;
  watch->is_spent = false;
  set->tell();
  return 0;
}

int remove(int epoll, int fd) {
  Set* const set = set_of(epoll);
  Watch* const watch = set ? set->find(fd) : nullptr;
  if (!watch) return fail(ENOENT);
  set->watches.erase(set->watches.begin() + (watch - set->watches.data()));
  set->tell();
  return 0;
}

int control(int epoll, int operation, int fd, int rsocket, const epoll_event* event) {
  if (operation != EPOLL_CTL_DEL && !event) return fail(EFAULT);
  switch (operation) {
    case EPOLL_CTL_ADD: return add(epoll, fd, rsocket, *event);
    case EPOLL_CTL_MOD: return change(epoll, fd, *event);
    case EPOLL_CTL_DEL: return remove(epoll, fd);
    default: return fail(EINVAL);
  }
}

// One wait: what is polled, and what it was good for.
class Turn {
 public:
  explicit Turn(Set& set) {
    const std::size_t count = set.watches.size();
    if (count > 0) set.first = (set.first + 1) % count;
    for (std::size_t i = 0; i < count; ++i) {
      const Watch& each = set.watches[(set.first + i) % count];
      if (!each.is_polled()) continue;
      polled_.push_back({each.rsocket, each.polled(), 0});
      descriptors_.push_back(each.fd);
    }
  }
  int poll(int epoll, int changed, int milliseconds) {
    polled_.push_back({epoll, POLLIN, 0});
    polled_.push_back({changed, POLLIN, 0});
    return rpoll(polled_.data(), polled_.size(), milliseconds);
  }
  bool is_kernels_ready() const { return polled_[polled_.size() - 2].revents != 0; }

  int collect(Set& set, epoll_event* events, int most) {
    int count = 0;
    for (std::size_t i = 0; i < descriptors_.size() && count < most; ++i) {
      Watch* const watch = set.find(descriptors_[i]);
      if (!watch || watch->rsocket != polled_[i].fd || !watch->is_polled()) continue;
      const auto came = static_cast<std::uint16_t>(polled_[i].revents);
      const std::uint32_t told = came & (watch->wanted.events | kAlways) & ~watch->told;
      if (told == 0) continue;
      events[count] = watch->wanted;
      events[count].events = told;
      ++count;
      if ((watch->wanted.events & EPOLLET) != 0) watch->told |= told;
      if ((watch->wanted.events & EPOLLONESHOT) != 0) watch->is_spent = true;
    }
    return count;
  }

 private:
  std::vector<pollfd> polled_;
  std::vector<int> descriptors_;
};

long long nanoseconds_now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

int milliseconds_until(long long deadline) {
  if (deadline == LLONG_MAX) return -1;
  const long long left = std::max(deadline - nanoseconds_now(), 0LL);
  return static_cast<int>(std::min<long long>((left + 999'999) / 1'000'000, INT_MAX));
}

// -1: nothing came in this turn, and there is time left.
int take_turn(int epoll, epoll_event* events, int most, int milliseconds, bool& is_gone) {
  std::unique_lock held(all().lock);
  Set* set = set_of(epoll);
  if (!set) {
    is_gone = true;
    return 0;
  }
  Turn turn(*set);
  const int changed = set->changed;
  ++set->waiting;
  held.unlock();
  const int polled = turn.poll(epoll, changed, milliseconds);
  const int error = errno;
  held.lock();
  set = set_of(epoll);  // closed meanwhile?
  if (!set || set->changed != changed) {
    is_gone = true;
    return 0;
  }
  --set->waiting;
  std::uint64_t count = 0;
  syscall(SYS_read, changed, &count, sizeof count);
  if (polled < 0) return fail(error);
  int told = turn.collect(*set, events, most);
  held.unlock();
  if (told < most && turn.is_kernels_ready()) {
    const int more = real::epoll_wait(epoll, events + told, most - told, 0);
    if (more > 0) told += more;
  }
  return told;
}

}  // namespace

bool has_rsockets(int epoll) {
  if (!is_known(epoll)) return false;
  const std::lock_guard guard(all().lock);
  return set_of(epoll) != nullptr;
}

int epoll_control(int epoll, int operation, int fd, epoll_event* event) {
  const auto wanted = static_cast<short>(event ? event->events & kPolled : 0);
  const int rsocket = operation == EPOLL_CTL_ADD ? rsocket_for_wait(fd, wanted) : rsocket_of(fd);
  if (rsocket < 0) {
    const int done = real::epoll_ctl(epoll, operation, fd, event);
    if (done != 0 || late_of(fd) != Late::kConnected) return done;
  }
  const std::lock_guard guard(all().lock);
  return control(epoll, operation, fd, rsocket, event);
}

int epoll_wait_all(int epoll, epoll_event* events, int most, const timespec* timeout) {
  if (most <= 0) return fail(EINVAL);
  const long long deadline =
      timeout ? nanoseconds_now() + timeout->tv_sec * 1'000'000'000LL + timeout->tv_nsec
              : LLONG_MAX;
  for (;;) {
    bool is_gone = false;
    const int milliseconds = milliseconds_until(deadline);
    const int told = take_turn(epoll, events, most, milliseconds, is_gone);
    if (is_gone) return fail(EBADF);
    if (told != 0 || milliseconds == 0) return told;
  }
}

void became_rsocket(int fd, int rsocket) {
  if (!is_known(fd)) return;
  const std::lock_guard guard(all().lock);
  for (auto& [epoll, set] : all().sets) {
    Watch* const watch = set->find(fd);
    if (!watch) continue;
    watch->rsocket = rsocket;
    set->tell();
  }
}

void left_sets(int fd) {
  if (!is_known(fd)) return;
  const int saved = errno;
  const std::lock_guard guard(all().lock);
  unknow(fd);
  const auto own = all().sets.find(fd);
  if (own != all().sets.end()) {
    own->second->tell();
    syscall(SYS_close, own->second->changed);
    all().sets.erase(own);
  }
  for (auto& [epoll, set] : all().sets) {
    if (set->find(fd)) remove(epoll, fd);
  }
  errno = saved;
}

void told_again(int fd, std::uint32_t events) {
  if (!is_known(fd)) return;
  const int saved = errno;
  const std::lock_guard guard(all().lock);
  for (auto& [epoll, set] : all().sets) {
    Watch* const watch = set->find(fd);
    if (!watch || (watch->told & events) == 0) continue;
    watch->told &= ~events;
    set->tell();
  }
  errno = saved;
}

ssize_t after_input(int fd, ssize_t result) {
  told_again(fd, kInput);
  return result;
}

ssize_t after_output(int fd, ssize_t result, std::size_t wanted) {
  if (result < 0 ? errno == EAGAIN : static_cast<std::size_t>(result) < wanted) {
    told_again(fd, kOutput);
  }
  return result;
}

}  // namespace verbena::rspreload
