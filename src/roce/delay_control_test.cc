// SPDX-License-Identifier: MIT
#include "roce/delay_control.h"

#include <gtest/gtest.h>

namespace verbena::roce {
namespace {

constexpr Duration kWay = Duration::microseconds(20);
constexpr Duration kQueued = Duration::microseconds(120);

struct DelayControlTest : testing::Test {
  void pass(Duration time) { now = now + time; }
  // A round trip of so long, in which all of the window was acknowledged.
  void round(Duration round_trip) {
    pass(round_trip);
    control.sent(4096, Instant::at(now.nanoseconds() - round_trip.count_nanoseconds()));
    control.acknowledged(control.window(), round_trip, now);
  }
  std::size_t after(int rounds, Duration round_trip) {
    for (int i = 0; i < rounds; ++i)
      round(round_trip);
    return control.window();
  }
  DelayControl control{DelayControlOptions{.window_start = 8192}};
  Instant now = Instant::at(1'000'000);
};

TEST_F(DelayControlTest, DoublesAtTheStart) {
  EXPECT_EQ(control.window(), 8192u);
  EXPECT_EQ(after(3, kWay), 65'536u);
  EXPECT_EQ(after(10, kWay), DelayControlOptions{}.window_max);
}

TEST_F(DelayControlTest, GrowsByLessOnceItHasSeenAQueue) {
  after(3, kWay);
  round(kWay + Duration::microseconds(26));
  const std::size_t before = control.window();
  const std::size_t waiting = DelayControlOptions{}.waiting;
  const std::size_t halves = 5 * waiting / 2;
  EXPECT_NEAR(static_cast<double>(after(5, kWay)), static_cast<double>(before + halves), 10);
}

TEST_F(DelayControlTest, DoesNotGrowByWhatIsNotUsed) {
  after(2, kWay);
  const std::size_t before = control.window();
  for (int i = 0; i < 100; ++i) {
    pass(kWay);
    control.acknowledged(8, kWay, now);
  }
  EXPECT_LT(control.window(), before + 1000);
}

// The window that leaves so many bytes in the queue: window * (1 - 45/120) = waiting.
TEST_F(DelayControlTest, LeavesTheSameNumberOfBytesWaiting) {
  after(6, kWay);
  EXPECT_NEAR(static_cast<double>(after(50, kQueued)),
              static_cast<double>(DelayControlOptions{}.waiting) / (1 - 45.0 / 120), 100);
}

TEST_F(DelayControlTest, AMarkIsLessThanALoss) {
  const std::size_t before = after(6, kWay);
  control.notified(now);
  EXPECT_EQ(control.window(), before / 8 * 7);
  control.timed_out(now);
  EXPECT_EQ(control.window(), before / 16 * 7);
}

TEST_F(DelayControlTest, ALossOnAShortRoundTripIsTheLines) {
  const std::size_t before = after(6, kWay);
  pass(kWay);
  control.lost(now);
  EXPECT_EQ(control.window(), before);
  after(1, kQueued);
  pass(kQueued);
  const std::size_t queued = control.window();
  control.lost(now);
  EXPECT_EQ(control.window(), queued / 2);
}

TEST_F(DelayControlTest, ATenthLostIsAFullQueue) {
  const std::size_t before = after(6, kWay);
  pass(kWay);
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(control.window(), before) << i;
    control.lost(now);
  }
  EXPECT_EQ(control.window(), before / 2);
}

TEST_F(DelayControlTest, LeavesAQueueToLookAgain) {
  after(6, kWay);
  round(kWay + Duration::microseconds(26));
  bool has_looked = false;
  for (int i = 0; i < 1000 && !has_looked; ++i)
    has_looked = after(1, Duration::microseconds(50)) == 4096;
  EXPECT_TRUE(has_looked);
  after(6, kWay);
  EXPECT_GT(control.window(), 16'384u);
}

TEST_F(DelayControlTest, DoesNotLookAgainWhereThereIsNoQueue) {
  after(10, kWay);
  for (int i = 0; i < 5000; ++i)
    EXPECT_GT(after(1, kWay), 4096u);
}

}  // namespace
}  // namespace verbena::roce
