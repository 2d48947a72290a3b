// SPDX-License-Identifier: MIT
#include "port/sim.h"

#include <algorithm>
#include <cmath>

#include "base/test_seed.h"
#include "port/test_packets.h"

namespace verbena::port {
namespace {

constexpr SlotNumber kOne{1};
constexpr SlotNumber kTwo{2};

Gid host(std::uint8_t n) { return ipv4(10, 0, 0, n); }

// Everything until nothing happens any more.
std::vector<Kept> drain_all(SimNetwork& network, SimPort& port) {
  std::vector<Kept> all;
  while (true) {
    for (Kept& each : drain(port, 0, network.now()))
      all.push_back(std::move(each));
    if (network.next_event() == Instant::never()) return all;
    network.advance(network.next_event());
  }
}

TEST(Sim, APacketTakesItsTime) {
  SimNetwork network(1);
  SimHostOptions options;
  options.up =
      options.down = {.bits_per_second = 10'000'000'000, .delay = Duration::microseconds(3)};
  SimPort& a = network.add_port(network.add_host(host(1), options), kOne);
  SimPort& b = network.add_port(network.add_host(host(2), options), kTwo);
  send_packets(a, {.from = host(1), .to = host(2), .slot = kTwo}, 1, 1184, 7, Instant::at(1000));
  // 1184 bytes and 66 of heads: 1 us on each line.
  EXPECT_EQ(b.next_deadline(), Instant::at(1000 + 1000 + 3000));
  EXPECT_TRUE(drain(b, 0, Instant::at(1000 + 2 * 4000 - 1)).empty());
  const auto came = drain(b, 0, Instant::at(1000 + 2 * 4000));
  ASSERT_EQ(came.size(), 1u);
  EXPECT_EQ(came[0].bytes, make_packet(kTwo, 1184, 7));
  EXPECT_EQ(came[0].head.from, host(1));
  EXPECT_EQ(came[0].head.source_port, a.source_port({.slot = kTwo}));
  EXPECT_EQ(b.next_deadline(), Instant::never());
}

TEST(Sim, ALineCarriesItsRate) {
  SimNetwork network(1);
  SimPort& a = network.add_port(network.add_host(host(1)), kOne);
  SimPort& b = network.add_port(network.add_host(host(2)), kTwo);
  const Route route{.from = host(1), .to = host(2), .slot = kTwo};
  std::uint64_t bytes = 0;
  for (std::int64_t us = 0; us < 1000; ++us) {
    const Instant now = Instant::at(us * 1000);
    const auto packet = make_packet(kTwo, 4096, 0);
    const Train train{route, packet, 4096};
    for (int i = 0; i < 4; ++i)  // 131 Gbit/s are offered
      a.send({&train, 1}, now);
    for (const Kept& each : drain(b, 0, now))
      bytes += each.bytes.size();
  }
  // 25 Gbit/s for a millisecond, less two delays and the heads.
  EXPECT_NEAR(static_cast<double>(bytes), 25e9 / 8 * 0.99e-3 * 4096 / 4162, 20'000);
  EXPECT_GT(a.counters()[Count::kSendFull], 0u);
  EXPECT_EQ(network.counters()[Count::kQueueDrops], 0u);
}

TEST(Sim, ManyToOneFillsTheQueueOfTheReceiver) {
  SimNetwork network(1);
  SimHostOptions options;
  options.down.queue_bytes_max = 200'000;
  options.down.mark_from_bytes = 50'000;
  SimPort& to = network.add_port(network.add_host(host(1), options), kOne);
  std::vector<SimPort*> from;
  for (std::uint8_t i = 2; i < 18; ++i)
    from.push_back(&network.add_port(network.add_host(host(i)), {i}));
  for (std::size_t i = 0; i < from.size(); ++i) {
    Route route{.from = host(static_cast<std::uint8_t>(i + 2)), .to = host(1), .slot = kOne};
    route.ecn = i % 2 == 0 ? Ecn::kCapable : Ecn::kNotCapable;
    send_packets(*from[i], route, 20, 4096);
  }
  const auto came = drain_all(network, to);
  std::size_t marked = 0, marked_wrongly = 0;
  for (const Kept& each : came) {
    const bool is_capable = each.head.from.bytes[15] % 2 == 0;
    marked += each.head.ecn == Ecn::kCongested;
    marked_wrongly += each.head.ecn == Ecn::kCongested && !is_capable;
  }
  EXPECT_EQ(came.size() + network.counters()[Count::kQueueDrops], 320u);
  EXPECT_GT(network.counters()[Count::kQueueDrops], 200u);
  EXPECT_GT(marked, 5u);
  EXPECT_EQ(marked_wrongly, 0u);
  EXPECT_EQ(network.counters()[Count::kMarked], marked);
}

TEST(Sim, LosesAndReordersByTheSeed) {
  const std::uint64_t seed = test_seed();
  const auto pass = [](std::uint64_t with) {
    SimNetwork network(with);
    SimHostOptions options;
    options.down.loss = 20'000;
    options.down.reorder = 10'000;
    options.down.queue_bytes_max = options.up.queue_bytes_max = 1u << 30;
    options.receive_buffer = 1u << 30;
    SimPort& a = network.add_port(network.add_host(host(1), options), kOne);
    SimPort& b = network.add_port(network.add_host(host(2), options), kTwo);
    send_packets(a, {.from = host(1), .to = host(2), .slot = kTwo}, 20'000, 256);
    std::vector<std::uint32_t> numbers;
    for (const Kept& each : drain_all(network, b))
      numbers.push_back(each.number());
    const auto lost = static_cast<double>(20'000 - numbers.size());
    EXPECT_NEAR(lost, 400, 6 * std::sqrt(400.0));
    EXPECT_NEAR(static_cast<double>(network.counters()[Count::kReordered]), 200,
                6 * std::sqrt(200.0));
    EXPECT_FALSE(std::ranges::is_sorted(numbers));
    return numbers;
  };
  const auto first = pass(seed);
  EXPECT_EQ(first, pass(seed));
  EXPECT_NE(first, pass(seed + 1));
}

TEST(Sim, ProcessesOfOneHostShareItsAddress) {
  SimNetwork network(1);
  SimPort& a = network.add_port(network.add_host(host(1)), kOne);
  const std::size_t shared = network.add_host(host(2));
  SimPort& b = network.add_port(shared, kTwo);
  SimPort& c = network.add_port(shared, {3});
  send_packets(a, {.from = host(1), .to = host(2), .slot = kTwo}, 5, 500);
  send_packets(a, {.from = host(1), .to = host(2), .slot = {3}}, 7, 500);
  send_packets(a, {.from = host(1), .to = host(2), .slot = {4}}, 2, 500);
  EXPECT_EQ(drain_all(network, b).size(), 5u);
  EXPECT_EQ(drain_all(network, c).size(), 7u);
  EXPECT_EQ(network.counters()[Count::kDroppedNobody], 2u);
}

TEST(Sim, AReceiverThatSleepsOverflows) {
  SimNetwork network(1);
  SimHostOptions small;
  small.receive_buffer = 10'000;
  SimPort& a = network.add_port(network.add_host(host(1)), kOne);
  SimPort& b = network.add_port(network.add_host(host(2), small), kTwo);
  send_packets(a, {.from = host(1), .to = host(2), .slot = kTwo}, 20, 1000);
  network.advance(Instant::at(1'000'000'000));
  EXPECT_EQ(drain(b, 0, network.now()).size(), 10u);
  EXPECT_EQ(b.counters()[Count::kOverflowed], 10u);
}

TEST(Sim, RefusesWhatARealOneWould) {
  SimNetwork network(1);
  SimPort& a = network.add_port(network.add_host(host(1)), kOne);
  SimPort& b = network.add_port(network.add_host(host(2)), kTwo);
  EXPECT_EQ(a.payload_max({.from = host(1), .to = host(9)}).error(), RouteError::kNoRoute);
  EXPECT_EQ(a.payload_max({.from = host(7), .to = host(2)}).error(), RouteError::kNotOurs);
  const std::uint32_t most = *a.payload_max({.from = host(1), .to = host(2)});
  send_packets(a, {.from = host(1), .to = host(2), .slot = kTwo}, 1, most + 1);
  send_packets(a, {.from = host(1), .to = host(9), .slot = kTwo}, 1, 100);
  send_packets(a, {.from = host(1), .to = host(2), .slot = kTwo}, 1, most);
  EXPECT_EQ(drain_all(network, b).size(), 1u);
  EXPECT_EQ(a.counters()[Count::kDroppedTooLong], 1u);
  EXPECT_EQ(a.counters()[Count::kDroppedRefused], 1u);
}

TEST(Sim, MulticastReachesEveryOtherHost) {
  SimNetwork network(1);
  std::vector<SimPort*> ports;
  for (std::uint8_t i = 1; i <= 4; ++i)
    ports.push_back(&network.add_port(network.add_host(host(i)), {i}));
  const auto packet = make_packet(kOne, 300, 5);
  const Train train{{.from = host(1), .to = ipv4(239, 1, 2, 3), .slot = {1023}}, packet, 300};
  EXPECT_EQ(ports[0]->send({&train, 1}, {}), 1u);
  network.advance(Instant::at(1'000'000'000));
  for (std::size_t i = 0; i < ports.size(); ++i)
    EXPECT_EQ(drain(*ports[i], 0, network.now()).size(), i == 0 ? 0u : 1u);
}

TEST(Sim, TheLineCanChange) {
  SimNetwork network(1);
  const std::size_t there = network.add_host(host(2));
  SimPort& a = network.add_port(network.add_host(host(1)), kOne);
  SimPort& b = network.add_port(there, kTwo);
  network.change(there, {}, {.loss = 1'000'000});
  send_packets(a, {.from = host(1), .to = host(2), .slot = kTwo}, 5, 500);
  EXPECT_TRUE(drain_all(network, b).empty());
  network.change(there, {}, {});
  send_packets(a, {.from = host(1), .to = host(2), .slot = kTwo}, 5, 500, 0, network.now());
  EXPECT_EQ(drain_all(network, b).size(), 5u);
}

}  // namespace
}  // namespace verbena::port
