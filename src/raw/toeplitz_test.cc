// SPDX-License-Identifier: MIT
#include "raw/toeplitz.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <cstring>

namespace verbena::raw {
namespace {

// Microsoft, "Verifying the RSS Hash Calculation".
constexpr HashKey kPublished = {0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67,
                                0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb,
                                0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
                                0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa};
struct Vector {
  const char* destination;
  std::uint16_t destination_port;
  const char* source;
  std::uint16_t source_port;
  std::uint32_t addresses;
  std::uint32_t with_ports;
};
constexpr Vector kIpv4[] = {
    {"161.142.100.80", 1766, "66.9.149.187", 2794, 0x323e8fc2, 0x51ccc178},
    {"65.69.140.83", 4739, "199.92.111.2", 14230, 0xd718262a, 0xc626b0ea},
    {"12.22.207.184", 38024, "24.19.198.95", 12898, 0xd2d0a5de, 0x5c2b394a},
    {"209.142.163.6", 2217, "38.27.205.30", 48228, 0x82989176, 0xafc7327f},
    {"202.188.127.2", 1303, "153.39.163.191", 44251, 0x5d1809c5, 0x10e828a2},
};
constexpr Vector kIpv6[] = {
    {"3ffe:2501:200:3::1", 1766, "3ffe:2501:200:1fff::7", 2794, 0x2cc18cd5, 0x40207d3d},
    {"ff02::1", 4739, "3ffe:501:8::260:97ff:fe40:efab", 14230, 0x0f0c461c, 0xdde51bbf},
    {"fe80::200:f8ff:fe21:67cf", 38024, "3ffe:1900:4545:3:200:f8ff:fe21:67cf", 44251, 0x4b61e985,
     0x02d1feef},
};
constexpr std::uint64_t kAddresses =
    kHashSourceIpv4 | kHashDestinationIpv4 | kHashSourceIpv6 | kHashDestinationIpv6;
constexpr std::uint64_t kTcpPorts = kHashSourceTcp | kHashDestinationTcp;

Key key_for(const Vector& vector, Network network) {
  Key key;
  key.network = network;
  key.transport = Transport::kTcp;
  const int family = network == Network::kIpv4 ? AF_INET : AF_INET6;
  EXPECT_EQ(1, inet_pton(family, vector.source, key.source_ip.data()));
  EXPECT_EQ(1, inet_pton(family, vector.destination, key.destination_ip.data()));
  key.source_port = wire::be16(vector.source_port);
  key.destination_port = wire::be16(vector.destination_port);
  return key;
}

TEST(Toeplitz, GivesThePublishedNumbers) {
  const auto check = [](const Vector& vector, Network network) {
    SCOPED_TRACE(vector.source);
    const Key key = key_for(vector, network);
    EXPECT_EQ(hash_of(key, {kAddresses, kPublished}), vector.addresses);
    EXPECT_EQ(hash_of(key, {kAddresses | kTcpPorts, kPublished}), vector.with_ports);
    EXPECT_EQ(hash_of(key, {kAddresses | kHashSourceUdp | kHashDestinationUdp, kPublished}),
              vector.addresses)
        << "the ports are not those of UDP";
  };
  for (const Vector& vector : kIpv4)
    check(vector, Network::kIpv4);
  for (const Vector& vector : kIpv6)
    check(vector, Network::kIpv6);
}

TEST(Toeplitz, TakesOneFieldAlone) {
  Key key = key_for(kIpv4[0], Network::kIpv4);
  const HashConfig config{kHashDestinationIpv4, kPublished};
  const std::uint32_t before = hash_of(key, config);
  EXPECT_EQ(before, toeplitz(kPublished, std::span(key.destination_ip).first(4)));
  key.source_ip[0] ^= 1;
  key.source_port = wire::be16(1);
  EXPECT_EQ(hash_of(key, config), before);
  key.destination_ip[3] ^= 1;
  EXPECT_NE(hash_of(key, config), before);
}

TEST(Toeplitz, IsZeroWithoutAnythingToHash) {
  EXPECT_EQ(toeplitz(kPublished, {}), 0u);
  EXPECT_EQ(hash_of({}, {kHashFields, kPublished}), 0u);
  EXPECT_EQ(hash_of(key_for(kIpv6[0], Network::kIpv6), {kHashSourceIpv4, kPublished}), 0u);
}

}  // namespace
}  // namespace verbena::raw
