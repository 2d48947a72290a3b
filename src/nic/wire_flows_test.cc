// SPDX-License-Identifier: MIT
#include "nic/wire_flows.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "wire/datagram.h"

namespace verbena::nic {
namespace {

// A packet as it comes from an IPv4 sender that gave it `id`.
class Packet {
 public:
  Packet(std::uint16_t id, std::uint16_t segment) {
    packet.from = wire::gid_of(std::array<std::uint8_t, 4>{10, 0, 0, 1});
    packet.to = wire::gid_of(std::array<std::uint8_t, 4>{10, 0, 0, 2});
    packet.source_port = 50'000;
    packet.segment = segment;
    wire::Head head;
    head.opcode = wire::Opcode::of(wire::Service::kRc, wire::Code::kSendOnly);
    head.dest_qp = QpNum{0x1234};
    bytes_.resize(wire::datagram_bytes(head.opcode, 64));
    wire::DatagramBuilder builder(bytes_, head, 64);
    for (std::byte& each : builder.payload())
      each = std::byte{0x5A};
    wire::FlowIcrc icrc(WireFlows::flow_of(packet));
    builder.finish(icrc, id);
    packet.payload = bytes_;
  }
  void damage() { bytes_[30] ^= std::byte{1}; }
  void set_opcode(std::uint8_t value) { bytes_[0] = std::byte{value}; }

  port::Received packet;

 private:
  std::vector<std::byte> bytes_;
};

TEST(WireFlows, TakesTheTrainsOfOurOwnKind) {
  WireFlows flows;
  for (std::uint16_t i = 0; i < 64; ++i)
    EXPECT_TRUE(flows.is_intact(Packet(i, i).packet)) << i;
  EXPECT_TRUE(flows.is_intact(Packet(0, 0).packet));
}

TEST(WireFlows, TakesPacketsThatAreNumberedOnAndOn) {
  WireFlows flows;
  for (std::uint16_t id = 65'000; id != 200; ++id)
    EXPECT_TRUE(flows.is_intact(Packet(id, 0).packet)) << id;
}

TEST(WireFlows, RefusesADamagedPacketAndTakesTheNext) {
  WireFlows flows;
  EXPECT_TRUE(flows.is_intact(Packet(0, 0).packet));
  Packet damaged(1, 1);
  damaged.damage();
  EXPECT_FALSE(flows.is_intact(damaged.packet));
  EXPECT_TRUE(flows.is_intact(Packet(2, 2).packet));
}

// So nobody answers an unknown opcode that was a known one before it was damaged.
TEST(WireFlows, RefusesADamagedPacketWhateverItsOpcode) {
  WireFlows flows;
  for (unsigned value = 0; value < 256; ++value) {
    Packet packet(0, 0);
    const bool is_as_sent =
        value == wire::Opcode::of(wire::Service::kRc, wire::Code::kSendOnly).value;
    packet.set_opcode(static_cast<std::uint8_t>(value));
    EXPECT_EQ(flows.is_intact(packet.packet), is_as_sent) << value;
  }
}

}  // namespace
}  // namespace verbena::nic
