// SPDX-License-Identifier: MIT
// The kernel runs the programs here: on pairs of unix sockets, whose filters see a datagram as
// packet sockets see a frame.
#include "raw/filter.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "base/random.h"
#include "base/unique_fd.h"
#include "raw/test_frames.h"

namespace verbena::raw {
namespace {

class Filter {
 public:
  explicit Filter(std::span<const Flow> flows) {
    int pair[2];
    EXPECT_EQ(0, socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair));
    in_ = UniqueFd(pair[0]);
    out_ = UniqueFd(pair[1]);
    std::vector<sock_filter> program = filter_for(flows);
    const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
    EXPECT_EQ(0, setsockopt(out_.get(), SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter));
  }
  bool passes(const Bytes& frame) const {
    std::byte got[2048];
    static_cast<void>(send(in_.get(), frame.data(), frame.size(), 0));
    return recv(out_.get(), got, sizeof got, 0) == static_cast<ssize_t>(frame.size());
  }

 private:
  UniqueFd in_;
  UniqueFd out_;
};

void expect_whole(Flow& flow, Network network) {
  flow.value.network = network;
  flow.mask.network = static_cast<Network>(0xFF);
}
void expect_ports(Flow& flow, Transport transport, std::uint16_t source) {
  flow.value.transport = transport;
  flow.mask.transport = static_cast<Transport>(0xFF);
  flow.value.source_port = wire::be16(source);
  flow.mask.source_port = wire::be16(0xFFFF);
}

Bytes udp6(std::uint16_t source, std::uint8_t next = 17) {
  Bytes frame = ethernet(kEtherIpv6);
  append_ipv6(frame, next, 8);
  if (next != 17) {
    const std::uint8_t extension[8] = {17, 0};
    append(frame, extension);
  }
  append_ports(frame, source, 9);
  return frame;
}

TEST(Filter, DropsEverythingWithoutFlows) { EXPECT_FALSE(Filter({}).passes(udp4(1, 2))); }

TEST(Filter, LetsEverythingThroughToSniffersAndDefaults) {
  for (const FlowKind kind : {FlowKind::kSniffer, FlowKind::kAllDefault}) {
    const Flow flow{.kind = kind};
    EXPECT_TRUE(Filter({&flow, 1}).passes(udp4(1, 2)));
    EXPECT_TRUE(Filter({&flow, 1}).passes(ethernet(0x1234)));
  }
  const Flow multicast{.kind = FlowKind::kMulticastDefault};
  EXPECT_FALSE(Filter({&multicast, 1}).passes(udp4(1, 2)));
  EXPECT_TRUE(Filter({&multicast, 1}).passes(udp4(1, 2, 16, {}, kGroup)));
}

TEST(Filter, ComparesPorts) {
  Flow flow;
  expect_whole(flow, Network::kIpv4);
  expect_ports(flow, Transport::kUdp, 80);
  const Filter filter({&flow, 1});
  EXPECT_TRUE(filter.passes(udp4(80, 9)));
  EXPECT_TRUE(filter.passes(udp4(80, 9, 16, {.options = 7})));
  EXPECT_FALSE(filter.passes(udp4(81, 9)));
  EXPECT_FALSE(filter.passes(udp4(80, 9, 16, {.protocol = 6})));
  EXPECT_FALSE(filter.passes(udp4(80, 9, 16, {.flags = 0x2000}))) << "a fragment has no ports";
  EXPECT_FALSE(filter.passes(udp6(80)));
}

TEST(Filter, ComparesPortsOfIpv6AndLeavesExtensionsToTheTable) {
  Flow flow;
  expect_whole(flow, Network::kIpv6);
  expect_ports(flow, Transport::kUdp, 80);
  const Filter filter({&flow, 1});
  EXPECT_TRUE(filter.passes(udp6(80)));
  EXPECT_FALSE(filter.passes(udp6(81)));
  EXPECT_TRUE(filter.passes(udp6(80, 60)));
  EXPECT_FALSE(filter.passes(udp4(80, 9)));
}

TEST(Filter, LetsTaggedFramesThrough) {
  Flow flow;
  expect_whole(flow, Network::kIpv4);
  expect_ports(flow, Transport::kUdp, 80);
  Bytes frame = ethernet(kEtherIpv4);
  append_tag(frame, 5, kEtherIpv4);
  append_ipv4(frame, {}, 8);
  append_ports(frame, 80, 9);
  EXPECT_TRUE(Filter({&flow, 1}).passes(frame));
}

TEST(Filter, TriesOneFlowAfterTheOther) {
  std::vector<Flow> flows(3);
  for (std::uint16_t i = 0; i < 3; ++i) {
    expect_whole(flows[i], Network::kIpv4);
    expect_ports(flows[i], Transport::kUdp, static_cast<std::uint16_t>(80 + i));
  }
  const Filter filter(flows);
  EXPECT_FALSE(filter.passes(udp4(79, 9)));
  for (std::uint16_t port = 80; port < 83; ++port)
    EXPECT_TRUE(filter.passes(udp4(port, 9)));
  EXPECT_FALSE(filter.passes(udp4(83, 9)));
}

TEST(Filter, LetsEverythingThroughWhenThereAreTooManyFlows) {
  std::vector<Flow> flows(2000);
  for (Flow& flow : flows) {
    expect_whole(flow, Network::kIpv4);
    expect_ports(flow, Transport::kUdp, 80);
  }
  EXPECT_TRUE(Filter(flows).passes(udp4(81, 9)));
}

// Random flows, each made from a frame, and that frame: what the table takes has passed.
TEST(Filter, NeverDropsWhatTheTableTakes) {
  SeededRandom random(20);
  const Bytes frames[] = {udp4(80, 9), udp4(80, 9, 3, {.options = 3}), udp6(80), udp6(80, 60),
                          udp4(1, 2, 0, {.protocol = 6}, kGroup)};
  unsigned taken = 0;
  for (unsigned round = 0; round < 3000; ++round) {
    const Key key = key_of(frames[round % std::size(frames)]);
    Flow flow;
    flow.value = key;
    auto* const mask = reinterpret_cast<std::uint8_t*>(&flow.mask);
    for (std::size_t i = 0; i < offsetof(Key, source_ip); ++i)
      if (random.next() % 8 == 0) mask[i] = static_cast<std::uint8_t>(random.next());
    flow.mask.network = static_cast<Network>(0xFF);  // as the specs of verbs make it
    for (std::size_t i = offsetof(Key, source_ip); i < sizeof(Key); ++i)
      if (random.next() % 8 == 0) mask[i] = static_cast<std::uint8_t>(random.next());
    const bool has_ports = key.transport != Transport::kOther && random.next() % 2 == 0;
    flow.mask.transport = static_cast<Transport>(has_ports ? 0xFF : 0);
    flow.mask.has_vlan = 0;
    if (!has_ports) flow.mask.source_port = flow.mask.destination_port = {};
    const Filter filter({&flow, 1});
    for (const Bytes& frame : frames) {
      if (!matches(key_of(frame), flow.value, flow.mask)) continue;
      ++taken;
      ASSERT_TRUE(filter.passes(frame)) << "round " << round;
    }
  }
  EXPECT_GE(taken, 3000u);
}

}  // namespace
}  // namespace verbena::raw
