// SPDX-License-Identifier: MIT
// Two ends that are ours find each other out; no other peer is disturbed.
#include "roce/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "roce/test_world.h"

namespace verbena::roce {
namespace {

using queues::SendOpcode;
using queues::Status;

EndOptions ours() {
  return {.in_flight = {.packets = 400, .bytes = 1 << 20},
          .reorder_packets = kAgreedSpan,
          .reorder_patience = Duration::microseconds(5),
          .asks_for_agreement = true};
}
// As `ours`, but like any other NIC.
EndOptions standard() {
  EndOptions options = ours();
  options.asks_for_agreement = false;
  options.reorder_packets = 0;
  return options;
}

struct Seen {
  int from;
  wire::Head head;
  std::vector<std::byte> payload;
  bool operator==(const Seen&) const = default;
};

struct AgreementWorld : testing::Test {
  // Everything that happens between two such ends, as it went over the line.
  struct Run {
    Run(const EndOptions& near, const EndOptions& far) : world(near, far, 1) {
      world.link.tap = [this](int from, const wire::Packet& packet) {
        seen.push_back({from, packet.head(), {packet.payload.begin(), packet.payload.end()}});
        seen.back().head.remote_address = 0;  // differs from run to run
        return !drops || !drops(from, packet);
      };
    }
    void post(TestEnd& from, TestEnd& to, SendOpcode opcode, std::uint32_t length) {
      from.post({.opcode = opcode, .remote_address = to.address(0), .remote_key = to.key}, 0,
                length);
    }
    void write(std::uint32_t length) {
      post(world.near(), world.far(), SendOpcode::kWrite, length);
    }
    bool finishes() {
      world.run(Duration::milliseconds(200));
      const auto done = world.near().poll();
      return !done.empty() && std::ranges::all_of(done, [](const queues::Completion& one) {
        return one.status == Status::kSuccess;
      });
    }
    std::size_t marked(int from) const {
      return static_cast<std::size_t>(std::ranges::count_if(
          seen, [from](const Seen& one) { return one.from == from && one.head.mark != 0; }));
    }
    bool both_agreed() {
      return world.near().engine->has_agreed() && world.far().engine->has_agreed();
    }
    TestWorld world;
    std::vector<Seen> seen;
    std::function<bool(int, const wire::Packet&)> drops;
  };
};

TEST_F(AgreementWorld, TwoEndsOfOursAgreeWithTheFirstPacketAndItsAnswer) {
  Run run(ours(), ours());
  run.write(8);
  EXPECT_TRUE(run.finishes());
  EXPECT_TRUE(run.both_agreed());
  EXPECT_EQ(run.seen.size(), 2u);
  run.write(100'000);
  EXPECT_TRUE(run.finishes());
  EXPECT_EQ(run.marked(0) + run.marked(1), run.seen.size());
}

TEST_F(AgreementWorld, ThenOnlyWhatIsLostIsRepeated) {
  Run run(ours(), ours());
  run.write(8);
  EXPECT_TRUE(run.finishes());
  unsigned count = 0;
  run.drops = [&](int from, const wire::Packet&) { return from == 0 && ++count % 20 == 7; };
  run.write(80'000);
  EXPECT_TRUE(run.finishes());
  EXPECT_EQ(run.world.near().rc().requester().counters().repeated, 4u);
}

TEST_F(AgreementWorld, AndTheOtherCongestionControlTakesOver) {
  struct Counting final : Congestion {
    explicit Counting(unsigned& packets) : packets_(packets) {}
    void sent(std::size_t, Instant) override { ++packets_; }
    void acknowledged(std::size_t, std::optional<Duration>, Instant) override {}
    void notified(Instant) override {}
    void lost(Instant) override {}
    std::size_t window() const override { return SIZE_MAX; }
    Instant next_departure(Instant now) override { return now; }
    unsigned& packets_;
  };
  unsigned before = 0;
  unsigned after = 0;
  EndOptions options = ours();
  options.congestion = [&] { return std::make_unique<Counting>(before); };
  options.when_agreed = [&] { return std::make_unique<Counting>(after); };
  Run run(options, ours());
  run.write(8);
  EXPECT_TRUE(run.finishes());
  EXPECT_EQ(before, 1u);
  run.write(10'000);
  EXPECT_TRUE(run.finishes());
  EXPECT_EQ(before, 1u);
  EXPECT_EQ(after, 10u);
}

// What is sent to a standard peer, byte for byte, is what an end sends that never asks: but for the
// mark of the question, in few packets, and in none after the first answer. With losses too.
TEST_F(AgreementWorld, AStandardPeerSeesAQuestionAndThenWhatAnyOtherSends) {
  const auto exchange = [](const EndOptions& near) {
    Run run(near, standard());
    unsigned count = 0;
    run.drops = [&](int, const wire::Packet&) { return ++count % 13 == 5; };
    run.write(20'000);
    run.post(run.world.near(), run.world.far(), SendOpcode::kRead, 20'000);
    run.post(run.world.near(), run.world.far(), SendOpcode::kFetchAdd, 8);
    run.post(run.world.far(), run.world.near(), SendOpcode::kWrite, 20'000);
    EXPECT_TRUE(run.finishes());
    EXPECT_FALSE(run.world.near().engine->has_agreed());
    EXPECT_EQ(run.marked(1), 0u);
    return run.seen;
  };
  std::vector<Seen> asked = exchange(ours());
  const std::vector<Seen> plain = exchange(standard());
  unsigned questions = 0;
  bool is_answered = false;
  for (Seen& one : asked) {
    const bool is_question = std::exchange(one.head.mark, std::uint8_t{0}) != 0;
    EXPECT_FALSE(is_question && is_answered);
    questions += is_question ? 1 : 0;
    is_answered |= one.from == 1 && one.head.opcode.code() == wire::Code::kAcknowledge;
  }
  EXPECT_TRUE(is_answered);
  EXPECT_GT(questions, 0u);
  EXPECT_LE(questions, 4u);
  EXPECT_EQ(asked, plain);
}

TEST_F(AgreementWorld, APeerThatOnlyAsksForThingsIsAskedFourTimes) {
  Run run(standard(), ours());
  for (int i = 0; i < 10; ++i) {
    run.write(8);
    EXPECT_TRUE(run.finishes());
  }
  EXPECT_EQ(run.marked(1), 4u);
  EXPECT_EQ(run.world.far().rc().agreement().state(), Agreement::State::kStandard);
}

TEST_F(AgreementWorld, APeerThatDropsWhatItDoesNotKnowIsReachedAllTheSame) {
  Run run(ours(), standard());
  run.drops = [](int, const wire::Packet& packet) { return packet.mark != 0; };
  run.write(20'000);
  EXPECT_TRUE(run.finishes());
  EXPECT_FALSE(run.world.near().engine->has_agreed());
}

// One end has given up, for all that it sent was lost; the other has not.
TEST_F(AgreementWorld, WhoGaveUpAgreesWhenTheOtherAsks) {
  Run run(ours(), ours());
  unsigned count = 0;
  run.drops = [&](int from, const wire::Packet&) { return from == 0 && ++count <= 4; };
  run.write(8);
  EXPECT_TRUE(run.finishes());
  EXPECT_TRUE(run.world.near().engine->has_agreed());
  run.write(8);
  EXPECT_TRUE(run.finishes());
  EXPECT_TRUE(run.both_agreed());
}

TEST_F(AgreementWorld, WhoSendsBackWhatCameDoesNotAgree) {
  Run run(ours(), standard());
  run.drops = [](int from, const wire::Packet&) { return from == 1; };
  run.write(8);
  run.world.run(Duration::microseconds(30));
  TestEnd& near = run.world.near();
  wire::Packet echo;
  static_cast<wire::Head&>(echo) = run.seen.back().head;
  echo.mark = run.seen.front().head.mark;
  echo.dest_qp = near.self();
  echo.shape = &wire::shape_of(echo.opcode);
  EXPECT_EQ(echo.mark, kRequestMark);
  near.give(echo, near.from_peer());
  EXPECT_FALSE(near.engine->has_agreed());
  EXPECT_EQ(near.rc().agreement().state(), Agreement::State::kStandard);
}

TEST_F(AgreementWorld, AMarkFarFromWhatIsOnItsWaySaysNothing) {
  Run run(ours(), standard());
  run.drops = [](int from, const wire::Packet&) { return from == 1; };
  run.write(8);
  run.world.run(Duration::microseconds(30));
  TestEnd& near = run.world.near();
  wire::Packet late;
  static_cast<wire::Head&>(late) = run.seen.back().head;
  late.mark = kResponseMark;
  late.psn = late.psn + 1;
  late.shape = &wire::shape_of(late.opcode);
  near.give(late, near.from_peer());
  EXPECT_FALSE(near.engine->has_agreed());
}

}  // namespace
}  // namespace verbena::roce
