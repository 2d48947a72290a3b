// SPDX-License-Identifier: MIT
#include "raw/key.h"

#include <gtest/gtest.h>

#include "raw/test_frames.h"

namespace verbena::raw {
namespace {

TEST(Key, ReadsEveryLayerOfADatagram) {
  const Key key = key_of(udp4(1234, 5678));
  EXPECT_EQ(key.destination_mac, kHere);
  EXPECT_EQ(key.source_mac, kThere);
  EXPECT_EQ(key.ether_type.value(), kEtherIpv4);
  EXPECT_EQ(key.has_vlan, 0);
  EXPECT_EQ(key.network, Network::kIpv4);
  EXPECT_EQ(key.protocol, 17);
  EXPECT_EQ(key.traffic_class, 0x28);
  EXPECT_EQ(key.hop_limit, 64);
  EXPECT_EQ(key.ip_flags, kDontFragment);
  EXPECT_EQ(key.source_ip[0], 1);
  EXPECT_EQ(key.source_ip[4], 0);
  EXPECT_EQ(key.destination_ip[3], 2);
  EXPECT_EQ(key.transport, Transport::kUdp);
  EXPECT_EQ(key.source_port.value(), 1234);
  EXPECT_EQ(key.destination_port.value(), 5678);
}

TEST(Key, LooksBehindTagsAndOptions) {
  Bytes frame = ethernet(kEtherIpv4);
  append_tag(frame, 0xA00C, kEtherIpv4);
  append_ipv4(frame, {.protocol = 6, .options = 5}, 20);
  append_ports(frame, 80, 81);
  const Key key = key_of(frame);
  EXPECT_EQ(key.has_vlan, 1);
  EXPECT_EQ(key.vlan_tag.value(), 0xA00C);
  EXPECT_EQ(key.ether_type.value(), kEtherIpv4);
  EXPECT_EQ(key.transport, Transport::kTcp);
  EXPECT_EQ(key.destination_port.value(), 81);
}

TEST(Key, LooksBehindExtensionHeaders) {
  Bytes frame = ethernet(kEtherIpv6);
  append_ipv6(frame, 0, 24);
  const std::uint8_t hop_by_hop[16] = {60, 1};  // 16 bytes, then destination options
  append(frame, hop_by_hop);
  const std::uint8_t options[8] = {17, 0};
  append(frame, options);
  append_ports(frame, 7, 9);
  const Key key = key_of(frame);
  EXPECT_EQ(key.network, Network::kIpv6);
  EXPECT_EQ(key.traffic_class, 0x12);
  EXPECT_EQ(key.flow_label.value(), 0xABCDEu);
  EXPECT_EQ(key.hop_limit, 33);
  EXPECT_EQ(key.protocol, 17);
  EXPECT_EQ(key.transport, Transport::kUdp);
  EXPECT_EQ(key.destination_port.value(), 9);
}

TEST(Key, HasNoPortsOfFragments) {
  constexpr std::uint16_t kFlags[] = {0x2000, 0x0001, 0x3FFF};
  for (const std::uint16_t flags : kFlags) {
    const Key key = key_of(udp4(1, 2, 16, {.flags = flags}));
    EXPECT_EQ(key.protocol, 17);
    EXPECT_EQ(key.transport, Transport::kOther);
    EXPECT_EQ(key.source_port.value(), 0);
  }
  Bytes frame = ethernet(kEtherIpv6);
  append_ipv6(frame, 44, 16);
  const std::uint8_t fragment[8] = {17, 0, 0, 1};  // the first of more
  append(frame, fragment);
  append_ports(frame, 1, 2);
  EXPECT_EQ(key_of(frame).transport, Transport::kOther);
  frame[ethernet(0).size() + 40 + 3] = std::byte{0};  // the only one (RFC 6946)
  EXPECT_EQ(key_of(frame).transport, Transport::kUdp);
}

// Whatever is cut off is not read: address sanitizer watches.
TEST(Key, SurvivesEveryTruncation) {
  Bytes long_one = ethernet(kEtherIpv6);
  append_ipv6(long_one, 0, 24);
  const std::uint8_t hop_by_hop[8] = {17, 0};
  append(long_one, hop_by_hop);
  append_ports(long_one, 1, 2);
  for (const Bytes& whole : {udp4(1, 2, 0, {.options = 10}), long_one}) {
    for (std::size_t size = 0; size <= whole.size(); ++size) {
      const Bytes frame(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
      const Key key = key_of(frame);
      EXPECT_EQ(key.ether_type.value() != 0, size >= kEthernetBytes);
    }
  }
}

TEST(Key, MatchesInTheBitsOfTheMask) {
  const Key key = key_of(udp4(0x1234, 5678));
  Key value;
  Key mask;
  EXPECT_TRUE(matches(key, value, mask)) << "nothing is asked for";
  value.source_port = wire::be16(0x1200);
  mask.source_port = wire::be16(0xFF00);
  EXPECT_TRUE(matches(key, value, mask));
  mask.source_port = wire::be16(0xFF04);
  EXPECT_FALSE(matches(key, value, mask));
  value.source_port = wire::be16(0x1234);
  EXPECT_TRUE(matches(key, value, mask));
}

}  // namespace
}  // namespace verbena::raw
