// SPDX-License-Identifier: MIT
// An XRC target on the wire and a peer that asks again: for what it has, or for more of it, while
// the bytes are fetched from another process, or when they cannot be any more.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "roce/test_relay.h"

namespace verbena::roce {
namespace {

class WireRelayAsked : public testing::Test {
 protected:
  WireRelayAsked() {
    SeededRandom random(7);
    for (std::byte& each : relay.memory)
      each = static_cast<std::byte>(random.next());
    world.link.tap = [this](int from, const wire::Packet& packet) {
      if (from == 1) got(packet);
      return false;
    };
  }
  TestEnd& far() { return world.far(); }
  void ask(wire::Code code, std::uint32_t ahead, std::uint32_t length, MemoryKey key) {
    wire::Head head;
    head.opcode = {static_cast<std::uint8_t>(static_cast<std::uint8_t>(code) | far().service())};
    head.dest_qp = far().self();
    head.psn = kFirst + ahead;
    head.remote_key = key;
    head.remote_address = relay.address(0);
    head.dma_length = length;
    head.srq_number = TestRelay::kQueue;
    InTransit packet;
    packet.bytes.assign(wire::datagram_bytes(head.opcode, 0), std::byte{0});
    wire::encode(head, packet.bytes);
    far().receive(packet);
  }
  void read(std::uint32_t ahead, std::uint32_t length) {
    ask(wire::Code::kReadRequest, ahead, length, relay.region);
  }
  // Also what comes by the relay alone.
  void run() {
    for (int i = 0; i < 10; ++i)
      world.run(Duration::milliseconds(1));
  }
  // What a READ with this sequence number brought last.
  bool is_right(std::uint32_t ahead, std::size_t length, std::size_t at = 0) {
    for (std::size_t done = 0; done < length; done += 1024, ++ahead) {
      const std::size_t part = std::min<std::size_t>(1024, length - done);
      if (!std::ranges::equal(answers[ahead], std::span(relay.memory).subspan(at + done, part)))
        return false;
    }
    return true;
  }

  TestWorld world{{.is_xrc = true}};
  TestRelay relay{world.far()};
  static constexpr wire::Psn kFirst{0xFFFFF0};
  std::map<std::uint32_t, std::vector<std::byte>> answers;

 private:
  void got(const wire::Packet& packet) {
    if (!packet.payload.empty())
      answers[static_cast<std::uint32_t>(packet.psn - kFirst)].assign(packet.payload.begin(),
                                                                      packet.payload.end());
  }
};

TEST_F(WireRelayAsked, AnAtomicBeforeAReadDoesNotMixUpItsParts) {
  constexpr std::uint32_t kLength = 150'000;
  ask(wire::Code::kFetchAdd, 0, 0, relay.region);
  relay.let(1);
  run();
  read(1, kLength);
  run();
  relay.let(1);
  run();
  EXPECT_EQ(answers.size(), 64u) << "and the second part is being fetched";
  ask(wire::Code::kFetchAdd, 0, 0, relay.region);
  read(1, kLength);
  run();
  relay.let(1);
  run();
  relay.let(1000);
  run();
  EXPECT_EQ(relay.executed_atomics, 1u);
  EXPECT_TRUE(is_right(1, kLength));
}

TEST_F(WireRelayAsked, MoreThanWasFetchedIsFetchedAgain) {
  read(0, 1000);
  read(0, 10);
  run();
  read(0, 1000);
  relay.let(1000);
  run();
  EXPECT_TRUE(is_right(0, 1000));
}

TEST_F(WireRelayAsked, TheSameAddressOfAnotherRegionIsFetchedByItself) {
  constexpr std::size_t kSecond = 256 * 1024;
  const MemoryKey other = *relay.regions.add({.pd = PdId{7},
                                              .iova = relay.address(0),
                                              .access = memory::kRemoteRead,
                                              .extents = {{&relay.memory[kSecond], kSecond}}});
  ask(wire::Code::kReadRequest, 0, 1000, other);
  relay.let(1);
  run();
  read(1, 1000);
  run();
  answers.clear();
  ask(wire::Code::kReadRequest, 0, 1000, other);
  relay.let(1000);
  run();
  EXPECT_TRUE(is_right(0, 1000, kSecond));
  EXPECT_TRUE(is_right(1, 1000));
}

// That process has its queue closed, and has been told that all is over.
TEST_F(WireRelayAsked, WhatIsAskedForAgainTooLateIsNothingToTheTarget) {
  read(0, 1000);
  relay.let(1000);
  run();
  ASSERT_TRUE(is_right(0, 1000));
  relay.die();
  read(0, 1000);
  run();
  EXPECT_EQ(far().rc().responder().counters().gone, 1u);
  EXPECT_EQ(far().pair.state(), qp::QpState::kReadyToSend);
  EXPECT_TRUE(far().events.empty());
}

// As of any queue pair: it has failed, and says so.
TEST_F(WireRelayAsked, MoreReadsThanAgreedAreRefused) {
  for (std::uint32_t i = 0; i < 4; ++i)
    read(i, 1000);
  EXPECT_EQ(far().pair.state(), qp::QpState::kReadyToSend);
  read(4, 1000);
  run();
  EXPECT_EQ(far().rc().responder().counters().refused, 1u);
  EXPECT_EQ(far().pair.state(), qp::QpState::kError);
}

// It asks again because it got nothing: it waits for the READ, which fails as if asked for once.
TEST_F(WireRelayAsked, WhatIsAskedForAgainBeforeItsAnswerMayBeRefused) {
  relay.regions.remove(relay.region);
  read(0, 1000);
  run();
  ASSERT_EQ(relay.outstanding(), 1u);
  read(0, 1000);
  run();
  relay.let(1);
  run();
  EXPECT_EQ(far().rc().responder().counters().gone, 0u);
  EXPECT_EQ(far().rc().responder().counters().refused, 1u);
  EXPECT_EQ(far().pair.state(), qp::QpState::kError);
}

// The message behind it was not executed either, and is not lost.
TEST_F(WireRelayAsked, AMessageBehindItComesAgain) {
  read(0, 1000);
  relay.let(1);
  run();
  ASSERT_TRUE(is_right(0, 1000));
  relay.regions.remove(relay.region);
  read(0, 1000);
  world.far().turn();
  ask(wire::Code::kSendOnly, 1, 0, {});
  EXPECT_EQ(relay.outstanding(), 2u);
  std::optional<wire::Packet> nak;
  world.link.tap = [&](int, const wire::Packet& packet) {
    if (packet.syndrome.kind() == wire::AethKind::kNak) nak = packet;
    return false;
  };
  relay.let(1);
  run();
  EXPECT_EQ(relay.outstanding(), 0u);
  ASSERT_TRUE(nak);
  EXPECT_EQ(nak->syndrome, wire::Syndrome::nak(wire::NakCode::kPsnSequenceError));
  EXPECT_EQ(nak->psn, kFirst + 1);
  relay.post_receive(3, 0, 10);
  ask(wire::Code::kSendOnly, 1, 0, {});
  relay.let(1);
  run();
  EXPECT_EQ(relay.poll().size(), 1u);
  EXPECT_EQ(far().pair.state(), qp::QpState::kReadyToSend);
}

// A process that says ever more of one piece, as fast as it is heard.
class Endless final : public qp::Relay {
 public:
  Sent send(const qp::RelayPiece&) override { return Sent::kSent; }
  bool knows_way_to(std::uint32_t) const override { return true; }
  std::uint32_t outstanding() const override { return 1; }
  std::optional<qp::RelayReply> reply() override {
    return qp::RelayReply{.kind = qp::RelayReply::Kind::kBytes};
  }
  void take_reply() override {}
};

TEST_F(WireRelayAsked, AnswersWithoutEndDoNotHoldTheTurn) {
  Endless endless;
  far().pair.responder().relay_by(&endless);
  read(0, 1000);
  for (int turn = 0; turn < 3; ++turn) {
    qp::Budget budget;
    EXPECT_EQ(far().engine->serve(far().pair.responder(), budget, world.now()), turn != 0);
  }
  far().pair.responder().relay_by(&relay);
}

}  // namespace
}  // namespace verbena::roce
