// SPDX-License-Identifier: MIT
#include "port/impaired.h"

#include <algorithm>
#include <cmath>

#include "base/test_seed.h"
#include "port/sim.h"
#include "port/test_packets.h"

namespace verbena::port {
namespace {

// A line between two hosts that does nothing by itself, and impairments on top.
class Line {
 public:
  explicit Line(const ImpairedOptions& options) : impaired(here, options) {}

  static SimHostOptions perfect() {
    SimHostOptions options;
    options.up = options.down = {
        .bits_per_second = 1'000'000'000'000, .delay = Duration(), .queue_bytes_max = 1u << 30};
    options.receive_buffer = 1u << 30;
    return options;
  }
  // Sends `count` packets, one each microsecond, and gives what came by then, with its time.
  std::vector<std::pair<Instant, std::uint32_t>> pass(std::uint32_t count,
                                                      std::uint32_t size = 1000) {
    std::vector<std::pair<Instant, std::uint32_t>> came;
    Instant now = Instant::at(1'000'000);
    for (std::uint32_t i = 0; i < count + 20'000; ++i, now = now + Duration::microseconds(1)) {
      if (i < count) send_packets(impaired, route, 1, size, i, now);
      std::array<Received, 64> some;
      static_cast<void>(impaired.receive(some, now));
      const std::size_t n = there.receive(some, now);
      for (const Received& each : std::span(some).first(n)) {
        came.emplace_back(now, number_of(each.payload));
        damaged += std::vector(each.payload.begin(), each.payload.end()) !=
                   make_packet(kThere, size, number_of(each.payload));
      }
      if (i > count && impaired.next_deadline() == Instant::never() &&
          network.next_event() == Instant::never())
        break;
    }
    return came;
  }

  const Gid a = ipv4(10, 0, 0, 1);
  const Gid b = ipv4(10, 0, 0, 2);
  SimNetwork network{1};
  SimPort& here = network.add_port(network.add_host(a, perfect()), kHere);
  SimPort& there = network.add_port(network.add_host(b, perfect()), kThere);
  const Route route{.from = a, .to = b, .slot = kThere};
  ImpairedPort impaired;
  std::size_t damaged = 0;
};

// `count` of `of`, give or take six standard deviations.
void expect_share(std::uint64_t count, std::uint64_t of, std::uint32_t of_a_million) {
  const double p = of_a_million / 1e6;
  const double expected = static_cast<double>(of) * p;
  EXPECT_NEAR(static_cast<double>(count), expected, 6 * std::sqrt(expected * (1 - p)) + 1);
}

TEST(Impaired, WithoutImpairmentsTrainsPassAsTheyAre) {
  Line line({});
  EXPECT_EQ(line.impaired.limits().segments_max, 64u);
  EXPECT_EQ(line.pass(100).size(), 100u);
  EXPECT_EQ(line.impaired.next_deadline(), Instant::never());
}

TEST(Impaired, KnowsWhatIsUnderwayOnTheWayOut) {
  Line line({.out = {.delay = Duration::milliseconds(1)}});
  EXPECT_FALSE(line.impaired.has_underway());
  const Instant now = Instant::at(1'000'000);
  send_packets(line.impaired, line.route, 1, 1000, 0, now);
  EXPECT_TRUE(line.impaired.has_underway());
  std::array<Received, 1> some;
  static_cast<void>(line.impaired.receive(some, now + Duration::milliseconds(1)));
  EXPECT_FALSE(line.impaired.has_underway());
}

TEST(Impaired, LosesItsShare) {
  Line line({.out = {.drop = 50'000}, .seed = test_seed()});
  const std::size_t came = line.pass(20'000).size();
  expect_share(20'000 - came, 20'000, 50'000);
  EXPECT_EQ(line.impaired.counters()[Count::kLost], 20'000 - came);
}

TEST(Impaired, DoublesItsShare) {
  Line line({.out = {.duplicate = 100'000}, .seed = test_seed()});
  const std::size_t came = line.pass(20'000).size();
  expect_share(came - 20'000, 20'000, 100'000);
  EXPECT_EQ(line.impaired.counters()[Count::kDuplicated], came - 20'000);
}

TEST(Impaired, DamagesOneBitOfItsShare) {
  Line line({.out = {.corrupt = 100'000}, .seed = test_seed()});
  line.pass(5'000);
  const auto& counters = line.impaired.counters();
  expect_share(counters[Count::kCorrupted], 5'000, 100'000);
  // A bit of the destination changes who gets it.
  const std::uint64_t elsewhere = line.network.counters()[Count::kDroppedNobody];
  EXPECT_EQ(line.damaged + elsewhere, counters[Count::kCorrupted]);
}

TEST(Impaired, ReorderedPacketsAreOvertaken) {
  Line line(
      {.out = {.reorder = 10'000, .reorder_by = Duration::microseconds(20)}, .seed = test_seed()});
  const auto came = line.pass(20'000);
  ASSERT_EQ(came.size(), 20'000u);
  std::size_t late = 0;
  std::uint32_t highest = 0;
  for (const auto& [when, number] : came) {
    late += number < highest;
    highest = std::max(highest, number);
  }
  expect_share(late, 20'000, 10'000);
  // Nothing comes behind the last ones that could overtake them.
  const std::size_t delayed = line.impaired.counters()[Count::kReordered];
  EXPECT_LE(late, delayed);
  EXPECT_GE(late + 5, delayed);
}

TEST(Impaired, DelayAndJitterKeepTheOrder) {
  Line line({.out = {.delay = Duration::microseconds(100), .jitter = Duration::microseconds(30)},
             .seed = test_seed()});
  const auto came = line.pass(1'000);
  ASSERT_EQ(came.size(), 1'000u);
  for (std::uint32_t i = 0; i < 1'000; ++i) {
    EXPECT_EQ(came[i].second, i);
    const auto took = (came[i].first - Instant::at(1'000'000 + i * 1'000)).count_nanoseconds();
    EXPECT_GE(took, 100'000);
    EXPECT_LE(took, 131'000);
  }
}

TEST(Impaired, TheRateIsWhatItSays) {
  Line line({.out = {.bytes_per_second = 100'000'000, .queue_bytes_max = 10'000'000}});
  const auto came = line.pass(1'000);  // 10 us each, offered one each microsecond
  ASSERT_EQ(came.size(), 1'000u);
  EXPECT_NEAR(static_cast<double>((came.back().first - came.front().first).count_nanoseconds()),
              999 * 10'000.0, 20'000);
}

TEST(Impaired, AQueueThatIsFullDrops) {
  Line line({.out = {.bytes_per_second = 100'000'000, .queue_bytes_max = 50'000}});
  const auto came = line.pass(1'000);
  EXPECT_LT(came.size(), 200u);
  EXPECT_EQ(line.impaired.counters()[Count::kQueueDrops], 1'000 - came.size());
}

TEST(Impaired, ASocketThatIsFullTakesTheFirstOfThem) {
  Line line({.out = {.full = 250'000}, .seed = test_seed()});
  const std::vector<std::byte> packet = make_packet(kThere, 100, 0);
  const std::vector<Train> trains(8, Train{line.route, packet, 100});
  const Instant now = Instant::at(1'000'000);
  constexpr std::uint32_t kSends = 4'000;
  std::uint32_t whole = 0;
  std::size_t taken = 0;
  for (std::uint32_t i = 0; i < kSends; ++i) {
    const std::size_t some = line.impaired.send(trains, now);
    taken += some;
    whole += some == trains.size();
  }
  constexpr double kPassesOne = 0.75;
  expect_share(whole, kSends, static_cast<std::uint32_t>(std::pow(kPassesOne, 8) * 1e6));
  std::size_t came = 0;
  std::array<Received, 64> into;
  while (const std::size_t some = line.there.receive(into, now + Duration::seconds(1)))
    came += some;
  EXPECT_EQ(came, taken);
}

TEST(Impaired, TheSameSeedIsTheSameLine) {
  const ImpairedOptions options{.out = {.drop = 100'000,
                                        .duplicate = 50'000,
                                        .corrupt = 20'000,
                                        .reorder = 30'000,
                                        .jitter = Duration::microseconds(5)},
                                .seed = test_seed()};
  Line first(options), second(options);
  EXPECT_EQ(first.pass(3'000), second.pass(3'000));
  ImpairedOptions other = options;
  ++other.seed;
  Line third(other);
  Line fourth(options);
  EXPECT_NE(third.pass(3'000), fourth.pass(3'000));
}

// The other direction: what the far side sends is impaired when it is received.
TEST(Impaired, TheWayInIsImpairedToo) {
  Line line({.in = {.drop = 500'000, .delay = Duration::microseconds(10)}, .seed = test_seed()});
  const Route back{.from = line.b, .to = line.a, .slot = kHere};
  send_packets(line.there, back, 1'000, 500, 0, Instant::at(1));
  EXPECT_TRUE(drain(line.impaired, 0, Instant::at(9'000)).empty());
  std::vector<Kept> came;
  for (Instant now = Instant::at(1'000'000); line.impaired.next_deadline() != Instant::never();
       now = now + Duration::microseconds(100))
    for (Kept& each : drain(line.impaired, 0, now))
      came.push_back(std::move(each));
  expect_share(1'000 - came.size(), 1'000, 500'000);
  for (const Kept& each : came) {
    EXPECT_EQ(each.bytes, make_packet(kHere, 500, each.number()));
    EXPECT_EQ(each.head.from, line.b);
  }
}

}  // namespace
}  // namespace verbena::port
