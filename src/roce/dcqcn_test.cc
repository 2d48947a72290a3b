// SPDX-License-Identifier: MIT
#include "roce/dcqcn.h"

#include <gtest/gtest.h>

namespace verbena::roce {
namespace {

constexpr double kLine = 25e9;

TEST(Dcqcn, LeavesTheLineAloneUntilItIsToldOtherwise) {
  Dcqcn control;
  const Instant now = Instant::at(1'000'000);
  for (int i = 0; i < 1000; ++i)
    control.sent(4096, now);
  EXPECT_LE(control.next_departure(now), now);
  EXPECT_EQ(control.bits_per_second(), kLine);
}

TEST(Dcqcn, HalvesItsRateAtTheFirstNotification) {
  Dcqcn control;
  control.notified(Instant::at(1000));
  EXPECT_DOUBLE_EQ(control.bits_per_second(), kLine / 2);
}

TEST(Dcqcn, NeverFallsBelowItsMinimum) {
  Dcqcn control;
  Instant now = Instant::at(1000);
  for (int i = 0; i < 1000; ++i) {
    control.notified(now);
    now = now + Duration::microseconds(10);
  }
  EXPECT_DOUBLE_EQ(control.bits_per_second(), DcqcnOptions{}.minimum_bits_per_second);
}

TEST(Dcqcn, ComesBackHalfTheWayFiveTimesAndThenInSteps) {
  Dcqcn control;
  Instant now = Instant::at(1000);
  control.notified(now);
  for (int event = 1; event <= 5; ++event) {
    now = now + Duration::microseconds(55);
    control.next_departure(now);
    EXPECT_NEAR(control.bits_per_second(), kLine - kLine / 2 / (1 << event), 1e3) << event;
  }
  for (int i = 0; i < 100; ++i) {
    now = now + Duration::microseconds(55);
    control.next_departure(now);
  }
  EXPECT_EQ(control.bits_per_second(), kLine);
}

TEST(Dcqcn, LetsPacketsLeaveAtItsRate) {
  Dcqcn control({.burst_bytes = 0});
  Instant now = Instant::at(1000);
  control.notified(now);
  control.sent(12'500, now);  // 100,000 bits at 12.5 Gb/s
  EXPECT_EQ((control.next_departure(now) - now).count_nanoseconds(), 8000);
}

}  // namespace
}  // namespace verbena::roce
