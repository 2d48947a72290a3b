// SPDX-License-Identifier: MIT
// The counter that perftest reads too (get_clock.h there): cycles of the time stamp counter on x86,
// of the virtual counter on ARM. A read costs a few nanoseconds, so every single round is timed.
#pragma once

#include <chrono>
#include <cstdint>
#include <thread>

namespace verbena::bench {

inline std::uint64_t ticks() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  std::uint64_t value = 0;
  asm volatile("mrs %0, cntvct_el0" : "=r"(value));
  return value;
#else
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

// Measured for a twentieth of a second against the monotonic clock: what either clock's reading
// costs, tens of nanoseconds, does not show in five digits.
inline double ticks_per_us() {
  const auto begin = std::chrono::steady_clock::now();
  const std::uint64_t first = ticks();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const std::uint64_t last = ticks();
  const auto end = std::chrono::steady_clock::now();
  return static_cast<double>(last - first) /
         std::chrono::duration<double, std::micro>(end - begin).count();
}

}  // namespace verbena::bench
