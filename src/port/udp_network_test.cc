// SPDX-License-Identifier: MIT
// The UDP port between two network namespaces: real interfaces, with their MTU.
#include <linux/if_packet.h>
#include <net/ethernet.h>

#include "port/page_sender.h"
#include "port/test_namespace.h"
#include "port/test_packets.h"

namespace verbena::port {
namespace {

constexpr const char* kSkipped = "no network namespaces (or no ip) here";

struct Family {
  const char* name;
  Gid from;
  Gid to;
  std::uint32_t heads;
  bool link_local = false;
};
Gid ipv6(std::uint8_t a, std::uint8_t b, std::uint8_t last) {
  Gid gid;
  gid.bytes[0] = a;
  gid.bytes[1] = b;
  gid.bytes[15] = last;
  return gid;
}
const Family kFamilies[] = {
    {"IPv4", ipv4(10, 9, 0, 1), ipv4(10, 9, 0, 2), 28},
    {"IPv6", ipv6(0xFD, 0, 1), ipv6(0xFD, 0, 2), 48},
    {"link-local", ipv6(0xFE, 0x80, 1), ipv6(0xFE, 0x80, 2), 48, true},
};

Instant no_time() { return {}; }

// A sender on the first host, a receiver on the second.
struct Pair {
  explicit Pair(int mtu, std::uint32_t senders_max = 256) : hosts(mtu), senders(senders_max) {
    hosts.enter(1);
    group = make_group(kRocePort, 2);
    steering.set_positions(std::array{kFive, kSix});
    EXPECT_TRUE(attach_steering(group[0].get(), steering.program(0)).has_value());
    there = std::make_unique<UdpPort>(UdpOptions{.hand_over = &basket, .now = no_time});
    there->set_steering(steering);
    hosts.enter(0);
    here = std::make_unique<UdpPort>(UdpOptions{.senders_max = senders});
  }
  void give_both() {
    hosts.enter(1);
    EXPECT_TRUE(there->add_receiver(kFive, std::move(group[0])));
    EXPECT_TRUE(there->add_receiver(kSix, std::move(group[1])));
    hosts.enter(0);
  }
  Route route(const Family& family, SlotNumber slot = kFive) const {
    return {.from = family.from,
            .to = family.to,
            .interface = family.link_local ? if_nametoindex("va") : 0,
            .slot = slot};
  }
  TwoHosts hosts;
  std::uint32_t senders;
  std::vector<UniqueFd> group;
  Steering steering;
  Basket basket;
  std::unique_ptr<UdpPort> here;
  std::unique_ptr<UdpPort> there;
};

void expect_largest_packets_pass(int mtu) {
  Pair pair(mtu);
  pair.give_both();
  for (const Family& family : kFamilies) {
    const Route route = pair.route(family);
    const auto most = pair.here->payload_max(route);
    ASSERT_TRUE(most.has_value()) << family.name << to_string(most.error());
    EXPECT_EQ(*most, static_cast<std::uint32_t>(mtu) - family.heads) << family.name;
    send_packets(*pair.here, route, 30, *most);
    Route marked = route;
    marked.ecn = Ecn::kCapable;
    send_packets(*pair.here, marked, 30, 1024, 30);
    const auto came = drain(*pair.there, 60);
    ASSERT_EQ(came.size(), 60u) << family.name;
    for (std::uint32_t i = 0; i < 60; ++i) {
      EXPECT_EQ(came[i].bytes, make_packet(kFive, i < 30 ? *most : 1024, i));
      EXPECT_EQ(came[i].head.from, family.from);
      EXPECT_EQ(came[i].head.to, family.to);
      EXPECT_EQ(came[i].head.ecn, i < 30 ? Ecn::kNotCapable : Ecn::kCapable);
    }
    const std::uint64_t before = pair.here->counters()[Count::kDroppedTooLong];
    send_packets(*pair.here, route, 10, *most + 1);
    EXPECT_TRUE(drain(*pair.there).empty());
    EXPECT_EQ(pair.here->counters()[Count::kDroppedTooLong] - before, 10u) << family.name;
  }
}

TEST(UdpNetwork, AnMtuOf1500) {
  if (!in_namespaces([] { expect_largest_packets_pass(1500); })) GTEST_SKIP() << kSkipped;
}
TEST(UdpNetwork, AnMtuOf9000) {
  if (!in_namespaces([] { expect_largest_packets_pass(9000); })) GTEST_SKIP() << kSkipped;
}

// What the ICRC relies on: packet i of a train has the IPv4 id i and DF, on the cable.
void expect_ids_on_the_cable() {
  Pair pair(1500);
  pair.give_both();
  // Without checksums by the interface the kernel takes trains apart by itself, before the cable.
  TwoHosts::set_offload("va", ETHTOOL_STXCSUM, 0);
  pair.hosts.enter(1);
  const UniqueFd tap(socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK,
                            std::bit_cast<std::uint16_t>(wire::be16(ETH_P_IP))));
  ASSERT_TRUE(tap);
  pair.hosts.enter(0);
  send_packets(*pair.here, pair.route(kFamilies[0]), 25, 1040);
  const auto came = drain(*pair.there, 25);
  EXPECT_EQ(came.size(), 25u);
  std::vector<std::uint16_t> ids;
  std::array<std::byte, 65536> frame;
  for (ssize_t n = 0; (n = recv(tap.get(), frame.data(), frame.size(), 0)) > 0;) {
    const auto ip = wire::parse_ip(std::span(frame).first(static_cast<std::size_t>(n)));
    if (!ip || ip->head.flow.destination_port != kRocePort) continue;
    EXPECT_EQ(ip->head.flags_and_offset, wire::kDontFragment);
    EXPECT_EQ(ip->head.flow.source_port, pair.here->source_port(pair.route(kFamilies[0])));
    EXPECT_EQ(ip->datagram.size(), 1040u) << "the train came whole";
    ids.push_back(ip->head.id);
  }
  ASSERT_EQ(ids.size(), 25u);
  for (std::uint16_t i = 0; i < 25; ++i)
    EXPECT_EQ(ids[i], i);
}
TEST(UdpNetwork, TheIpv4IdIsThePlaceInTheTrain) {
  if (!in_namespaces(expect_ids_on_the_cable)) GTEST_SKIP() << kSkipped;
}

// One at a time, alternating between two slots of the other host, while GRO merges what it can.
struct Mixed {
  std::uint64_t batches = 0;
  std::uint64_t at_the_wrong_socket = 0;
};
Mixed send_mixed(std::uint32_t senders_max) {
  Pair pair(1500, senders_max);
  EXPECT_TRUE(TwoHosts::set_offload("va", ETHTOOL_STSO, 0));  // else veth has nothing to merge
  pair.hosts.enter(1);
  EXPECT_TRUE(TwoHosts::set_offload("vb", ETHTOOL_SGRO, 1));
  // Merging goes on for a while, as behind a cable with some delay.
  if (!TwoHosts::write_setting("vb", "gro_flush_timeout", "100000")) {
    std::printf("SKIP merging of packets sent one by one: no sysfs of the namespace\n");
  }
  EXPECT_TRUE(pair.there->add_receiver(kFive, std::move(pair.group[0])));
  UdpPort six({.hand_over = &pair.basket, .now = no_time});
  EXPECT_TRUE(six.add_receiver(kSix, std::move(pair.group[1])));
  six.set_steering(pair.steering);
  pair.hosts.enter(0);
  UdpPort single({.offload = false, .senders_max = senders_max});
  std::size_t came = 0;
  const auto all = [&] {
    came += drain(*pair.there).size() + drain(six).size();
    std::size_t handed = 0;
    for (const auto& [slot, packets] : pair.basket.packets)
      handed += packets.size();
    return std::pair(came + handed, handed);
  };
  for (std::uint32_t round = 0; round < 100; ++round) {
    TrainBuilder builder(single.limits(), 1 << 20, 64);
    for (std::uint32_t i = 0; i < 32; ++i) {
      const Route route = pair.route(kFamilies[0], i % 2 == 0 ? kFive : kSix);
      const auto place = builder.place(route, 600);
      write_packet(place->room, route.slot, i);
      builder.commit();
    }
    EXPECT_TRUE(builder.flush(single, {}));
    all();
  }
  // The last ones lie in GRO's hands for a while.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (all().first < 3200 && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(all().first, 3200u);
  return {pair.there->counters()[Count::kReceivedBatches] + six.counters()[Count::kReceivedBatches],
          all().second};
}

TEST(UdpNetwork, BatchesForTwoSlotsAreNotMixed) {
  const bool ran = in_namespaces([] {
    const Mixed ours = send_mixed(256);
    EXPECT_EQ(ours.at_the_wrong_socket, 0u);
    std::printf("a source port for each slot: %llu batches\n",
                static_cast<unsigned long long>(ours.batches));
  });
  if (!ran) GTEST_SKIP() << kSkipped;
  // The same with one source port for all, to see that there was something to avoid.
  in_namespaces([] {
    const Mixed shared = send_mixed(1);
    std::printf("one source port for all: %llu batches, %llu packets at the wrong socket%s\n",
                static_cast<unsigned long long>(shared.batches),
                static_cast<unsigned long long>(shared.at_the_wrong_socket),
                shared.at_the_wrong_socket == 0 ? " (SKIP: this kernel merged nothing)" : "");
  });
}

TEST(UdpNetwork, ASourceAddressThatIsGoneIsRefusedUntilItIsBack) {
  const bool ran = in_namespaces([] {
    Pair pair(1500);
    pair.give_both();
    const Route route = pair.route(kFamilies[0]);
    TwoHosts::run("ip addr add 10.9.0.9/24 dev va");
    send_packets(*pair.here, route, 2, 500);
    TwoHosts::run("ip addr del 10.9.0.1/24 dev va");
    TwoHosts::run("ip addr replace 10.9.0.9/24 dev va");
    send_packets(*pair.here, route, 3, 500, 2);
    EXPECT_EQ(pair.here->counters()[Count::kDroppedRefused], 3u);
    Route other = route;
    other.from = ipv4(10, 9, 0, 9);
    send_packets(*pair.here, other, 1, 500, 5);
    TwoHosts::run("ip addr add 10.9.0.1/24 dev va");
    send_packets(*pair.here, route, 4, 500, 6);
    const auto came = drain(*pair.there, 7);
    ASSERT_EQ(came.size(), 7u);
    EXPECT_EQ(came[2].head.from, other.from);
    EXPECT_EQ(came[2].head.source_port, pair.here->source_port(other));
    EXPECT_EQ(came[6].head.from, route.from);
    EXPECT_EQ(came[6].head.source_port, pair.here->source_port(route));
    EXPECT_EQ(pair.here->counters()[Count::kDroppedRefused], 3u);
  });
  if (!ran) GTEST_SKIP() << kSkipped;
}

TEST(UdpNetwork, AnAddressThatCannotBeReachedIsRefusedAndCounted) {
  const bool ran = in_namespaces([] {
    Pair pair(1500);
    pair.give_both();
    Route nowhere = pair.route(kFamilies[0]);
    nowhere.to = ipv4(192, 0, 2, 1);
    EXPECT_EQ(pair.here->payload_max(nowhere).error(), RouteError::kNoRoute);
    send_packets(*pair.here, nowhere, 3, 500);
    EXPECT_EQ(pair.here->counters()[Count::kDroppedRefused], 3u);
    // A closed port elsewhere answers by ICMP: that disturbs nobody.
    pair.hosts.enter(1);
    pair.there.reset();
    pair.hosts.enter(0);
    for (std::uint32_t i = 0; i < 20; ++i)
      send_packets(*pair.here, pair.route(kFamilies[0]), 1, 500);
    EXPECT_EQ(pair.here->counters()[Count::kSentPackets], 20u);
    EXPECT_EQ(pair.here->counters()[Count::kDroppedRefused], 3u);
  });
  if (!ran) GTEST_SKIP() << kSkipped;
}

// Left to itself, the system prefers the peer's own address where that is ours, too.
void expect_pages_come_from_their_source() {
  constexpr std::uint32_t kSize = 4112;
  constexpr std::uint32_t kCount = 15;
  TwoHosts hosts(1500);
  TwoHosts::run("ip addr add 10.9.0.3/32 dev va");
  TwoHosts::run("ip addr add fd00::3/128 dev va nodad");
  TwoHosts::run("ip addr add fe80::3/128 dev va nodad");
  UdpPort port{UdpOptions{}};
  auto group = make_group(kRocePort, 1);
  ASSERT_TRUE(port.add_receiver(kFive, std::move(group[0])));
  const std::uint32_t interface = if_nametoindex("va");
  const std::array routes{Route{.from = ipv4(10, 9, 0, 3), .to = ipv4(10, 9, 0, 1), .slot = kFive},
                          Route{.from = ipv6(0xFD, 0, 3), .to = ipv6(0xFD, 0, 1), .slot = kFive},
                          Route{.from = ipv6(0xFE, 0x80, 3),
                                .to = ipv6(0xFE, 0x80, 1),
                                .interface = interface,
                                .slot = kFive}};
  for (const Route& route : routes) {
    const auto lane = port.open_pages(route);
    ASSERT_NE(lane, nullptr);
    std::vector<std::byte> bytes(std::size_t{kCount} * kSize);
    for (std::uint32_t i = 0; i < kCount; ++i)
      write_packet(std::span(bytes).subspan(std::size_t{i} * kSize, kSize), kFive, i);
    const Train train{route, bytes, kSize, 0, lane.get()};
    ASSERT_EQ(port.send({&train, 1}, {}), 1u);
    const auto came = drain(port, kCount);
    ASSERT_EQ(came.size(), kCount);
    for (const auto& each : came)
      EXPECT_EQ(each.head.from, route.from);
  }
}
TEST(UdpNetwork, PagesComeFromTheSourceOfTheirRoute) {
  if (!PageSender::is_possible()) GTEST_SKIP() << "this system sends no pages";
  if (!in_namespaces(expect_pages_come_from_their_source)) GTEST_SKIP() << kSkipped;
}

}  // namespace
}  // namespace verbena::port
