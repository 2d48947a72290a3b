// SPDX-License-Identifier: MIT
#include "raw/segments.h"

#include <gtest/gtest.h>

#include "raw/test_frames.h"

namespace verbena::raw {
namespace {

constexpr std::size_t kIp = kEthernetBytes;

std::uint32_t number(const Bytes& frame, std::size_t at, unsigned size) {
  std::uint32_t value = 0;
  for (unsigned i = 0; i < size; ++i)
    value = value << 8 | std::to_integer<std::uint32_t>(frame[at + i]);
  return value;
}

// RFC 1071 once more, in the plainest way: 0xFFFF where the sum with the checksum is right.
std::uint32_t plain_sum(const Bytes& frame, std::size_t begin, std::size_t end,
                        std::uint32_t sum = 0) {
  for (std::size_t i = begin; i < end; ++i)
    sum += std::to_integer<std::uint32_t>(frame[i]) << ((i - begin) % 2 == 0 ? 8 : 0);
  while (sum >> 16)
    sum = (sum & 0xFFFF) + (sum >> 16);
  return sum;
}

bool is_transport_right(const Bytes& frame, bool is_ipv6) {
  const std::size_t at = kIp + (is_ipv6 ? 40 : 20);
  const std::size_t addresses = kIp + (is_ipv6 ? 8 : 12);
  const std::uint32_t protocol = number(frame, kIp + (is_ipv6 ? 6 : 9), 1);
  std::uint32_t pseudo = plain_sum(frame, addresses, at) + protocol;
  pseudo += static_cast<std::uint32_t>(frame.size() - at);
  return plain_sum(frame, at, frame.size(), pseudo) == 0xFFFF;
}

Bytes tcp_frame(bool is_ipv6, std::size_t payload, std::uint8_t flags) {
  Bytes frame = ethernet(is_ipv6 ? kEtherIpv6 : kEtherIpv4);
  if (is_ipv6) {
    append_ipv6(frame, 6, 24 + payload);
  } else {
    append_ipv4(frame, {.protocol = 6}, 24 + payload);
  }
  append_ports(frame, 80, 81);
  append(frame, wire::be32(0xFFFFFF00));  // wraps on the way
  append(frame, wire::be32(7));
  const std::uint8_t offset_and_flags[2] = {6 << 4, flags};
  append(frame, offset_and_flags);
  frame.resize(frame.size() + 6 + 4);  // window, checksum, urgent pointer; options
  for (std::size_t i = 0; i < payload; ++i)
    frame.push_back(static_cast<std::byte>(i * 7));
  return frame;
}

std::vector<Bytes> all(Segments& segments) {
  std::vector<Bytes> found;
  std::vector<std::byte> room(70'000);
  for (;;) {
    const auto next = segments.next(room);
    if (next.empty()) return found;
    found.emplace_back(next.begin(), next.end());
  }
}

TEST(Segments, AreTheFramesOfAStream) {
  for (const bool is_ipv6 : {false, true}) {
    SCOPED_TRACE(is_ipv6);
    constexpr std::uint8_t kFinPushAckReduced = 0x99;
    Bytes frame = tcp_frame(is_ipv6, 2500, kFinPushAckReduced);
    const std::size_t transport = kIp + (is_ipv6 ? 40 : 20);
    const std::size_t head = transport + 24;
    const Bytes payload(frame.begin() + static_cast<std::ptrdiff_t>(head), frame.end());
    Segments segments(frame, {.needs_checksum = true,
                              .transport_at = static_cast<std::uint32_t>(transport),
                              .checksum_at = 16,
                              .joined = Undone::Joined::kTcp,
                              .segment = 1000});
    const std::vector<Bytes> found = all(segments);
    ASSERT_EQ(found.size(), 3u);
    Bytes together;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const Bytes& each = found[i];
      const bool is_last = i == 2;
      EXPECT_EQ(each.size(), head + (is_last ? 500 : 1000));
      EXPECT_EQ(number(each, transport + 4, 4), static_cast<std::uint32_t>(0xFFFFFF00 + i * 1000));
      const std::uint32_t flags = number(each, transport + 13, 1);
      EXPECT_EQ(flags, 0x10u | (is_last ? 0x09u : 0u) | (i == 0 ? 0x80u : 0u));
      EXPECT_TRUE(is_transport_right(each, is_ipv6));
      if (is_ipv6) {
        EXPECT_EQ(number(each, kIp + 4, 2), each.size() - transport);
      } else {
        EXPECT_EQ(number(each, kIp + 2, 2), each.size() - kIp);
        EXPECT_EQ(number(each, kIp + 4, 2), i) << "the identification counts";
        EXPECT_EQ(plain_sum(each, kIp, kIp + 20), 0xFFFFu);
      }
      together.insert(together.end(), each.begin() + static_cast<std::ptrdiff_t>(head), each.end());
    }
    EXPECT_EQ(together, payload);
  }
}

TEST(Segments, AreTheDatagramsOfATrain) {
  Bytes frame = udp4(80, 81, 1500);
  Segments segments(frame, {.needs_checksum = true,
                            .transport_at = kIp + 20,
                            .checksum_at = 6,
                            .joined = Undone::Joined::kUdp,
                            .segment = 600});
  const std::vector<Bytes> found = all(segments);
  ASSERT_EQ(found.size(), 3u);
  for (const Bytes& each : found) {
    EXPECT_EQ(number(each, kIp + 24, 2), each.size() - kIp - 20) << "its own length";
    EXPECT_TRUE(is_transport_right(each, false));
  }
  EXPECT_EQ(found[2].size(), kIp + 28 + 300);
}

TEST(Segments, ComeAsTheyAreOtherwise) {
  Bytes frame = udp4(80, 81, 100);
  const Bytes before = frame;
  Segments one(frame, {});
  EXPECT_EQ(all(one), std::vector<Bytes>{before});
}

TEST(Segments, FinishAChecksum) {
  Bytes frame = udp4(80, 81, 101);
  std::uint32_t pseudo = plain_sum(frame, kIp + 12, kIp + 20, 17 + 109);
  frame[kIp + 26] = static_cast<std::byte>(pseudo >> 8);
  frame[kIp + 27] = static_cast<std::byte>(pseudo);
  Segments one(frame, {.needs_checksum = true, .transport_at = kIp + 20, .checksum_at = 6});
  const std::vector<Bytes> found = all(one);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_TRUE(is_transport_right(found[0], false));
}

// Numbers that make no sense lead nowhere outside the frame: address sanitizer watches.
// Found by the fuzzer: one byte behind the frame was looked at.
TEST(Segments, NeedMoreThanAnEthernetHeader) {
  Bytes frame = ethernet(kEtherIpv6);
  ASSERT_EQ(frame.size(), kIp);
  frame.shrink_to_fit();
  Segments segments(frame, {.needs_checksum = true,
                            .transport_at = kIp + 40,
                            .joined = Undone::Joined::kTcp,
                            .segment = 100});
  EXPECT_EQ(all(segments), std::vector<Bytes>{frame});
}

TEST(Segments, SurviveWrongDescriptions) {
  for (const std::uint32_t at : {0u, 13u, 14u, 33u, 34u, 100u, 141u, 142u, 65'535u}) {
    for (const std::uint32_t checksum : {0u, 16u, 65'535u}) {
      for (const auto joined : {Undone::Joined::kTcp, Undone::Joined::kUdp}) {
        for (const std::uint32_t segment : {0u, 1u, 65'535u}) {
          Bytes frame = udp4(80, 81, 100);
          frame.shrink_to_fit();
          Segments segments(frame, {.needs_checksum = true,
                                    .transport_at = at,
                                    .checksum_at = checksum,
                                    .joined = joined,
                                    .segment = segment});
          EXPECT_FALSE(all(segments).empty());
        }
      }
    }
  }
}

}  // namespace
}  // namespace verbena::raw
