// SPDX-License-Identifier: MIT
#include "port/train.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "port/test_packets.h"

namespace verbena::port {
namespace {

// Takes so many trains a call, and remembers them.
class Taker final : public Port {
 public:
  std::size_t send(std::span<const Train> trains, Instant) override {
    const std::size_t taken = std::min(takes, trains.size());
    for (const Train& train : trains.first(taken))
      for (std::size_t i = 0; i < train.packets(); ++i)
        numbers.push_back(number_of(train.packet(i)));
    return taken;
  }
  std::size_t receive(std::span<Received>, Instant) override { return 0; }
  std::span<const int> descriptors() const override { return {}; }
  Instant next_deadline() const override { return Instant::never(); }
  Limits limits() const override { return taker_limits; }
  Result<std::uint32_t, RouteError> payload_max(const Route&) override { return 0; }
  std::uint16_t source_port(const Route&) override { return 0; }
  const Counters& counters() override { return counts; }

  std::size_t takes = 1000;
  Limits taker_limits{.segments_max = 8, .train_bytes_max = 1000};
  std::vector<std::uint32_t> numbers;
  Counters counts;
};

const Route kRouteHere{.from = kLoopback4, .to = kLoopback4, .slot = {1}};
const Route kRouteThere{.from = kLoopback4, .to = kLoopback4, .slot = {2}};

class TrainTest : public ::testing::Test {
 protected:
  // The IPv4 id that the packet will have, or nothing.
  std::optional<std::uint16_t> put(const Route& route, std::uint32_t size) {
    const auto place = builder.place(route, size);
    if (!place) return std::nullopt;
    EXPECT_EQ(place->room.size(), size);
    write_packet(place->room, route.slot, number++);
    builder.commit();
    return place->ip_id;
  }
  Taker port;
  TrainBuilder builder{port.taker_limits, 4000, 4};
  std::uint32_t number = 0;
};

TEST_F(TrainTest, PacketsOfOneSizeAndRouteShareATrain) {
  EXPECT_EQ(put(kRouteHere, 100), 0);
  EXPECT_EQ(put(kRouteHere, 100), 1);
  EXPECT_EQ(put(kRouteHere, 100), 2);
  ASSERT_EQ(builder.trains().size(), 1u);
  EXPECT_EQ(builder.trains()[0].packets(), 3u);
}

TEST_F(TrainTest, ARunTakesWhatFitsIntoItsTrain) {
  const auto run = [this](std::uint32_t size, std::uint32_t most) {
    const auto place = builder.place(kRouteHere, size, most);
    if (!place) return std::pair(0U, 0U);
    EXPECT_EQ(place->room.size(), std::size_t{size} * place->packets);
    for (std::uint32_t i = 0; i < place->packets; ++i)
      write_packet(place->room.subspan(std::size_t{i} * size, size), kRouteHere.slot, number++);
    builder.commit();
    return std::pair<unsigned, unsigned>(place->ip_id, place->packets);
  };
  // At most 8 packets and 1000 bytes in a train, 4000 in all, in 4 trains.
  EXPECT_EQ(run(100, 3), std::pair(0U, 3U));
  EXPECT_EQ(run(100, 3), std::pair(3U, 3U));
  EXPECT_EQ(run(100, 3), std::pair(6U, 2U)) << "as many packets as a train takes";
  EXPECT_EQ(run(300, 9), std::pair(0U, 3U)) << "as many bytes";
  EXPECT_EQ(run(90, 9), std::pair(3U, 1U)) << "a shorter one ends its train";
  EXPECT_EQ(run(90, 2), std::pair(0U, 2U));
  EXPECT_EQ(run(900, 5), std::pair(0U, 1U));
  EXPECT_EQ(run(900, 5), std::pair(0U, 0U)) << "no more trains";
  ASSERT_EQ(builder.trains().size(), 4U);
  EXPECT_EQ(builder.trains()[1].packets(), 4U);
  EXPECT_TRUE(builder.flush(port, {}));
  std::vector<std::uint32_t> all(number);
  std::iota(all.begin(), all.end(), 0U);
  EXPECT_EQ(port.numbers, all);
}

TEST_F(TrainTest, AShorterPacketEndsItsTrain) {
  EXPECT_EQ(put(kRouteHere, 100), 0);
  EXPECT_EQ(put(kRouteHere, 60), 1);
  EXPECT_EQ(put(kRouteHere, 60), 0);
  EXPECT_EQ(put(kRouteHere, 100), 0);  // longer: another one
  ASSERT_EQ(builder.trains().size(), 3u);
  EXPECT_EQ(builder.trains()[0].packet(1).size(), 60u);
}

TEST_F(TrainTest, AnotherRouteIsAnotherTrain) {
  EXPECT_EQ(put(kRouteHere, 100), 0);
  EXPECT_EQ(put(kRouteThere, 100), 0);
  Route marked = kRouteThere;
  marked.ecn = Ecn::kCapable;
  EXPECT_EQ(put(marked, 100), 0);
}

TEST_F(TrainTest, TheLimitsOfTheKernelAreKept) {
  for (std::uint16_t i = 0; i < 8; ++i)
    EXPECT_EQ(put(kRouteHere, 100), i);
  EXPECT_EQ(put(kRouteHere, 100), 0);  // eight packets are a train
  EXPECT_EQ(put(kRouteThere, 400), 0);
  EXPECT_EQ(put(kRouteThere, 400), 1);
  EXPECT_EQ(put(kRouteThere, 400), 0);  // a thousand bytes, too
  EXPECT_EQ(put(kRouteHere, 1001), std::nullopt);
  EXPECT_EQ(put(kRouteHere, 100), std::nullopt);  // four trains
}

TEST_F(TrainTest, APlaceThatIsNotCommittedIsForgotten) {
  EXPECT_EQ(put(kRouteHere, 100), 0);
  ASSERT_TRUE(builder.place(kRouteHere, 50));
  EXPECT_EQ(put(kRouteHere, 100), 1);
  EXPECT_EQ(builder.trains()[0].bytes.size(), 200u);
}

TEST_F(TrainTest, WhatThePortDoesNotTakeStaysInOrder) {
  for (int i = 0; i < 2; ++i)
    put(kRouteHere, 100);
  put(kRouteThere, 300);
  put(kRouteHere, 200);
  port.takes = 1;
  EXPECT_FALSE(builder.flush(port, {}));
  EXPECT_EQ(builder.trains().size(), 2u);
  EXPECT_EQ(put(kRouteHere, 200), 1);
  for (int i = 0; i < 10 && !builder.flush(port, {}); ++i) {
  }
  EXPECT_TRUE(builder.empty());
  EXPECT_EQ(port.numbers, (std::vector<std::uint32_t>{0, 1, 2, 3, 4}));
}

// ------------------------------------------------------------------ trains in the caller's memory

class TestLane final : public Lane {
 public:
  Sent send(std::span<const Train> trains) override { return {.trains = trains.size()}; }
  std::uint16_t next_id() const override { return next; }
  std::uint16_t next = 0xFFFE;
};

class KeptTrainTest : public TrainTest {
 protected:
  // Packets of a train that begins in the berth; how many have found room.
  std::uint32_t begin(std::uint32_t size, std::uint32_t most) {
    const auto place = builder.place_kept(kRouteHere, size, most, berth, lane);
    if (!place) return 0;
    EXPECT_EQ(place->room.data(), berth.data());
    const auto before = std::ranges::count(builder.trains(), &lane, &Train::lane);
    EXPECT_EQ(place->ip_id, static_cast<std::uint16_t>(lane.next + before));
    EXPECT_EQ(place->room.size(), std::size_t{size} * place->packets);
    for (std::uint32_t i = 0; i < place->packets; ++i)
      write_packet(place->room.subspan(std::size_t{i} * size, size), kRouteHere.slot, number++);
    builder.commit();
    return place->packets;
  }
  std::array<std::byte, 1024> berth{};
  TestLane lane;
};

TEST_F(KeptTrainTest, GoesOnWhereItBegan) {
  EXPECT_TRUE(builder.begins_train(kRouteHere, 100));
  EXPECT_EQ(begin(100, 3), 3u);
  EXPECT_FALSE(builder.begins_train(kRouteHere, 100));
  EXPECT_TRUE(builder.begins_train(kRouteHere, 101));
  EXPECT_EQ(put(kRouteHere, 100), 1) << "0xFFFE and 3";
  EXPECT_EQ(put(kRouteHere, 50), 2);
  EXPECT_TRUE(builder.is_last_kept());
  EXPECT_EQ(put(kRouteHere, 50), 0);
  EXPECT_FALSE(builder.is_last_kept());
  ASSERT_EQ(builder.trains().size(), 2u);
  EXPECT_EQ(builder.trains()[0].lane, &lane);
  EXPECT_EQ(builder.trains()[0].first_id, lane.next);
  EXPECT_EQ(builder.trains()[0].bytes.data(), berth.data());
  EXPECT_EQ(builder.trains()[0].bytes.size(), 450u);
  EXPECT_EQ(builder.trains()[1].lane, nullptr);
  EXPECT_EQ(builder.trains()[1].first_id, 0);
}

TEST_F(KeptTrainTest, IsNoLongerThanOthers) {
  EXPECT_EQ(begin(100, 20), 8u);
  EXPECT_TRUE(builder.begins_train(kRouteHere, 100));
  builder.clear();
  EXPECT_EQ(begin(300, 20), 3u);
  builder.clear();
  EXPECT_EQ(begin(1001, 1), 0u);
}

TEST_F(KeptTrainTest, TakesNothingOfTheBuffer) {
  EXPECT_EQ(begin(100, 8), 8u);
  std::size_t others = 0;
  while (put(kRouteThere, 990))
    ++others;
  EXPECT_EQ(others, 3u) << "of four trains";
  EXPECT_EQ(begin(100, 8), 0u) << "no more trains";
}

TEST_F(KeptTrainTest, StaysWhereItIsWhenOthersMove) {
  put(kRouteThere, 300);
  put(kRouteHere, 200);
  EXPECT_EQ(begin(250, 4), 4u);
  put(kRouteThere, 400);
  port.takes = 1;
  EXPECT_FALSE(builder.flush(port, {}));
  ASSERT_EQ(builder.trains().size(), 3u);
  EXPECT_EQ(builder.trains()[1].bytes.data(), berth.data());
  EXPECT_EQ(put(kRouteThere, 400), 1);
  EXPECT_FALSE(builder.flush(port, {}));
  EXPECT_FALSE(builder.flush(port, {}));
  EXPECT_TRUE(builder.flush(port, {}));
  EXPECT_EQ(port.numbers, (std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST_F(KeptTrainTest, GoesOnAfterOthersHaveLeft) {
  put(kRouteThere, 300);
  EXPECT_EQ(begin(100, 2), 2u);
  port.takes = 1;
  EXPECT_FALSE(builder.flush(port, {}));
  EXPECT_EQ(put(kRouteHere, 100), 0) << "0xFFFE and 2";
  EXPECT_EQ(builder.trains()[0].bytes.data(), berth.data());
  EXPECT_EQ(builder.trains()[0].bytes.size(), 300u);
  EXPECT_TRUE(builder.flush(port, {}));
  EXPECT_EQ(port.numbers, (std::vector<std::uint32_t>{0, 1, 2, 3}));
}

TEST_F(KeptTrainTest, IdentificationsCountByTrainsOfTheLane) {
  EXPECT_EQ(begin(100, 2), 2u);
  put(kRouteThere, 300);
  std::array<std::byte, 1024> another{};
  const auto place = builder.place_kept(kRouteHere, 200, 2, another, lane);
  ASSERT_TRUE(place);
  EXPECT_EQ(place->ip_id, 0xFFFF);
  builder.commit();
  EXPECT_EQ(builder.trains()[2].first_id, 0xFFFF);
}

TEST_F(KeptTrainTest, EndsWhereItIsToldTo) {
  EXPECT_EQ(begin(100, 2), 2u);
  builder.end_train();
  EXPECT_TRUE(builder.begins_train(kRouteHere, 100));
  EXPECT_EQ(put(kRouteHere, 100), 0);
  EXPECT_FALSE(builder.is_last_kept());
  EXPECT_EQ(put(kRouteHere, 100), 1) << "and the next one does not";
}

TEST_F(TrainTest, TheBufferIsThereAgainAfterAFlush) {
  for (int round = 0; round < 5; ++round) {
    for (int i = 0; i < 3; ++i)
      ASSERT_TRUE(put(round % 2 ? kRouteHere : kRouteThere, 990));
    EXPECT_TRUE(builder.flush(port, {}));
  }
  EXPECT_EQ(port.numbers.size(), 15u);
}

TEST_F(TrainTest, FollowsAPortThatCannotSplitTrainsAnyMore) {
  EXPECT_EQ(put(kRouteHere, 100), 0);
  EXPECT_EQ(put(kRouteHere, 100), 1);
  port.taker_limits.segments_max = 1;
  builder.flush(port, {});
  EXPECT_EQ(put(kRouteHere, 100), 0);
  EXPECT_EQ(put(kRouteHere, 100), 0);
  EXPECT_EQ(builder.trains().size(), 2u);
}

}  // namespace
}  // namespace verbena::port
