// SPDX-License-Identifier: MIT
#include "base/short_copy.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace verbena {
namespace {

ShortCopy detect() {
#if defined(__x86_64__)
  constexpr unsigned kFsrm = 1u << 4;
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  const bool has_fsrm = __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kFsrm) != 0;
  __builtin_cpu_init();
  return {.is_by_string = has_fsrm, .ends_with_a_byte = has_fsrm && __builtin_cpu_is("intel") != 0};
#else
  return {};
#endif
}

}  // namespace

ShortCopy short_copy() {
  static const ShortCopy here = detect();
  return here;
}

}  // namespace verbena
