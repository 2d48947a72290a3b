// SPDX-License-Identifier: MIT
// Anything in a socket's error queue: a port is only closed where ICMP says so of it. The same
// bytes as VERBENA_CONNECT_SECONDS.
#include "rdmacm/icmp_error.h"

// After icmp_error.h: the first needs what sockets declare.
#include <linux/errqueue.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "base/assert.h"
#include "base/test_input.h"
#include "rdmacm/address.h"
#include "rdmacm/patience.h"

using namespace verbena;          // NOLINT(google-build-using-namespace): a fuzzer is one function
using namespace verbena::rdmacm;  // NOLINT(google-build-using-namespace): a fuzzer is one function

namespace {

using Bytes = std::span<const std::byte>;

// Somewhere lies an error that ICMP told, of a destination that cannot be reached.
bool has_unreachable(Bytes control) {
  for (std::size_t at = 0; at + CMSG_LEN(sizeof(sock_extended_err)) <= control.size();
       at += alignof(cmsghdr)) {
    cmsghdr head{};
    sock_extended_err error{};
    std::memcpy(&head, control.data() + at, sizeof head);
    std::memcpy(&error, control.data() + at + sizeof head, sizeof error);
    const bool is_error = head.cmsg_type == (head.cmsg_level == IPPROTO_IP     ? IP_RECVERR
                                             : head.cmsg_level == IPPROTO_IPV6 ? IPV6_RECVERR
                                                                               : -1);
    const bool is_unreachable = (error.ee_origin == SO_EE_ORIGIN_ICMP && error.ee_type == 3) ||
                                (error.ee_origin == SO_EE_ORIGIN_ICMP6 && error.ee_type == 1);
    if (is_error && is_unreachable) return true;
  }
  return false;
}

void look_at_error(TestInput input) {
  sockaddr_storage to{};
  input.fill(&to, sizeof(sockaddr_in6));
  const Bytes control = std::as_bytes(input.take_bytes(256));
  const auto asked = Address::from(reinterpret_cast<const sockaddr*>(&to));
  const Gid host = asked ? asked->gid() : Gid{};
  const std::uint16_t port = asked ? asked->port() : 0;
  const bool is_closed = says_closed(to, control, host, port);
  VERBENA_ASSERT(!is_closed || (asked && has_unreachable(control)));
  VERBENA_ASSERT(!says_closed(to, control, host, static_cast<std::uint16_t>(port + 1)));
  Gid other = host;
  other.bytes[15] ^= 1;
  VERBENA_ASSERT(!says_closed(to, control, other, port));
}

void look_at_patience(std::string_view text) {
  const auto patience = parse_patience(text);
  if (!patience) return;
  const std::int64_t seconds = patience->count_nanoseconds() / 1'000'000'000;
  VERBENA_ASSERT(seconds >= 1 && seconds <= kPatienceSecondsMax);
  VERBENA_ASSERT(parse_patience(std::to_string(seconds)) == patience);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  look_at_error(TestInput(data, size));
  look_at_patience({reinterpret_cast<const char*>(data), size});
  return 0;
}
