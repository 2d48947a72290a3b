// SPDX-License-Identifier: MIT
#include "base/far_fence.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
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

void far_fence() noexcept {
  full_fence();
  command(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
}

}  // namespace verbena
