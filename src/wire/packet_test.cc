// SPDX-License-Identifier: MIT
#include "wire/packet.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <vector>

#include "base/random.h"
#include "base/test_seed.h"
#include "wire/datagram.h"
#include "wire/headers.h"

namespace verbena::wire {
namespace {

using Bytes = std::vector<std::byte>;

Bytes hex(std::initializer_list<unsigned> values) {
  Bytes bytes;
  for (const unsigned value : values)
    bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

// Head, payload of counting bytes, pad, and four bytes in place of the ICRC.
Bytes packet_of(const Head& head, std::size_t payload_bytes) {
  Bytes bytes(kHeadersMax);
  Head padded = head;
  padded.pad = pad_of(payload_bytes);
  bytes.resize(encode(padded, bytes));
  for (std::size_t i = 0; i < payload_bytes; ++i)
    bytes.push_back(static_cast<std::byte>(i));
  bytes.resize(bytes.size() + padded.pad + kIcrcBytes);
  return bytes;
}

Head head_of(Service service, Code code) {
  Head head;
  head.opcode = Opcode::of(service, code);
  head.dest_qp = {0x123456};
  head.psn = Psn(0xABCDEF);
  return head;
}

std::optional<Malformed> refusal(const Bytes& bytes) {
  const auto packet = parse(bytes);
  if (packet) return {};
  return packet.error();
}

// The layouts that no capture of ours holds, byte by byte.

TEST(Packet, FlushHasPlacementThenRange) {
  Head head = head_of(Service::kRc, Code::kFlush);
  head.ack_request = true;
  head.placement = {.global_visibility = true, .persistence = true};
  head.selectivity = Selectivity::kRegion;
  head.remote_address = 0x1122334455667788;
  head.remote_key = {0x99AABBCC};
  head.dma_length = 0x1000;
  const Bytes bytes =
      hex({0x1C, 0x40, 0xFF, 0xFF, 0x00, 0x12, 0x34, 0x56, 0x80, 0xAB, 0xCD, 0xEF,  // BTH
           0x00, 0x00, 0x00, 0x13,                                                  // FETH
           0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xAA, 0xBB, 0xCC,  // RETH
           0x00, 0x00, 0x10, 0x00,                                                  //
           0x00, 0x00, 0x00, 0x00});                                                // ICRC
  EXPECT_EQ(packet_of(head, 0), bytes);
  const auto packet = parse(bytes);
  ASSERT_TRUE(packet);
  EXPECT_EQ(static_cast<const Head&>(*packet), head);
}

TEST(Packet, AtomicWriteHasEightBytesOfPayload) {
  Head head = head_of(Service::kXrc, Code::kAtomicWrite);
  head.srq_number = 0x010203;
  head.remote_address = 8;
  head.remote_key = {9};
  head.dma_length = 8;
  const Bytes bytes =
      hex({0xBD, 0x40, 0xFF, 0xFF, 0x00, 0x12, 0x34, 0x56, 0x00, 0xAB, 0xCD, 0xEF,  // BTH
           0x00, 0x01, 0x02, 0x03,                                                  // XRCETH
           0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x08, 0x00, 0x00, 0x00, 0x09,  // RETH
           0x00, 0x00, 0x00, 0x08,                                                  //
           0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07,                          // payload
           0x00, 0x00, 0x00, 0x00});                                                // ICRC
  EXPECT_EQ(packet_of(head, 8), bytes);
  EXPECT_TRUE(parse(bytes));
  EXPECT_EQ(refusal(packet_of(head, 4)), Malformed::kPayloadSize);
  EXPECT_EQ(refusal(packet_of(head, 7)), Malformed::kPayloadSize);
  EXPECT_EQ(refusal(packet_of(head, 16)), Malformed::kPayloadSize);
  EXPECT_EQ(refusal(packet_of(head, 0)), Malformed::kNoPayload);
  head.dma_length = 4;
  EXPECT_EQ(refusal(packet_of(head, 8)), Malformed::kDmaLength);
}

TEST(Packet, CongestionNotificationIsSixteenZerosAndBecn) {
  Head head;
  head.opcode = kCnp;
  head.becn = true;
  head.dest_qp = {0x123456};
  Bytes bytes = hex({0x81, 0x40, 0xFF, 0xFF, 0x40, 0x12, 0x34, 0x56, 0x00, 0x00, 0x00, 0x00});
  bytes.resize(12 + 16 + 4);
  EXPECT_EQ(packet_of(head, 0), bytes);
  const auto packet = parse(bytes);
  ASSERT_TRUE(packet);
  EXPECT_TRUE(packet->becn);
  EXPECT_EQ(packet->shape->kind, Kind::kCongestionNotification);
}

TEST(Packet, XrcAtomicsAreTheLongestHead) {
  Head head = head_of(Service::kXrc, Code::kCompareSwap);
  head.srq_number = 0xFEDCBA;
  head.remote_address = 0x0102030405060708;
  head.remote_key = {0x0A0B0C0D};
  head.swap_or_add = 0x1112131415161718;
  head.compare = 0x2122232425262728;
  const Bytes bytes =
      hex({0xB3, 0x40, 0xFF, 0xFF, 0x00, 0x12, 0x34, 0x56, 0x00, 0xAB, 0xCD, 0xEF,  // BTH
           0x00, 0xFE, 0xDC, 0xBA,                                                  // XRCETH
           0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08,                          // address
           0x0A, 0x0B, 0x0C, 0x0D,                                                  // key
           0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18,                          // swap
           0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28,                          // compare
           0x00, 0x00, 0x00, 0x00});                                                // ICRC
  EXPECT_EQ(packet_of(head, 0), bytes);
  EXPECT_EQ(bytes.size(), kHeadersMax + kIcrcBytes);
  const auto packet = parse(bytes);
  ASSERT_TRUE(packet);
  EXPECT_EQ(static_cast<const Head&>(*packet), head);
}

TEST(Packet, UnknownOpcodesAreRefusedAndCanBeAnswered) {
  for (const unsigned opcode : {0x15u, 0x18u, 0x1Bu, 0x1Eu, 0x2Cu, 0x40u, 0x60u, 0x80u, 0xE0u}) {
    Bytes bytes = packet_of(head_of(Service::kRc, Code::kSendOnly), 64);
    bytes[0] = static_cast<std::byte>(opcode);
    EXPECT_EQ(refusal(bytes), Malformed::kOpcode) << opcode;
    EXPECT_TRUE(deserves_nak(Malformed::kOpcode));
    const auto bth = parse_bth(bytes);
    ASSERT_TRUE(bth);
    EXPECT_EQ(bth->psn, Psn(0xABCDEF));
    EXPECT_EQ(destination_of(bytes), QpNum{0x123456});
  }
}

TEST(Packet, FirstAndMiddleFillAPathMtu) {
  for (const Code code : {Code::kSendFirst, Code::kSendMiddle, Code::kReadResponseMiddle}) {
    const Head head = head_of(Service::kRc, code);
    for (const std::size_t mtu : {256, 512, 1024, 2048, 4096}) {
      EXPECT_FALSE(refusal(packet_of(head, mtu)));
      EXPECT_EQ(refusal(packet_of(head, mtu - 1)), Malformed::kPayloadSize);
      EXPECT_EQ(refusal(packet_of(head, mtu + 4)), Malformed::kPayloadSize);
    }
    EXPECT_EQ(refusal(packet_of(head, 128)), Malformed::kPayloadSize);
    EXPECT_EQ(refusal(packet_of(head, 8192)), Malformed::kPayloadSize);
    EXPECT_EQ(refusal(packet_of(head, 0)), Malformed::kNoPayload);
  }
}

TEST(Packet, LastHasPayloadAndOnlyMayHaveNone) {
  const Head last = head_of(Service::kRc, Code::kSendLast);
  const Head only = head_of(Service::kRc, Code::kSendOnly);
  EXPECT_EQ(refusal(packet_of(last, 0)), Malformed::kNoPayload);
  EXPECT_FALSE(refusal(packet_of(only, 0)));
  for (const std::size_t bytes : {1, 2, 3, 4, 5, 4095, 4096}) {
    for (const Head& head : {last, only}) {
      const Bytes sent = packet_of(head, bytes);
      const auto packet = parse(sent);
      ASSERT_TRUE(packet);
      EXPECT_EQ(packet->payload.size(), bytes);
      EXPECT_EQ(packet->payload.data(), sent.data() + 12);
    }
  }
  EXPECT_EQ(refusal(packet_of(last, 4097)), Malformed::kPayloadSize);
  EXPECT_EQ(refusal(packet_of(only, 4097)), Malformed::kPayloadSize);
}

TEST(Packet, WhatHasNoPayloadHasNone) {
  for (const Code code : {Code::kReadRequest, Code::kAcknowledge, Code::kAtomicAcknowledge,
                          Code::kCompareSwap, Code::kFetchAdd}) {
    EXPECT_FALSE(refusal(packet_of(head_of(Service::kRc, code), 0)));
    EXPECT_EQ(refusal(packet_of(head_of(Service::kRc, code), 4)), Malformed::kPayload);
  }
}

TEST(Packet, PadNeedsSomethingToPad) {
  Bytes bytes = packet_of(head_of(Service::kRc, Code::kSendOnly), 0);
  bytes[1] |= std::byte{3 << 4};
  EXPECT_EQ(refusal(bytes), Malformed::kPad);
  bytes = packet_of(head_of(Service::kRc, Code::kAcknowledge), 0);
  bytes[1] |= std::byte{1 << 4};
  EXPECT_EQ(refusal(bytes), Malformed::kPad);
}

TEST(Packet, DmaLengthFitsThePayload) {
  Head first = head_of(Service::kRc, Code::kWriteFirst);
  for (const std::uint32_t good : {1025u, 2000u, 1u << 31}) {
    first.dma_length = good;
    EXPECT_FALSE(refusal(packet_of(first, 1024))) << good;
  }
  for (const std::uint32_t bad : {0u, 1024u, (1u << 31) + 1, 0xFFFFFFFFu}) {
    first.dma_length = bad;
    EXPECT_EQ(refusal(packet_of(first, 1024)), Malformed::kDmaLength) << bad;
  }
  Head only = head_of(Service::kUc, Code::kWriteOnly);
  only.dma_length = 7;
  EXPECT_FALSE(refusal(packet_of(only, 7)));
  EXPECT_EQ(refusal(packet_of(only, 8)), Malformed::kDmaLength);
  Head read = head_of(Service::kRc, Code::kReadRequest);
  read.dma_length = (1u << 31) + 1;
  EXPECT_EQ(refusal(packet_of(read, 0)), Malformed::kDmaLength);
}

TEST(Packet, OnlyAnAcknowledgeRefuses) {
  Head ack = head_of(Service::kRc, Code::kAcknowledge);
  Head data = head_of(Service::kRc, Code::kReadResponseOnly);
  for (const Syndrome syndrome : {Syndrome::rnr_nak(1), Syndrome::nak(NakCode::kInvalidRequest)}) {
    ack.syndrome = data.syndrome = syndrome;
    EXPECT_FALSE(refusal(packet_of(ack, 0)));
    EXPECT_EQ(refusal(packet_of(data, 4)), Malformed::kSyndrome);
  }
  for (const unsigned reserved : {0x40u, 0x5Fu, 0x65u, 0x7Fu, 0x80u, 0xFFu}) {
    ack.syndrome = Syndrome(static_cast<std::uint8_t>(reserved));
    EXPECT_EQ(refusal(packet_of(ack, 0)), Malformed::kSyndrome);
  }
}

TEST(Packet, FlushSaysWhatToFlush) {
  const Bytes good = [] {
    Head head = head_of(Service::kRc, Code::kFlush);
    head.placement.persistence = true;
    return packet_of(head, 0);
  }();
  EXPECT_FALSE(refusal(good));
  for (const unsigned type : {0x00u, 0x10u, 0x04u, 0x0Fu, 0x22u, 0x32u}) {
    Bytes bytes = good;
    bytes[kBthBytes + 3] = static_cast<std::byte>(type);
    EXPECT_EQ(refusal(bytes), Malformed::kFlush) << type;
  }
}

TEST(Packet, ReservedBitsRefuseNothing) {
  Bytes bytes = packet_of(head_of(Service::kUd, Code::kSendOnly), 4);
  const auto plain = parse(bytes);
  bytes[4] |= std::byte{0x3F};   // beside FECN and BECN
  bytes[8] |= std::byte{0x7F};   // beside A
  bytes[16] |= std::byte{0xFF};  // in the DETH
  const auto packet = parse(bytes);
  ASSERT_TRUE(plain && packet);
  EXPECT_EQ(packet->mark, 0x7F);  // the ends may see these, and nobody else
  Head unmarked = packet->head();
  unmarked.mark = 0;
  EXPECT_EQ(unmarked, plain->head());
}

TEST(Packet, TheTransportVersionIsZero) {
  for (unsigned version = 1; version < 16; ++version) {
    Bytes bytes = packet_of(head_of(Service::kRc, Code::kSendOnly), 4);
    bytes[1] |= static_cast<std::byte>(version);
    EXPECT_EQ(refusal(bytes), Malformed::kTransportVersion);
  }
}

// Random fields of every opcode come back as they were sent; those of other headers do not travel.
TEST(Packet, EveryOpcodeCarriesItsFields) {
  SeededRandom random(test_seed());
  const auto bits = [&](unsigned count) {
    return static_cast<std::uint32_t>(random.next() >> (64 - count));
  };
  for (unsigned value = 0; value < 256; ++value) {
    const OpcodeShape& shape = shape_of({static_cast<std::uint8_t>(value)});
    if (!shape.is_defined) continue;
    for (int round = 0; round < 50; ++round) {
      std::size_t payload = 0;
      if (shape.payload == Payload::kFull) payload = std::size_t{256} << bits(2);
      if (shape.payload == Payload::kEight) payload = 8;
      if (shape.payload == Payload::kSome || shape.payload == Payload::kAny) {
        payload = 1 + bits(12);
      }
      Head head;
      head.opcode = {static_cast<std::uint8_t>(value)};
      head.is_solicited = bits(1) != 0;
      head.is_migrated = bits(1) != 0;
      head.ack_request = bits(1) != 0;
      head.mark = static_cast<std::uint8_t>(bits(7));
      head.fecn = bits(1) != 0;
      head.becn = bits(1) != 0;
      head.pad = pad_of(payload);
      head.pkey = static_cast<std::uint16_t>(bits(16));
      head.dest_qp = {bits(24)};
      head.psn = Psn(bits(24));
      if (shape.deth) {
        head.qkey = bits(32);
        head.source_qp = {bits(24)};
      }
      if (shape.xrceth) head.srq_number = bits(24);
      if (shape.feth) head.placement.persistence = true;
      if (shape.reth || shape.atomic_eth) {
        head.remote_address = random.next();
        head.remote_key = {bits(32)};
      }
      if (shape.reth) {
        const bool is_whole = payload != 0 && shape.payload != Payload::kFull;
        head.dma_length = static_cast<std::uint32_t>(is_whole ? payload : 4096 + 1 + bits(30));
      }
      if (shape.atomic_eth) {
        head.swap_or_add = random.next();
        head.compare = random.next();
      }
      if (shape.aeth) {
        head.syndrome = Syndrome::ack(static_cast<std::uint8_t>(bits(5)));
        head.msn = Msn(bits(24));
      }
      if (shape.atomic_ack_eth) head.original = random.next();
      if (shape.immediate) head.immediate = bits(32);
      if (shape.ieth) head.invalidate_key = {bits(32)};
      const Bytes bytes = packet_of(head, payload);
      ASSERT_EQ(bytes.size(), datagram_bytes(head.opcode, payload));
      const auto packet = parse(bytes);
      ASSERT_TRUE(packet) << name_of(head.opcode) << ": " << name_of(packet.error());
      ASSERT_EQ(static_cast<const Head&>(*packet), head) << name_of(head.opcode);
      ASSERT_EQ(packet->payload.size(), payload);
    }
  }
}

// What the short ways tell of a packet, held against the long one.
template <class Short>
void expect_same(const Short& found, const Packet& packet) {
  EXPECT_EQ(found.ack_request, packet.ack_request);
  EXPECT_EQ(found.mark, packet.mark);
  EXPECT_EQ(found.pkey, packet.pkey);
  EXPECT_EQ(found.psn, packet.psn);
  EXPECT_EQ(found.payload.data(), packet.payload.data());
  EXPECT_EQ(found.payload.size(), packet.payload.size());
}

// The short way says the same as the long one, or nothing.
TEST(Packet, WholeSendsAreWhatParseSays) {
  SeededRandom random(test_seed());
  unsigned whole = 0;
  for (int round = 0; round < 20'000; ++round) {
    Head head = head_of(random.one_in(4) ? Service::kUc : Service::kRc,
                        random.one_in(4) ? Code::kSendLast : Code::kSendOnly);
    head.is_solicited = random.one_in(2);
    head.ack_request = random.one_in(2);
    head.mark = static_cast<std::uint8_t>(random.below(128));
    head.pkey = static_cast<std::uint16_t>(random.below(65536));
    head.fecn = random.one_in(8);
    Bytes bytes = packet_of(head, random.below(4100));
    if (random.one_in(2)) bytes[random.below(kBthBytes)] ^= std::byte{1} << random.below(8);
    if (random.one_in(4)) bytes.resize(random.below(bytes.size() + 1));
    const auto message = parse_whole_send(bytes);
    const auto packet = parse(bytes);
    const bool is_usual = packet && packet->opcode == Opcode::of(Service::kRc, Code::kSendOnly) &&
                          bytes[Bth::kCongestionOffset] == std::byte{0};
    ASSERT_EQ(message.has_value(), is_usual) << round;
    if (!message) continue;
    ++whole;
    EXPECT_EQ(message->is_solicited, packet->is_solicited);
    expect_same(*message, *packet);
  }
  EXPECT_GE(whole, 3000u);
}

TEST(Packet, MiddlesAreWhatParseSays) {
  SeededRandom random(test_seed());
  unsigned middles = 0;
  for (int round = 0; round < 20'000; ++round) {
    Head head = head_of(random.one_in(8) ? Service::kUc : Service::kRc,
                        random.one_in(8)   ? Code::kWriteLast
                        : random.one_in(2) ? Code::kWriteMiddle
                                           : Code::kSendMiddle);
    head.ack_request = random.one_in(2);
    head.mark = static_cast<std::uint8_t>(random.below(128));
    head.pkey = static_cast<std::uint16_t>(random.below(65536));
    head.fecn = random.one_in(8);
    const std::size_t full = kPathMtuMin << random.below(5);
    Bytes bytes = packet_of(head, random.one_in(4) ? 1 + random.below(4099) : full);
    if (random.one_in(2)) bytes[random.below(kBthBytes)] ^= std::byte{1} << random.below(8);
    if (random.one_in(4)) bytes.resize(random.below(bytes.size() + 1));
    const auto middle = parse_middle(bytes);
    const auto packet = parse(bytes);
    const bool is_middle =
        packet && (packet->opcode == Opcode::of(Service::kRc, Code::kWriteMiddle) ||
                   packet->opcode == Opcode::of(Service::kRc, Code::kSendMiddle));
    const bool is_usual = is_middle && bytes[Bth::kCongestionOffset] == std::byte{0};
    ASSERT_EQ(middle.has_value(), is_usual) << round;
    if (!middle) continue;
    ++middles;
    EXPECT_EQ(middle->kind, packet->shape->kind);
    expect_same(*middle, *packet);
  }
  EXPECT_GE(middles, 3000u);
}

TEST(Packet, WholeSendsAreWrittenAsOthers) {
  SeededRandom random(test_seed());
  for (int round = 0; round < 1000; ++round) {
    const WholeSendHead head{.is_solicited = random.one_in(2),
                             .ack_request = random.one_in(2),
                             .mark = static_cast<std::uint8_t>(random.below(128)),
                             .pkey = static_cast<std::uint16_t>(random.below(65536)),
                             .psn = Psn(static_cast<std::uint32_t>(random.below(2 * kPsnRegion)))};
    const QpNum to{static_cast<std::uint32_t>(random.below(2 * kPsnRegion))};
    const std::size_t payload = random.below(100);
    Bytes expected(kBthBytes + kHeadersMax + 200, std::byte{0xEE});
    Bytes found = expected;
    DatagramBuilder general(expected, head_of(head, to), payload);
    DatagramBuilder whole(found, head, to, payload);
    EXPECT_EQ(whole.payload().size(), payload);
    EXPECT_EQ(whole.payload().data(), found.data() + kBthBytes);
    EXPECT_EQ(found, expected);
    FlowIcrc icrc({});
    EXPECT_EQ(whole.finish(icrc), general.finish(icrc));
    EXPECT_EQ(found, expected);
  }
}

// The first one's head decides, and sequence numbers wrap.
TEST(Packet, ARunIsOfHeadsThatDifferInTheirSequenceNumbers) {
  constexpr std::size_t kBytes = 256 + kBthBytes + kIcrcBytes;
  const Head head{.opcode = Opcode::of(Service::kRc, Code::kWriteMiddle),
                  .dest_qp = {0x123456},
                  .psn = Psn(0xFFFFFE)};
  std::vector<std::byte> datagrams(5 * kBytes);
  const auto write = [&](std::size_t i, const Head& changed) {
    encode(changed, std::span(datagrams).subspan(i * kBytes, kBytes));
  };
  const auto write_all = [&] {
    Head next = head;
    for (std::size_t i = 0; i < 5; ++i, next.psn = next.psn.next())
      write(i, next);
    return next;
  };
  write_all();
  EXPECT_EQ(run_of(datagrams, kBytes), 5u);
  EXPECT_EQ(run_of(std::span(datagrams).first(3 * kBytes + 1), kBytes), 3u);
  EXPECT_EQ(run_of(std::span(datagrams).first(kBytes), kBytes), 1u);
  EXPECT_EQ(run_of({}, kBytes), 0u);
  Head third = head;
  third.psn = head.psn + 2;
  for (const auto change : {+[](Head& h) { h.psn = h.psn.next(); },
                            +[](Head& h) { h.opcode = Opcode::of(Service::kRc, Code::kWriteLast); },
                            +[](Head& h) { h.ack_request = true; }, +[](Head& h) { h.mark = 1; },
                            +[](Head& h) { h.dest_qp = {0x123457}; }, +[](Head& h) { h.pkey = 1; },
                            +[](Head& h) { h.fecn = true; }, +[](Head& h) { h.pad = 1; }}) {
    write_all();
    Head changed = third;
    change(changed);
    write(2, changed);
    EXPECT_EQ(run_of(datagrams, kBytes), 2u);
  }
}

}  // namespace
}  // namespace verbena::wire
