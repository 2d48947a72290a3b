// SPDX-License-Identifier: MIT
// How guarded accesses are written for x86-64: inside `asm goto` with a label `fault`.
#pragma once

// Instructions that may fault, and where to go on then: a line of the table that fault_guard.cc
// reads. It goes with the function that it is for (`?`), where the linker keeps one of several.
#define GUARDED(instructions)                        \
  "771:\n" instructions                              \
  "772:\n"                                           \
  ".pushsection verbena_faults, \"a?\", @progbits\n" \
  ".balign 4\n"                                      \
  ".long 771b - ., 772b - ., %l[fault] - .\n"        \
  ".popsection\n"
