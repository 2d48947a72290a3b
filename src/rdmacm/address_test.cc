// SPDX-License-Identifier: MIT
// Addresses of all three families, and what they have in common.
#include "rdmacm/address.h"

#include <endian.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "wire/ip.h"

namespace verbena::rdmacm {
namespace {

Gid ipv4(std::uint8_t a, std::uint8_t b, std::uint8_t c, std::uint8_t d) {
  return wire::gid_of(std::array<std::uint8_t, 4>{a, b, c, d});
}

Gid ipv6(std::uint8_t first, std::uint8_t second, std::uint8_t last) {
  Gid gid;
  gid.bytes[0] = first;
  gid.bytes[1] = second;
  gid.bytes[15] = last;
  return gid;
}

TEST(Address, ComesFromThreeFamilies) {
  EXPECT_FALSE(Address::from(nullptr));
  sockaddr_storage unknown{};
  unknown.ss_family = AF_UNIX;
  EXPECT_FALSE(Address::from(reinterpret_cast<const sockaddr*>(&unknown)));
  EXPECT_FALSE(Address().is_set());
  for (const Address& each :
       {Address::of(ipv4(10, 0, 0, 1), 7, 0), Address::of(ipv6(0xFD, 0, 1), 7, 0),
        Address::of_service(ipv4(10, 0, 0, 1), 0x1060007, 0)}) {
    const auto copy = Address::from(each.get());
    ASSERT_TRUE(copy);
    EXPECT_EQ(copy->family(), each.family());
    EXPECT_EQ(copy->gid(), each.gid());
    EXPECT_EQ(copy->port(), 7);
    EXPECT_EQ(std::memcmp(copy->get(), each.get(), each.size()), 0);
  }
}

TEST(Address, SizesAreTheSystems) {
  EXPECT_EQ(Address::any(AF_INET, 1).size(), sizeof(sockaddr_in));
  EXPECT_EQ(Address::any(AF_INET6, 1).size(), sizeof(sockaddr_in6));
  EXPECT_EQ(Address::any(AF_IB, 1).size(), sizeof(sockaddr_ib));
}

TEST(Address, AGidOfIpv4IsIpv4) {
  const Address made = Address::of(ipv4(192, 0, 2, 7), 4791, 3);
  EXPECT_EQ(made.family(), AF_INET);
  EXPECT_EQ(made.port(), 4791);
  EXPECT_EQ(made.gid(), ipv4(192, 0, 2, 7));
  EXPECT_EQ(made.scope(), 0u);
}

TEST(Address, OnlyLinkLocalOnesHaveAScope) {
  EXPECT_EQ(Address::of(ipv6(0xFE, 0x80, 1), 1, 5).scope(), 5u);
  EXPECT_EQ(Address::of(ipv6(0xFD, 0, 1), 1, 5).scope(), 0u);
  EXPECT_EQ(Address::of_service(ipv6(0xFE, 0x80, 1), 1, 5).scope(), 5u);
  EXPECT_EQ(Address::of_service(ipv6(0xFD, 0, 1), 1, 5).scope(), 0u);
  EXPECT_EQ(Address::of_service(ipv6(0xFE, 0x80, 1), 1, 5).ip().scope(), 5u);
}

struct Kind {
  Gid gid;
  bool is_any, is_loopback, is_multicast;
};

TEST(Address, WhatKindItIs) {
  const Kind kinds[] = {
      {ipv4(0, 0, 0, 0), true, false, false},     {ipv4(127, 0, 0, 1), false, true, false},
      {ipv4(127, 9, 9, 9), false, true, false},   {ipv4(128, 0, 0, 1), false, false, false},
      {ipv4(224, 0, 0, 1), false, false, true},   {ipv4(239, 255, 0, 1), false, false, true},
      {ipv4(240, 0, 0, 1), false, false, false},  {ipv6(0, 0, 0), true, false, false},
      {ipv6(0, 0, 1), false, true, false},        {ipv6(0xFF, 0x02, 1), false, false, true},
      {ipv6(0xFE, 0x80, 1), false, false, false},
  };
  for (const Kind& each : kinds) {
    const Address ip = Address::of(each.gid, 1, 0);
    EXPECT_EQ(ip.is_any(), each.is_any);
    EXPECT_EQ(ip.is_loopback(), each.is_loopback);
    EXPECT_EQ(ip.is_multicast(), each.is_multicast);
    const Address gid = Address::of_service(each.gid, 1, 0);
    EXPECT_EQ(gid.is_loopback(), each.is_loopback);
    EXPECT_EQ(gid.is_multicast(), each.is_multicast);
  }
  EXPECT_TRUE(Address::any(AF_IB, 0).is_any());
}

TEST(Address, AServiceHasAPort) {
  Address made = Address::of_service(ipv4(10, 0, 0, 1), 0x01060000, 0);
  made.set_service_mask(~std::uint64_t{0xFFFF});
  EXPECT_TRUE(made.is_port_open());
  EXPECT_EQ(made.port(), 0);
  made.set_port(7471);
  EXPECT_FALSE(made.is_port_open());
  EXPECT_EQ(made.service(), 0x01060000u + 7471);
  EXPECT_EQ(made.service_mask(), ~std::uint64_t{0});
  const auto* const shown = reinterpret_cast<const sockaddr_ib*>(made.get());
  EXPECT_EQ(be64toh(shown->sib_sid), 0x01060000u + 7471);
  EXPECT_EQ(be16toh(shown->sib_pkey), 0xFFFF);
  EXPECT_EQ(made.ip().family(), AF_INET);
  EXPECT_EQ(made.ip().port(), 7471);
}

TEST(Address, PortsAreOpenWhereNoneIsNamed) {
  EXPECT_TRUE(Address::any(AF_INET, 0).is_port_open());
  EXPECT_FALSE(Address::any(AF_INET6, 1).is_port_open());
  EXPECT_TRUE(Address::of_service({}, 0, 0).is_port_open());
  // A service that is named whole may end in zeros.
  EXPECT_FALSE(Address::of_service({}, 0xABCD'0000, 0).is_port_open());
}

TEST(Address, TheSystemKnowsWhatItWouldSendFrom) {
  const auto source = source_towards(Address::of(ipv4(127, 0, 0, 1), 0, 0));
  ASSERT_TRUE(source);
  EXPECT_EQ(source->gid(), ipv4(127, 0, 0, 1));
  EXPECT_EQ(source->port(), 0);
  const auto by_gid = source_towards(Address::of_service(ipv4(127, 0, 0, 1), 9, 0));
  ASSERT_TRUE(by_gid);
  EXPECT_EQ(by_gid->gid(), ipv4(127, 0, 0, 1));
}

}  // namespace
}  // namespace verbena::rdmacm
