// SPDX-License-Identifier: MIT
#include "host/descriptor_table.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>

#include "base/log.h"
#include "host/raw_calls.h"

#ifndef CLOSE_RANGE_UNSHARE
#define CLOSE_RANGE_UNSHARE (1U << 1)
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif

namespace verbena::host {
namespace {

constexpr unsigned kLast = ~0U;

bool close_range_of(unsigned first, unsigned last, unsigned flags) {
  return syscall(SYS_close_range, first, last, flags) == 0;
}

void close_one_by_one(unsigned first) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  // A lower limit may have been set after higher numbers were given out.
  const auto end = static_cast<int>(std::clamp<rlim_t>(limit.rlim_max, 1024, 1 << 20));
  for (int fd = static_cast<int>(first); fd < end; ++fd)
    raw::close(fd);
}

// Leaves the table with standard error only, or with nothing.
bool leave_shared_table(bool keep_stderr) {
  const unsigned first = keep_stderr ? 3 : 0;
  if (!close_range_of(first, kLast, CLOSE_RANGE_UNSHARE)) {
    if (unshare(CLONE_FILES) != 0) return false;
    if (!close_range_of(first, kLast, 0)) close_one_by_one(first);
  }
  if (keep_stderr) {
    raw::close(0);
    raw::close(1);
  }
  return true;
}

// Somebody may write to standard output from a callback: not into one of our sockets.
void fill_standard_numbers() {
  const int stand_in = raw::epoll_create();
  if (stand_in < 0) return;
  while (true) {
    const int fd = raw::duplicate(stand_in, 0);
    if (fd < 0) return;
    if (fd <= 2) continue;
    raw::close(fd);
    break;
  }
  if (stand_in > 2) raw::close(stand_in);
}

// Then the reserve is not all there is.
bool may_raise() {
  rlimit limit{};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max;
}

bool wants_stderr() {
#ifdef VERBENA_SANITIZED
  return true;
#else
  return log_level() != LogLevel::kNone;
#endif
}

}  // namespace

DescriptorTable::DescriptorTable(bool want_own) {
  is_own_ = want_own && leave_shared_table(wants_stderr());
  if (is_own_) {
    PrivateFd::thread_has_own_table();
    fill_standard_numbers();
  } else if (want_own) {
    LOG_WARN("no descriptor table of our own: %d; the program's is used", errno);
  }
}

PrivateFd DescriptorTable::settle(int fd) {
  if (fd < 0) return PrivateFd();
  if (is_own_) {
    highest_ = std::max(highest_, fd);
    return PrivateFd(fd);
  }
  // Out of the way of programs that count on low numbers, or close a range of them. By then the
  // program may have closed this one and have a file of its own in its place.
  const OpenFile file(fd);
  PrivateFd low(fd);
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const auto high = static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 1 << 16) / 2);
  const int moved = raw::duplicate(fd, high);
  if (moved < 0) return low;
  // The program's file is nothing for us. It may also have this number by now: better one number
  // lost than the program's file closed.
  if (!file.is_behind(moved)) {
    errno = EBADF;
    return PrivateFd();
  }
  return PrivateFd(moved);
}

void DescriptorTable::fill_reserve() {
  if (!is_own_ || (reserve_[0] && reserve_[1])) return;
  for (PrivateFd& each : reserve_) {
    if (each) continue;
    each = PrivateFd(raw::duplicate(0, 3));
    if (!each && is_full() && !may_raise() && spare()) each = PrivateFd(raw::duplicate(0, 3));
    highest_ = std::max(highest_, each.get());
  }
}

bool DescriptorTable::spare() {
  const int saved = errno;
  const bool spared = spare_ && spare_();
  errno = saved;
  return spared;
}

bool DescriptorTable::is_full() { return errno == EMFILE; }

bool DescriptorTable::has_room() const {
  if (!is_own_) return true;
  rlimit limit{};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
         static_cast<rlim_t>(highest_) + 2 < limit.rlim_cur;
}

}  // namespace verbena::host
