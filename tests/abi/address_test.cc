// SPDX-License-Identifier: MIT
// The address of a datagram's sender, from the 40 bytes before its payload.
#include <arpa/inet.h>
#include <endian.h>
#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>

#include "verbs/abi/entry.h"

namespace {

using Header = std::array<std::uint8_t, 40>;

// The Internet checksum (RFC 1071), written apart from the code under test.
void write_checksum(std::uint8_t* ipv4, unsigned length) {
  ipv4[10] = ipv4[11] = 0;
  unsigned sum = 0;
  for (unsigned i = 0; i < length; i += 2)
    sum += unsigned{ipv4[i]} << 8 | ipv4[i + 1];
  while (sum >> 16)
    sum = (sum & 0xffff) + (sum >> 16);
  ipv4[10] = static_cast<std::uint8_t>(~sum >> 8);
  ipv4[11] = static_cast<std::uint8_t>(~sum);
}

// RoCEv2 over IPv4: `junk` fills the undefined first half.
Header ipv4_header(std::uint8_t junk, const char* to = "10.0.0.1") {
  Header bytes;
  bytes.fill(junk);
  std::uint8_t* ipv4 = &bytes[20];
  std::memset(ipv4, 0, 20);
  ipv4[0] = 0x45;
  ipv4[1] = 0xb8;  // type of service
  ipv4[3] = 100;   // length
  ipv4[8] = 61;    // time to live
  ipv4[9] = 17;    // UDP
  inet_pton(AF_INET, "10.0.0.2", ipv4 + 12);
  inet_pton(AF_INET, to, ipv4 + 16);
  write_checksum(ipv4, 20);
  return bytes;
}

Header ipv6_header(std::uint8_t next_header, const char* to = "fe80::1") {
  Header bytes = {0x6b, 0x81, 0x23, 0x45, 0, 64, next_header, 62};  // traffic class b8, flow 12345
  inet_pton(AF_INET6, "fe80::2", &bytes[8]);
  inet_pton(AF_INET6, to, &bytes[24]);
  return bytes;
}

std::string text_of(const ibv_gid& gid) {
  char text[INET6_ADDRSTRLEN] = {};
  inet_ntop(AF_INET6, gid.raw, text, sizeof(text));
  return text;
}

class SenderAddress : public testing::Test {
 protected:
  SenderAddress() {
    completion.slid = 11;
    completion.sl = 3;
    completion.dlid_path_bits = 5;
    completion.wc_flags = IBV_WC_GRH;
  }
  // At an odd address: a program's buffer may be.
  int read(const Header& header) {
    std::array<std::uint8_t, 41> buffer;
    std::memcpy(&buffer[1], header.data(), header.size());
    std::memset(&result, 0xee, sizeof(result));
    errno = 0;
    return ibv_init_ah_from_wc(nullptr, 1, &completion, reinterpret_cast<ibv_grh*>(&buffer[1]),
                               &result);
  }
  ibv_wc completion = {};
  ibv_ah_attr result = {};
};

TEST_F(SenderAddress, WithoutGrhIsTheLid) {
  completion.wc_flags = 0;
  ASSERT_EQ(read(ipv4_header(0)), 0);
  EXPECT_EQ(result.dlid, 11);
  EXPECT_EQ(result.sl, 3);
  EXPECT_EQ(result.src_path_bits, 5);
  EXPECT_EQ(result.port_num, 1);
  EXPECT_EQ(result.is_global, 0);
  EXPECT_EQ(result.static_rate, 0);
  EXPECT_EQ(text_of(result.grh.dgid), "::");
}

TEST_F(SenderAddress, OverIpv4WhateverTheUndefinedHalfHolds) {
  for (const std::uint8_t junk : std::initializer_list<std::uint8_t>{0x00, 0x45, 0x66, 0xa5}) {
    ASSERT_EQ(read(ipv4_header(junk)), 0) << int{junk};
    EXPECT_EQ(text_of(result.grh.dgid), "::ffff:10.0.0.2");
    EXPECT_EQ(result.grh.sgid_index, 3);  // the RoCEv2 one of our address, not the RoCEv1 one
    EXPECT_EQ(result.grh.hop_limit, 61);
    EXPECT_EQ(result.grh.traffic_class, 0xb8);
    EXPECT_EQ(result.grh.flow_label, 0U);  // IPv4 has none
    EXPECT_EQ(result.is_global, 1);
    EXPECT_EQ(result.sl, 3);
  }
}

TEST_F(SenderAddress, TheChecksumTellsIpv4FromIpv6) {
  Header header = ipv4_header(0x66);  // looks like IPv6 in front
  header[30] ^= 1;
  EXPECT_EQ(read(header), -1);
  EXPECT_EQ(errno, EPROTONOSUPPORT);  // as IPv6 its next header 0x66 is none of ours

  header = ipv6_header(17);
  header[20] = 0x45;  // part of the source address: IPv4's version and length, but no checksum
  ASSERT_EQ(read(header), 0);
  EXPECT_EQ(result.grh.sgid_index, 1);
}

TEST_F(SenderAddress, OverIpv6ByRoceV2) {
  ASSERT_EQ(read(ipv6_header(17)), 0);
  EXPECT_EQ(text_of(result.grh.dgid), "fe80::2");
  EXPECT_EQ(result.grh.sgid_index, 1);
  EXPECT_EQ(result.grh.flow_label, 0x12345U);
  EXPECT_EQ(result.grh.hop_limit, 62);
  EXPECT_EQ(result.grh.traffic_class, 0xb8);
}

TEST_F(SenderAddress, ByAGrhIsTheOtherEntryOfTheSameAddress) {
  ASSERT_EQ(read(ipv6_header(0x1b)), 0);
  EXPECT_EQ(result.grh.sgid_index, 0);
  ASSERT_EQ(read(ipv6_header(0x1b, "fe80::9")), 0);  // behind an empty entry
  EXPECT_EQ(result.grh.sgid_index, 5);
}

TEST_F(SenderAddress, NotSentToUsIsRefused) {
  EXPECT_EQ(read(ipv4_header(0, "10.0.0.9")), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(read(ipv6_header(17, "fe80::9")), -1);  // we have it for InfiniBand only
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(read(ipv6_header(17, "fe80::77")), -1);
}

TEST_F(SenderAddress, OtherProtocolsAreRefused) {
  for (const std::uint8_t next_header : std::initializer_list<std::uint8_t>{0, 6, 58, 255}) {
    EXPECT_EQ(read(ipv6_header(next_header)), -1);
    EXPECT_EQ(errno, EPROTONOSUPPORT);
  }
  EXPECT_EQ(read(Header{}), -1);
  EXPECT_EQ(errno, EPROTONOSUPPORT);
}

TEST_F(SenderAddress, AnAddressHandleIsMadeOfIt) {
  ibv_pd pd = {};
  Header header = ipv6_header(17);
  auto* grh = reinterpret_cast<ibv_grh*>(header.data());
  const std::unique_ptr<ibv_ah> handle(ibv_create_ah_from_wc(&pd, &completion, grh, 1));
  ASSERT_TRUE(handle);
  EXPECT_EQ(handle->handle, 1U);
  header = ipv6_header(6);
  EXPECT_EQ(ibv_create_ah_from_wc(&pd, &completion, grh, 1), nullptr);
}

}  // namespace
