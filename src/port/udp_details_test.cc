// SPDX-License-Identifier: MIT
// What is told of packets, and how they are read.
#include <netinet/in.h>
#include <sys/socket.h>

#include "port/test_udp_port.h"

namespace verbena::port {
namespace {

class UdpDetails : public UdpPortTest {};
INSTANTIATE_TEST_SUITE_P(Families, UdpDetails, ::testing::Bool(),
                         [](const auto& family) { return family.param ? "Ipv4" : "Ipv6"; });

TEST_P(UdpDetails, TellsWhatItIsAskedFor) {
  Route marked = route;
  marked.ecn = Ecn::kCongested;
  const auto received = [&](const Details& details) {
    port.tell(details);
    send_packets(port, marked, 2, 500);
    const auto came = drain(port, 2);
    EXPECT_EQ(came.size(), 2u);
    Received last = came.empty() ? Received{} : came.back().head;
    last.payload = {};
    return last;
  };
  const auto nothing = received({.destinations = false, .marks = false});
  EXPECT_EQ(nothing.from, route.from);
  EXPECT_EQ(nothing.segment, port.limits().segments_max == 1 ? 0u : 1u);
  EXPECT_EQ(nothing.to, Gid{});
  EXPECT_EQ(nothing.interface, 0u);
  EXPECT_EQ(nothing.ecn, Ecn::kNotCapable);
  const auto destination = received({.destinations = true, .marks = false});
  EXPECT_EQ(destination.to, route.to);
  EXPECT_NE(destination.interface, 0u);
  EXPECT_EQ(destination.ecn, Ecn::kNotCapable);
  const auto mark = received({.destinations = false, .marks = true});
  EXPECT_EQ(mark.to, Gid{});
  EXPECT_EQ(mark.ecn, Ecn::kCongested);
}

// Packets one by one are read in another way, of which nothing shows but that they are not merged.
TEST_P(UdpDetails, ReadsConversationsOneByOne) {
  const int fd = port.descriptors().front();
  const auto talk = [&](std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i) {
      send_packets(port, route, 1, 60 + i % 5, i);
      const auto came = drain(port, 1);
      ASSERT_EQ(came.size(), 1u);
      ASSERT_EQ(came[0].bytes, make_packet(kFive, 60 + i % 5, i));
      ASSERT_EQ(came[0].head.from, route.from);
      ASSERT_EQ(came[0].head.source_port, port.source_port(route));
    }
  };
  talk(400);
  EXPECT_TRUE(is_merging(fd)) << "somebody wants details";
  port.tell({.destinations = false, .marks = false});
  talk(400);
  EXPECT_FALSE(is_merging(fd));
  // Details are told again.
  port.tell({});
  send_packets(port, route, 1, 500);
  EXPECT_EQ(drain(port, 1).at(0).head.to, route.to);
  port.tell({.destinations = false, .marks = false});
  // A long one, or several that follow each other, and it is as before.
  send_packets(port, route, 1, 4112);
  EXPECT_EQ(drain(port, 1).at(0).bytes, make_packet(kFive, 4112, 0));
  EXPECT_TRUE(is_merging(fd));
  talk(400);
  EXPECT_FALSE(is_merging(fd));
  send_packets(port, route, 40, 300);
  const auto came = drain(port, 40);
  ASSERT_EQ(came.size(), 40u);
  for (std::uint32_t i = 0; i < 40; ++i)
    EXPECT_EQ(came[i].bytes, make_packet(kFive, 300, i));
  EXPECT_TRUE(is_merging(fd));
}

// What lies there, merged, when the socket is told not to merge comes whole; and what is merged
// while that is read.
TEST_P(UdpDetails, LosesNothingThatWasMergedBefore) {
  if (port.limits().segments_max == 1) GTEST_SKIP() << "this system has no UDP_SEGMENT";
  port.tell({.destinations = false, .marks = false});
  const int fd = port.descriptors().front();
  std::array<Received, 64> some;
  std::uint32_t alone = 0;
  for (; alone < 10'000; ++alone) {
    send_packets(port, route, 1, 60, alone);
    ASSERT_EQ(port.receive(some, {}), 1u);
    ASSERT_EQ(port.receive(some, {}), 0u);
    if (!is_merging(fd)) break;
  }
  ASSERT_LT(alone, 10'000u);
  for (int round = 0; round < 5; ++round) {
    // Until the next packet is the one with which it is told.
    send_packets(port, route, 1, 4112);
    ASSERT_EQ(drain(port, 1).size(), 1u);
    ASSERT_TRUE(is_merging(fd));
    for (std::uint32_t i = 0; i < alone; ++i) {
      send_packets(port, route, 1, 60, i);
      ASSERT_EQ(port.receive(some, {}), 1u);
      ASSERT_EQ(port.receive(some, {}), 0u);
    }
    ASSERT_TRUE(is_merging(fd));
    send_packets(port, route, 1, 60, 1000);
    send_packets(port, route, 9, 100, 1001);
    ASSERT_EQ(port.receive(some, {}), 1u);
    EXPECT_EQ(number_of(some[0].payload), 1000u);
    EXPECT_FALSE(is_merging(fd));
    const auto came = drain(port, 9);
    ASSERT_EQ(came.size(), 9u);
    for (std::uint32_t i = 0; i < 9; ++i)
      EXPECT_EQ(came[i].bytes, make_packet(kFive, 100, 1001 + i));
  }
}

// Also of a socket that takes another's place.
TEST_P(UdpDetails, TellsTheSameByEachOfItsSockets) {
  port.tell({.destinations = false, .marks = false});
  auto again = make_group(free_port(), 1);
  ASSERT_TRUE(port.add_receiver(kFive, std::move(again[0])));
  EXPECT_FALSE(tell_details(-1, {}));
  int destinations = 1;
  socklen_t size = sizeof destinations;
  const int fd = port.descriptors().front();
  const bool is_dual = has_ipv6_sockets();
  ASSERT_EQ(0, getsockopt(fd, is_dual ? IPPROTO_IPV6 : IPPROTO_IP,
                          is_dual ? IPV6_RECVPKTINFO : IP_PKTINFO, &destinations, &size));
  EXPECT_EQ(destinations, 0);
}

}  // namespace
}  // namespace verbena::port
