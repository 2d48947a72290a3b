// SPDX-License-Identifier: MIT
#include "port/handover.h"

#include "base/test_seed.h"
#include "port/test_packets.h"

namespace verbena::port {
namespace {

std::vector<std::byte> packed(const Received& packet) {
  std::vector<std::byte> message(kHandOverHead + packet.payload.size());
  EXPECT_EQ(pack(packet, message), message.size());
  return message;
}

class HandOverTest : public ::testing::Test {
 protected:
  const std::vector<std::byte> bytes = make_packet({9}, 300, 4);
  const Received packet{.payload = bytes,
                        .from = ipv4(10, 1, 2, 3),
                        .to = kLoopback6,
                        .interface = 77,
                        .source_port = 50'000,
                        .segment = 13,
                        .ecn = Ecn::kCongested};
};

TEST_F(HandOverTest, NothingIsLostOnTheWay) {
  const auto message = packed(packet);
  const auto there = unpack(message);
  ASSERT_TRUE(there.has_value());
  EXPECT_TRUE(std::ranges::equal(there->payload, bytes));
  EXPECT_EQ(there->from, packet.from);
  EXPECT_EQ(there->to, packet.to);
  EXPECT_EQ(there->interface, 77u);
  EXPECT_EQ(there->source_port, 50'000u);
  EXPECT_EQ(there->segment, 13u);
  EXPECT_EQ(there->ecn, Ecn::kCongested);
}

TEST_F(HandOverTest, WhatDoesNotFitIsNotPacked) {
  std::vector<std::byte> room(kHandOverHead + bytes.size() - 1);
  EXPECT_EQ(pack(packet, room), 0u);
  EXPECT_EQ(pack(packet, {}), 0u);
}

TEST_F(HandOverTest, EveryTruncationIsRefused) {
  auto message = packed(packet);
  for (std::size_t size = 0; size < message.size(); ++size)
    EXPECT_FALSE(unpack(std::span(message).first(size)).has_value()) << size;
  message.push_back({});
  EXPECT_EQ(unpack(message).error(), HandOverError::kLength);
}

TEST_F(HandOverTest, HostileHeadsAreRefusedByReason) {
  const auto with = [&](std::size_t at, int value) {
    auto message = packed(packet);
    message[at] = static_cast<std::byte>(value);
    return unpack(message);
  };
  EXPECT_EQ(with(0, 2).error(), HandOverError::kVersion);
  EXPECT_EQ(with(1, 4).error(), HandOverError::kContent);
  EXPECT_EQ(with(6, 0xFF).error(), HandOverError::kLength);
  EXPECT_EQ(with(12, 1).error(), HandOverError::kContent);
}

TEST_F(HandOverTest, RubbishNeverReachesOutOfBounds) {
  SeededRandom random(test_seed());
  for (int i = 0; i < 20'000; ++i) {
    std::vector<std::byte> message(random.below(200));
    for (std::byte& each : message)
      each = static_cast<std::byte>(random.below(random.one_in(2) ? 2 : 256));
    const auto there = unpack(message);
    if (!there) continue;
    EXPECT_EQ(there->payload.data(), message.data() + kHandOverHead);
    EXPECT_EQ(there->payload.size(), message.size() - kHandOverHead);
  }
}

}  // namespace
}  // namespace verbena::port
