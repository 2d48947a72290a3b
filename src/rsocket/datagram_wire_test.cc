// SPDX-License-Identifier: MIT
#include "rsocket/datagram_wire.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace verbena::rsocket {
namespace {

EndPoint end_point(const char* address, std::uint16_t port = 0) {
  sockaddr_in in{};
  sockaddr_in6 in6{};
  in.sin_family = AF_INET;
  in.sin_port = htobe16(port);
  in6.sin6_family = AF_INET6;
  in6.sin6_port = htobe16(port);
  if (inet_pton(AF_INET, address, &in.sin_addr) == 1) {
    return EndPoint::from(reinterpret_cast<const sockaddr*>(&in), sizeof in).value();
  }
  EXPECT_EQ(inet_pton(AF_INET6, address, &in6.sin6_addr), 1);
  return EndPoint::from(reinterpret_cast<const sockaddr*>(&in6), sizeof in6).value();
}

std::vector<std::byte> bytes_of(std::string_view hex) {
  std::vector<std::byte> bytes;
  for (std::size_t at = 0; at + 2 <= hex.size(); at += 2)
    bytes.push_back(std::byte(std::stoi(std::string(hex.substr(at, 2)), nullptr, 16)));
  return bytes;
}

// Recorded of udpong between 10.91.0.1 or fd00:91::1, ours, and 10.91.0.2 or fd00:91::2, upstream's
// librdmacm 44 on Linux's rxe: what upstream sent.
struct Golden {
  const char* hex;
  UdpOp op;
  std::uint32_t queue_pair;
  const char* address;  // upstream's own
  std::size_t data;     // bytes behind it
};
constexpr Golden kByUdp[] = {
    {"5555555504001000000000140a5b000200000000000000000000000000000000", UdpOp::kData, 0x14,
     "10.91.0.2", 16},
    {"5555555504071000000000130a5b0002", UdpOp::kControl, 0x13, "10.91.0.2", 0},
    {"5555555506001c000000001200000000fd000091000000000000000000000000000000000000000000000000",
     UdpOp::kData, 0x12, "fd00:91::2", 16},
    {"5555555506071c000000001100000000fd0000910000000000000000", UdpOp::kControl, 0x11,
     "fd00:91::2", 0},
};
struct GoldenPair {
  const char* hex;
  const char* address;
  std::uint16_t port;
};
constexpr GoldenPair kByQueuePair[] = {
    {"04081c060a5b000200000000000000000000000000000000", "10.91.0.2", 7174},
    {"0408c4050a5b000201010000000000000000000000000000", "10.91.0.2", 50181},
    {"06181c0600000000fd00009100000000000000000000000200000000000000000000000000000000",
     "fd00:91::2", 7174},
};

TEST(DatagramHeaders, AreUnderstoodAsUpstreamSendsThem) {
  for (const Golden& golden : kByUdp) {
    const auto bytes = bytes_of(golden.hex);
    std::span<const std::byte> data(bytes);
    const auto header = read_udp_header(data);
    ASSERT_TRUE(header) << golden.hex;
    EXPECT_EQ(header->op, golden.op);
    EXPECT_EQ(header->queue_pair, golden.queue_pair);
    EXPECT_EQ(data.size(), golden.data);
  }
  for (const GoldenPair& golden : kByQueuePair) {
    const auto bytes = bytes_of(golden.hex);
    std::span<const std::byte> data(bytes);
    EXPECT_EQ(read_pair_header(data), end_point(golden.address, golden.port));
    EXPECT_EQ(data.size(), 16U);
  }
}

TEST(DatagramHeaders, AreWrittenAsUpstreamDoes) {
  for (const Golden& golden : kByUdp) {
    auto expected = bytes_of(golden.hex);
    expected.resize(expected.size() - golden.data);
    std::array<std::byte, kUdpHeaderMax> udp;
    const std::size_t size =
        write_header(UdpHeader{golden.op, golden.queue_pair, end_point(golden.address)}, udp);
    EXPECT_EQ(std::vector(udp.begin(), udp.begin() + static_cast<std::ptrdiff_t>(size)), expected);
  }
  for (const GoldenPair& golden : kByQueuePair) {
    auto expected = bytes_of(golden.hex);
    expected.resize(expected.size() - 16);
    std::array<std::byte, kPairHeaderMax> pair;
    const std::size_t size = write_header(end_point(golden.address, golden.port), pair);
    EXPECT_EQ(std::vector(pair.begin(), pair.begin() + static_cast<std::ptrdiff_t>(size)),
              expected);
  }
}

TEST(DatagramHeaders, ThatAreCutOffAreNone) {
  for (const Golden& golden : kByUdp) {
    const auto bytes = bytes_of(golden.hex);
    for (std::size_t size = 0; size < bytes.size() - golden.data; ++size) {
      auto part = std::span<const std::byte>(bytes).first(size);
      EXPECT_FALSE(read_udp_header(part)) << size;
    }
  }
  for (const GoldenPair& golden : kByQueuePair) {
    const auto bytes = bytes_of(golden.hex);
    for (std::size_t size = 0; size < bytes.size() - 16; ++size) {
      auto part = std::span<const std::byte>(bytes).first(size);
      EXPECT_FALSE(read_pair_header(part)) << size;
    }
  }
}

TEST(DatagramHeaders, ThatAreNotOursAreNone) {
  // Another tag, version, operation or length.
  for (const std::size_t at : {0U, 4U, 5U, 6U}) {
    auto bytes = bytes_of(kByUdp[0].hex);
    bytes[at] ^= std::byte{0x22};
    std::span<const std::byte> data(bytes);
    EXPECT_FALSE(read_udp_header(data)) << at;
  }
  for (const std::size_t at : {0U, 1U}) {
    auto bytes = bytes_of(kByQueuePair[0].hex);
    bytes[at] ^= std::byte{0x22};
    std::span<const std::byte> data(bytes);
    EXPECT_FALSE(read_pair_header(data)) << at;
  }
}

TEST(EndPoint, IsWhatASocketWasGiven) {
  for (const char* address : {"10.91.0.2", "fd00:91::2"}) {
    const EndPoint point = end_point(address, 4711);
    EXPECT_EQ(point.is_ipv4(), address[0] == '1');
    EXPECT_FALSE(point.is_any());
    sockaddr_storage stored;
    const socklen_t size = point.store(point.is_ipv4() ? AF_INET : AF_INET6, stored);
    EXPECT_EQ(EndPoint::from(reinterpret_cast<const sockaddr*>(&stored), size), point);
    EXPECT_FALSE(EndPoint::from(reinterpret_cast<const sockaddr*>(&stored), size - 1));
  }
  EXPECT_TRUE(end_point("0.0.0.0").is_any());
  EXPECT_TRUE(end_point("::").is_any());
}

}  // namespace
}  // namespace verbena::rsocket
