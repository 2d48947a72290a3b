// SPDX-License-Identifier: MIT
#include "nic/join_wait.h"

#include <gtest/gtest.h>

namespace verbena::nic {
namespace {

constexpr Instant kBegin = Instant::at(1'000'000'000);

// Tries until it gives up; who joins is told by `joined`, a number of members at a time.
template <class Joined>
Duration wait_with(Joined joined, std::uint64_t& tries) {
  JoinWait wait(kBegin);
  tries = 0;
  for (Instant now = kBegin;; ++tries) {
    const auto next = wait.next(now, [&] {
      std::vector<SlotNumber> members;
      for (int i = 0; i < joined(now - kBegin); ++i)
        members.push_back({static_cast<std::uint16_t>(i)});
      return members;
    });
    if (!next) return now - kBegin;
    EXPECT_GE(*next, now + JoinWait::kPauseMin);
    EXPECT_LE(*next, now + JoinWait::kPauseMax);
    now = *next;
  }
}

TEST(JoinWait, GivesUpWhereNobodyGetsOn) {
  std::uint64_t tries = 0;
  for (const int members : {0, 7}) {
    const Duration waited = wait_with([&](Duration) { return members; }, tries);
    EXPECT_GE(waited, JoinWait::kLookPause * 2);
    EXPECT_LE(waited, JoinWait::kLookPause * 2 + JoinWait::kPauseMax * 2);
  }
}

TEST(JoinWait, LastsAsLongAsOthersJoin) {
  std::uint64_t tries = 0;
  const auto until = [](Duration end) {
    return [end](Duration now) {
      return static_cast<int>(std::min(now, end).count_nanoseconds() / 1'000'000'000);
    };
  };
  const Duration end = Duration::seconds(21);
  const Duration waited = wait_with(until(end), tries);
  EXPECT_GE(waited, end);
  EXPECT_LE(waited, end + JoinWait::kLookPause * 2 + JoinWait::kPauseMax * 2);
  const Duration longest = wait_with(until(JoinWait::kMost * 2), tries);
  EXPECT_GE(longest, JoinWait::kMost);
  EXPECT_LE(longest, JoinWait::kMost + JoinWait::kPauseMax);
}

TEST(JoinWait, TriesOftenAtFirstAndSeldomThen) {
  std::uint64_t tries = 0;
  wait_with([](Duration) { return 3; }, tries);
  EXPECT_LT(tries, 200u);
  JoinWait wait(kBegin);
  EXPECT_EQ(wait.next(kBegin, [] { return std::vector<SlotNumber>(); }),
            kBegin + JoinWait::kPauseMin);
}

}  // namespace
}  // namespace verbena::nic
