// SPDX-License-Identifier: MIT
#include "wire/ip.h"

#include <gtest/gtest.h>
#include <netinet/ip.h>

#include <cstring>
#include <vector>

#include "wire/datagram.h"

namespace verbena::wire {
namespace {

using Bytes = std::vector<std::byte>;

IpHead ipv4_head() {
  return {.flow = {.source = gid_of(std::array<std::uint8_t, 4>{192, 168, 1, 2}),
                   .destination = gid_of(std::array<std::uint8_t, 4>{192, 168, 1, 3}),
                   .source_port = 50'000},
          .traffic_class = 0x02,
          .hop_limit = 7,
          .id = 0x4321};
}

IpHead ipv6_head() {
  return {.flow = {.source = gid_of(std::array<std::uint8_t, 16>{0xFE, 0x80, 1}),
                   .destination = gid_of(std::array<std::uint8_t, 16>{0xFE, 0x80, 2}),
                   .source_port = 50'000},
          .traffic_class = 0xA3,
          .hop_limit = 9,
          .flags_and_offset = 0,
          .flow_label = 0xBCDEF};
}

Bytes packet_of(const IpHead& head, std::size_t datagram_bytes) {
  Bytes bytes(ip_bytes(head.flow) + datagram_bytes);
  encode_ip(head, datagram_bytes, bytes);
  return bytes;
}

// The checksum again, after a field was changed on purpose.
void fix_checksum(Bytes& bytes) {
  bytes[10] = bytes[11] = std::byte{0};
  std::uint32_t sum = 0;
  for (unsigned i = 0; i < 20; i += 2) {
    sum += static_cast<unsigned>(bytes[i]) << 8 | static_cast<unsigned>(bytes[i + 1]);
  }
  sum = (sum & 0xFFFF) + (sum >> 16);
  sum = ~((sum & 0xFFFF) + (sum >> 16));
  bytes[10] = static_cast<std::byte>(sum >> 8);
  bytes[11] = static_cast<std::byte>(sum);
}

TEST(Ip, HeadsComeBackAsTheyWere) {
  for (const IpHead& head : {ipv4_head(), ipv6_head()}) {
    const Bytes bytes = packet_of(head, 100);
    const auto packet = parse_ip(bytes);
    ASSERT_TRUE(packet) << name_of(packet.error());
    EXPECT_EQ(packet->head, head);
    EXPECT_EQ(packet->datagram.size(), 100u);
    EXPECT_EQ(packet->datagram.data(), bytes.data() + bytes.size() - 100);
  }
}

TEST(Ip, PaddingOfTheLinkIsNoPartOfIt) {
  for (const IpHead& head : {ipv4_head(), ipv6_head()}) {
    Bytes bytes = packet_of(head, 20);
    bytes.resize(bytes.size() + 30);
    const auto packet = parse_ip(bytes);
    ASSERT_TRUE(packet);
    EXPECT_EQ(packet->datagram.size(), 20u);
  }
}

TEST(Ip, RefusesWithAReason) {
  const auto refusal = [](const Bytes& bytes) { return parse_ip(bytes).error(); };
  const Bytes good = packet_of(ipv4_head(), 40);
  const auto changed = [&](std::size_t at, unsigned value) {
    Bytes bytes = good;
    bytes[at] = static_cast<std::byte>(value);
    fix_checksum(bytes);
    return bytes;
  };
  EXPECT_EQ(refusal({}), Malformed::kIpHead);
  EXPECT_EQ(refusal(changed(0, 0x46)), Malformed::kIpHead) << "options";
  EXPECT_EQ(refusal(changed(0, 0x55)), Malformed::kIpHead) << "version 5";
  EXPECT_EQ(refusal(changed(3, 255)), Malformed::kIpHead) << "longer than what is there";
  EXPECT_EQ(refusal(changed(3, 19)), Malformed::kIpHead) << "shorter than its head";
  EXPECT_EQ(refusal(changed(3, 21)), Malformed::kIpHead) << "no room for UDP";
  EXPECT_EQ(refusal(changed(3, 60)), Malformed::kIpHead) << "UDP says more";
  EXPECT_EQ(refusal(changed(6, 0x20)), Malformed::kFragment) << "more fragments";
  EXPECT_EQ(refusal(changed(7, 0x01)), Malformed::kFragment) << "offset";
  EXPECT_EQ(refusal(changed(9, 6)), Malformed::kNotRoce) << "TCP";
  EXPECT_EQ(refusal(changed(23, 0)), Malformed::kNotRoce) << "another port";
  EXPECT_TRUE(parse_ip(changed(6, 0x00))) << "DF is not demanded here, only by the ICRC";
  Bytes bytes = good;
  bytes[8] ^= std::byte{1};
  EXPECT_EQ(refusal(bytes), Malformed::kIpHead) << "checksum";

  bytes = packet_of(ipv6_head(), 40);
  bytes[6] = std::byte{44};
  EXPECT_EQ(refusal(bytes), Malformed::kNotRoce) << "a fragment header";
  bytes = packet_of(ipv6_head(), 40);
  bytes[5] = std::byte{200};
  EXPECT_EQ(refusal(bytes), Malformed::kIpHead) << "longer than what is there";
  bytes = packet_of(ipv6_head(), 40);
  std::memcpy(bytes.data() + 8, ipv4_head().flow.source.bytes, 16);
  EXPECT_EQ(refusal(bytes), Malformed::kIpHead) << "IPv4-mapped on the wire";
}

// Programs find out the version of a GRH by IPv4's checksum (ibv_init_ah_from_wc does).
TEST(Ip, GrhOfIpv4EndsInARightHead) {
  const auto grh = grh_of(ipv4_head(), 64);
  for (unsigned i = 0; i < 20; ++i)
    EXPECT_EQ(grh[i], std::byte{0});
  const auto direct = packet_of(ipv4_head(), 64);
  EXPECT_EQ(std::memcmp(grh.data() + 20, direct.data(), 20), 0);
  iphdr ip;
  std::memcpy(&ip, grh.data() + 20, sizeof ip);
  EXPECT_EQ(ip.version, 4);
  EXPECT_EQ(ip.ihl, 5);
  EXPECT_EQ(ip.ttl, 7);
  EXPECT_EQ(ip.tot_len, __builtin_bswap16(20 + 8 + 64));
}

TEST(Ip, GrhOfIpv6IsItsHead) {
  const auto grh = grh_of(ipv6_head(), 64);
  const auto direct = packet_of(ipv6_head(), 64);
  EXPECT_EQ(std::memcmp(grh.data(), direct.data(), 40), 0);
}

TEST(Datagram, PadsWithZerosWhateverWasInTheBuffer) {
  for (std::size_t payload = 0; payload < 9; ++payload) {
    Bytes room(kDatagramMax, std::byte{0xEE});
    DatagramBuilder builder(room, {.opcode = Opcode::of(Service::kUd, Code::kSendOnly)}, payload);
    ASSERT_EQ(builder.payload().size(), payload);
    std::memset(builder.payload().data(), 0x11, payload);
    FlowIcrc icrc(ipv4_head().flow);
    const std::size_t length = builder.finish(icrc);
    ASSERT_EQ(length, 20 + (payload + 3) / 4 * 4 + 4);
    for (std::size_t i = 20 + payload; i < length - 4; ++i)
      EXPECT_EQ(room[i], std::byte{0});
    EXPECT_EQ(room[length], std::byte{0xEE}) << "nothing behind the end is touched";
    const auto packet = parse(std::span(room).first(length));
    ASSERT_TRUE(packet);
    EXPECT_EQ(packet->payload.size(), payload);
    EXPECT_TRUE(icrc.verify(std::span(room).first(length), 0));
  }
}

TEST(DatagramDeathTest, NeverWritesBehindTheRoom) {
  Bytes room(12 + 4 + 4 - 1);
  const Head head{.opcode = Opcode::of(Service::kRc, Code::kSendOnly)};
  EXPECT_DEATH(DatagramBuilder(room, head, 1), "room");
}

}  // namespace
}  // namespace verbena::wire
