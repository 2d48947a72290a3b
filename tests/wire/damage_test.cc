// SPDX-License-Identifier: MIT
// Every truncation and every single-bit flip of the packets that the kernel's rxe sent: nothing is
// read outside, each is refused with a reason, and the ICRC catches all that it covers.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <set>
#include <string>

#include "capture.h"
#include "wire/icrc.h"
#include "wire/ip.h"
#include "wire/packet.h"

namespace verbena::wire {
namespace {

// Bytes in memory of exactly their size, so that a sanitizer sees a read behind them.
class Exact {
 public:
  explicit Exact(std::span<const std::byte> bytes)
      : size_(bytes.size()), bytes_(new std::byte[bytes.size()]) {
    if (size_ != 0) std::memcpy(bytes_.get(), bytes.data(), size_);
  }
  std::span<std::byte> span() const { return {bytes_.get(), size_}; }

 private:
  std::size_t size_;
  std::unique_ptr<std::byte[]> bytes_;
};

// What a port does with a datagram: the reason for which it is dropped, or none.
std::optional<Malformed> drop_reason(FlowIcrc& icrc, std::span<const std::byte> datagram,
                                     std::uint16_t id) {
  const auto verified = icrc.verify(datagram, id);
  if (!verified) return verified.error();
  const auto packet = parse(datagram);
  if (!packet) return packet.error();
  return {};
}

template <class Look>
void damage_each(Look look) {
  int packets = 0;
  for (const Capture& capture : captures()) {
    for (const auto& bytes : capture.ip_packets) {
      const auto ip = parse_ip(bytes);
      if (!ip) continue;
      SCOPED_TRACE(capture.name);
      look(std::span(bytes), *ip);
      ++packets;
    }
  }
  EXPECT_GT(packets, 200);
}

TEST(Damage, EveryTruncationOfADatagramIsRefused) {
  MalformedCounters counters;
  damage_each([&](std::span<const std::byte>, const IpPacket& ip) {
    FlowIcrc icrc(ip.head.flow);
    for (std::size_t length = 0; length < ip.datagram.size(); ++length) {
      const Exact cut(ip.datagram.first(length));
      const auto reason = drop_reason(icrc, cut.span(), ip.head.id);
      ASSERT_TRUE(reason) << "cut to " << length;
      counters.count(*reason);
      // Without the ICRC in front: parse alone stays inside, too, whatever it says.
      if (const auto packet = parse(cut.span())) {
        EXPECT_LE(packet->payload.size(), length);
      } else {
        counters.count(packet.error());
      }
    }
  });
  EXPECT_GT(counters[Malformed::kTruncated], 0u);
  EXPECT_GT(counters[Malformed::kIcrc], 0u);
  EXPECT_GT(counters[Malformed::kUnaligned], 0u);
  EXPECT_GT(counters[Malformed::kPayloadSize], 0u);
}

TEST(Damage, EveryTruncationOfAnIpPacketIsRefused) {
  damage_each([](std::span<const std::byte> bytes, const IpPacket&) {
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      const Exact cut(bytes.first(length));
      const auto ip = parse_ip(cut.span());
      ASSERT_FALSE(ip) << "cut to " << length;
      EXPECT_EQ(ip.error(), Malformed::kIpHead);
    }
  });
}

TEST(Damage, EveryFlipInADatagramIsCaughtExceptInTheCongestionByte) {
  damage_each([](std::span<const std::byte>, const IpPacket& ip) {
    FlowIcrc icrc(ip.head.flow);
    const Exact damaged(ip.datagram);
    for (std::size_t bit = 0; bit < 8 * ip.datagram.size(); ++bit) {
      std::byte& byte = damaged.span()[bit / 8];
      const std::byte flip{static_cast<std::uint8_t>(1u << bit % 8)};
      byte ^= flip;
      const auto verified = icrc.verify(damaged.span(), ip.head.id);
      constexpr std::size_t kCongestionByte = 4;  // FECN, BECN and reserved bits of the BTH
      if (bit / 8 == kCongestionByte) {
        ASSERT_TRUE(verified && verified->is_guess);
        EXPECT_TRUE(parse(damaged.span())) << "a mark or a reserved bit is no reason to drop";
      } else {
        ASSERT_FALSE(verified && verified->is_guess) << "bit " << bit;
      }
      byte ^= flip;
    }
  });
}

// The packet is what a socket shows: the identification is not known, the guess is wrong. Then the
// solution for it may explain a flip, one time in 2^16.
TEST(Damage, FlipsWithTheIdentificationHiddenPassOnlyByAccident) {
  std::uint64_t flips = 0;
  std::uint64_t passed = 0;
  damage_each([&](std::span<const std::byte>, const IpPacket& ip) {
    if (!is_ipv4(ip.head.flow)) return;
    FlowIcrc icrc(ip.head.flow);
    const Exact damaged(ip.datagram);
    for (std::size_t bit = 0; bit < 8 * ip.datagram.size(); ++bit) {
      std::byte& byte = damaged.span()[bit / 8];
      const std::byte flip{static_cast<std::uint8_t>(1u << bit % 8)};
      byte ^= flip;
      if (bit / 8 != 4) {
        ++flips;
        passed += icrc.verify(damaged.span(), static_cast<std::uint16_t>(ip.head.id + 1)) ? 1 : 0;
      }
      byte ^= flip;
    }
  });
  std::printf("%llu of %llu flips explained by another identification\n",
              static_cast<unsigned long long>(passed), static_cast<unsigned long long>(flips));
  EXPECT_GT(flips, 500'000u);
  EXPECT_LT(passed, flips / 10'000);
}

// parse on its own, as if the ICRC had been right: every flip is refused for a reason or gives a
// packet that keeps the promises of packet.h.
TEST(Damage, EveryFlipInADatagramIsClassifiedWithoutItsIcrc) {
  std::set<std::string> reasons;
  damage_each([&](std::span<const std::byte>, const IpPacket& ip) {
    const Exact damaged(ip.datagram);
    const std::size_t headers = std::min<std::size_t>(ip.datagram.size(), kHeadersMax);
    for (std::size_t bit = 0; bit < 8 * headers; ++bit) {
      std::byte& byte = damaged.span()[bit / 8];
      const std::byte flip{static_cast<std::uint8_t>(1u << bit % 8)};
      byte ^= flip;
      const auto packet = parse(damaged.span());
      if (packet) {
        ASSERT_EQ(packet->shape->header_bytes + packet->payload.size() + packet->pad + kIcrcBytes,
                  ip.datagram.size());
        ASSERT_LE(packet->payload.size(), kPathMtuMax);
      } else {
        reasons.insert(name_of(packet.error()));
      }
      byte ^= flip;
    }
  });
  // All but those of IP, of the ICRC, and of a length that is no multiple of 4.
  const std::set<std::string> expected = {
      "transport version", "reserved opcode", "pad count",  "payload where none belongs",
      "no payload",        "payload size",    "DMA length", "AETH syndrome",
      "FLUSH type",        "truncated"};
  EXPECT_EQ(reasons, expected);
}

// Bits of the heads that routers may change, so that neither the ICRC nor a checksum covers them.
bool is_masked(std::size_t bit, bool is_v4) {
  const std::size_t byte = bit / 8;
  const std::size_t udp = is_v4 ? kIpv4Bytes : kIpv6Bytes;
  if (byte == udp + 6 || byte == udp + 7) return true;  // the UDP checksum
  if (is_v4) return false;                              // its own checksum covers the rest
  if (byte == 0) return bit % 8 < 4;                    // the traffic class begins here
  return byte <= 3 || byte == 7;                        // it and the flow label; the hop limit
}

TEST(Damage, EveryFlipInAnIpHeadIsCaughtExceptInMaskedFields) {
  damage_each([](std::span<const std::byte> bytes, const IpPacket& original) {
    const bool is_v4 = is_ipv4(original.head.flow);
    const Exact damaged(bytes);
    for (std::size_t bit = 0; bit < 8 * ip_bytes(original.head.flow); ++bit) {
      std::byte& byte = damaged.span()[bit / 8];
      const std::byte flip{static_cast<std::uint8_t>(1u << bit % 8)};
      byte ^= flip;
      const auto ip = parse_ip(damaged.span());
      bool is_good = false;
      if (ip) {
        FlowIcrc icrc(ip->head.flow);
        const auto verified = icrc.verify(ip->datagram, ip->head.id);
        is_good = verified && verified->is_guess;
      }
      ASSERT_EQ(is_good, is_masked(bit, is_v4)) << "bit " << bit;
      byte ^= flip;
    }
  });
}

}  // namespace
}  // namespace verbena::wire
