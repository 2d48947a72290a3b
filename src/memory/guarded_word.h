// SPDX-License-Identifier: MIT
// guarded_copy() for the few bytes of most messages, without a call.
#pragma once

#include "memory/guarded_copy.h"
#if defined(__x86_64__)
#include "memory/guarded_x86_64.h"
#endif

namespace verbena::memory {
namespace detail {

// Of one instruction's length. False where it is none of these, is not aligned, or the memory is
// not there: guarded_copy() copies it, or finds out.
[[gnu::always_inline]] inline bool move_word(std::byte* to, const std::byte* from,
                                             std::size_t length) {
#if defined(__x86_64__)
#define VERBENA_MOVE_WORD(suffix, value)                                                          \
  {                                                                                               \
    asm goto(GUARDED("mov" suffix " (%[from]), %" value "\n mov" suffix " %" value ", (%[to])\n") \
             :                                                                                    \
             : [to] "r"(to), [from] "r"(from)                                                     \
             : "memory", "rax"                                                                    \
             : fault);                                                                            \
    return true;                                                                                  \
  }
  if ((reinterpret_cast<std::uintptr_t>(to) & (length - 1)) != 0) return false;
  switch (length) {
    case 1: VERBENA_MOVE_WORD("b", "%al")
    case 2: VERBENA_MOVE_WORD("w", "%ax")
    case 4: VERBENA_MOVE_WORD("l", "%eax")
    case 8: VERBENA_MOVE_WORD("q", "%rax")
    default: break;
  }
#undef VERBENA_MOVE_WORD
fault:
#endif
  static_cast<void>(to);
  static_cast<void>(from);
  static_cast<void>(length);
  return false;
}

}  // namespace detail

[[gnu::always_inline]] inline bool guarded_copy_inline(std::byte* to, const std::byte* from,
                                                       std::size_t length) {
  if (detail::move_word(to, from, length)) [[likely]]
    return true;
  return guarded_copy(to, from, length);
}

}  // namespace verbena::memory
