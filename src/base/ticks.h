// SPDX-License-Identifier: MIT
// A count that goes on all the time, for waits of some hundred nanoseconds: cheaper than a clock,
// and about as exact as such a wait needs. One tick takes between 0.2 and 1 ns. 0 where there is no
// such count: whoever waits for it does not wait there.
#pragma once

#include <cstdint>

namespace verbena {

inline std::uint64_t ticks() noexcept {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  return 0;
#endif
}

}  // namespace verbena
