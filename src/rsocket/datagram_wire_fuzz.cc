// SPDX-License-Identifier: MIT
// Any datagram that may come to a datagram rsocket, by UDP and by queue pair: its header is read
// within its bytes, and means the same after it was written and read again.
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/assert.h"
#include "rsocket/datagram_wire.h"

using namespace verbena::rsocket;  // NOLINT(google-build-using-namespace): a fuzzer is one function

namespace {

using Bytes = std::span<const std::byte>;

bool is_tail(Bytes part, Bytes whole) {
  return part.size() < whole.size() && part.data() + part.size() == whole.data() + whole.size();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Bytes bytes = std::as_bytes(std::span(data, size));
  Bytes rest = bytes;
  if (const auto header = read_udp_header(rest)) {
    VERBENA_ASSERT(is_tail(rest, bytes) || rest.empty());
    std::array<std::byte, kUdpHeaderMax> written{};
    Bytes again(written.data(), write_header(*header, written));
    const auto twice = read_udp_header(again);
    VERBENA_ASSERT(twice && twice->op == header->op && twice->queue_pair == header->queue_pair);
  }
  rest = bytes;
  if (const auto from = read_pair_header(rest)) {
    VERBENA_ASSERT(is_tail(rest, bytes) || rest.empty());
    std::array<std::byte, kPairHeaderMax> written{};
    Bytes again(written.data(), write_header(*from, written));
    const auto twice = read_pair_header(again);
    VERBENA_ASSERT(twice && twice->port == from->port);
  }
  if (size >= sizeof(sockaddr_storage)) {
    sockaddr_storage copy{};
    __builtin_memcpy(&copy, data, sizeof copy);
    const auto point = EndPoint::from(reinterpret_cast<const sockaddr*>(&copy),
                                      static_cast<socklen_t>(data[0] % sizeof copy));
    if (point) {
      sockaddr_storage stored{};
      VERBENA_ASSERT(point->store(point->is_ipv4() ? AF_INET : AF_INET6, stored) <= sizeof stored);
    }
  }
  return 0;
}
