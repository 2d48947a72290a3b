// SPDX-License-Identifier: MIT
#include "host/fork_guard.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

#include "host/raw_memory.h"

namespace verbena::host {

ForkGuard::ForkGuard() : process_(getpid()) {
  void* at = raw_map(page_size(), MAP_PRIVATE | MAP_ANONYMOUS, -1);
  if (at == MAP_FAILED) return;
  if (raw_advise(at, page_size(), MADV_WIPEONFORK)) {
    page_ = new (at) std::atomic<std::uint32_t>(1);
  } else {
    raw_unmap(at, page_size());
  }
}

ForkGuard::~ForkGuard() {
  if (page_) raw_unmap(const_cast<std::atomic<std::uint32_t>*>(page_), page_size());
}

bool ForkGuard::in_owner_by_pid() const { return getpid() == process_; }

}  // namespace verbena::host
