// SPDX-License-Identifier: MIT
// Whom packets of a reliable connection are from, by what they say of it.
#include <gtest/gtest.h>

#include <cstdint>
#include <set>

#include "roce/test_world.h"

namespace verbena::roce {
namespace {

using queues::SendOpcode;

qp::SendRequest remote(const TestEnd& to, SendOpcode opcode) {
  return {.opcode = opcode, .remote_address = to.address(0), .remote_key = to.key};
}

TEST(RcPeer, DropsWhatIsNotFromThePeer) {
  TestWorld world;
  world.link.tap = [&](int from, const wire::Packet& packet) {
    if (from != 0) return true;
    Arrival arrival = world.far().from_peer();
    arrival.ip.flow.source.bytes[15] ^= 1;
    world.far().give(packet, arrival);
    wire::Packet other = packet;
    other.pkey = 0x1111;
    world.far().give(other, world.far().from_peer());
    other = packet;
    other.opcode.value |= 0x20;
    world.far().give(other, world.far().from_peer());
    return true;
  };
  world.near().post(remote(world.far(), SendOpcode::kWrite), 0, 10);
  world.run(kSoon);
  EXPECT_EQ(world.far().rc().responder().counters().packets, 1u);
  EXPECT_EQ(world.far().engine->counters().other_sender, 1u);
  EXPECT_EQ(world.far().engine->counters().other_pkey, 1u);
  EXPECT_EQ(world.far().engine->counters().other_service, 1u);
}

// Requests, answers and notifications: whoever compares drops what has another one.
TEST(RcPeer, EveryPacketHasThePkeyOfTheConnection) {
  TestWorld world(EndOptions{.pkey = 0x8123});
  world.link.options.mark = 100'000;
  std::set<std::uint8_t> opcodes;
  world.link.tap = [&](int, const wire::Packet& packet) {
    EXPECT_EQ(packet.pkey, 0x8123);
    opcodes.insert(packet.opcode.value);
    return true;
  };
  world.far().post_receive(1, 0, 100);
  for (const auto opcode : {SendOpcode::kSend, SendOpcode::kWrite, SendOpcode::kRead,
                            SendOpcode::kFetchAdd, SendOpcode::kAtomicWrite}) {
    world.near().post(remote(world.far(), opcode), 0, 8);
  }
  world.run(kSoon);
  EXPECT_EQ(world.near().poll().size(), 5u);
  EXPECT_TRUE(opcodes.contains(wire::kCnp.value));
  EXPECT_EQ(opcodes.size(), 9u) << "of these five, with three kinds of answers, and the CNP";
}

}  // namespace
}  // namespace verbena::roce
