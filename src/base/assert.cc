// SPDX-License-Identifier: MIT
#include "base/assert.h"

#include <cstdio>
#include <cstdlib>

namespace verbena {

void assertion_failed(const char* expression, const char* file, int line) noexcept {
  std::fprintf(stderr, "verbena: %s:%d: assertion failed: %s\n", file, line, expression);
  std::abort();
}

}  // namespace verbena
