// SPDX-License-Identifier: MIT
// Unreliable connections and datagrams: what arrives, and what is dropped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "roce/test_world.h"

namespace verbena::roce {
namespace {

using queues::SendOpcode;

constexpr Duration kMoment = Duration::milliseconds(1);
constexpr std::uint32_t kFivePackets = 5000;

void fill(TestEnd& end, std::size_t offset, std::size_t length, unsigned first) {
  for (std::size_t i = 0; i < length; ++i)
    end.memory[offset + i] = static_cast<std::byte>(first + i * 7 + i / 256);
}

// Loses the packets whose number in the order of sending `loses` says.
template <class Loses>
void lose(TestWorld& world, Loses loses) {
  world.link.tap = [loses, count = 0u](int from, const wire::Packet&) mutable {
    return from != 0 || !loses(count++);
  };
}

struct Uc : testing::Test {
  TestWorld world{EndOptions{.type = qp::QpType::kUc}};
  void send(std::size_t offset, std::uint32_t length) {
    world.near().post({.opcode = SendOpcode::kSend}, offset, length);
  }
};

TEST_F(Uc, SendsAndWrites) {
  fill(world.near(), 0, 2 * kFivePackets, 1);
  world.far().post_receive(1, 0, kFivePackets);
  world.far().post_receive(2, 0, 0);
  send(0, kFivePackets);
  world.near().post({.opcode = SendOpcode::kWriteWithImmediate,
                     .immediate = 5,
                     .remote_address = world.far().address(50'000),
                     .remote_key = world.far().key},
                    kFivePackets, kFivePackets);
  world.run(kMoment);
  EXPECT_EQ(world.near().poll().size(), 2u);
  EXPECT_EQ(world.far().poll_receives().size(), 2u);
  EXPECT_TRUE(equal(world.near(), 0, world.far(), 0, kFivePackets));
  EXPECT_TRUE(equal(world.near(), kFivePackets, world.far(), 50'000, kFivePackets));
}

TEST_F(Uc, SendsNoMoreThanItsBudgetAtATime) {
  fill(world.near(), 0, kFivePackets, 1);
  world.far().post_receive(1, 0, kFivePackets);
  send(0, kFivePackets);
  qp::Budget budget{.bytes = 2048};
  world.near().engine->issue(world.near().pair.window(), budget, world.now());
  EXPECT_EQ(world.link.packets, 2u);
  EXPECT_TRUE(budget.spent());
  world.run(kMoment);
  EXPECT_EQ(world.link.packets, 5u);
  EXPECT_TRUE(equal(world.near(), 0, world.far(), 0, kFivePackets));
}

// Of three messages of five packets each, every single packet and every pair lost: the messages
// that have none of them arrive, in order, and no other.
TEST_F(Uc, LosesTheMessageInWhichAPacketIsLost) {
  for (unsigned first = 0; first < 15; ++first) {
    for (unsigned second = first; second < 15; ++second) {
      TestWorld one(EndOptions{.type = qp::QpType::kUc});
      lose(one, [=](unsigned packet) { return packet == first || packet == second; });
      std::vector<unsigned> whole;
      for (unsigned message = 0; message < 3; ++message) {
        fill(one.near(), message * 10'000, kFivePackets, message * 50 + 1);
        one.far().post_receive(message, message * 10'000, kFivePackets);
        one.near().post({.opcode = SendOpcode::kSend}, message * 10'000, kFivePackets);
        if (first / 5 != message && second / 5 != message) whole.push_back(message);
      }
      one.run(kMoment);
      EXPECT_EQ(one.near().poll().size(), 3u);
      const auto receives = one.far().poll_receives();
      ASSERT_EQ(receives.size(), whole.size()) << first << " " << second;
      for (std::size_t i = 0; i < whole.size(); ++i) {
        EXPECT_EQ(receives[i].byte_length, kFivePackets);
        // The receive of a message that was cut off serves the next one.
        EXPECT_TRUE(equal(one.near(), whole[i] * 10'000, one.far(), i * 10'000, kFivePackets));
      }
    }
  }
}

TEST_F(Uc, DropsWhatHasNoReceive) {
  send(0, kFivePackets);
  world.run(kMoment);
  world.far().post_receive(1, 0, kFivePackets);
  send(0, kFivePackets);
  world.run(kMoment);
  EXPECT_EQ(world.far().poll_receives().size(), 1u);
  EXPECT_EQ(world.far().engine->counters().dropped, 5u);
}

TEST_F(Uc, DropsAWriteToABadKeyAndGoesOn) {
  world.near().post({.opcode = SendOpcode::kWrite,
                     .remote_address = world.far().address(0),
                     .remote_key = {world.far().key.value + 0x100}},
                    0, kFivePackets);
  world.far().post_receive(1, 0, kFivePackets);
  fill(world.near(), 0, kFivePackets, 9);
  send(0, kFivePackets);
  world.run(kMoment);
  EXPECT_EQ(world.far().poll_receives().size(), 1u);
  EXPECT_EQ(world.far().pair.state(), qp::QpState::kReadyToSend);
}

TEST_F(Uc, TakesNothingTwice) {
  world.link.options.duplicate = 100'000;
  for (unsigned id = 0; id < 4; ++id)
    world.far().post_receive(id, 0, kFivePackets);
  send(0, 10);
  send(0, kFivePackets);
  world.run(kMoment);
  EXPECT_EQ(world.far().poll_receives().size(), 2u);
}

struct Ud : testing::Test {
  TestWorld world{EndOptions{.type = qp::QpType::kUd, .path_mtu = 4096}};
  void send(std::uint32_t length, std::uint32_t qkey = kTestQkey) {
    world.near().post({.opcode = SendOpcode::kSendWithImmediate,
                       .immediate = 3,
                       .remote_qp = world.near().peer(),
                       .remote_qkey = qkey},
                      0, length);
  }
};

TEST_F(Ud, PutsTheIpHeadBeforeThePayload) {
  fill(world.near(), 0, 4096, 1);
  for (const std::uint32_t length : {0u, 1u, 4096u}) {
    std::fill(world.far().memory.begin(), world.far().memory.end(), std::byte{0});
    world.far().post_receive(1, 0, 40 + length);
    send(length);
    world.run(kMoment);
    const auto receives = world.far().poll_receives();
    ASSERT_EQ(receives.size(), 1u);
    EXPECT_EQ(receives[0].byte_length, 40 + length);
    EXPECT_EQ(receives[0].flags, queues::kHasGrh | queues::kHasImmediate);
    EXPECT_EQ(receives[0].source_qp, world.near().self());
    EXPECT_TRUE(equal(world.near(), 0, world.far(), 40, length));
    // IPv4: twenty bytes of nothing, then the head, from 10.0.0.1 to 10.0.0.2.
    EXPECT_EQ(world.far().memory[20], std::byte{0x45});
    EXPECT_EQ(world.far().memory[35], std::byte{1});
    EXPECT_EQ(world.far().memory[39], std::byte{2});
    EXPECT_EQ(world.far().memory[40 + length], std::byte{0});
  }
  EXPECT_EQ(world.near().poll().size(), 3u);
}

TEST_F(Ud, AgreesWithNobody) {
  EXPECT_FALSE(world.near().engine->has_agreed());
  EXPECT_EQ(world.near().engine->sendings().packets, 0u);
}

TEST_F(Ud, DropsAnotherQkey) {
  world.far().post_receive(1, 0, 140);
  send(100, kTestQkey + 1);
  world.run(kMoment);
  EXPECT_TRUE(world.far().poll_receives().empty());
  EXPECT_EQ(world.far().engine->counters().dropped, 1u);
  EXPECT_EQ(world.far().pair.responder().wrong_qkeys(), 1u);
  send(100, 0x80000001);  // stands for the queue pair's own
  world.run(kMoment);
  EXPECT_EQ(world.far().poll_receives().size(), 1u);
}

TEST_F(Ud, DropsWhatHasNoReceiveOrDoesNotFit) {
  send(100);
  world.run(kMoment);
  world.far().post_receive(1, 0, 100);
  send(100);
  world.run(kMoment);
  EXPECT_TRUE(world.far().poll_receives().empty());
  EXPECT_EQ(world.near().poll().size(), 2u);
  send(60);
  world.run(kMoment);
  EXPECT_EQ(world.far().poll_receives().size(), 1u);
}

}  // namespace
}  // namespace verbena::roce
