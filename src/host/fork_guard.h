// SPDX-License-Identifier: MIT
// Tells the process that made it from its children. A child has neither our threads nor our shared
// mappings: whatever it inherited from us is dead there and must be refused. pthread_atfork does
// not see clone(2) or vfork in other libraries; a page that the kernel wipes in the child does, and
// asking is one load.
#pragma once

#include <atomic>
#include <cstdint>

namespace verbena::host {

class ForkGuard {
 public:
  ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;
  ~ForkGuard();

  // False in every child of the process that made the guard. (A child of vfork shares the memory
  // and is not told apart.)
  bool in_owner() const {
    if (page_) [[likely]]
      return page_->load(std::memory_order_relaxed) != 0;
    return in_owner_by_pid();
  }

 private:
  bool in_owner_by_pid() const;

  const std::atomic<std::uint32_t>* page_ = nullptr;  // none: the kernel has no MADV_WIPEONFORK
  int process_;
};

}  // namespace verbena::host
