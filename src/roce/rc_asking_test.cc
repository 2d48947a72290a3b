// SPDX-License-Identifier: MIT
// Which packets of a long message ask for an acknowledgement.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "roce/test_world.h"

namespace verbena::roce {
namespace {

using queues::SendOpcode;

constexpr std::uint32_t kAskingMtu = 1024;
constexpr std::uint32_t kTrain = 15;

// Their places in a message of so many packets, which leave in one turn.
std::vector<std::uint32_t> asking(SendOpcode opcode, std::uint32_t packets, std::uint32_t train,
                                  std::uint32_t window = 1024) {
  TestWorld world(
      EndOptions{.memory = 512 * 1024,
                 .in_flight = {.packets = 1000, .bytes = window * kAskingMtu, .train = train}});
  world.link.options.backlog_max = Duration::milliseconds(1);
  for (std::uint64_t i = 0; i < 2; ++i)
    world.far().post_receive(i, 0, 512 * 1024);
  const auto post = [&](std::uint32_t bytes) {
    const qp::SendRequest request{
        .opcode = opcode, .remote_address = world.far().address(0), .remote_key = world.far().key};
    world.near().post(request, 0, bytes);
    world.run(kSoon);
    EXPECT_EQ(world.near().poll().size(), 1u);
  };
  post(8);  // how long answers take is known from then on
  std::vector<std::uint32_t> places;
  std::uint32_t place = 0;
  world.link.tap = [&](int from, const wire::Packet& packet) {
    if (from != 0) return true;
    if (packet.ack_request) places.push_back(place);
    ++place;
    return true;
  };
  post(packets * kAskingMtu);
  EXPECT_EQ(place, packets);
  return places;
}

// Two packets, for the first is longer than those behind it; then whole trains.
TEST(RcAsking, ThoseOfALongWriteThatEndTrains) {
  EXPECT_EQ(asking(SendOpcode::kWrite, 64, kTrain, 100), (std::vector<std::uint32_t>{31, 61, 63}));
}

TEST(RcAsking, OfASendTrainsBeginWithTheFirst) {
  EXPECT_EQ(asking(SendOpcode::kSend, 64, kTrain, 100), (std::vector<std::uint32_t>{29, 59, 63}));
}

TEST(RcAsking, SeldomerWhereAThirdOfTheWindowHoldsMoreTrains) {
  EXPECT_EQ(asking(SendOpcode::kSend, 64, kTrain, 3 * 3 * kTrain),
            (std::vector<std::uint32_t>{44, 63}));
  EXPECT_EQ(asking(SendOpcode::kSend, 64, kTrain, 3 * 4 * kTrain),
            (std::vector<std::uint32_t>{59, 63}));
  EXPECT_EQ(asking(SendOpcode::kSend, 64, kTrain), (std::vector<std::uint32_t>{63}));
}

TEST(RcAsking, WithoutTrainsEverySixteenth) {
  EXPECT_EQ(asking(SendOpcode::kWrite, 50, 1), (std::vector<std::uint32_t>{15, 31, 47, 49}));
}

// Whether the peer agrees is asked by the first few packets, which are counted one by one. Behind
// them, those that differ in their sequence numbers alone are written together.
TEST(RcAsking, WhetherThePeerAgreesLeavesNoRuns) {
  TestWorld world(EndOptions{.in_flight = {.packets = 1000, .bytes = 1 << 20, .train = kTrain},
                             .reorder_packets = kAgreedSpan,
                             .asks_for_agreement = true});
  world.link.options.backlog_max = Duration::milliseconds(1);
  const auto post = [&](std::uint32_t bytes) {
    const qp::SendRequest request{.opcode = SendOpcode::kWrite,
                                  .remote_address = world.far().address(0),
                                  .remote_key = world.far().key};
    world.near().post(request, 0, bytes);
    world.near().turn();
  };
  post(4 * kAskingMtu);
  EXPECT_EQ(world.near().sent_in_runs, 0u);
  world.run(kSoon);
  EXPECT_EQ(world.near().poll().size(), 1u);
  post(40 * kAskingMtu);
  EXPECT_GE(world.near().sent_in_runs, 30u);
  world.run(kSoon);
  EXPECT_EQ(world.near().poll().size(), 1u);
}

}  // namespace
}  // namespace verbena::roce
