// SPDX-License-Identifier: MIT
#include "host/neighbours.h"

#include <gtest/gtest.h>

namespace verbena::host {
namespace {

Gid ipv4(std::uint8_t a, std::uint8_t b, std::uint8_t c, std::uint8_t d) {
  return {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, a, b, c, d}};
}

TEST(Neighbours, NeedNoAnswerOnTheLoopbackInterface) {
  EXPECT_EQ(neighbour_towards(ipv4(127, 0, 0, 1), 0), Neighbour::kThere);
  Gid one{};
  one.bytes[15] = 1;
  EXPECT_EQ(neighbour_towards(one, 0), Neighbour::kThere);
}

TEST(Neighbours, AreNotWaitedForWhereNoInterfaceIsMeant) {
  Gid link_local{{0xFE, 0x80}};
  link_local.bytes[15] = 1;
  EXPECT_EQ(neighbour_towards(link_local, 0x7FFFFFFF), Neighbour::kThere);
}

TEST(Neighbours, CanBeAskedWithoutHarm) {
  ask_neighbour_towards(ipv4(127, 0, 0, 1), 0);
  ask_neighbour_towards(Gid{}, 0);
}

}  // namespace
}  // namespace verbena::host
