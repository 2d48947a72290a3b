// SPDX-License-Identifier: MIT
#include "base/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>

namespace verbena {
namespace {

int operation(int base, FutexScope scope) {
  return scope == FutexScope::kProcess ? base | FUTEX_PRIVATE_FLAG : base;
}

}  // namespace

void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, FutexScope scope,
                std::optional<Duration> timeout) noexcept {
  timespec limit{};
  if (timeout) {
    const std::int64_t n = timeout->count_nanoseconds() > 0 ? timeout->count_nanoseconds() : 0;
    limit.tv_sec = n / 1'000'000'000;
    limit.tv_nsec = n % 1'000'000'000;
  }
  const int saved = errno;
  syscall(SYS_futex, &word, operation(FUTEX_WAIT, scope), expected, timeout ? &limit : nullptr,
          nullptr, 0);
  errno = saved;
}

void futex_wake(const std::atomic<std::uint32_t>& word, std::int32_t count,
                FutexScope scope) noexcept {
  const int saved = errno;
  syscall(SYS_futex, &word, operation(FUTEX_WAKE, scope), count, nullptr, nullptr, 0);
  errno = saved;
}

}  // namespace verbena
