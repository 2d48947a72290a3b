// SPDX-License-Identifier: MIT
#include "wire/sequence.h"

#include <gtest/gtest.h>

#include "wire/aeth.h"

namespace verbena::wire {
namespace {

TEST(Sequence, WrapsAt24Bits) {
  EXPECT_EQ(Psn(0xFFFFFF).next(), Psn(0));
  EXPECT_EQ(Psn(0).previous(), Psn(0xFFFFFF));
  EXPECT_EQ(Psn(0xFFFFF0) + 0x20, Psn(0x10));
  EXPECT_EQ(Psn(0x10) - 0x20u, Psn(0xFFFFF0));
  EXPECT_EQ(Psn(0x1000001), Psn(1));
}

TEST(Sequence, TheEarlierHalfOfTheCircleIsBehind) {
  for (const std::uint32_t base : {0u, 1u, 0x7FFFFFu, 0x800000u, 0xFFFFFFu}) {
    const Psn expected(base);
    EXPECT_EQ(expected - expected, 0);
    EXPECT_EQ((expected + 1) - expected, 1);
    EXPECT_EQ((expected + 0x7FFFFF) - expected, 0x7FFFFF);
    EXPECT_LT((expected + 0x800000) - expected, 0) << "exactly opposite counts as behind";
    EXPECT_EQ((expected - 1u) - expected, -1);
    EXPECT_EQ((expected - kPsnRegion) - expected, -0x800000);
  }
}

TEST(Sequence, AMessageTakesAtLeastOnePacket) {
  EXPECT_EQ(packets_of(0, 1024), 1u);
  EXPECT_EQ(packets_of(1, 1024), 1u);
  EXPECT_EQ(packets_of(1024, 1024), 1u);
  EXPECT_EQ(packets_of(1025, 1024), 2u);
  EXPECT_EQ(packets_of(std::uint64_t{1} << 31, 256), 1u << 23);
}

TEST(Syndrome, IsComposedAsTheSpecificationSays) {
  EXPECT_EQ(Syndrome::ack().value(), 0x1F);
  EXPECT_EQ(Syndrome::ack(3).value(), 0x03);
  EXPECT_EQ(Syndrome::rnr_nak(12).value(), 0x2C);
  EXPECT_EQ(Syndrome::nak(NakCode::kPsnSequenceError).value(), 0x60);
  EXPECT_EQ(Syndrome::nak(NakCode::kInvalidRequest).value(), 0x61);
  EXPECT_EQ(Syndrome::nak(NakCode::kRemoteAccessError).value(), 0x62);
  EXPECT_EQ(Syndrome::nak(NakCode::kRemoteOperationalError).value(), 0x63);
  EXPECT_EQ(Syndrome(0x63).nak_code(), NakCode::kRemoteOperationalError);
  EXPECT_EQ(Syndrome(0x2C).code(), 12);
}

TEST(Syndrome, KnowsWhatIsReserved) {
  for (unsigned value = 0; value < 256; ++value) {
    const bool is_defined = value < 0x40 || (value >= 0x60 && value <= 0x64);
    EXPECT_EQ(Syndrome(static_cast<std::uint8_t>(value)).is_defined(), is_defined) << value;
  }
}

TEST(Syndrome, CreditsNeverPromiseMoreThanThereIs) {
  for (std::uint32_t messages = 0; messages <= 40'000; ++messages) {
    const std::uint8_t code = credit_code(messages);
    ASSERT_LE(kCredits[code], messages);
    ASSERT_TRUE(code == 30 || kCredits[code + 1u] > messages);
  }
}

}  // namespace
}  // namespace verbena::wire
