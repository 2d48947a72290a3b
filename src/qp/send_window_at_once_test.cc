// SPDX-License-Identifier: MIT
// Work requests that are sent as they are posted: they are as good as any other afterwards.
#include <gtest/gtest.h>

#include "qp/test_bench.h"

namespace verbena::qp {
namespace {

// A SEND of `length` bytes at `offset`, sent at once.
void send_at_once(WindowBench& bench, std::size_t offset, std::uint32_t length,
                  std::uint8_t flags = queues::kSignaled) {
  ASSERT_TRUE(bench.window.is_open());
  bench.window.write_down(0, bench.posted++, flags, bench.memory.sge(offset, length));
  bench.window.issued_at_once();
}

TEST(SendWindowAtOnce, CompletesLikeOthersInOrder) {
  WindowBench bench;
  send_at_once(bench, 0, 8);
  send_at_once(bench, 0, 8, 0);
  bench.post_write();
  bench.issue();
  bench.answer(2, Answer::kDone);
  const auto completions = bench.poll();
  ASSERT_EQ(completions.size(), 2u);
  EXPECT_EQ(completions[0].wr_id, 0u);
  EXPECT_EQ(completions[0].kind, queues::CompletionKind::kSend);
  EXPECT_EQ(completions[1].wr_id, 2u);
  EXPECT_FALSE(bench.window.has_work());
}

TEST(SendWindowAtOnce, IsOfferedAgainAsItWasPosted) {
  WindowBench bench;
  send_at_once(bench, 0, 8);
  send_at_once(bench, 64, 24, queues::kSignaled | queues::kSolicited);
  EXPECT_FALSE(bench.window.has_unissued());
  bench.window.repeat_from(OpIndex(1));
  EXPECT_TRUE(bench.window.has_unissued());
  const Operation* op = bench.window.next(bench.now);
  ASSERT_NE(op, nullptr);
  EXPECT_EQ(op->index, OpIndex(1));
  EXPECT_EQ(op->kind, OpKind::kSend);
  EXPECT_EQ(op->length, 24u);
  EXPECT_TRUE(op->is_solicited);
  bench.window.issued(bench.now);
  bench.answer(1, Answer::kDone);
  EXPECT_EQ(bench.poll().size(), 2u);
}

TEST(SendWindowAtOnce, GivesItsPayloadWhenAsked) {
  WindowBench bench;
  bench.memory.fill(64, 24, 0x5A);
  send_at_once(bench, 64, 24);
  std::array<std::byte, 24> got{};
  ASSERT_TRUE(bench.window.gather(OpIndex(0), 0, got).has_value());
  EXPECT_EQ(got.back(), std::byte{0x5A});
  std::array<std::byte, 25> more{};
  EXPECT_FALSE(bench.window.gather(OpIndex(0), 0, more).has_value());
  ASSERT_NE(bench.window.outstanding(OpIndex(0)), nullptr);
  EXPECT_EQ(bench.window.outstanding(OpIndex(0))->length, 24u);
}

// The place of the entry was a READ's before: nothing of it is left.
TEST(SendWindowAtOnce, TakesNothingOverFromItsPlace) {
  WindowBench bench({.depth = 1});
  bench.post_read();
  bench.issue();
  bench.answer(0, Answer::kDone);
  ASSERT_EQ(bench.poll().size(), 1u);
  send_at_once(bench, 0, 8);
  bench.answer(1, Answer::kDone);
  const auto completions = bench.poll();
  ASSERT_EQ(completions.size(), 1u);
  EXPECT_EQ(completions[0].kind, queues::CompletionKind::kSend);
  EXPECT_EQ(completions[0].byte_length, 0u);
}

TEST(SendWindowAtOnce, FailsAndIsFlushedLikeOthers) {
  WindowBench bench;
  send_at_once(bench, 0, 8);
  send_at_once(bench, 0, 8, 0);
  bench.answer(0, Answer::kAccess);
  const auto completions = bench.poll();
  ASSERT_EQ(completions.size(), 2u);
  EXPECT_EQ(completions[0].status, queues::Status::kRemoteAccess);
  EXPECT_EQ(completions[1].status, queues::Status::kFlushed);
  EXPECT_EQ(completions[1].wr_id, 1u);
}

TEST(SendWindowAtOnce, TheOnlyOneIsDoneWithoutALookAtOthers) {
  WindowBench bench;
  send_at_once(bench, 0, 8);
  EXPECT_FALSE(bench.window.complete_only(OpIndex(1))) << "there is none";
  ASSERT_TRUE(bench.window.complete_only(OpIndex(0)));
  const auto completions = bench.poll();
  ASSERT_EQ(completions.size(), 1u);
  EXPECT_EQ(completions[0].wr_id, 0u);
  EXPECT_EQ(completions[0].kind, queues::CompletionKind::kSend);
  EXPECT_EQ(completions[0].qp, kTestQp);
  EXPECT_TRUE(bench.window.is_caught_up());
  EXPECT_EQ(bench.queue.used(), 0u);
  EXPECT_FALSE(bench.window.complete_only(OpIndex(0))) << "once";
  send_at_once(bench, 0, 8, 0);
  EXPECT_TRUE(bench.window.complete_only(OpIndex(1)));
  EXPECT_TRUE(bench.poll().empty()) << "unsignaled";
}

TEST(SendWindowAtOnce, WhatIsNotTheOnlyOneTakesTheWayOfAll) {
  WindowBench bench;
  send_at_once(bench, 0, 8);
  send_at_once(bench, 0, 8);
  EXPECT_FALSE(bench.window.complete_only(OpIndex(0))) << "another is outstanding";
  bench.answer(0, Answer::kDone);
  bench.post_write();
  EXPECT_FALSE(bench.window.complete_only(OpIndex(1))) << "another is posted";
  bench.issue();
  bench.answer(2, Answer::kDone);
  EXPECT_EQ(bench.poll().size(), 3u);
  bench.post_write();
  bench.issue();
  EXPECT_FALSE(bench.window.complete_only(OpIndex(3))) << "was not sent at once";
  bench.answer(3, Answer::kDone);
  send_at_once(bench, 0, 8);
  bench.window.repeat_from(OpIndex(4));
  EXPECT_FALSE(bench.window.complete_only(OpIndex(4))) << "is to be sent once more";
  bench.window.flush();
  EXPECT_FALSE(bench.window.complete_only(OpIndex(4))) << "has ended";
}

TEST(SendWindowAtOnce, TheOnlyOneMayLoseItsCompletion) {
  WindowBench bench({.completions = 1});
  send_at_once(bench, 0, 8);
  ASSERT_TRUE(bench.window.complete_only(OpIndex(0)));
  send_at_once(bench, 0, 8);
  EXPECT_TRUE(bench.window.complete_only(OpIndex(1)));
  EXPECT_EQ(bench.faults, std::vector{WindowFault::kCompletionLost});
  EXPECT_FALSE(bench.window.is_open());
}

TEST(SendWindowAtOnce, SeveralAreWrittenDownBeforeTheWindowHears) {
  WindowBench bench({.depth = 8});
  bench.memory.fill(0, 64, 1);
  bench.memory.fill(8, 8, 2);
  send_at_once(bench, 0, 8);
  ASSERT_EQ(bench.window.open_room(64), 7u);
  for (std::uint32_t nth = 0; nth < 7; ++nth) {
    const std::uint8_t flags = nth % 2 == 0 ? queues::kInline : queues::kSignaled;
    bench.window.write_down(nth, 10 + nth, flags, bench.memory.sge(nth * 8, 8));
  }
  EXPECT_EQ(bench.window.open_index(), OpIndex(1)) << "not yet";
  bench.window.issued_at_once(7);
  EXPECT_EQ(bench.window.open_room(64), 0u);
  EXPECT_FALSE(bench.window.is_open());
  EXPECT_FALSE(bench.window.has_unissued());
  bench.answer(2, Answer::kDone);
  EXPECT_EQ(bench.window.open_room(64), 0u) << "nobody has taken what completed";
  EXPECT_EQ(ids(bench.poll()), (std::vector<std::uint64_t>{0, 11}));
  EXPECT_EQ(bench.window.open_room(64), 3u);
  // What was inline is kept; the program may write its memory anew.
  bench.memory.fill(0, 64, 9);
  std::array<std::byte, 8> got{};
  ASSERT_TRUE(bench.window.gather(OpIndex(3), 0, got).has_value());
  EXPECT_EQ(got.front(), std::byte{1});
  ASSERT_TRUE(bench.window.gather(OpIndex(4), 0, got).has_value());
  EXPECT_EQ(got.front(), std::byte{9});
  bench.answer(7, Answer::kDone);
  EXPECT_EQ(ids(bench.poll()), (std::vector<std::uint64_t>{13, 15}));
  EXPECT_EQ(bench.window.open_room(64), 8u);
}

TEST(SendWindowAtOnce, HasNoRoomBehindWhatWaits) {
  WindowBench bench({.depth = 8});
  bench.post_write();
  EXPECT_EQ(bench.window.open_room(64), 0u);
  bench.issue();
  EXPECT_EQ(bench.window.open_room(64), 7u);
  bench.window.flush();
  EXPECT_EQ(bench.window.open_room(64), 0u);
}

}  // namespace
}  // namespace verbena::qp
