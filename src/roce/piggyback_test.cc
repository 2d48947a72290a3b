// SPDX-License-Identifier: MIT
// Acknowledgements that go along with messages between two ends that have agreed.
#include "roce/piggyback.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "roce/test_world.h"

namespace verbena::roce {
namespace {

using queues::SendOpcode;
using queues::Status;
using wire::Kind;

wire::Packet packet_of(wire::Code code, std::span<const std::byte> payload) {
  wire::Packet packet;
  packet.opcode = wire::Opcode{static_cast<std::uint8_t>(code)};
  packet.shape = &wire::shape_of(packet.opcode);
  packet.pkey = 0x1234;
  packet.dest_qp = {7};
  packet.payload = payload;
  return packet;
}

TEST(Piggyback, IsReadAsItWasWritten) {
  std::vector<std::byte> bytes(3 + kPiggybackBytes, std::byte{0xEE});
  const Piggyback along{.psn = wire::Psn(0xFEDCBA), .msn = wire::Msn(0x123456)};
  encode(along, std::span(bytes).last<kPiggybackBytes>());
  EXPECT_EQ(piggyback_of(packet_of(wire::Code::kSendOnly, bytes)), along);
}

TEST(Piggyback, IsNothingElse) {
  std::vector<std::byte> bytes(kPiggybackBytes);
  encode({}, std::span(bytes).last<kPiggybackBytes>());
  EXPECT_TRUE(piggyback_of(packet_of(wire::Code::kSendOnly, bytes)));
  EXPECT_TRUE(piggyback_of(packet_of(wire::Code::kSendOnlyImmediate, bytes)));
  EXPECT_FALSE(piggyback_of(packet_of(wire::Code::kSendLast, bytes)));
  EXPECT_FALSE(piggyback_of(packet_of(wire::Code::kSendFirst, bytes)));
  EXPECT_FALSE(piggyback_of(packet_of(wire::Code::kWriteOnly, bytes)));
  EXPECT_FALSE(piggyback_of(packet_of(wire::Code::kSendOnly, std::span(bytes).first(7))));
  for (std::size_t at : {0, 4}) {
    for (int bit = 0; bit < 8; ++bit) {
      std::vector<std::byte> wrong = bytes;
      wrong[at] ^= std::byte{1} << bit;
      const bool is_credit = at == 4 && bit < 5;
      EXPECT_EQ(piggyback_of(packet_of(wire::Code::kSendOnly, wrong)).has_value(), is_credit);
    }
  }
}

// Two ends that answer each other's messages, as they post them or later, and what went over the
// line.
struct Talk : testing::TestWithParam<bool> {
  static EndOptions ours() {
    return {.reorder_packets = kAgreedSpan,
            .reorder_patience = Duration::microseconds(5),
            .asks_for_agreement = true,
            .issues_first = true,
            .posts_at_once = GetParam(),
            .receives_at_once = GetParam()};
  }
  static EndOptions standard() {
    return {.issues_first = true, .posts_at_once = GetParam(), .receives_at_once = GetParam()};
  }

  explicit Talk(const EndOptions& far = ours()) : world(ours(), far, 1) {
    world.link.tap = [this](int, const wire::Packet& packet) {
      acknowledges += packet.shape->kind == Kind::kAcknowledge;
      along += packet.mark == kPiggybackMark;
      payloads.push_back(packet.payload.size());
      return !loses || !loses(packet);
    };
  }
  // Whoever hears says nothing before its program does.
  void say(TestEnd& from, TestEnd& to, std::uint32_t length) {
    const std::size_t at = 4096 * said;
    for (std::size_t i = 0; i < length; ++i)
      from.memory[at + i] = static_cast<std::byte>(said + i + 1);
    to.post_receive(said, at, 4096);
    from.post({.wr_id = said, .opcode = SendOpcode::kSend}, at, length);
    from.turn();
    world.deliver_all();
    is_right &= std::ranges::equal(std::span(from.memory).subspan(at, 4096),
                                   std::span(to.memory).subspan(at, 4096));
    ++said;
  }
  void talk(std::uint32_t length, int times) {
    for (int i = 0; i < times; ++i) {
      say(world.near(), world.far(), length);
      say(world.far(), world.near(), length);
    }
  }
  // All of it is finished, and right.
  void expect_all() {
    world.run(Duration::milliseconds(100));
    for (TestEnd& end : world.ends) {
      const auto sent = end.poll();
      const auto received = end.poll_receives();
      EXPECT_EQ(sent.size(), said / 2);
      EXPECT_EQ(received.size(), said / 2);
      for (const auto& each : sent)
        EXPECT_EQ(each.status, Status::kSuccess);
      for (const auto& each : received)
        EXPECT_EQ(each.status, Status::kSuccess);
    }
    EXPECT_TRUE(is_right);
  }

  TestWorld world;
  std::function<bool(const wire::Packet&)> loses;
  std::size_t said = 0;
  unsigned acknowledges = 0;
  unsigned along = 0;
  std::vector<std::size_t> payloads;
  bool is_right = true;
};

INSTANTIATE_TEST_SUITE_P(Sent, Talk, testing::Bool(), [](const auto& is_at_once) {
  return is_at_once.param ? "AsPosted" : "Later";
});

TEST_P(Talk, TakesAcknowledgementsAlong) {
  talk(10, 1);  // they agree
  along = acknowledges = 0;
  talk(10, 20);
  EXPECT_EQ(acknowledges, 0u);
  EXPECT_EQ(along, 40u);
  EXPECT_EQ(payloads.back(), 10 + kPiggybackBytes);
  EXPECT_EQ(world.far().sent_at_once, GetParam() ? 21u : 0u);
  EXPECT_EQ(world.near().received_at_once, GetParam() ? 20u : 0u);  // once agreed
  expect_all();
  EXPECT_EQ(world.near().rc().requester().counters().repeated, 0u);
}

TEST_P(Talk, TakesThemAlongWithNothing) {
  talk(0, 10);
  EXPECT_GE(along, 18u);
  expect_all();
}

TEST_P(Talk, DoesNotWhereThePacketIsFull) {
  talk(10, 1);
  along = acknowledges = 0;
  talk(1024 - kPiggybackBytes + 1, 5);
  EXPECT_EQ(along, 0u);
  EXPECT_EQ(acknowledges, 10u);
  talk(1024 - kPiggybackBytes, 5);
  EXPECT_EQ(along, 10u);
  talk(1500, 5);
  EXPECT_EQ(along, 10u);
  expect_all();
}

TEST_P(Talk, RepairsWhatIsLostWithThem) {
  talk(10, 1);
  unsigned count = 0;
  loses = [&](const wire::Packet& packet) {
    return packet.mark == kPiggybackMark && ++count % 3 == 0;
  };
  for (int i = 0; i < 10; ++i) {
    talk(10, 1);
    world.run(Duration::milliseconds(20));
  }
  EXPECT_GE(count, 3u);
  is_right = true;  // it was looked at too early
  for (std::size_t i = 0; i < said; ++i) {
    const std::size_t at = 4096 * i;
    EXPECT_TRUE(std::ranges::equal(std::span(world.near().memory).subspan(at, 10),
                                   std::span(world.far().memory).subspan(at, 10)));
  }
  expect_all();
}

// What says that it has an ACK and has none is dropped, and nothing ends.
TEST_P(Talk, DropsWhatIsNone) {
  talk(10, 1);
  world.near().post_receive(9, 0, 4096);
  EXPECT_EQ(world.near().poll_receives().size(), 1u);
  std::vector<std::byte> bytes(12, std::byte{0xFF});
  wire::Packet packet = packet_of(wire::Code::kSendOnly, bytes);
  packet.mark = kPiggybackMark;
  packet.pkey = wire::kDefaultPkey;
  packet.dest_qp = world.near().self();
  packet.psn = wire::Psn(0xFFFFF1);
  world.near().give(packet, world.near().from_peer());
  EXPECT_EQ(world.near().engine->counters().dropped, 1u);
  EXPECT_TRUE(world.near().poll_receives().empty());
  EXPECT_EQ(world.near().pair.state(), qp::QpState::kReadyToSend);
}

// What leaves alone may come by another way than trains.
TEST_P(Talk, OvertakesNoTrain) {
  if (!GetParam()) GTEST_SKIP() << "nothing is sent as it is posted";
  talk(10, 2);
  TestEnd& end = world.near();
  const unsigned apart = end.sent_apart;
  EXPECT_GT(apart, 0u);
  for (std::size_t i = 0; i < 6; ++i)
    world.far().post_receive(said + i, 4096 * (said + i), 4096);
  const auto post = [&](std::uint32_t length) {
    end.post({.wr_id = said, .opcode = SendOpcode::kSend}, 4096 * said, length);
    ++said;
  };
  post(3000);
  end.turn();
  const unsigned at_once = end.sent_at_once;
  post(10);
  EXPECT_EQ(end.sent_at_once, at_once + 1);
  EXPECT_EQ(end.sent_apart, apart);
  world.run(Duration::milliseconds(100));
  post(10);
  EXPECT_EQ(end.sent_apart, apart + 1);
  // And what left as it was posted, but not apart.
  post(500);
  post(10);
  EXPECT_EQ(end.sent_at_once, at_once + 4);
  EXPECT_EQ(end.sent_apart, apart + 1);
  world.run(Duration::milliseconds(100));
  post(10);
  EXPECT_EQ(end.sent_apart, apart + 2);
  world.run(Duration::milliseconds(100));
  EXPECT_EQ(end.poll().size(), 2u + 6);
  EXPECT_EQ(end.rc().requester().counters().repeated, 0u);
}

struct TalkToAStandardEnd : Talk {
  TalkToAStandardEnd() : Talk(standard()) {}
};

INSTANTIATE_TEST_SUITE_P(Sent, TalkToAStandardEnd, testing::Bool(), [](const auto& is_at_once) {
  return is_at_once.param ? "AsPosted" : "Later";
});

TEST_P(TalkToAStandardEnd, DoesNot) {
  talk(10, 10);
  EXPECT_EQ(along, 0u);
  EXPECT_EQ(acknowledges, 19u) << "the last one is still owed";
  EXPECT_EQ(std::ranges::count(payloads, 10u), 20);
  expect_all();
}

}  // namespace
}  // namespace verbena::roce
