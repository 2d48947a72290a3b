// SPDX-License-Identifier: MIT
#include "nic/pacer.h"

#include <gtest/gtest.h>

namespace verbena::nic {
namespace {

constexpr std::uint32_t kByteAMicrosecond = 8'000;  // kilobits a second

Instant at(std::int64_t microseconds) {
  return Instant() + Duration::microseconds(1'000'000 + microseconds);
}

TEST(Pacer, LetsEverythingThroughWithoutARate) {
  Pacer pacer;
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(pacer.waits_until(at(0)));
    pacer.sent(1'000'000, at(0));
  }
}

TEST(Pacer, LetsAPacketThroughWhenTheLineIsFree) {
  Pacer pacer;
  pacer.set(kByteAMicrosecond, 0);
  EXPECT_FALSE(pacer.waits_until(at(0)));
  pacer.sent(100, at(0));
  EXPECT_EQ(pacer.waits_until(at(0)), at(100));
  EXPECT_EQ(pacer.waits_until(at(99)), at(100));
  EXPECT_FALSE(pacer.waits_until(at(100)));
  // A late turn takes the time from then on.
  pacer.sent(50, at(130));
  EXPECT_EQ(pacer.waits_until(at(130)), at(180));
}

TEST(Pacer, LetsABurstGoAhead) {
  Pacer pacer;
  pacer.set(kByteAMicrosecond, 1000);
  int sent = 0;
  for (; !pacer.waits_until(at(0)); ++sent)
    pacer.sent(100, at(0));
  EXPECT_EQ(sent, 11) << "ten ahead of the line, and the one that is on it";
  EXPECT_EQ(pacer.waits_until(at(0)), at(100));
  // Afterwards the rate holds.
  for (std::int64_t now = 100; now < 10'000; now += 100) {
    EXPECT_FALSE(pacer.waits_until(at(now)));
    pacer.sent(100, at(now));
    EXPECT_EQ(pacer.waits_until(at(now)), at(now + 100));
  }
}

// Who sends loses its core between the look at the clock and the sending.
TEST(Pacer, CountsFromWhenTheyHadLeft) {
  Pacer pacer;
  pacer.set(kByteAMicrosecond, 200);
  pacer.sent(100, at(0));
  pacer.sent(100, at(0));
  pacer.had_left(200, at(5000));
  EXPECT_FALSE(pacer.waits_until(at(5000)));
  pacer.sent(100, at(5000));
  EXPECT_EQ(pacer.waits_until(at(5000)), at(5100));
  // What went ahead of the line is still ahead of it.
  pacer.had_left(100, at(5001));
  EXPECT_EQ(pacer.waits_until(at(5001)), at(5100));
  pacer.set(0, 0);
  pacer.had_left(1'000'000, at(9000));
  EXPECT_FALSE(pacer.waits_until(at(9000)));
}

TEST(Pacer, TakesAnotherRateAtOnce) {
  Pacer pacer;
  pacer.set(kByteAMicrosecond, 0);
  pacer.sent(1'000'000, at(0));
  EXPECT_TRUE(pacer.waits_until(at(0)));
  pacer.set(0, 0);
  EXPECT_FALSE(pacer.waits_until(at(0)));
  pacer.set(1, 0);  // a bit in a millisecond
  pacer.sent(1, at(0));
  EXPECT_EQ(pacer.waits_until(at(0)), at(8'000));
}

}  // namespace
}  // namespace verbena::nic
