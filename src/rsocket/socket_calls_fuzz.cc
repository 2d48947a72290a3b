// SPDX-License-Identifier: MIT
// Any sequence of rsocket calls by a program: test_socket_calls.h says what holds.
#include <cstddef>
#include <cstdint>

#include "rsocket/test_socket_calls.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static verbena::rsocket::SocketWorld world;
  verbena::rsocket::run_socket_calls(world, {data, size});
  return 0;
}
