// SPDX-License-Identifier: MIT
#include "port/alternation.h"

#include <gtest/gtest.h>

namespace verbena::port {
namespace {

struct Looked {
  bool first;
  bool second;
  friend bool operator==(const Looked&, const Looked&) = default;
};

// Once, where these places have something.
Looked look(Alternation& alternation, bool in_first, bool in_second) {
  const bool first = alternation.looks_at_first();
  const bool second = alternation.looks_at_second(first && in_first);
  alternation.found(first && in_first, second && in_second);
  return {first, second};
}
struct Sum {
  unsigned first = 0;
  unsigned second = 0;
};
Sum look(Alternation& alternation, unsigned times, bool in_first, bool in_second) {
  Sum sum;
  for (unsigned i = 0; i < times; ++i) {
    const Looked looked = look(alternation, in_first, in_second);
    sum.first += looked.first;
    sum.second += looked.second;
  }
  return sum;
}

constexpr unsigned kTimes = 800;
constexpr unsigned kFew = kTimes / Alternation::kBothOf;

TEST(Alternation, LooksSeldomWhereNothingComes) {
  Alternation alternation;
  look(alternation, Alternation::kRun, true, false);
  const Sum of_first = look(alternation, kTimes, true, false);
  EXPECT_EQ(of_first.first, kTimes);
  EXPECT_EQ(of_first.second, kFew);
  const Sum of_none = look(alternation, kTimes, false, false);
  EXPECT_EQ(of_none.first, kTimes);
  EXPECT_EQ(of_none.second, kFew);

  look(alternation, kTimes, false, true);
  const Sum of_second = look(alternation, kTimes, false, true);
  EXPECT_EQ(of_second.first, kFew);
  EXPECT_EQ(of_second.second, kTimes);
}

TEST(Alternation, WhatComesToBothByTurnsIsNotWaitedFor) {
  Alternation alternation;
  for (unsigned i = 0; i < kTimes; ++i) {
    EXPECT_TRUE(look(alternation, true, false).first) << i;
    EXPECT_TRUE(look(alternation, false, true).second) << i;
  }
}

TEST(Alternation, NeitherPlaceKeepsTheOtherFromBeingLookedAt) {
  for (const bool begins_at_first : {false, true}) {
    Alternation alternation;
    look(alternation, kTimes, begins_at_first, !begins_at_first);
    const Sum sum = look(alternation, kTimes, true, true);
    EXPECT_GE(sum.first, kFew);
    EXPECT_GE(sum.second, kFew);
  }
}

TEST(Alternation, LooksAtBothOnceWhereItIsAsked) {
  Alternation alternation;
  look(alternation, Alternation::kRun, true, false);
  for (int i = 0; i < 20; ++i) {
    alternation.look_at_both();
    const Looked both = look(alternation, true, false);
    EXPECT_TRUE(both.first && both.second);
  }
  EXPECT_EQ(look(alternation, kTimes, true, false).second, kFew);
}

TEST(Alternation, CountsHowLongTheFirstPlaceIsSilent) {
  Alternation alternation;
  look(alternation, kTimes, false, false);
  EXPECT_EQ(alternation.silent(), kTimes);
  look(alternation, 1, true, false);
  EXPECT_EQ(alternation.silent(), 0u);
  look(alternation, kTimes, false, true);
  EXPECT_EQ(alternation.silent(), kTimes);
}

}  // namespace
}  // namespace verbena::port
