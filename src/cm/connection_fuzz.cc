// SPDX-License-Identifier: MIT
// Two connection managers under any input: test_fuzz.h says what holds.
#include <cstddef>
#include <cstdint>

#include "cm/test_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size <= 4096) verbena::cm::FuzzRun(std::span(data, size)).run();
  return 0;
}
