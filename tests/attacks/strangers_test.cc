// SPDX-License-Identifier: MIT
// What strangers can do to a connection over the network: those who send from another address, and
// those who forge the peer's and have to guess the rest.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/test_seed.h"
#include "roce/agreement.h"
#include "roce/piggyback.h"
#include "roce/test_world.h"

namespace verbena::roce {
namespace {

constexpr std::uint32_t kGuesses = 200'000;

class Strangers : public testing::Test {
 protected:
  Strangers() {
    world.link.tap = [this](int from, const wire::Packet&) {
      answers += from == 1;
      return false;
    };
    std::ranges::fill(victim().memory, std::byte{0x11});
  }
  TestEnd& victim() { return world.far(); }
  // Of any kind, and right in all that the options leave out.
  struct Forgery {
    wire::Code code = wire::Code::kWriteOnly;
    wire::Psn psn{0xFFFFF0};
    bool has_key = true;
    bool is_from_peer = true;
  };
  void give(const Forgery& what) {
    wire::Packet packet;
    packet.opcode = wire::Opcode::of(wire::Service::kRc, what.code);
    packet.shape = &wire::shape_of(packet.opcode);
    packet.psn = what.psn;
    packet.remote_address = victim().address(0);
    packet.remote_key = what.has_key ? victim().key : MemoryKey{victim().key.value ^ 0x10000};
    const bool has_payload = packet.shape->payload != wire::Payload::kNone;
    if (has_payload) packet.payload = kPayload;
    packet.dma_length = 8;
    packet.ack_request = true;
    victim().give(packet, from(what.is_from_peer));
    world.run(Duration::microseconds(1));
  }
  Arrival from(bool is_peer) const {
    Arrival arrival = world.ends[1].from_peer();
    if (!is_peer) arrival.ip.flow.source.bytes[15] ^= 1;
    return arrival;
  }
  bool is_alive() { return victim().pair.state() == qp::QpState::kReadyToSend; }
  bool is_untouched() {
    const auto is_same = [](std::byte each) { return each == std::byte{0x11}; };
    return std::ranges::all_of(std::span(victim().memory).first(64), is_same);
  }

  static constexpr std::array<std::byte, 8> kPayload{};
  static constexpr std::array kCodes{wire::Code::kWriteOnly,   wire::Code::kSendOnly,
                                     wire::Code::kReadRequest, wire::Code::kFetchAdd,
                                     wire::Code::kWriteMiddle, wire::Code::kSendLast};
  TestWorld world;
  unsigned answers = 0;
};

TEST_F(Strangers, OfAnotherAddressAreNeitherHeardNorAnswered) {
  for (const wire::Code code : kCodes)
    for (const bool has_key : {false, true})
      give({.code = code, .has_key = has_key, .is_from_peer = false});
  EXPECT_TRUE(is_alive());
  EXPECT_TRUE(is_untouched());
  EXPECT_EQ(answers, 0u);
}

// An unknown opcode, a length that cannot be: from the peer such a packet ends the connection.
TEST_F(Strangers, BreakNothingByBrokenPackets) {
  wire::Head bth;
  bth.opcode = wire::Opcode{0x1F};  // RC, reserved
  bth.psn = wire::Psn(0xFFFFF0);
  const auto give_broken = [&](bool is_from_peer, std::uint16_t pkey) {
    bth.pkey = pkey;
    victim().engine->receive_broken(bth, wire::Malformed::kOpcode, from(is_from_peer),
                                    victim().pair.responder());
    world.run(Duration::microseconds(1));
  };
  give_broken(false, wire::kDefaultPkey);
  give_broken(true, 0x1111);
  EXPECT_TRUE(is_alive());
  EXPECT_EQ(answers, 0u);
  EXPECT_EQ(victim().engine->counters().other_sender, 1u);
  EXPECT_EQ(victim().engine->counters().other_pkey, 1u);
  give_broken(true, wire::kDefaultPkey);
  EXPECT_FALSE(is_alive()) << "the peer itself";
}

TEST_F(Strangers, SlowNobodyByNotifications) {
  wire::Packet packet;
  packet.opcode = wire::kCnp;
  packet.shape = &wire::shape_of(packet.opcode);
  packet.becn = true;
  for (int i = 0; i < 100; ++i)
    victim().give(packet, from(false));
  EXPECT_EQ(victim().engine->counters().notifications, 0u);
  EXPECT_EQ(victim().engine->counters().other_sender, 100u);
}

// Who forges the peer's address and knows queue pair and key has to hit one packet sequence number
// of 2^24. All others execute nothing, and end nothing.
TEST_F(Strangers, MustHitOnePacketSequenceNumber) {
  SeededRandom random(test_seed());
  give({.code = wire::Code::kReadRequest});  // of the peer itself
  const wire::Psn expected(0xFFFFF1);
  for (std::uint32_t i = 0; i < kGuesses; ++i) {
    // Half of the guesses near the right one.
    wire::Psn psn(static_cast<std::uint32_t>(random.next() >> 40));
    if (random.one_in(2)) psn = expected + static_cast<std::uint32_t>(random.below(4096)) - 2048u;
    if (psn == expected) continue;
    const wire::Code code = kCodes[random.below(kCodes.size())];
    give({.code = code, .psn = psn, .has_key = random.one_in(2)});
    ASSERT_TRUE(is_alive()) << "psn " << psn.value() << " code " << int(code);
  }
  EXPECT_TRUE(is_untouched());
  give({.psn = expected});
  EXPECT_FALSE(is_untouched()) << "the right one is executed";
}

// Nor does a mark make anybody take the peer for one of ours: what we would send then, a standard
// one does not understand.
TEST(StrangersWithMarks, MustHitOnePacketSequenceNumberToAgree) {
  TestWorld world(EndOptions{.reorder_packets = roce::kAgreedSpan, .asks_for_agreement = true});
  TestEnd& victim = world.far();
  world.link.tap = [](int, const wire::Packet&) { return false; };
  std::array<std::byte, roce::kPiggybackBytes> payload{};
  roce::encode({}, payload);
  const wire::Psn expected(0xFFFFF0);
  for (const std::uint8_t mark : {roce::kRequestMark, roce::kPiggybackMark}) {
    wire::Packet packet;
    packet.opcode = wire::Opcode::of(wire::Service::kRc, wire::Code::kSendOnly);
    packet.shape = &wire::shape_of(packet.opcode);
    packet.payload = payload;
    packet.mark = mark;
    for (std::uint32_t ahead = 0; ahead < 8192; ++ahead) {
      packet.psn = expected + ahead - 4096u;
      if (packet.psn == expected) continue;
      victim.give(packet, victim.from_peer());
      ASSERT_FALSE(victim.engine->has_agreed()) << "psn " << packet.psn.value();
    }
  }
  // A mark that says what is not so counts for nothing.
  payload.fill(std::byte{0xFF});
  wire::Packet last;
  last.opcode = wire::Opcode::of(wire::Service::kRc, wire::Code::kSendOnly);
  last.shape = &wire::shape_of(last.opcode);
  last.payload = payload;
  last.mark = roce::kPiggybackMark;
  last.psn = expected;
  victim.give(last, victim.from_peer());
  EXPECT_FALSE(victim.engine->has_agreed());
}

// Each wrong key costs the connection: regions are not to be found by trying.
TEST_F(Strangers, LoseTheConnectionByAWrongKey) {
  give({.code = wire::Code::kReadRequest, .has_key = false});
  EXPECT_FALSE(is_alive());
  const unsigned before = answers;
  for (const wire::Code code : kCodes)
    give({.code = code});
  EXPECT_EQ(answers, before) << "nothing is answered any more";
  EXPECT_TRUE(is_untouched());
}

// An unreliable connection takes the first packet of a message whatever its number, if it is not
// past (IBTA vol 1, 9.8.2.2): there the key decides, and a wrong one is met with silence.
TEST(StrangersOfUnreliableConnections, MustHitAKeyAndHearNothing) {
  TestWorld world(EndOptions{.type = qp::QpType::kUc});
  TestEnd& victim = world.far();
  unsigned answers = 0;
  world.link.tap = [&](int from, const wire::Packet&) {
    answers += from == 1;
    return false;
  };
  SeededRandom random(test_seed());
  constexpr std::array<std::byte, 8> kPayload{std::byte{0x77}};
  const auto write = [&](MemoryKey key) {
    wire::Packet packet;
    packet.opcode = wire::Opcode::of(wire::Service::kUc, wire::Code::kWriteOnly);
    packet.shape = &wire::shape_of(packet.opcode);
    packet.psn = wire::Psn(static_cast<std::uint32_t>(random.next() >> 40));
    packet.remote_address = victim.address(0);
    packet.remote_key = key;
    packet.payload = kPayload;
    packet.dma_length = kPayload.size();
    victim.memory[0] = std::byte{0};
    victim.give(packet, victim.from_peer());
    world.run(Duration::microseconds(1));
    return victim.memory[0] != std::byte{0};
  };
  for (std::uint32_t i = 0; i < kGuesses; ++i) {
    MemoryKey key{static_cast<std::uint32_t>(random.next() >> 33)};
    if (random.one_in(2)) key = {victim.key.value + 1 + static_cast<std::uint32_t>(i % 1000)};
    if (key.value == victim.key.value) continue;
    ASSERT_FALSE(write(key)) << key.value;
  }
  // Half of all numbers are past; seven standard deviations.
  constexpr int kRight = 1000;
  int taken = 0;
  for (int i = 0; i < kRight; ++i)
    taken += write(victim.key);
  EXPECT_NEAR(taken, kRight * 0.5, 7 * 16);
  EXPECT_EQ(answers, 0u);
  EXPECT_EQ(victim.pair.state(), qp::QpState::kReadyToSend);
}

}  // namespace
}  // namespace verbena::roce
