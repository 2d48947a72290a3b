// SPDX-License-Identifier: MIT
// Any sequence of rdma_cm calls by a program: test_id_calls.h says what holds.
#include <cstddef>
#include <cstdint>

#include "rdmacm/test_id_calls.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static verbena::rdmacm::IdCallsWorld world;
  verbena::rdmacm::IdCalls(world, verbena::TestInput(data, size)).run();
  return 0;
}
