// SPDX-License-Identifier: MIT
#include "rspreload/polling.h"

#include <rdma/rsocket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "rspreload/descriptors.h"
#include "rspreload/epoll_sets.h"
#include "rspreload/late.h"
#include "rspreload/real.h"
#include "rspreload/system_call.h"

namespace verbena::rspreload {
namespace {

constexpr std::uint32_t kInput = EPOLLIN | EPOLLRDNORM | EPOLLRDHUP;
constexpr std::uint32_t kOutput = EPOLLOUT | EPOLLWRNORM;

int fail(int error) {
  errno = error;
  return -1;
}

EpollSets& all() { return EpollSets::all(); }

// Until who waits in the kernel alone has heard the alarm, surely.
constexpr long long kAlarmPatience = 1'000'000'000;  // nanoseconds

// What the alarm of a set comes with: nobody else has this address.
char alarm_mark;

bool is_alarm(const epoll_event& event) { return event.data.ptr == &alarm_mark; }

int without_alarms(epoll_event* events, int count) {
  return count <= 0 ? count
                    : static_cast<int>(std::remove_if(events, events + count, is_alarm) - events);
}

long long nanoseconds_now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

// A set says that a descriptor is not in it, anything else that it is no set.
bool is_epoll(int fd, int other) {
  epoll_event nothing{};
  return real::epoll_ctl(fd, EPOLL_CTL_DEL, other, &nothing) == -1 && errno == ENOENT;
}

void end_alarm(int epoll, EpollSet& set) {
  if (set.alarm < 0) return;
  real::epoll_ctl(epoll, EPOLL_CTL_DEL, set.alarm, static_cast<epoll_event*>(nullptr));
  verbena_system_call(SYS_close, set.alarm);
  set.alarm = -1;
}

// Makes it one that waits here. False with errno.
bool begin_rsockets(int epoll, EpollSet*& set) {
  // What is no set must not seem to be one.
  const int probe = make_event(0);
  if (probe < 0) return false;
  const bool is_set = is_epoll(epoll, probe);
  const int why = errno == EBADF ? EBADF : EINVAL;
  verbena_system_call(SYS_close, probe);
  if (!is_set) {
    errno = why;
    return false;
  }
  if (!set) set = &all().enter(epoll);
  if (set->outside > 0) {
    set->alarm = make_event(1);
    epoll_event event{.events = EPOLLIN, .data = {.ptr = &alarm_mark}};
    set->alarm_since = nanoseconds_now();
    if (set->alarm < 0 || real::epoll_ctl(epoll, EPOLL_CTL_ADD, set->alarm, &event) != 0) {
      const int error = errno;
      end_alarm(epoll, *set);
      errno = error;
      return false;
    }
  }
  set->has_rsockets = true;
  return true;
}

int add(int epoll, int fd, int rsocket, const epoll_event& event) {
  EpollSet* set = all().find(epoll);
  if ((!set || !set->has_rsockets) && !begin_rsockets(epoll, set)) return -1;
  if (set->find(fd)) return fail(EEXIST);
  set->watches.push_back({fd, rsocket, event, 0, false});
  know(fd);
  know(rsocket);
  set->tell();
  return 0;
}

int change(int epoll, int fd, const epoll_event& event) {
  EpollSet* const set = all().find(epoll);
  Watch* const watch = set ? set->find(fd) : nullptr;
  if (!watch) return fail(ENOENT);
  watch->wanted = event;
  watch->told = 0;
  watch->is_spent = false;
  set->tell();
  return 0;
}

int remove(int epoll, int fd) {
  EpollSet* const set = all().find(epoll);
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
  // Under the lock, as end().
  Turn(EpollSet& set, Sleeper& sleeper) : sleeper_(sleeper) {
    const std::size_t count = set.watches.size();
    if (count > 0) set.first = (set.first + 1) % count;
    for (std::size_t i = 0; i < count; ++i) {
      const Watch& each = set.watches[(set.first + i) % count];
      if (!each.is_polled()) continue;
      polled_.push_back({each.rsocket, each.polled(), 0});
      descriptors_.push_back(each.fd);
    }
    is_kernel_first_ = set.kernel_first = !set.kernel_first;
    sleeper_.begin(set);
  }
  int poll(int epoll, int milliseconds) {
    polled_.push_back({epoll, POLLIN, 0});
    polled_.push_back({sleeper_.fd(), POLLIN, 0});
    return rpoll(polled_.data(), polled_.size(), milliseconds);
  }
  void end() { sleeper_.end(); }
  bool is_kernels_ready() const { return polled_[polled_.size() - 2].revents != 0; }

  // Either may be first, lest one that is always ready leaves no room for the others.
  bool is_kernel_first() const { return is_kernel_first_; }
  int collect_kernels(int epoll, epoll_event* events, int most) const {
    if (most == 0 || !is_kernels_ready()) return 0;
    return std::max(without_alarms(events, real::epoll_wait(epoll, events, most, 0)), 0);
  }
  int collect(EpollSet& set, epoll_event* events, int most) {
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
  Sleeper& sleeper_;
  bool is_kernel_first_ = false;
  std::vector<pollfd> polled_;
  std::vector<int> descriptors_;
};

int milliseconds_until(long long deadline) {
  if (deadline == LLONG_MAX) return -1;
  const long long left = std::max(deadline - nanoseconds_now(), 0LL);
  return static_cast<int>(std::min<long long>((left + 999'999) / 1'000'000, INT_MAX));
}

// 0: nothing came in this turn.
int take_turn(int epoll, epoll_event* events, int most, int milliseconds, bool& is_gone) {
  Sleeper* const sleeper = Sleeper::own();
  if (!sleeper) return -1;
  std::unique_lock held(all().lock);
  EpollSet* set = all().find(epoll);
  is_gone = !set;
  if (is_gone) return 0;
  const SetNumber number = set->number;
  Turn turn(*set, *sleeper);
  held.unlock();
  const int polled = turn.poll(epoll, milliseconds);
  const int error = errno;
  int told = 0;
  if (polled > 0 && turn.is_kernel_first()) told = turn.collect_kernels(epoll, events, most);
  held.lock();
  turn.end();
  set = all().find(epoll);
  is_gone = !set || set->number != number;  // closed meanwhile
  if (is_gone) return 0;
  // Whoever was cancelled in the kernel's call never leaves it.
  if (set->alarm >= 0 && nanoseconds_now() - set->alarm_since > kAlarmPatience)
    end_alarm(epoll, *set);
  if (polled >= 0) told += turn.collect(*set, events + told, most - told);
  // Who leaves may be the only one who has seen the last change.
  const bool leaves = polled < 0 || told > 0 || milliseconds == 0 || turn.is_kernels_ready();
  if (leaves) set->wake_one();
  held.unlock();
  if (polled < 0) return fail(error);
  if (!turn.is_kernel_first()) told += turn.collect_kernels(epoll, events + told, most - told);
  return told;
}

bool is_time(const timespec* timeout) {
  return !timeout ||
         (timeout->tv_sec >= 0 && timeout->tv_nsec >= 0 && timeout->tv_nsec < 1'000'000'000);
}

// As the kernel has it; LLONG_MAX: without end.
long long deadline_of(const timespec* timeout) {
  constexpr time_t kSecondsMax = 4'000'000'000;  // what ends later does not end
  if (!timeout || !is_time(timeout) || timeout->tv_sec > kSecondsMax) return LLONG_MAX;
  return nanoseconds_now() + timeout->tv_sec * 1'000'000'000LL + timeout->tv_nsec;
}

int wait_here(const EpollWait& wait, long long deadline) {
  constexpr int kMost = INT_MAX / static_cast<int>(sizeof(epoll_event));
  if (wait.most <= 0 || wait.most > kMost || !is_time(wait.timeout)) return fail(EINVAL);
  return with_mask(wait.mask, [&] {
    for (;;) {
      bool is_gone = false;
      const int milliseconds = milliseconds_until(deadline);
      const int told = take_turn(wait.epoll, wait.events, wait.most, milliseconds, is_gone);
      if (is_gone) return fail(EBADF);
      if (told != 0 || milliseconds == 0) return told;
    }
  });
}

void leave_kernel(int epoll, EpollSet& set) {
  if (--set.outside == 0) end_alarm(epoll, set);
}

// Something was done about what was told of an rsocket, by whichever of its descriptors.
void told_again(int fd, std::uint32_t events) {
  const int rsocket = rsocket_of(fd);
  if (!is_known(rsocket)) return;
  const int saved = errno;
  const std::lock_guard guard(all().lock);
  for (const auto& [number, set] : all()) {
    bool any = false;
    for (Watch& each : set->watches) {
      if (each.rsocket != rsocket || (each.told & events) == 0) continue;
      each.told &= ~events;
      any = true;
    }
    if (any) set->tell();
  }
  errno = saved;
}

bool is_stream(int fd) {
  int type = 0;
  socklen_t size = sizeof type;
  return rgetsockopt(rsocket_of(fd), SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM;
}

}  // namespace

bool has_rsockets(int epoll) {
  if (!is_known(epoll)) return false;
  const std::lock_guard guard(all().lock);
  EpollSet* const set = all().find(epoll);
  return set && set->has_rsockets;
}

bool is_set(int epoll) {
  if (!is_known(epoll)) return false;
  const std::lock_guard guard(all().lock);
  return all().find(epoll) != nullptr;
}

void made_set(int epoll) {
  const std::lock_guard guard(all().lock);
  all().enter(epoll);
}

void share_set(int epoll, int made) {
  if (!is_known(epoll)) return;
  const std::lock_guard guard(all().lock);
  all().share(epoll, made);
}

bool is_in_sets(int fd) { return is_known(fd); }

void add_polled(int epoll, std::vector<pollfd>& polled) {
  const std::lock_guard guard(all().lock);
  EpollSet* const set = all().find(epoll);
  if (!set) return;
  for (const Watch& each : set->watches)
    if (each.is_polled()) polled.push_back({each.rsocket, each.polled(), 0});
}

int epoll_control(int epoll, int operation, int fd, epoll_event* event) {
  const auto wanted = static_cast<short>(event ? event->events & kPolled : 0);
  const int rsocket = operation == EPOLL_CTL_ADD ? rsocket_for_wait(fd, wanted) : rsocket_of(fd);
  if (rsocket_of(epoll) >= 0) return fail(EINVAL);
  if (rsocket < 0) {
    const int done = real::epoll_ctl(epoll, operation, fd, event);
    // What becomes an rsocket later is known from now on.
    if (done != 0 || late_of(fd) == Late::kNone) return done;
  }
  const std::lock_guard guard(all().lock);
  const int done = control(epoll, operation, fd, rsocket, event);
  return rsocket < 0 && operation != EPOLL_CTL_ADD ? 0 : done;  // the kernel has done it
}

int epoll_wait_any(const EpollWait& wait, int (*kernels)(const EpollWait&)) {
  if (!is_known(wait.epoll)) return kernels(wait);
  std::unique_lock held(all().lock);
  EpollSet* const set = all().find(wait.epoll);
  const SetNumber number = set ? set->number : 0;
  const bool has_rsockets = set && set->has_rsockets;
  if (set && !has_rsockets) ++set->outside;
  held.unlock();
  if (!set) return kernels(wait);
  const long long deadline = deadline_of(wait.timeout);
  if (has_rsockets) return wait_here(wait, deadline);
  const int came = kernels(wait);
  const int error = errno;
  held.lock();
  if (EpollSet* const left = all().get(number)) leave_kernel(wait.epoll, *left);
  held.unlock();
  const int told = without_alarms(wait.events, came);
  errno = error;
  return came > 0 && told == 0 ? wait_here(wait, deadline) : told;
}

void became_rsocket(int fd, int rsocket) {
  if (!is_known(fd)) return;
  const std::lock_guard guard(all().lock);
  know(rsocket);
  for (const auto& [number, set] : all()) {
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
  all().leave(fd);
  errno = saved;
}

int after_beginning(int fd, int result) {
  told_again(fd, ~std::uint32_t{0});
  return result;
}

// Who has only looked is not told again of what lies there, nor is it who was told of the end.
ssize_t after_input(int fd, ssize_t result, int flags) {
  if (result > 0 && (flags & MSG_PEEK) != 0) return result;
  if (result == 0 && is_stream(fd)) return result;
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
