// SPDX-License-Identifier: MIT
// Expectations of a program that runs under the preload, without a test framework in the way: what
// fails is printed with its place, and the program ends with 1.
#pragma once

#include <cstdio>

namespace preload_test {

// As the preload shows it.
inline constexpr char kDevice[] = "/dev/infiniband/uverbs0";

inline int failures = 0;
inline int passes = 0;

inline void check(bool holds, const char* what, const char* file, int line) {
  if (holds) {
    ++passes;
    return;
  }
  ++failures;
  std::printf("%s:%d: does not hold: %s\n", file, line, what);
}

// In calls_of_folders.cc.
void check_folders();
void check_links();
void check_globs();

}  // namespace preload_test

#define CHECK(expression) ::preload_test::check((expression), #expression, __FILE__, __LINE__)
