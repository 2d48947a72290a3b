// SPDX-License-Identifier: MIT
// The one full fence of the project: store before, load after. An atomic_thread_fence(seq_cst) is
// an mfence under clang, three times as slow as a locked read-modify-write.
#pragma once

#include <atomic>

namespace verbena {

inline void full_fence() noexcept {
#if defined(__x86_64__)
  asm volatile("lock orl $0, (%%rsp)" ::: "memory", "cc");
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace verbena
