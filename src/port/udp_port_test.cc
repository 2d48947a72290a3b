// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>

#include "port/test_udp_port.h"

namespace verbena::port {
namespace {

INSTANTIATE_TEST_SUITE_P(Families, UdpPortTest, ::testing::Bool(),
                         [](const auto& family) { return family.param ? "Ipv4" : "Ipv6"; });

TEST_P(UdpPortTest, PacketsArriveAsTheyWereSent) {
  send_packets(port, route, 40, 4112);
  const auto came = drain(port, 40);
  ASSERT_EQ(came.size(), 40u);
  for (std::uint32_t i = 0; i < 40; ++i) {
    EXPECT_EQ(came[i].bytes, make_packet(kFive, 4112, i));
    EXPECT_EQ(came[i].head.from, route.from);
    EXPECT_EQ(came[i].head.to, route.to);
    EXPECT_EQ(came[i].head.source_port, port.source_port(route));
    EXPECT_EQ(came[i].head.ecn, Ecn::kNotCapable);
    EXPECT_NE(came[i].head.interface, 0u);
  }
  EXPECT_EQ(port.counters()[Count::kSentPackets], 40u);
  EXPECT_EQ(port.counters()[Count::kSentBytes], 40u * 4112);
  EXPECT_EQ(port.counters()[Count::kReceivedPackets], 40u);
}

TEST_P(UdpPortTest, TheSegmentIsThePlaceInTheTrain) {
  if (port.limits().segments_max == 1) GTEST_SKIP() << "this system has no UDP_SEGMENT";
  send_packets(port, route, 64, 1024);
  const auto came = drain(port, 64);
  ASSERT_EQ(came.size(), 64u);
  EXPECT_EQ(port.counters()[Count::kSentTrains], 2u);  // 63 packets are 65507 bytes
  std::uint16_t expected = 0;
  for (const Kept& each : came) {
    if (each.number() == 63) expected = 0;
    EXPECT_EQ(each.head.segment, expected++);
  }
}

TEST_P(UdpPortTest, EcnMarksPassBothWays) {
  for (const Ecn ecn : {Ecn::kNotCapable, Ecn::kCapable, Ecn::kCapable1, Ecn::kCongested}) {
    Route marked = route;
    marked.ecn = ecn;
    marked.traffic_class = 0x68;
    marked.hop_limit = 3;
    send_packets(port, marked, 3, 500);
    const auto came = drain(port, 3);
    ASSERT_EQ(came.size(), 3u);
    for (const Kept& each : came)
      EXPECT_EQ(each.head.ecn, ecn);
  }
}

TEST_P(UdpPortTest, ACallerWithLittleRoomGetsAllOfABatchInTheEnd) {
  send_packets(port, route, 50, 800);
  std::vector<std::uint32_t> numbers;
  std::array<Received, 7> few;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (numbers.size() < 50 && std::chrono::steady_clock::now() < end) {
    const std::size_t came = port.receive(few, {});
    for (const Received& each : std::span(few).first(came)) {
      EXPECT_EQ(std::vector(each.payload.begin(), each.payload.end()),
                make_packet(kFive, 800, number_of(each.payload)));
      numbers.push_back(number_of(each.payload));
    }
  }
  std::vector<std::uint32_t> all(50);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(numbers, all);
}

TEST_P(UdpPortTest, ManyBatchesKeepTheirBytesWithinACall) {
  for (std::uint32_t i = 0; i < 40; ++i)
    send_packets(port, route, 1, 200 + i, i);
  const auto came = drain(port, 40);
  ASSERT_EQ(came.size(), 40u);
  for (std::uint32_t i = 0; i < 40; ++i)
    EXPECT_EQ(came[i].bytes, make_packet(kFive, 200 + i, i));
}

TEST_P(UdpPortTest, WithoutOffloadPacketsGoOneByOne) {
  UdpPort plain({.port = number, .offload = false});
  EXPECT_EQ(plain.limits().segments_max, 1u);
  send_packets(plain, route, 40, 1040);
  const auto came = drain(port, 40);
  ASSERT_EQ(came.size(), 40u);
  for (const Kept& each : came)
    EXPECT_EQ(each.head.segment, 0u);
  EXPECT_EQ(plain.counters()[Count::kSentTrains], 40u);
}

TEST_P(UdpPortTest, AReceiverWithoutOffloadGetsEveryPacket) {
  const std::uint16_t other = free_port();
  UdpPort plain({.port = other});
  auto group = make_group(other, 1, {.offload = false});
  ASSERT_TRUE(plain.add_receiver(kFive, std::move(group[0])));
  send_packets(plain, route, 40, 1040);
  EXPECT_EQ(drain(plain, 40).size(), 40u);
  EXPECT_EQ(plain.counters()[Count::kReceivedBatches], 40u);
}

TEST_P(UdpPortTest, ATrainAgainstTheRulesIsDroppedAlone) {
  const auto bytes = make_packet(kFive, 300, 1);
  const Train good{route, bytes, 300};
  const Train empty{route, {}, 300};
  const Train many{route, bytes, 4};  // 75 packets
  const Train sizeless{route, std::span<const std::byte>(), 0};
  const std::array trains{good, empty, many, sizeless, good};
  EXPECT_EQ(port.send(trains, {}), trains.size());
  EXPECT_EQ(drain(port, 2).size(), 2u);
  EXPECT_EQ(port.counters()[Count::kSentTrains], 2u);
  EXPECT_GE(port.counters()[Count::kDroppedBroken], 75u);
}

TEST_P(UdpPortTest, ASourceThatIsNotOursIsRefusedAndCounted) {
  Route foreign = route;
  foreign.from = GetParam() ? ipv4(203, 0, 113, 9) : Gid{{0x20, 1, 0xD, 0xB8, 9}};
  const auto bytes = make_packet(kFive, 300, 1);
  const std::array trains{Train{foreign, bytes, 300}, Train{route, bytes, 300}};
  EXPECT_EQ(port.send(trains, {}), 2u);
  EXPECT_EQ(drain(port, 1).size(), 1u);
  EXPECT_EQ(port.counters()[Count::kDroppedRefused], 1u);
  EXPECT_EQ(port.payload_max(foreign).error(), RouteError::kNotOurs);
}

TEST_P(UdpPortTest, LoopbackTakesTheLargestPackets) {
  const auto largest = port.payload_max(route);
  ASSERT_TRUE(largest.has_value());
  EXPECT_GE(*largest, 4096u + 64);
  send_packets(port, route, 1, *largest);
  EXPECT_EQ(drain(port, 1).size(), 1u);
}

TEST_P(UdpPortTest, WhatFitsTheBudgetIsNotLost) {
  const Limits limits = port.limits();
  ASSERT_GT(limits.receive_bytes, 100'000u);
  ASSERT_GT(limits.receive_packets, 100u);
  for (const std::uint32_t size : {1052u, 4124u}) {
    const std::uint32_t count = limits.receive_bytes * 9 / 10 / size;
    send_packets(port, route, count, size);
    EXPECT_EQ(drain(port, count).size(), count) << size;
  }
  if (port.limits().segments_max > 1) {
    for (std::uint32_t i = 0; i < limits.receive_packets; ++i)
      send_packets(port, route, 1, 64, i);
    EXPECT_EQ(drain(port, limits.receive_packets).size(), limits.receive_packets);
  }
  EXPECT_EQ(port.counters()[Count::kOverflowed], 0u);
}

TEST_P(UdpPortTest, WhatOverflowsIsCounted) {
  const std::uint32_t count = port.limits().receive_packets * 3;
  for (std::uint32_t i = 0; i < count; ++i)
    send_packets(port, route, 1, 64, i);
  const std::size_t came = drain(port, 1).size();
  EXPECT_LT(came, count);
  EXPECT_EQ(port.counters()[Count::kOverflowed], count - came);
}

TEST_P(UdpPortTest, EachSlotHasItsSourcePort) {
  const Route to_six = loopback(GetParam(), kSix);
  EXPECT_NE(port.source_port(route), 0u);
  EXPECT_NE(port.source_port(route), port.source_port(to_six));
  EXPECT_EQ(port.source_port(route), port.source_port(route));
  UdpPort few({.port = number, .senders_max = 1});
  EXPECT_EQ(few.source_port(route), few.source_port(to_six));
}

// More than have sockets of their own; every second one comes twice.
TEST(UdpPort, PacketsHaveTheSourceThatTheirRouteNames) {
  const std::uint16_t number = free_port();
  auto group = make_group(number, 1);
  UdpPort port({.port = number});
  ASSERT_TRUE(port.add_receiver(kFive, std::move(group[0])));
  std::uint32_t sent = 0;
  std::vector<Route> routes;
  for (std::uint8_t last = 1; last <= 20; ++last) {
    const Route route{.from = ipv4(127, 0, 0, last), .to = kLoopback4, .slot = kFive};
    for (int times = 0; times < 1 + last % 2; ++times, ++sent)
      send_packets(port, route, 1, 100, sent);
    routes.insert(routes.end(), 1 + last % 2, route);
  }
  const auto came = drain(port, sent);
  ASSERT_EQ(came.size(), sent);
  for (std::uint32_t i = 0; i < sent; ++i) {
    EXPECT_EQ(came[i].number(), i);
    EXPECT_EQ(came[i].head.from, routes[i].from);
    EXPECT_EQ(came[i].head.source_port, port.source_port(routes[i]));
  }
  const Route foreign{.from = ipv4(192, 0, 2, 1), .to = kLoopback4, .slot = kFive};
  send_packets(port, foreign, 3, 100);
  EXPECT_EQ(port.counters()[Count::kDroppedRefused], 3u);
  EXPECT_TRUE(drain(port).empty());
}

TEST_P(UdpPortTest, ASenderIsDeafButLives) {
  UdpPort stranger({.port = port.source_port(route)});
  send_packets(stranger, route, 100, 1000);
  send_packets(port, route, 1, 100);
  EXPECT_EQ(drain(port, 1).size(), 1u);
}

// ---------------------------------------------------------------------------- misdelivery

class TwoSlotsTest : public ::testing::Test {
 protected:
  TwoSlotsTest() : group(make_group(number, 2)) {
    steering.set_positions(std::array{kFive, kSix});
    five.set_steering(steering);
    six.set_steering(steering);
  }
  void give_sockets() {
    ASSERT_TRUE(five.add_receiver(kFive, std::move(group[0])));
    ASSERT_TRUE(six.add_receiver(kSix, std::move(group[1])));
  }
  void attach() {
    const auto done = attach_steering(group[0].get(), steering.program(0));
    ASSERT_TRUE(done.has_value()) << to_string(done.error());
  }
  const std::uint16_t number = free_port();
  Basket basket;
  Steering steering;
  std::vector<UniqueFd> group;
  static inline Instant time;
  static Instant clock() { return time; }
  UdpPort five{{.port = number, .hand_over = &basket, .now = clock}};
  UdpPort six{{.port = number, .hand_over = &basket, .now = clock}};
};

TEST_F(TwoSlotsTest, TheKernelSteersByTheSlot) {
  attach();
  give_sockets();
  for (int round = 0; round < 50; ++round) {
    send_packets(five, loopback(true, kFive), 3, 700);
    send_packets(five, loopback(true, kSix), 4, 700);
    send_packets(six, loopback(has_ipv6_sockets() ? false : true, kSix), 2, 700);
  }
  EXPECT_EQ(drain(five, 150).size(), 150u);
  EXPECT_EQ(drain(six, 300).size(), 300u);
  EXPECT_TRUE(basket.packets.empty());
}

// As GRO makes it: one batch for two. The route says five, some packets say six.
TEST_F(TwoSlotsTest, AMixedBatchIsTakenApart) {
  attach();
  give_sockets();
  std::vector<std::byte> bytes;
  for (std::uint32_t i = 0; i < 9; ++i) {
    const auto packet = make_packet(i % 3 == 1 ? kSix : kFive, 600, i);
    bytes.insert(bytes.end(), packet.begin(), packet.end());
  }
  const Train mixed{loopback(true, kFive), bytes, 600};
  ASSERT_EQ(five.send({&mixed, 1}, {}), 1u);
  const auto came = drain(five, 6);
  ASSERT_EQ(came.size(), 6u);
  for (const Kept& each : came)
    EXPECT_NE(each.number() % 3, 1u);
  ASSERT_EQ(basket.packets[kSix].size(), 3u);
  const Kept& handed = basket.packets[kSix][1];
  EXPECT_EQ(handed.bytes, make_packet(kSix, 600, 4));
  EXPECT_EQ(handed.head.segment, 4u);
  EXPECT_EQ(handed.head.from, kLoopback4);
  EXPECT_EQ(handed.head.source_port, five.source_port(loopback(true, kFive)));
  EXPECT_EQ(five.counters()[Count::kHandedOver], 3u);
  EXPECT_EQ(five.counters()[Count::kReceivedPackets], 6u);
}

TEST_F(TwoSlotsTest, WithoutSteeringInTheKernelNothingIsLost) {
  give_sockets();  // spread by hash
  std::size_t sent_to_six = 0;
  for (std::uint32_t i = 0; i < 40; ++i) {
    UdpPort other({.port = number});  // another source port, another hash
    send_packets(other, loopback(true, kSix), 2, 500, 2 * i);
    sent_to_six += 2;
  }
  std::size_t came = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (came + basket.packets[kSix].size() < sent_to_six &&
         std::chrono::steady_clock::now() < end) {
    came += drain(six).size();
    EXPECT_TRUE(drain(five).empty());
  }
  EXPECT_EQ(came + basket.packets[kSix].size(), sent_to_six);
  EXPECT_GT(basket.packets[kSix].size(), 0u) << "40 source ports with one hash";
}

// A withdrawn request: only the process that has it knows, and a flood does not become a larger
// one.
TEST_F(TwoSlotsTest, WhatIsOneOfAllsComesToAll) {
  attach();
  give_sockets();
  const auto rejection = cm_packet(0x12);
  const Train train{loopback(true, kSix), rejection, static_cast<std::uint32_t>(rejection.size())};
  constexpr std::size_t kMany = 1500;
  std::size_t came = 0;
  for (std::size_t i = 0; i < kMany; ++i) {
    ASSERT_EQ(six.send({&train, 1}, {}), 1u);
    came += drain(five, 1).size();
  }
  EXPECT_EQ(came, kMany);
  EXPECT_TRUE(drain(six).empty());
  EXPECT_GE(basket.packets[kSix].size(), 1000u);
  EXPECT_LT(basket.packets[kSix].size(), 1010u);
  EXPECT_EQ(basket.packets[kSix][0].bytes, rejection);
  EXPECT_EQ(five.counters()[Count::kDroppedForeign], kMany - basket.packets[kSix].size());
  // A second later there is room for as many again.
  time = time + Duration::seconds(1);
  basket.packets[kSix].clear();
  for (std::size_t i = 0; i < kMany; ++i) {
    ASSERT_EQ(six.send({&train, 1}, {}), 1u);
    drain(five, 1);
  }
  EXPECT_GE(basket.packets[kSix].size(), 990u);
  EXPECT_LT(basket.packets[kSix].size(), 1010u);
  EXPECT_TRUE(basket.packets[kFive].empty());
}

TEST_F(TwoSlotsTest, WhatNobodyTakesIsCountedByReason) {
  attach();
  give_sockets();
  const auto for_six = make_packet(kSix, 400, 1);
  const auto for_nobody = make_packet({900}, 400, 2);
  const std::vector<std::byte> too_short(8);
  std::vector<std::byte> bytes = make_packet(kFive, 400, 0);
  bytes.insert(bytes.end(), for_six.begin(), for_six.end());
  bytes.insert(bytes.end(), for_nobody.begin(), for_nobody.end());
  bytes.insert(bytes.end(), too_short.begin(), too_short.end());
  const Train train{loopback(true, kFive), bytes, 400};
  basket.takes = false;
  ASSERT_EQ(five.send({&train, 1}, {}), 1u);
  EXPECT_EQ(drain(five, 1).size(), 1u);
  EXPECT_EQ(five.counters()[Count::kDroppedForeign], 1u);
  EXPECT_EQ(five.counters()[Count::kDroppedNobody], 2u);
}

TEST_F(TwoSlotsTest, APortMayHaveManySlots) {
  attach();
  ASSERT_TRUE(five.add_receiver(kFive, std::move(group[0])));
  ASSERT_TRUE(five.add_receiver(kSix, std::move(group[1])));
  EXPECT_EQ(five.descriptors().size(), 2u);
  send_packets(six, loopback(true, kFive), 10, 700);
  send_packets(six, loopback(true, kSix), 10, 700);
  EXPECT_EQ(drain(five, 20).size(), 20u);
}

// ------------------------------------------------------------------------------ multicast

TEST_F(TwoSlotsTest, MulticastReachesThoseWhoJoined) {
  attach();
  give_sockets();
  const Gid everybody = ipv4(239, 77, 0, 5);
  constexpr std::uint32_t kLo = 1;
  ASSERT_TRUE(five.join_multicast(everybody, kLo).has_value());
  Route route = loopback(true, kFive);
  route.to = everybody;
  route.interface = kLo;
  auto packet = make_packet(kFive, 300, 9);
  std::memset(packet.data() + 5, 0xFF, 3);
  const Train train{route, packet, 300};
  ASSERT_EQ(six.send({&train, 1}, {}), 1u);
  const auto came = drain(five, 1);
  ASSERT_EQ(came.size(), 1u);
  EXPECT_EQ(came[0].head.to, everybody);
  EXPECT_TRUE(drain(six).empty());
  five.leave_multicast(everybody, kLo);
  ASSERT_EQ(six.send({&train, 1}, {}), 1u);
  send_packets(six, loopback(true, kFive), 1, 100);
  EXPECT_EQ(drain(five, 1).size(), 1u);
}

// ------------------------------------------------------- programs that close what is not theirs

TEST_P(UdpPortTest, AClosedReceiverIsFoundAndAStrangersFileLeftAlone) {
  const int taken = port.descriptors()[0];
  EXPECT_EQ(port.check_sockets(), std::nullopt);
  const UniqueFd kept(dup(taken));  // as the group holds it
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  ASSERT_EQ(dup2(pipe_ends[0], taken), taken);
  ASSERT_EQ(write(pipe_ends[1], "theirs", 6), 6);
  EXPECT_TRUE(drain(port).empty());
  EXPECT_GT(port.counters()[Count::kReceiveErrors], 0u);
  EXPECT_EQ(port.check_sockets(), kFive);
  ASSERT_TRUE(port.add_receiver(kFive, UniqueFd(dup(kept.get()))));
  EXPECT_EQ(port.check_sockets(), std::nullopt);
  send_packets(port, route, 1, 100);
  EXPECT_EQ(drain(port, 1).size(), 1u);
  char text[8] = {};
  EXPECT_EQ(read(taken, text, sizeof text), 6);
  EXPECT_EQ(std::string(text), "theirs");
  for (const int fd : {taken, pipe_ends[0], pipe_ends[1]})
    close(fd);
}

TEST_P(UdpPortTest, AClosedSenderIsMadeAgain) {
  const std::uint16_t before = port.source_port(route);
  int closed = 0;
  for (int fd = 3; fd < 4096; ++fd) {
    sockaddr_storage name{};
    socklen_t size = sizeof name;
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size) != 0) continue;
    const auto in_order = reinterpret_cast<const sockaddr_in6&>(name).sin6_port;  // same in v4
    if (std::bit_cast<wire::be16>(in_order).value() == before) closed += close(fd) == 0;
  }
  ASSERT_EQ(closed, 1);
  const auto bytes = make_packet(kFive, 100, 1);
  const Train train{route, bytes, 100};
  EXPECT_EQ(port.send({&train, 1}, {}), 1u);
  EXPECT_EQ(port.counters()[Count::kDroppedBroken], 1u);
  EXPECT_EQ(port.send({&train, 1}, {}), 1u);
  EXPECT_EQ(drain(port, 1).size(), 1u);
}

TEST_P(UdpPortTest, SeveralThreadsSendAtOnce) {
  constexpr std::uint32_t kThreads = 4;
  constexpr std::uint32_t kEach = 100;
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] { send_packets(port, route, kEach, 300, t * kEach); });
  for (std::thread& each : threads)
    each.join();
  const auto came = drain(port, kThreads * kEach);
  std::vector<bool> seen(kThreads * kEach);
  for (const Kept& each : came)
    seen.at(each.number()) = each.bytes == make_packet(kFive, 300, each.number());
  EXPECT_EQ(std::ranges::count(seen, true), kThreads * kEach);
}

}  // namespace
}  // namespace verbena::port
