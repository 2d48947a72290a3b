// SPDX-License-Identifier: MIT
#include "port/udp_channel.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "port/connected_ids.h"
#include "port/test_packets.h"

namespace verbena::port {
namespace {

// To a receiver of this process. The parameter: IPv4.
class UdpChannelTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!GetParam() && !has_ipv6_sockets()) GTEST_SKIP() << "this system has no IPv6";
    auto group = make_group(number, 1);
    ASSERT_TRUE(receiver.add_receiver(kFive, std::move(group[0])));
    channel = UdpChannel::open(route, number, counters);
    ASSERT_NE(channel, nullptr);
  }
  bool send(std::uint32_t which) { return channel->send(make_packet(kFive, 60, which)); }

  const std::uint16_t number = free_port();
  const Gid here = GetParam() ? kLoopback4 : kLoopback6;
  const Route route{.from = here, .to = here, .slot = kFive};
  UdpPort receiver{{.port = number}};
  Counters counters;
  std::unique_ptr<UdpChannel> channel;
};
INSTANTIATE_TEST_SUITE_P(Families, UdpChannelTest, ::testing::Bool(),
                         [](const auto& family) { return family.param ? "Ipv4" : "Ipv6"; });

TEST_P(UdpChannelTest, BringsPackets) {
  for (std::uint32_t i = 0; i < 20; ++i)
    ASSERT_TRUE(send(i));
  const auto came = drain(receiver, 20);
  ASSERT_EQ(came.size(), 20u);
  for (std::uint32_t i = 0; i < 20; ++i) {
    EXPECT_EQ(came[i].bytes, make_packet(kFive, 60, i));
    EXPECT_EQ(came[i].head.from, here);
    EXPECT_EQ(came[i].head.source_port, channel->source_port());
  }
  EXPECT_EQ(counters[Count::kSentPackets], 20u);
  EXPECT_EQ(counters[Count::kSentBytes], 20u * 60);
}

TEST_P(UdpChannelTest, KnowsWhatTheKernelCounts) {
  if (!GetParam()) GTEST_SKIP() << "IPv6 has no identifications";
  for (int round = 1; round <= 4; ++round) {
    for (int i = 0; i < 30'000; ++i)  // all around, in the end
      ASSERT_TRUE(send(0));
    const auto next = learn_next_id(channel->fd(), here, channel->source_port());
    // Two are sent each time to find out.
    EXPECT_EQ(next, static_cast<std::uint16_t>(channel->next_id() + 2 * round));
  }
}

TEST_P(UdpChannelTest, EndsWhenACallFails) {
  const auto nobody = UdpChannel::open(route, free_port(), counters);
  ASSERT_NE(nobody, nullptr);
  const auto packet = make_packet(kFive, 60, 0);
  ASSERT_TRUE(nobody->send(packet));
  EXPECT_FALSE(nobody->send(packet)) << "its port is not there";
  EXPECT_FALSE(nobody->send(packet));
  EXPECT_EQ(counters[Count::kSentPackets], 1u);
}

TEST_P(UdpChannelTest, LeavesTheFileOfAStrangerAlone) {
  const int fd = channel->fd();
  const int strange = open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(fd, dup3(strange, fd, O_CLOEXEC));
  EXPECT_FALSE(send(0));
  channel.reset();
  EXPECT_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC) << "it is still there";
  close(fd);
  close(strange);
}

TEST_P(UdpChannelTest, LooksWhetherItIsStillItsOwn) {
  const int fd = channel->fd();
  int pair[2];
  ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair));
  ASSERT_EQ(fd, dup3(pair[0], fd, O_CLOEXEC));
  int sent = 0;
  for (std::byte taken[100]; sent < 1000 && send(0); ++sent)
    ASSERT_EQ(recv(pair[1], taken, sizeof taken, 0), 60);
  EXPECT_LT(sent, 256);
  channel.reset();
  EXPECT_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
  for (const int each : {fd, pair[0], pair[1]})
    close(each);
}

TEST(UdpChannel, IsForAddressesOfOneFamilyThatAreHere) {
  Counters counters;
  EXPECT_EQ(UdpChannel::open({.from = kLoopback6, .to = kLoopback4}, 4791, counters), nullptr);
  EXPECT_EQ(UdpChannel::open({.from = ipv4(192, 0, 2, 1), .to = kLoopback4}, 4791, counters),
            nullptr);
}

}  // namespace
}  // namespace verbena::port
