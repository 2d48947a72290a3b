// SPDX-License-Identifier: MIT
// Any sequence of verbs calls by a program: test_calls.h says what holds.
#include <cstddef>
#include <cstdint>

#include "verbs/test_calls.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static verbena::verbs::CallsWorld world;
  verbena::verbs::CallsRun(world, verbena::TestInput(data, size)).run();
  return 0;
}
