// SPDX-License-Identifier: MIT
#include "nic/watch_pace.h"

#include <gtest/gtest.h>

namespace verbena::nic {
namespace {

constexpr bool kLate = true;
constexpr bool kBusy = false;
constexpr bool kFound = true;

Instant moment(std::int64_t microseconds) {
  return Instant() + Duration::microseconds(1'000'000 + microseconds);
}

// One nap's end; whether we looked.
bool end_nap(WatchPace& pace, bool is_late, bool found) {
  const bool looks = pace.looks_after_nap(is_late);
  pace.looked(is_late, looks && found);
  return looks;
}

TEST(WatchPace, LeavesAProgramAloneThatPollsAllTheTime) {
  WatchPace pace;
  for (int i = 0; i < 100; ++i)
    EXPECT_FALSE(end_nap(pace, kBusy, kFound));
  EXPECT_EQ(pace.nap(), WatchPace::kNapMax);
}

TEST(WatchPace, NapsNoLongerBeforeItIsSure) {
  WatchPace pace;
  end_nap(pace, kBusy, kFound);
  end_nap(pace, kBusy, kFound);
  EXPECT_EQ(pace.nap(), WatchPace::kNapMin);
  end_nap(pace, kLate, !kFound);
  EXPECT_EQ(pace.nap(), WatchPace::kNapMin * 2);
}

TEST(WatchPace, LooksOftenWherePacketsHaveBeenWaiting) {
  WatchPace pace;
  EXPECT_TRUE(end_nap(pace, kLate, kFound));
  EXPECT_EQ(pace.nap(), WatchPace::kNapMin);
  EXPECT_TRUE(end_nap(pace, kLate, kFound));
  EXPECT_EQ(pace.nap(), WatchPace::kNapShort);
  // Also where the program polls now and then.
  for (unsigned i = 1; i < WatchPace::kBusyNapsMost; ++i) {
    EXPECT_TRUE(end_nap(pace, kBusy, kFound));
    EXPECT_EQ(pace.nap(), WatchPace::kNapShort);
  }
  EXPECT_TRUE(end_nap(pace, kLate, !kFound));
  EXPECT_EQ(pace.nap(), WatchPace::kNapShort);
  // Until it polls again all the time.
  for (unsigned i = 1; i < WatchPace::kBusyNapsMost; ++i)
    EXPECT_TRUE(end_nap(pace, kBusy, kFound));
  EXPECT_FALSE(end_nap(pace, kBusy, kFound));
  EXPECT_GT(pace.nap(), WatchPace::kNapShort);
}

TEST(WatchPace, BeginsAnewAfterAWait) {
  WatchPace pace;
  for (int i = 0; i < 10; ++i)
    end_nap(pace, kBusy, !kFound);
  pace.begin_anew();
  EXPECT_EQ(pace.nap(), WatchPace::kNapMin);
}

TEST(WatchPace, TakesManyPollsForAProgramThatPolls) {
  WatchPace pace;
  EXPECT_FALSE(pace.is_polled({.polls = WatchPace::kPollsForLease - 1}, moment(0)));
  EXPECT_TRUE(pace.is_polled({.polls = 2 * WatchPace::kPollsForLease - 1}, moment(1)));
  EXPECT_FALSE(pace.is_polled({.polls = 2 * WatchPace::kPollsForLease}, moment(1000)));
}

// Woken by each packet we would see few polls each time, and never nap again.
TEST(WatchPace, AddsUpFewPollsWithinAShortTime) {
  WatchPace pace;
  EXPECT_FALSE(pace.is_polled({}, moment(0)));
  std::uint32_t polls = 0;
  int looks = 0;
  for (; !pace.is_polled({.polls = polls}, moment(10 * looks)); ++looks) {
    polls += 10;
    ASSERT_LT(looks, 20);
  }
  EXPECT_EQ(polls, 70);
  // Nor is a short time without many a sign that it has stopped.
  EXPECT_TRUE(pace.is_polled({.polls = polls}, moment(10 * looks + 100)));
  EXPECT_FALSE(pace.is_polled({.polls = polls}, moment(10 * looks + 201)));
}

TEST(WatchPace, TakesAWaitForEventsForTheEndOfPolls) {
  WatchPace pace;
  EXPECT_TRUE(pace.is_polled({.polls = 100}, moment(0)));
  EXPECT_TRUE(pace.is_awaited(1));
  EXPECT_FALSE(pace.is_polled({.polls = 200, .waits = 1}, moment(10)));
  EXPECT_FALSE(pace.is_awaited(1));
  EXPECT_FALSE(pace.is_polled({.polls = 210, .waits = 1}, moment(20)));
  EXPECT_TRUE(pace.is_polled({.polls = 264, .waits = 1}, moment(30)));
}

TEST(WatchPace, CountsPollsThatReceiveMuchByTheirTime) {
  WatchPace pace;
  EXPECT_FALSE(pace.is_polled({}, moment(0)));
  EXPECT_TRUE(pace.is_polled({.polls = 5, .busy = 500, .all = 1000}, moment(1000)));
  EXPECT_FALSE(pace.is_polled({.polls = 10, .busy = 900, .all = 2000}, moment(2000)));
}

}  // namespace
}  // namespace verbena::nic
