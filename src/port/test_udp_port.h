// SPDX-License-Identifier: MIT
// For tests: a port on loopback that gets what it sends.
#pragma once

#include "port/test_packets.h"
#include "port/udp_port.h"

namespace verbena::port {

inline Route loopback(bool ipv4, SlotNumber slot) {
  const Gid here = ipv4 ? kLoopback4 : kLoopback6;
  return {.from = here, .to = here, .slot = slot};
}

// One process: it sends to itself. The parameter: IPv4.
class UdpPortTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!GetParam() && !has_ipv6_sockets()) GTEST_SKIP() << "this system has no IPv6";
    auto group = make_group(number, 1);
    ASSERT_TRUE(port.add_receiver(kFive, std::move(group[0])));
  }
  const std::uint16_t number = free_port();
  UdpPort port{{.port = number}};
  const Route route = loopback(GetParam(), kFive);
};

}  // namespace verbena::port
