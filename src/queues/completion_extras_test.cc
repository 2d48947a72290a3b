// SPDX-License-Identifier: MIT
// What a completion queue does where it was asked for: timestamps, overruns that are ignored, and
// events for several completions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "queues/completion_queue.h"

namespace verbena::queues {
namespace {

using ::testing::ElementsAre;

std::uint64_t now = 0;
std::uint64_t count_up() { return ++now; }

struct Told final : CompletionEvents {
  void completion_event(CompletionQueue&) override { ++events; }
  void overrun_event(CompletionQueue&) override { ++overruns; }
  void moderation_began(CompletionQueue&) override { ++began; }
  int events = 0;
  int overruns = 0;
  int began = 0;
};

Completion with_id(std::uint64_t number, Status status = Status::kSuccess) {
  return {.wr_id = number, .status = status, .qp = {2}};
}

std::vector<Completion> take_all(CompletionQueue& queue) {
  std::vector<Completion> all;
  queue.take(1000, [&](const Completion& completion) { all.push_back(completion); });
  return all;
}

std::vector<std::uint64_t> ids(const std::vector<Completion>& completions) {
  std::vector<std::uint64_t> numbers;
  for (const Completion& completion : completions)
    numbers.push_back(completion.wr_id);
  return numbers;
}

TEST(CompletionExtras, EachCompletionHasTheTimeOfItsPush) {
  for (const Pushers pushers : {Pushers::kAny, Pushers::kOneAtATime}) {
    now = 41;
    CompletionQueue queue(8, nullptr, pushers, {.clock = count_up});
    ASSERT_TRUE(queue.push(with_id(1), false));
    ASSERT_TRUE(queue.push([] { return with_id(2); }, false));
    const auto all = take_all(queue);
    ASSERT_EQ(2U, all.size());
    EXPECT_EQ(42U, all[0].timestamp);
    EXPECT_EQ(43U, all[1].timestamp);
  }
}

TEST(CompletionExtras, NobodyElseAsksForTheTime) {
  now = 0;
  CompletionQueue queue(8, nullptr, Pushers::kAny);
  ASSERT_TRUE(queue.push(with_id(1), false));
  EXPECT_EQ(0U, take_all(queue).at(0).timestamp);
  EXPECT_EQ(0U, now);
}

TEST(CompletionExtras, AnIgnoredOverrunLosesTheOldest) {
  for (const Pushers pushers : {Pushers::kAny, Pushers::kOneAtATime}) {
    Told told;
    CompletionQueue queue(4, &told, pushers, {.ignores_overrun = true});
    for (std::uint64_t i = 1; i <= 11; ++i)
      ASSERT_TRUE(queue.push([i] { return with_id(i); }, false));
    EXPECT_FALSE(queue.is_overrun());
    EXPECT_THAT(ids(take_all(queue)), ElementsAre(8, 9, 10, 11));
    ASSERT_TRUE(queue.push(with_id(12), false));
    EXPECT_THAT(ids(take_all(queue)), ElementsAre(12));
    EXPECT_EQ(0, told.overruns);
  }
}

TEST(CompletionExtras, SeveralCompletionsAreOneEvent) {
  Told told;
  CompletionQueue queue(64, &told);
  queue.moderate(3);
  queue.arm(Arm::kNext);
  ASSERT_TRUE(queue.push(with_id(1), false) && queue.push(with_id(2), false));
  EXPECT_EQ(0, told.events);
  EXPECT_EQ(1, told.began);
  ASSERT_TRUE(queue.push(with_id(3), false));
  EXPECT_EQ(1, told.events);
  // Armed once: told once.
  for (std::uint64_t i = 4; i < 10; ++i)
    ASSERT_TRUE(queue.push(with_id(i), false));
  EXPECT_EQ(1, told.events);
  EXPECT_EQ(1, told.began);
}

TEST(CompletionExtras, ThePeriodEndsTheWaiting) {
  Told told;
  CompletionQueue queue(64, &told);
  queue.moderate(100);
  queue.arm(Arm::kNext);
  queue.moderation_over();  // of nothing
  EXPECT_EQ(0, told.events);
  ASSERT_TRUE(queue.push(with_id(1), false));
  queue.moderation_over();
  EXPECT_EQ(1, told.events);
  queue.moderation_over();
  EXPECT_EQ(1, told.events);
  // Again.
  queue.arm(Arm::kNext);
  ASSERT_TRUE(queue.push(with_id(2), false));
  EXPECT_EQ(2, told.began);
  queue.moderation_over();
  EXPECT_EQ(2, told.events);
}

TEST(CompletionExtras, AFailureDoesNotWait) {
  Told told;
  CompletionQueue queue(64, &told);
  queue.moderate(100);
  queue.arm(Arm::kNext);
  ASSERT_TRUE(queue.push(with_id(1), false));
  ASSERT_TRUE(queue.push(with_id(2, Status::kRemoteAccess), false));
  EXPECT_EQ(1, told.events);
}

TEST(CompletionExtras, OnlySolicitedCompletionsCountWhereTheyAreAskedFor) {
  Told told;
  CompletionQueue queue(64, &told);
  queue.moderate(2);
  queue.arm(Arm::kSolicited);
  for (std::uint64_t i = 0; i < 5; ++i)
    ASSERT_TRUE(queue.push(with_id(i), false));
  ASSERT_TRUE(queue.push(with_id(5), true));
  EXPECT_EQ(0, told.events);
  ASSERT_TRUE(queue.push(with_id(6), true));
  EXPECT_EQ(1, told.events);
}

TEST(CompletionExtras, WhatWaitsIsToldWhenTheRuleChanges) {
  Told told;
  CompletionQueue queue(64, &told);
  queue.moderate(10);
  queue.arm(Arm::kNext);
  ASSERT_TRUE(queue.push(with_id(1), false));
  queue.moderate(0);
  EXPECT_EQ(1, told.events);
  queue.arm(Arm::kNext);
  ASSERT_TRUE(queue.push(with_id(2), false));
  EXPECT_EQ(2, told.events);
}

TEST(CompletionExtras, ATagLiesWhereDatagramsHaveTheirSource) {
  Completion completion;
  set_tag(completion, 0xfedcba9876543210, 0x11223344);
  EXPECT_EQ(0xfedcba9876543210, tag_of(completion));
  EXPECT_EQ(0x11223344U, completion.flow_tag);
  EXPECT_EQ(0U, tag_of(Completion{}));
}

}  // namespace
}  // namespace verbena::queues
