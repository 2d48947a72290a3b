// SPDX-License-Identifier: MIT
// Assertions: a failed one is a bug of ours, never a peer's or a program's mistake. They stay on in
// release.
#pragma once

namespace verbena {

// Says what failed on standard error and aborts.
[[noreturn, gnu::cold]] void assertion_failed(const char* expression, const char* file,
                                              int line) noexcept;

}  // namespace verbena

#define VERBENA_ASSERT(expression)     \
  (__builtin_expect(!!(expression), 1) \
       ? static_cast<void>(0)          \
       : ::verbena::assertion_failed(#expression, __FILE__, __LINE__))
