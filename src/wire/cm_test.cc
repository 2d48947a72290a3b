// SPDX-License-Identifier: MIT
#include "wire/cm.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/test_seed.h"
#include "wire/ip.h"

namespace verbena::wire {
namespace {

using Mad = std::array<std::byte, kMadBytes>;

constexpr CmAttribute kAll[] = {CmAttribute::kReq,     CmAttribute::kMra,    CmAttribute::kRej,
                                CmAttribute::kRep,     CmAttribute::kRtu,    CmAttribute::kDreq,
                                CmAttribute::kDrep,    CmAttribute::kLap,    CmAttribute::kApr,
                                CmAttribute::kSidrReq, CmAttribute::kSidrRep};

Mad mad_of(CmAttribute attribute, std::byte fill) {
  Mad mad;
  mad.fill(fill);
  MadHeader head;
  head.management_class = 7;
  head.class_version = 2;
  head.method = 3;
  head.attribute_id = be16(static_cast<std::uint16_t>(attribute));
  head.transaction_id = be64(0x0102030405060708);
  std::memcpy(mad.data(), &head, sizeof head);
  return mad;
}

Gid gid(std::uint8_t first) {
  Gid gid;
  for (unsigned i = 0; i < 16; ++i)
    gid.bytes[i] = static_cast<std::uint8_t>(first + i);
  return gid;
}

// The bytes of the data from `at` on, in hexadecimal.
std::string data_of(const CmMessage& message, unsigned at, unsigned count) {
  const Mad mad = encode_cm({.transaction_id = 1, .message = message});
  std::string text;
  for (unsigned i = 0; i < count; ++i) {
    const auto byte = static_cast<unsigned>(mad[kMadHeadBytes + at + i]);
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

TEST(Cm, EveryMessageIsFoundByItsAttribute) {
  for (const CmAttribute attribute : kAll) {
    const auto mad = parse_cm(mad_of(attribute, std::byte{0}));
    ASSERT_TRUE(mad) << name_of(attribute);
    EXPECT_EQ(attribute_of(mad->message), attribute);
    EXPECT_EQ(mad->transaction_id, 0x0102030405060708u);
  }
}

TEST(Cm, WhatIsReadIsWrittenBack) {
  SeededRandom random(test_seed());
  for (const CmAttribute attribute : kAll) {
    for (int round = 0; round < 100; ++round) {
      Mad bytes = mad_of(attribute, std::byte{0});
      for (std::size_t i = kMadHeadBytes; i < kMadBytes; ++i) {
        bytes[i] = static_cast<std::byte>(random.next() >> 56);
      }
      const auto once = parse_cm(bytes);
      ASSERT_TRUE(once);
      const Mad written = encode_cm(*once);
      const auto twice = parse_cm(written);
      ASSERT_TRUE(twice);
      ASSERT_TRUE(once->message == twice->message) << name_of(attribute);
    }
  }
}

// Of data that is all ones only the reserved bits come back as zeros: their number is that of the
// specification's tables.
TEST(Cm, ReservedBitsAreAsManyAsInTheTables) {
  const std::vector<std::pair<CmAttribute, int>> reserved = {
      {CmAttribute::kReq, 8 + 32 + 2 * (6 + 3 + 3)},
      {CmAttribute::kMra, 6 + 3},
      {CmAttribute::kRej, 6 + 1},
      {CmAttribute::kRep, 4},
      {CmAttribute::kRtu, 0},
      {CmAttribute::kDreq, 8},
      {CmAttribute::kDrep, 0},
      {CmAttribute::kLap, 32 + 3 + 32 + 4 + 2 + 3 + 3},
      {CmAttribute::kApr, 16},
      {CmAttribute::kSidrReq, 16},
      {CmAttribute::kSidrRep, 16 + 8},
  };
  for (const auto& [attribute, bits] : reserved) {
    const auto mad = parse_cm(mad_of(attribute, std::byte{0xFF}));
    ASSERT_TRUE(mad);
    const Mad again = encode_cm(*mad);
    int zeros = 0;
    for (std::size_t i = kMadHeadBytes; i < kMadBytes; ++i) {
      zeros += 8 - __builtin_popcount(static_cast<unsigned>(again[i]));
    }
    EXPECT_EQ(zeros, bits) << name_of(attribute);
  }
}

TEST(Cm, RequestsHaveTheirFieldsInPlace) {
  Req req;
  req.remote_cm_response_timeout = 20;
  req.transport_type = TransportType::kUc;
  req.end_to_end_flow_control = true;
  req.local_cm_response_timeout = 19;
  req.starting_psn = 0xABCDEF;
  req.retry_count = 7;
  req.path_mtu = 3;
  req.rnr_retry_count = 6;
  req.max_cm_retries = 15;
  req.srq = true;
  req.extended_transport = 1;
  req.primary.flow_label = 0x12345;
  req.primary.packet_rate = 0x2A;
  req.primary.sl = 5;
  req.primary.subnet_local = true;
  req.primary.ack_timeout = 14;
  req.alternate.ack_timeout = 13;
  EXPECT_EQ(data_of(req, 43, 9), "a3abcdef9fffff36f9");
  EXPECT_EQ(data_of(req, 88, 8), "1234502a00005870");
  EXPECT_EQ(data_of(req, 139, 1), "68");
}

TEST(Cm, RepliesHaveTheirFieldsInPlace) {
  Rep rep;
  rep.local_qp = {0x010203};
  rep.starting_psn = 0x040506;
  rep.responder_resources = 7;
  rep.initiator_depth = 8;
  rep.target_ack_delay = 15;
  rep.failover_accepted = 2;
  rep.end_to_end_flow_control = true;
  rep.rnr_retry_count = 7;
  rep.srq = true;
  EXPECT_EQ(data_of(rep, 12, 16), "01020300000000000405060007087df0");
}

// The vendor id stands in bytes that were reserved; the options are the MAD's attribute modifier.
TEST(Cm, VendorsAgreeInRequestAndReply) {
  const Ece ece{.vendor_id = 0xABCDEF, .options = 0x01020304};
  const Req req{.local_comm_id = 1, .ece = ece};
  Rep rep{.ece = ece};
  rep.local_qp = {0x111111};
  rep.local_eecn = 0x222222;
  rep.starting_psn = 0x333333;
  EXPECT_EQ(data_of(req, 0, 8), "0000000100abcdef");
  EXPECT_EQ(data_of(rep, 12, 12), "111111ab222222cd333333ef");
  for (const CmMessage& message : {CmMessage(req), CmMessage(rep)}) {
    const Mad mad = encode_cm({.transaction_id = 1, .message = message});
    EXPECT_EQ(mad[20], std::byte{1});
    EXPECT_EQ(mad[23], std::byte{4});
    EXPECT_EQ(parse_cm(mad)->message, message);
  }
}

TEST(Cm, TheLessCommonOnesHaveTheirFieldsInPlace) {
  EXPECT_EQ(data_of(Mra{.message = MraOf::kLap, .service_timeout = 21}, 8, 2), "80a8");
  EXPECT_EQ(data_of(Rej{.message = RejOf::kOther, .info_length = 3, .reason = RejReason::kConsumer},
                    8, 4),
            "8006001c");
  Lap lap{.remote_qp = {0x123456}, .remote_cm_response_timeout = 1};
  lap.alternate = {.local_lid = 0x1111,
                   .remote_lid = 0x2222,
                   .local_gid = gid(0x40),
                   .remote_gid = gid(0x60),
                   .flow_label = 0xABCDE,
                   .packet_rate = 0x3F,
                   .traffic_class = 0x77,
                   .hop_limit = 0x88,
                   .sl = 0xF,
                   .subnet_local = true,
                   .ack_timeout = 0x1F};
  EXPECT_EQ(data_of(lap, 12, 16), "12345608000000001111222240414243");
  EXPECT_EQ(data_of(lap, 54, 10), "6e6fabcde077883ff8f8");
  EXPECT_EQ(data_of(Apr{.info_length = 2, .status = 1}, 8, 4), "02010000");
  EXPECT_EQ(
      data_of(SidrReq{.request_id = 1, .pkey = 0x8001, .service_id = 0x1122334455667788}, 0, 16),
      "00000001800100001122334455667788");
  EXPECT_EQ(data_of(SidrRep{.request_id = 1,
                            .status = SidrStatus::kNoQp,
                            .info_length = 4,
                            .qp = {0x0A0B0C},
                            .service_id = 0x1122334455667788,
                            .qkey = 0x99AABBCC},
                    0, 24),
            "00000001030400000a0b0c00112233445566778899aabbcc");
}

TEST(Cm, RefusesWithAReason) {
  const Mad good = mad_of(CmAttribute::kReq, std::byte{0});
  const auto changed = [&](std::size_t at, unsigned value) {
    Mad mad = good;
    mad[at] = static_cast<std::byte>(value);
    return parse_cm(mad).error();
  };
  for (std::size_t length = 0; length < kMadBytes; ++length) {
    EXPECT_EQ(parse_cm(std::span(good).first(length)).error(), MalformedMad::kLength);
  }
  EXPECT_EQ(changed(0, 2), MalformedMad::kVersion);
  EXPECT_EQ(changed(1, 3), MalformedMad::kClass);
  EXPECT_EQ(changed(2, 1), MalformedMad::kVersion);
  EXPECT_EQ(changed(3, 1), MalformedMad::kMethod);
  EXPECT_EQ(changed(17, 0x0F), MalformedMad::kAttribute);
  EXPECT_EQ(changed(17, 0x1B), MalformedMad::kAttribute);
  EXPECT_EQ(changed(16, 1), MalformedMad::kAttribute);
}

TEST(IpCm, SaysWhoConnects) {
  std::array<std::byte, IpCm::kBytes> bytes;
  const IpCm v4{.source_port = 0x1234,
                .source = gid_of(std::array<std::uint8_t, 4>{10, 1, 2, 3}),
                .destination = gid_of(std::array<std::uint8_t, 4>{10, 1, 2, 4})};
  encode_ip_cm(v4, bytes);
  EXPECT_EQ(bytes[1], std::byte{0x40});
  EXPECT_EQ(bytes[14], std::byte{0}) << "not IPv4-mapped: twelve zeros";
  EXPECT_EQ(parse_ip_cm(bytes), v4);
  const IpCm v6{.source_port = 9, .source = gid(0x20), .destination = gid(0x80)};
  encode_ip_cm(v6, bytes);
  EXPECT_EQ(bytes[1], std::byte{0x60});
  EXPECT_EQ(parse_ip_cm(bytes), v6);

  EXPECT_FALSE(parse_ip_cm(std::span(bytes).first(35)));
  bytes[0] = std::byte{0x10};
  EXPECT_FALSE(parse_ip_cm(bytes)) << "version 1.0";
  bytes[0] = std::byte{0};
  bytes[1] = std::byte{0x50};
  EXPECT_FALSE(parse_ip_cm(bytes)) << "IP version 5";
  bytes[1] = std::byte{0x60};
  std::memcpy(bytes.data() + 20, v4.source.bytes, 16);
  EXPECT_FALSE(parse_ip_cm(bytes)) << "IPv4-mapped in IPv6";
}

TEST(IpCm, ServiceIdsAreThoseOfTheAnnex) {
  EXPECT_EQ(service_id_of(6, 0x4A39), 0x0000000001064A39u);
  EXPECT_EQ(service_id_of(17, 1), 0x0000000001110001u);
}

TEST(MadField, ReadsAndWritesAnyWidthAtAnyBit) {
  for (unsigned bit = 0; bit < 8; ++bit) {
    for (unsigned width = 1; width + bit <= 64; ++width) {
      const MadField field{3, static_cast<std::uint8_t>(bit), static_cast<std::uint8_t>(width)};
      const std::uint64_t mask = ~std::uint64_t{0} >> (64 - width);
      MadData data{};
      set(data, field, 0xA5A5A5A5A5A5A5A5);
      ASSERT_EQ(get(data, field), 0xA5A5A5A5A5A5A5A5 & mask);
      data.fill(std::byte{0xFF});
      set(data, field, 0);
      ASSERT_EQ(get(data, field), 0u);
      int zeros = 0;
      for (const std::byte byte : data)
        zeros += 8 - __builtin_popcount(static_cast<unsigned>(byte));
      ASSERT_EQ(zeros, static_cast<int>(width)) << "a neighbour was touched";
    }
  }
}

}  // namespace
}  // namespace verbena::wire
