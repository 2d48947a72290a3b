// SPDX-License-Identifier: MIT
// Small messages that wait for each other.
#include <gtest/gtest.h>

#include <cstdint>

#include "roce/test_world.h"

namespace verbena::roce {
namespace {

using queues::SendOpcode;

// What a program posts one by one, while no time passes.
class RcCompany : public testing::Test {
 protected:
  RcCompany() {
    world.link.options.backlog_max = Duration::milliseconds(1);
    post(SendOpcode::kWrite, 8);
    world.run(kSoon);
    EXPECT_EQ(world.near().poll().size(), 1u);
    before_ = packets();
  }
  void post(SendOpcode opcode, std::uint32_t length, std::uint32_t flags = 0) {
    const qp::SendRequest request{.opcode = opcode,
                                  .flags = static_cast<std::uint8_t>(flags),
                                  .remote_address = world.far().address(0),
                                  .remote_key = world.far().key};
    world.near().post(request, 0, length);
    world.near().turn();
  }
  void post_writes(int count) {
    for (int i = 0; i < count; ++i)
      post(SendOpcode::kWrite, 8);
  }
  std::uint64_t sent() { return packets() - before_; }

  TestWorld world{
      EndOptions{.depth = 128, .in_flight = {.packets = 256, .bytes = 1 << 20, .train = 64}}};

 private:
  std::uint64_t packets() { return world.near().rc().requester().counters().packets; }
  std::uint64_t before_ = 0;
};

// Alone while little is on its way, then together.
TEST_F(RcCompany, SmallMessagesWaitForItOrForTheNextAnswer) {
  post_writes(8);
  EXPECT_EQ(sent(), 8u);
  EXPECT_FALSE(world.near().engine->is_holding());
  post_writes(31);
  EXPECT_EQ(sent(), 8u) << "answers are under way";
  EXPECT_TRUE(world.near().engine->is_holding());
  post_writes(1);
  EXPECT_EQ(sent(), 40u) << "as many as make a train worth it";
  EXPECT_FALSE(world.near().engine->is_holding());
  post_writes(5);
  EXPECT_EQ(sent(), 40u);
  ASSERT_TRUE(world.run_until([&] { return sent() > 40; }, kSoon));
  EXPECT_EQ(sent(), 45u);
  const std::size_t answered = world.near().poll().size();
  EXPECT_LT(answered, 40u) << "one answer is enough";
  world.run(kSoon);
  EXPECT_EQ(answered + world.near().poll().size(), 45u);
  EXPECT_EQ(world.near().rc().requester().counters().repeated, 0u);
}

// What makes a train worth it is fewer messages where they are longer, down to nothing.
TEST_F(RcCompany, AsManyWaitAsFillATrain) {
  constexpr std::uint32_t kBytes = 4096;  // sixteen are a train
  for (int i = 0; i < 8 + 15; ++i)
    post(SendOpcode::kWrite, kBytes);
  EXPECT_EQ(sent(), 8u * 4);
  post(SendOpcode::kWrite, kBytes);
  EXPECT_EQ(sent(), 24u * 4);
}

TEST_F(RcCompany, ThoseOfNoBytesWaitAsWell) {
  for (int i = 0; i < 8 + 31; ++i)
    post(SendOpcode::kWrite, 0);
  EXPECT_EQ(sent(), 8u);
  post(SendOpcode::kWrite, 0);
  EXPECT_EQ(sent(), 40u);
}

// Many packets on their way are one message.
TEST_F(RcCompany, WhoTellsOfALongWriteWaitsForNothing) {
  world.far().post_receive(1, 0, 100);
  post(SendOpcode::kWrite, 64 * 1024);
  EXPECT_EQ(sent(), 64u);
  post(SendOpcode::kWrite, 8);
  EXPECT_EQ(sent(), 65u);
  post(SendOpcode::kSend, 8);
  EXPECT_EQ(sent(), 66u);
}

TEST_F(RcCompany, WhatTellsOfSomethingWaitsForNothing) {
  for (int i = 0; i < 3; ++i)
    world.far().post_receive(1, 0, 100);
  post_writes(9);
  EXPECT_EQ(sent(), 8u);
  post(SendOpcode::kSend, 8);
  EXPECT_EQ(sent(), 8u) << "in order";
  world.run(kSoon);
  post_writes(8);
  post(SendOpcode::kSend, 8);
  EXPECT_EQ(sent(), 19u);
  post(SendOpcode::kSend, 8, queues::kSolicited);
  EXPECT_EQ(sent(), 20u);
  post(SendOpcode::kSend, 8);
  EXPECT_EQ(sent(), 20u);
}

}  // namespace
}  // namespace verbena::roce
