// SPDX-License-Identifier: MIT
// Packets of any kind and order to a live queue pair, of every type: test_attack.h says what holds.
#include <cstddef>
#include <cstdint>

#include "roce/test_attack.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  verbena::roce::AttackRun(verbena::TestInput(data, size)).run();
  return 0;
}
