// SPDX-License-Identifier: MIT
#include "base/far_fence.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>

#include "base/fence.h"

namespace verbena {
namespace {

bool command(int which) noexcept {
  const int saved = errno;
  const bool done = syscall(SYS_membarrier, which, 0, 0) == 0;
  errno = saved;
  return done;
}

}  // namespace

// Registers anew in a forked child, which has another address space.
bool join_far_fences() noexcept {
  const bool works =
      command(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) && command(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
  detail::has_joined_far_fences.store(works, std::memory_order_relaxed);
  return works;
}

bool join_near_fences() noexcept {
  const bool works = command(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) &&
                     command(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
  detail::has_joined_near_fences.store(works, std::memory_order_relaxed);
  return works;
}

void near_fence() noexcept {
  full_fence();
  if (command(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) return;
  // A forked child has not joined.
  if (join_near_fences()) return;
  constexpr timespec kLong{.tv_sec = 0, .tv_nsec = 10'000'000};
  const int saved = errno;
  nanosleep(&kLong, nullptr);
  errno = saved;
}

void far_fence() noexcept {
  full_fence();
  command(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
}

}  // namespace verbena
