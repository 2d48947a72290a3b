// SPDX-License-Identifier: MIT
#include "wire/icrc.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <vector>

#include "base/crc32.h"
#include "base/random.h"
#include "base/test_seed.h"
#include "wire/datagram.h"
#include "wire/headers.h"
#include "wire/packet.h"

namespace verbena::wire {
namespace {

constexpr Flow kIpv4Flow{.source = gid_of(std::array<std::uint8_t, 4>{10, 0, 0, 1}),
                         .destination = gid_of(std::array<std::uint8_t, 4>{10, 0, 0, 2}),
                         .source_port = 0xC000};
constexpr Flow kIpv6Flow{
    .source = gid_of(std::array<std::uint8_t, 16>{0xFD, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}),
    .destination = gid_of(std::array<std::uint8_t, 16>{0xFD, 3, 2, 1}),
    .source_port = 0xC000};

std::vector<std::byte> send_only(const Flow& flow, std::size_t payload, std::uint16_t id) {
  std::vector<std::byte> room(kDatagramMax);
  const Head head{.opcode = Opcode::of(Service::kRc, Code::kSendOnly), .psn = Psn(7)};
  DatagramBuilder builder(room, head, payload);
  unsigned value = 0;
  for (std::byte& byte : builder.payload())
    byte = static_cast<std::byte>(value++ * 7);
  FlowIcrc icrc(flow);
  room.resize(builder.finish(icrc, id));
  return room;
}

TEST(Icrc, FindsEveryIdentification) {
  const auto datagram = send_only(kIpv4Flow, 101, 0);
  FlowIcrc sender(kIpv4Flow);
  FlowIcrc receiver(kIpv4Flow);
  auto sent = datagram;
  const auto covered = std::span(sent).first(sent.size() - kIcrcBytes);
  for (std::uint32_t id = 0; id <= 0xFFFF; ++id) {
    store_icrc(sender.compute(covered, static_cast<std::uint16_t>(id)),
               std::span(sent).last<kIcrcBytes>());
    const auto verified = receiver.verify(sent, 0);
    ASSERT_TRUE(verified) << id;
    ASSERT_EQ(verified->id, id);
    ASSERT_EQ(verified->is_guess, id == 0);
  }
}

TEST(Icrc, FindsTheIdentificationForEveryPayloadLength) {
  FlowIcrc receiver(kIpv4Flow);
  for (std::size_t payload = 0; payload <= kPathMtuMax; ++payload) {
    const auto verified = receiver.verify(send_only(kIpv4Flow, payload, 0xBEEF), 0x1234);
    ASSERT_TRUE(verified) << payload;
    ASSERT_EQ(verified->id, 0xBEEF);
  }
}

TEST(Icrc, RefusesAFragmentThatLooksLikeAnotherIdentification) {
  auto datagram = send_only(kIpv4Flow, 64, 0);
  // By the header's formula: as if DF had not been set. Only the identification may be solved for.
  constexpr std::uint32_t kDontFragmentBit = 1u << (16 + 6);
  const std::size_t behind = 12 + kUdpBytes + datagram.size() - kIcrcBytes;
  std::uint32_t difference = kDontFragmentBit;
  for (std::size_t bit = 0; bit < 8 * (behind + 4); ++bit) {
    difference = crc::multiply(difference, crc::kOne >> 1);
  }
  store_icrc(received_icrc(datagram) ^ difference, std::span(datagram).last<kIcrcBytes>());
  FlowIcrc receiver(kIpv4Flow);
  EXPECT_FALSE(receiver.verify(datagram, 0));
}

TEST(Icrc, Ipv6HasNoIdentification) {
  const auto datagram = send_only(kIpv6Flow, 64, 0);
  EXPECT_EQ(send_only(kIpv6Flow, 64, 99), datagram);
  FlowIcrc receiver(kIpv6Flow);
  const auto verified = receiver.verify(datagram, 42);
  ASSERT_TRUE(verified);
  EXPECT_TRUE(verified->is_guess);
  auto damaged = datagram;
  damaged[20] ^= std::byte{1};
  EXPECT_EQ(receiver.verify(damaged, 0).error(), Malformed::kIcrc);
}

TEST(Icrc, CoversAddressesAndPorts) {
  const auto datagram = send_only(kIpv4Flow, 8, 0);
  std::vector<Flow> others(4, kIpv4Flow);
  others[0].source.bytes[15] ^= 1;
  others[1].destination.bytes[15] ^= 1;
  others[2].source_port ^= 1;
  others[3].destination_port ^= 1;
  for (const Flow& other : others) {
    FlowIcrc receiver(other);
    EXPECT_FALSE(receiver.verify(datagram, 0));
  }
}

TEST(Icrc, DoesNotDependOnWhatWasComputedBefore) {
  SeededRandom random(test_seed());
  for (const Flow& flow : {kIpv4Flow, kIpv6Flow}) {
    FlowIcrc icrc(flow);
    for (int round = 0; round < 2000; ++round) {
      const auto id = static_cast<std::uint16_t>(random.below(round % 2 == 0 ? 100 : 65536));
      const auto datagram = send_only(flow, random.below(3) * 64, id);
      const auto covered = std::span(datagram).first(datagram.size() - kIcrcBytes);
      ASSERT_EQ(icrc.compute(covered, id), received_icrc(datagram)) << id;
    }
  }
}

TEST(Icrc, LeavesOutWhatRoutersAndPeersMarkOnTheWay) {
  auto datagram = send_only(kIpv4Flow, 64, 0);
  datagram[Bth::kCongestionOffset] = std::byte{0xC0};
  FlowIcrc receiver(kIpv4Flow);
  EXPECT_TRUE(receiver.verify(datagram, 0));
}

TEST(Icrc, BeginAndFoldIsTheSameAsCompute) {
  const auto datagram = send_only(kIpv4Flow, 300, 5);
  const std::span bytes(datagram);
  FlowIcrc icrc(kIpv4Flow);
  const CrcBlock begun = icrc.begin(bytes.first<kBthBytes>(), bytes.size(), 5);
  const auto rest = bytes.first(bytes.size() - kIcrcBytes).subspan(kBthBytes);
  EXPECT_EQ(crc_end(crc_fold(begun, rest)), received_icrc(bytes));
}

TEST(Icrc, OfPacketsThatFollowEachOther) {
  // With an extension header, of an extended connection.
  const Head head{.opcode = Opcode::of(Service::kXrc, Code::kWriteMiddle),
                  .dest_qp = {.value = 0x1234},
                  .psn = Psn(0xFFFFFE),
                  .srq_number = 0x5678};
  constexpr std::size_t kPayload = 256;
  const std::size_t size = datagram_bytes(head.opcode, kPayload);
  const std::vector<std::byte> payload(kPayload, std::byte{0x5A});
  for (const Flow& flow : {kIpv4Flow, kIpv6Flow}) {
    FlowIcrc icrc(flow);
    std::vector<std::byte> all(4 * size);
    const auto room = [&](std::size_t i) { return std::span(all).subspan(i * size, size); };
    DatagramBuilder builder(room(0), head, kPayload);
    for (std::uint16_t i = 0; i < 4; ++i) {
      if (i != 0) builder.go_on(room(i));
      const CrcBlock begun = builder.begin(icrc, i);
      std::copy(payload.begin(), payload.end(), builder.payload().begin());
      DatagramBuilder::finish(room(i), crc_fold(begun, payload));
    }
    for (std::uint16_t i = 0; i < 4; ++i) {
      EXPECT_TRUE(FlowIcrc(flow).verify(room(i), i)->is_guess);
      const auto packet = parse(room(i));
      ASSERT_TRUE(packet);
      EXPECT_EQ(packet->psn, head.psn + i);
      EXPECT_EQ(packet->dest_qp, head.dest_qp);
      EXPECT_EQ(packet->srq_number, head.srq_number);
      EXPECT_TRUE(std::equal(payload.begin(), payload.end(), packet->payload.begin()));
    }
  }
}

TEST(Icrc, VerifiesDatagramsThatLieBehindEachOther) {
  for (const Flow& flow : {kIpv4Flow, kIpv6Flow}) {
    constexpr std::size_t kPayload = 256;
    std::vector<std::byte> all;
    for (std::uint16_t id = 0; id < 4; ++id) {
      const auto one = send_only(flow, kPayload, static_cast<std::uint16_t>(7 + id));
      all.insert(all.end(), one.begin(), one.end());
    }
    const std::size_t bytes = all.size() / 4;
    all[2 * bytes + kBthBytes + 100] ^= std::byte{1};
    FlowIcrc icrc(flow);
    Unverified unverified(icrc, all, bytes, 7);
    for (std::size_t i = 0; i < 4; ++i) {
      ASSERT_EQ(unverified.verify(i), i != 2) << i;
      if (i == 2 || flow == kIpv6Flow) continue;
      EXPECT_EQ(unverified.verified().id, 7 + i);
      EXPECT_TRUE(unverified.verified().is_guess);
    }
    Unverified guessed_wrong(icrc, all, bytes, 1000);
    ASSERT_TRUE(guessed_wrong.verify(1));
    if (flow == kIpv4Flow) {
      EXPECT_EQ(guessed_wrong.verified().id, 8);
      EXPECT_FALSE(guessed_wrong.verified().is_guess);
      ASSERT_TRUE(guessed_wrong.verify(3));
      EXPECT_EQ(guessed_wrong.verified().id, 10);
      EXPECT_TRUE(guessed_wrong.verified().is_guess) << "it is known from the one before";
    }
  }
}

TEST(Icrc, RefusesWhatIsTooShortOrTooLong) {
  FlowIcrc icrc(kIpv4Flow);
  const std::vector<std::byte> bytes(70'000);
  for (std::size_t length = 0; length < kBthBytes + kIcrcBytes; ++length) {
    EXPECT_EQ(icrc.verify(std::span(bytes).first(length), 0).error(), Malformed::kTruncated);
  }
  EXPECT_EQ(icrc.verify(std::span(bytes).first(65'507), 0).error(), Malformed::kIcrc);
  EXPECT_EQ(icrc.verify(std::span(bytes).first(65'508), 0).error(), Malformed::kIpHead);
  EXPECT_EQ(icrc.verify(bytes, 0).error(), Malformed::kIpHead);
}

// What icrc.h says of its strength: of random damage about one packet in 2^16 passes.
TEST(Icrc, RandomDamagePassesOnceIn65536) {
  SeededRandom random(test_seed());
  auto datagram = send_only(kIpv4Flow, 16, 0);
  FlowIcrc icrc(kIpv4Flow);
  constexpr int kRounds = 1 << 20;
  int passed = 0;
  for (int round = 0; round < kRounds; ++round) {
    store_icrc(static_cast<std::uint32_t>(random.next() >> 32),
               std::span(datagram).last<kIcrcBytes>());
    passed += icrc.verify(datagram, 0) ? 1 : 0;
  }
  // 16 expected; more than 60 comes up less than once in 10^15 runs.
  EXPECT_LT(passed, 60);
}

}  // namespace
}  // namespace verbena::wire
