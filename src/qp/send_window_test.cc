// SPDX-License-Identifier: MIT
// The order of the send queue, fences, limits, retries.
#include "qp/send_window.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "qp/test_bench.h"

namespace verbena::qp {

namespace {

using queues::CompletionKind;
using queues::SendOpcode;
using queues::Status;
using testing::ElementsAre;
using testing::IsEmpty;
using Numbers = std::vector<std::uint32_t>;

Instant after(const WindowBench& bench, Duration delay) { return bench.now + delay; }

TEST(SendWindow, OffersTheSameOperationUntilItIsIssued) {
  WindowBench bench;
  bench.post_write();
  bench.post_write();
  const Operation* first = bench.window.next(bench.now);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(bench.window.next(bench.now), first);
  EXPECT_FALSE(bench.window.has_outstanding());
  bench.window.issued(bench.now);
  EXPECT_TRUE(bench.window.has_outstanding());
  EXPECT_EQ(bench.window.next(bench.now)->index, OpIndex(1));
}

TEST(SendWindow, TakesItsSnapshotWhenFetchedNotWhenPosted) {
  WindowBench bench;
  bench.post_write();
  queues::SendWqe& second = bench.post_write();
  bench.issue(1);
  second.remote_address = 0xABCD;  // not fetched yet
  const Operation* op = bench.window.next(bench.now);
  ASSERT_NE(op, nullptr);
  EXPECT_EQ(op->remote_address, 0xABCDu);
  second.remote_address = 0x1234;
  second.sge_count = 9;
  EXPECT_EQ(bench.window.next(bench.now)->remote_address, 0xABCDu);
  std::array<memory::Extent, 9> extents;
  EXPECT_EQ(bench.window.memory_of(OpIndex(1), 0, op->length, extents), 1u);
}

TEST(SendWindow, DescribesWhatWasPosted) {
  WindowBench bench;
  queues::SendWqe& wqe = bench.post({.opcode = SendOpcode::kWriteWithImmediate,
                                     .flags = queues::kSolicited,
                                     .sges = {bench.memory.sge(0, 10), bench.memory.sge(64, 20)}});
  wqe.immediate = 0x11223344;
  wqe.remote_address = 0x1000;
  wqe.remote_key = 0x77;
  const Operation* op = bench.window.next(bench.now);
  ASSERT_NE(op, nullptr);
  EXPECT_EQ(op->kind, OpKind::kWrite);
  EXPECT_TRUE(op->has_immediate);
  EXPECT_TRUE(op->is_solicited);
  EXPECT_EQ(op->immediate, 0x11223344u);
  EXPECT_EQ(op->length, 30u);
  EXPECT_EQ(op->remote_address, 0x1000u);
  EXPECT_EQ(op->remote_key, MemoryKey{0x77});
}

TEST(SendWindow, CompletesInOrderWithOneAnswerForMany) {
  WindowBench bench;
  for (int i = 0; i < 4; ++i)
    bench.post_write();
  bench.issue();
  bench.answer(2, Answer::kDone);
  EXPECT_THAT(ids(bench.poll()), ElementsAre(0, 1, 2));
  bench.answer(3, Answer::kDone);
  const auto last = bench.poll();
  ASSERT_EQ(last.size(), 1u);
  EXPECT_EQ(last[0].status, Status::kSuccess);
  EXPECT_EQ(last[0].kind, CompletionKind::kWrite);
  EXPECT_EQ(last[0].qp, kTestQp);
  EXPECT_EQ(last[0].vendor_error, 0u);
  EXPECT_FALSE(bench.window.has_work());
}

TEST(SendWindow, FreesTheStridesOfWhatIsDone) {
  WindowBench bench({.depth = 4});
  for (int i = 0; i < 4; ++i)
    bench.post_write(0);
  EXPECT_EQ(bench.queue.room(), nullptr);
  bench.issue();
  EXPECT_EQ(bench.queue.room(), nullptr);
  bench.answer(1, Answer::kDone);
  EXPECT_EQ(bench.queue.used(), 2u);
}

TEST(SendWindow, TellsNothingOfUnsignaledSuccess) {
  WindowBench bench;
  bench.post_write(0);
  bench.post_write();
  bench.issue();
  bench.answer(1, Answer::kDone);
  EXPECT_THAT(ids(bench.poll()), ElementsAre(1));
}

TEST(SendWindow, TellsOfEverySuccessWhenAllAreSignaled) {
  WindowBench bench({.signal_all = true});
  bench.post_write(0);
  bench.post_write(0);
  bench.issue();
  bench.answer(1, Answer::kDone);
  EXPECT_THAT(ids(bench.poll()), ElementsAre(0, 1));
}

TEST(SendWindow, IgnoresAnswersThatComeTwiceLateOrForTheFuture) {
  WindowBench bench;
  for (int i = 0; i < 3; ++i)
    bench.post_write();
  bench.issue(2);
  bench.answer(2, Answer::kDone);    // not issued
  bench.answer(2, Answer::kAccess);  // not issued
  bench.answer(0x80000000, Answer::kAccess);
  EXPECT_THAT(bench.poll(), IsEmpty());
  bench.answer(1, Answer::kDone);
  EXPECT_THAT(ids(bench.poll()), ElementsAre(0, 1));
  bench.answer(1, Answer::kDone);
  bench.answer(0, Answer::kDone);
  bench.answer(0, Answer::kAccess);
  bench.answer(1, Answer::kSilence);
  EXPECT_THAT(bench.poll(), IsEmpty());
  EXPECT_THAT(bench.faults, IsEmpty());
  EXPECT_EQ(bench.issue(), Numbers{2});
}

TEST(SendWindow, HoldsAFencedOperationUntilEarlierReadsAreDone) {
  WindowBench bench;
  bench.post_write();
  bench.post_read();
  bench.post_write();
  bench.post_write(queues::kFence | queues::kSignaled);
  bench.post_write();
  EXPECT_EQ(bench.issue(), (Numbers{0, 1, 2}));
  bench.answer(0, Answer::kDone);
  EXPECT_EQ(bench.issue(), Numbers{});
  bench.answer(1, Answer::kDone);
  EXPECT_EQ(bench.issue(), (Numbers{3, 4})) << "the WRITE before it does not matter";
}

TEST(SendWindow, HoldsAFencedOperationBehindAnAtomic) {
  WindowBench bench;
  bench.post({.opcode = SendOpcode::kFetchAdd, .sges = {bench.memory.sge(0, 8)}});
  bench.post_write(queues::kFence);
  EXPECT_EQ(bench.issue(), Numbers{0});
  bench.answer(0, Answer::kDone);
  EXPECT_EQ(bench.issue(), Numbers{1});
}

TEST(SendWindow, KeepsTheFenceWhenItGoesBack) {
  WindowBench bench;
  bench.post_read();
  bench.post_write(queues::kFence);
  EXPECT_EQ(bench.issue(), Numbers{0});
  bench.answer(0, Answer::kSilence);
  EXPECT_EQ(bench.issue(), Numbers{0});
  bench.answer(0, Answer::kDone);
  EXPECT_EQ(bench.issue(), Numbers{1});
}

TEST(SendWindow, LimitsReadsAndAtomicsTogether) {
  WindowBench bench({.reads_out_max = 2});
  bench.post_read();
  bench.post({.opcode = SendOpcode::kCompareSwap, .sges = {bench.memory.sge(0, 8)}});
  bench.post_write();
  bench.post_read();
  bench.post_write();
  EXPECT_EQ(bench.issue(), (Numbers{0, 1, 2}));
  bench.answer(0, Answer::kDone);
  EXPECT_EQ(bench.issue(), (Numbers{3, 4}));
}

TEST(SendWindow, LimitsWhatIsInFlight) {
  WindowBench bench({.in_flight_max = 2});
  for (int i = 0; i < 5; ++i)
    bench.post_write();
  EXPECT_EQ(bench.issue(), (Numbers{0, 1}));
  bench.answer(0, Answer::kDone);
  EXPECT_EQ(bench.issue(), Numbers{2});
}

TEST(SendWindow, RepeatsFromTheOperationThatThePeerWasNotReadyFor) {
  WindowBench bench;
  for (int i = 0; i < 3; ++i)
    bench.post_write();
  bench.issue();
  bench.answer(1, Answer::kNotReady, 12);
  EXPECT_THAT(ids(bench.poll()), ElementsAre(0)) << "those before it are done";
  EXPECT_EQ(bench.window.resume_at(), after(bench, rnr_delay(12)));
  EXPECT_EQ(bench.issue(), Numbers{});
  bench.now = after(bench, rnr_delay(12));
  EXPECT_EQ(bench.issue(), (Numbers{1, 2}));
}

TEST(SendWindow, CountsOneNotReadyOnce) {
  WindowBench bench({.rnr_retry = 1});
  bench.post_write();
  bench.post_write();
  bench.issue();
  bench.answer(0, Answer::kNotReady, 1);
  bench.answer(0, Answer::kNotReady, 1);  // of the same round
  bench.answer(1, Answer::kNotReady, 1);
  EXPECT_THAT(bench.faults, IsEmpty());
  bench.now = after(bench, rnr_delay(1));
  EXPECT_EQ(bench.issue(), (Numbers{0, 1}));
}

TEST(SendWindow, TakesALateSuccessOfARoundBefore) {
  WindowBench bench;
  for (int i = 0; i < 3; ++i)
    bench.post_write();
  bench.issue();
  bench.answer(0, Answer::kSilence);
  EXPECT_EQ(bench.issue(1), Numbers{0});
  bench.answer(1, Answer::kDone);
  EXPECT_THAT(ids(bench.poll()), ElementsAre(0, 1));
  EXPECT_EQ(bench.issue(), Numbers{2});
}

TEST(SendWindow, DoesNotIssueWhatALateSuccessEnded) {
  WindowBench bench;
  for (int i = 0; i < 2; ++i)
    bench.post_write();
  bench.issue();
  bench.answer(0, Answer::kSilence);
  ASSERT_EQ(bench.window.next(bench.now)->index, OpIndex(0));
  bench.answer(0, Answer::kDone);
  bench.window.issued(bench.now);  // of operation 0
  EXPECT_EQ(bench.issue(), Numbers{1});
}

// Every retry counter against the number of times that the peer may refuse.
struct CounterCase {
  Answer answer;
  std::uint8_t count;
  Status failure;
  Reason reason;
};

class RetryCounter : public testing::TestWithParam<CounterCase> {
 protected:
  WindowBench bench{{.retry_count = GetParam().count, .rnr_retry = GetParam().count}};
  // One round: issue and refuse.
  void refuse_once(std::uint32_t index) {
    bench.now = after(bench, Duration::seconds(1));
    bench.issue();
    bench.answer(index, GetParam().answer, 1);
  }
};

TEST_P(RetryCounter, AllowsThatManyRetriesAndFailsAfterwards) {
  bench.post_write();
  bench.post_write(0);
  const bool without_limit = GetParam().answer == Answer::kNotReady && GetParam().count == 7;
  const int rounds = without_limit ? 1000 : GetParam().count;
  for (int i = 0; i < rounds; ++i)
    refuse_once(0);
  EXPECT_THAT(bench.faults, IsEmpty());
  refuse_once(0);
  if (without_limit) {
    EXPECT_THAT(bench.faults, IsEmpty());
    return;
  }
  EXPECT_THAT(bench.faults, ElementsAre(WindowFault::kFailed));
  const auto completions = bench.poll();
  EXPECT_THAT(statuses(completions), ElementsAre(GetParam().failure, Status::kFlushed));
  EXPECT_EQ(completions[0].vendor_error, static_cast<std::uint32_t>(GetParam().reason));
}

TEST_P(RetryCounter, StartsAgainWithEveryProgress) {
  for (std::uint32_t op = 0; op < 3; ++op) {
    bench.post_write();
    for (int i = 0; i < GetParam().count; ++i)
      refuse_once(op);
    bench.now = after(bench, Duration::seconds(1));
    bench.issue();
    bench.answer(op, Answer::kDone);
  }
  EXPECT_THAT(bench.faults, IsEmpty());
  EXPECT_THAT(ids(bench.poll()), ElementsAre(0, 1, 2));
}

INSTANTIATE_TEST_SUITE_P(
    All, RetryCounter,
    testing::Values(
        CounterCase{Answer::kSilence, 0, Status::kRetryExceeded, Reason::kPeerSilent},
        CounterCase{Answer::kSilence, 1, Status::kRetryExceeded, Reason::kPeerSilent},
        CounterCase{Answer::kSilence, 7, Status::kRetryExceeded, Reason::kPeerSilent},
        CounterCase{Answer::kNotReady, 0, Status::kRnrRetryExceeded, Reason::kPeerNotReady},
        CounterCase{Answer::kNotReady, 1, Status::kRnrRetryExceeded, Reason::kPeerNotReady},
        CounterCase{Answer::kNotReady, 6, Status::kRnrRetryExceeded, Reason::kPeerNotReady},
        CounterCase{Answer::kNotReady, 7, Status::kRnrRetryExceeded, Reason::kPeerNotReady}));

TEST(SendWindow, DropsTheRnrTimerWhenThePeerAnsweredAfterAll) {
  WindowBench bench;
  bench.post_write();
  bench.post_write();
  bench.issue();
  bench.answer(0, Answer::kNotReady, 0);
  bench.answer(0, Answer::kDone);
  EXPECT_EQ(bench.window.resume_at(), std::nullopt);
  EXPECT_EQ(bench.issue(), Numbers{1});
}

TEST(SendWindow, EndsWhatIsOutstandingWhenThePeerIsLost) {
  WindowBench bench;
  bench.post_write(0);
  bench.post_write(0);
  bench.issue(1);
  bench.window.peer_lost(bench.now);
  EXPECT_THAT(statuses(bench.poll()), ElementsAre(Status::kRetryExceeded, Status::kFlushed));
  EXPECT_THAT(bench.faults, ElementsAre(WindowFault::kFailed));
}

TEST(SendWindow, EndsWhatIsOnlyPostedWhenThePeerIsLost) {
  WindowBench bench;
  bench.window.peer_lost(bench.now);
  EXPECT_THAT(bench.faults, IsEmpty()) << "nothing to end";
  bench.post_write();
  bench.window.peer_lost(bench.now);
  const auto completions = bench.poll();
  EXPECT_THAT(statuses(completions), ElementsAre(Status::kRetryExceeded));
  EXPECT_EQ(completions[0].vendor_error, static_cast<std::uint32_t>(Reason::kPeerLost));
}

TEST(SendWindow, IsDoneWithUnreliableOperationsWhenTheyAreIssued) {
  for (QpType type : {QpType::kUc, QpType::kUd}) {
    WindowBench bench({.type = type});
    bench.post({.opcode = SendOpcode::kSend, .sges = {bench.memory.sge(0, 100)}});
    bench.issue();
    EXPECT_THAT(statuses(bench.poll()), ElementsAre(Status::kSuccess));
    EXPECT_FALSE(bench.window.has_outstanding());
    bench.window.peer_lost(bench.now);
    bench.answer(0, Answer::kAccess);
    EXPECT_THAT(bench.faults, IsEmpty());
  }
}

TEST(SendWindow, WrapsItsIndex) {
  WindowBench bench({.depth = 4});
  bench.window.reset();
  bench.queue.reset(0xFFFFFFFE);
  SendWindow window({.qp = kTestQp,
                     .pd = kTestPd,
                     .queue = &bench.queue,
                     .completions = &bench.completions,
                     .regions = &bench.memory.table,
                     .owner = &bench});
  window.start(bench.attributes);
  for (int i = 0; i < 4; ++i)
    bench.post_write();
  for (int i = 0; i < 4; ++i) {
    ASSERT_NE(window.next(bench.now), nullptr);
    window.issued(bench.now);
  }
  window.answered(OpIndex(0xFFFFFFFF), Answer::kDone, bench.now);
  EXPECT_EQ(window.oldest(), OpIndex(0));
  window.answered(OpIndex(1), Answer::kDone, bench.now);
  EXPECT_THAT(ids(bench.poll()), ElementsAre(0, 1, 2, 3));
}

}  // namespace

}  // namespace verbena::qp
