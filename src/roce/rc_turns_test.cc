// SPDX-License-Identifier: MIT
// A turn does no more than its budget allows, and says whether there is more: whoever gives turns
// would not come back otherwise.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "roce/test_world.h"

namespace verbena::roce {
namespace {

using queues::SendOpcode;
using testing::AllOf;
using testing::Each;
using testing::SizeIs;

// The far end is given its turns one by one.
class RcTurns : public testing::Test {
 protected:
  explicit RcTurns(const EndOptions& options = {}) : world(options) {
    world.link.options.backlog_max = Duration::milliseconds(1);
    world.link.tap = [this](int from, const wire::Packet& packet) {
      if (from == 0) asks.push_back(packet.ack_request);
      answers_ += from == 1 ? 1 : 0;
      return true;
    };
  }
  qp::SendRequest request(SendOpcode opcode) {
    return {.opcode = opcode,
            .remote_address = world.far().address(0),
            .remote_key = world.far().key,
            .compare_add = 1};
  }
  // What was posted comes to the far end, which has no turn yet.
  void deliver() {
    world.near().turn();
    while (!world.link.is_empty()) {
      InTransit packet = world.link.take();
      ASSERT_EQ(packet.to, 1);
      world.far().receive(packet);
      world.link.give_back(std::move(packet.bytes));
    }
  }
  // Two packets that have changed places.
  void deliver_swapped() {
    world.near().turn();
    InTransit first = world.link.take();
    InTransit second = world.link.take();
    ASSERT_TRUE(world.link.is_empty());
    world.far().receive(second);
    if (!is_first_lost) world.far().receive(first);
  }
  // How many packets it answered, in each turn until nothing is left.
  std::vector<unsigned> serve(const qp::Budget& each) {
    std::vector<unsigned> counts;
    for (bool more = true; more && counts.size() < 100;) {
      const unsigned before = answers_;
      qp::Budget budget = each;
      more = world.far().engine->serve(world.far().pair.responder(), budget, world.now());
      counts.push_back(answers_ - before);
    }
    return counts;
  }

  TestWorld world;
  std::vector<bool> asks;
  bool is_first_lost = false;

 private:
  unsigned answers_ = 0;
};

TEST_F(RcTurns, AReadIsAnsweredAsFarAsTheBudgetOfEachGoes) {
  for (std::size_t i = 0; i < 10 * 1024; ++i)
    world.far().memory[i] = static_cast<std::byte>(i % 251);
  world.near().post(request(SendOpcode::kRead), 20'000, 10 * 1024);
  deliver();
  EXPECT_THAT(serve({.bytes = 2048}), AllOf(SizeIs(5), Each(2u)));
  world.run(kSoon);
  EXPECT_EQ(world.near().poll().size(), 1u);
  EXPECT_TRUE(equal(world.near(), 20'000, world.far(), 0, 10 * 1024));
}

TEST_F(RcTurns, AnAtomicTakesOfTheBudget) {
  for (std::size_t i = 0; i < 4; ++i)
    world.near().post(request(SendOpcode::kFetchAdd), 1024 + 8 * i, 8);
  deliver();
  EXPECT_THAT(serve({.operations = 1}), AllOf(SizeIs(4), Each(1u)));
  world.run(kSoon);
  EXPECT_EQ(world.near().poll().size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    std::uint64_t before = 0;
    std::memcpy(&before, &world.near().memory[1024 + 8 * i], sizeof before);
    EXPECT_EQ(before, i);
  }
}

// A responder may take AckReq for what decides whether an answer leaves now.
TEST_F(RcTurns, WhatIsAnsweredByItselfAsks) {
  world.near().post(request(SendOpcode::kRead), 1024, 3000);
  world.near().post(request(SendOpcode::kFetchAdd), 1024, 8);
  world.near().post(request(SendOpcode::kAtomicWrite), 1024, 8);
  auto flush = request(SendOpcode::kFlush);
  flush.flush = {.length = 8, .global_visibility = true};
  world.near().post(flush, 0, 0);
  world.run(kSoon);
  EXPECT_EQ(world.near().poll().size(), 4u);
  EXPECT_THAT(asks, AllOf(SizeIs(4), Each(true)));
}

// What was missing has come, and is told to wait: to say that it is missing would bring it again.
TEST_F(RcTurns, ARefusalNamesNoGap) {
  for (int i = 0; i < 2; ++i)
    world.near().post(request(SendOpcode::kSend), 0, 8);
  deliver_swapped();
  EXPECT_THAT(serve({}), AllOf(SizeIs(1), Each(1u)));
  EXPECT_EQ(world.far().rc().responder().counters().not_ready, 1u);
  EXPECT_EQ(world.far().rc().responder().counters().naks, 0u);
}

TEST_F(RcTurns, AGapThatCouldNotBeNamedIsLeftToDo) {
  for (int i = 0; i < 2; ++i)
    world.near().post(request(SendOpcode::kWrite), 0, 8);
  is_first_lost = true;
  deliver_swapped();
  world.link.options.backlog_max = Duration::nanoseconds(-1);  // no room at all
  qp::Budget budget;
  EXPECT_TRUE(world.far().engine->serve(world.far().pair.responder(), budget, world.now()));
  world.link.options.backlog_max = Duration::milliseconds(1);
  EXPECT_THAT(serve({}), AllOf(SizeIs(1), Each(1u)));
  EXPECT_EQ(world.far().rc().responder().counters().naks, 1u);
}

struct RcTurnsOfTrains : RcTurns {
  RcTurnsOfTrains() : RcTurns({.in_flight = {.packets = 64, .bytes = 1 << 20, .train = 16}}) {}
};

TEST_F(RcTurnsOfTrains, ARequesterSendsNoMoreThanItsBudget) {
  const auto issue = [&](qp::Budget budget) {
    world.near().engine->issue(world.near().pair.window(), budget, world.now());
    EXPECT_TRUE(budget.spent());
    return std::exchange(world.link.packets, 0);
  };
  // Each by itself, and then in a run.
  world.near().post(request(SendOpcode::kWrite), 0, 20 * 1024);
  EXPECT_EQ(issue({.bytes = 2048}), 2u);
  EXPECT_EQ(issue({.operations = 1}), 1u);
  EXPECT_EQ(issue({.bytes = 5 * 1024}), 5u);
  EXPECT_GE(world.near().sent_in_runs, 5u);
  world.run(kSoon);
  for (int i = 0; i < 5; ++i)
    world.near().post(request(SendOpcode::kWrite), 0, 8);
  world.link.packets = 0;
  EXPECT_EQ(issue({.operations = 3}), 3u);
  world.run(kSoon);
  EXPECT_EQ(world.near().poll().size(), 6u);
}

// Its answer was late, and comes when a part of the message was sent once more: it is of packets
// that have been sent, all the same.
TEST_F(RcTurnsOfTrains, WhatIsSentAgainHasBeenSentBefore) {
  world.near().post(request(SendOpcode::kWrite), 0, 8);
  world.run(kSoon);
  EXPECT_EQ(world.near().poll().size(), 1u);
  world.near().post(request(SendOpcode::kWrite), 0, 20 * 1024);
  deliver();
  serve({});
  std::vector<InTransit> late;
  while (!world.link.is_empty())
    late.push_back(world.link.take());
  while (world.near().rc().requester().counters().timeouts == 0) {
    world.link.now = world.near().engine->next_deadline().value();
    qp::Budget all;
    world.near().engine->collect(world.near().pair.window(), all, world.now());
  }
  world.link.packets = 0;
  qp::Budget some{.operations = 8};
  world.near().engine->issue(world.near().pair.window(), some, world.now());
  EXPECT_EQ(world.link.packets, 8u) << "again";
  for (InTransit& answer : late)
    world.near().receive(answer);
  EXPECT_EQ(world.near().poll().size(), 1u);
}

}  // namespace
}  // namespace verbena::roce
