// SPDX-License-Identifier: MIT
// Asking for a cache line early. Never faults.
#pragma once

namespace verbena {

// To be written soon: takes it away from other processors now.
inline void prefetch_for_writing(const void* at) noexcept {
#if defined(__x86_64__)
  // GCC makes a plain prefetch of __builtin_prefetch(at, 1) unless told that the processor is
  // recent; on older ones this instruction does nothing.
  asm volatile("prefetchw %0" ::"m"(*static_cast<const char*>(at)));
#else
  __builtin_prefetch(at, 1);
#endif
}

inline void prefetch_for_reading(const void* at) noexcept { __builtin_prefetch(at, 0); }

}  // namespace verbena
