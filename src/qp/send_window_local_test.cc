// SPDX-License-Identifier: MIT
// Windows that are bound and invalidated in the order of the send queue.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "memory/window_table.h"
#include "qp/test_bench.h"

namespace verbena::qp {
namespace {

using queues::SendOpcode;
using queues::Status;
using testing::ElementsAre;

class LocalOperations : public testing::Test {
 protected:
  LocalOperations() {
    region = bench.memory.add(kTestPd, kAllAccess | memory::kWindowBind);
    window = *bench.memory.table.windows().add(kTestPd, memory::WindowType::kTwo);
  }
  void post_bind(std::uint8_t flags = queues::kSignaled) {
    queues::SendWqe& wqe = bench.post({.opcode = SendOpcode::kBindWindow, .flags = flags});
    wqe.immediate = window.value;
    wqe.remote_key = region.value;
    wqe.remote_address = bench.memory.address(0);
    wqe.bind = {64, memory::kRemoteWrite};
  }
  void post_invalidate(std::uint8_t flags = queues::kSignaled) {
    bench.post({.opcode = SendOpcode::kLocalInvalidate, .flags = flags}).immediate = window.value;
  }
  bool is_bound() {
    const memory::RemoteUser user(kTestPd, kTestQp);
    return memory::check_range(bench.memory.table, user, window, bench.memory.address(0), 64,
                               memory::kRemoteWrite)
        .has_value();
  }

  WindowBench bench;
  MemoryKey region;
  MemoryKey window;
};

TEST_F(LocalOperations, NeedNoCarrier) {
  post_bind();
  EXPECT_THAT(bench.issue(), ElementsAre());
  EXPECT_TRUE(is_bound());
  const auto done = bench.poll();
  EXPECT_THAT(statuses(done), ElementsAre(Status::kSuccess));
  EXPECT_EQ(done.at(0).kind, queues::CompletionKind::kBindWindow);
  post_invalidate();
  bench.window.run_local(bench.now);
  EXPECT_FALSE(is_bound());
  EXPECT_EQ(bench.poll().at(0).kind, queues::CompletionKind::kLocalInvalidate);
  EXPECT_TRUE(bench.window.is_caught_up());
}

TEST_F(LocalOperations, CompleteInOrderWithTheOthers) {
  bench.post_write();
  post_bind();
  bench.post_write();
  post_invalidate();
  EXPECT_THAT(bench.issue(), ElementsAre(0, 2));
  EXPECT_FALSE(is_bound());
  EXPECT_THAT(ids(bench.poll()), ElementsAre());
  bench.answer(0, Answer::kDone);
  EXPECT_THAT(ids(bench.poll()), ElementsAre(0, 1));
  bench.answer(2, Answer::kDone);
  EXPECT_THAT(ids(bench.poll()), ElementsAre(2, 3));
  EXPECT_TRUE(bench.window.is_caught_up());
}

TEST_F(LocalOperations, AreExecutedOnceAlthoughTheWindowGoesBack) {
  bench.post_write();
  post_bind();
  bench.post_write();
  EXPECT_THAT(bench.issue(), ElementsAre(0, 2));
  bench.answer(0, Answer::kSilence);
  // Bound a second time it would be refused.
  EXPECT_THAT(bench.issue(), ElementsAre(0, 2));
  bench.answer(2, Answer::kDone);
  EXPECT_THAT(statuses(bench.poll()), testing::Each(Status::kSuccess));
  EXPECT_TRUE(is_bound());
}

TEST_F(LocalOperations, WaitForAFenceAndForReads) {
  bench.post_read();
  post_bind(queues::kSignaled | queues::kFence);
  bench.post_write();
  EXPECT_THAT(bench.issue(), ElementsAre(0));
  EXPECT_FALSE(is_bound());
  bench.answer(0, Answer::kDone);
  EXPECT_THAT(bench.issue(), ElementsAre(2));
  EXPECT_TRUE(is_bound());
}

TEST_F(LocalOperations, ThatFailEndTheQueuePairInTheirTurn) {
  bench.post_write();
  post_invalidate();
  bench.post_write();
  EXPECT_THAT(bench.issue(), ElementsAre(0));
  EXPECT_TRUE(bench.faults.empty());
  bench.answer(0, Answer::kDone);
  const auto done = bench.poll();
  EXPECT_THAT(statuses(done), ElementsAre(Status::kSuccess, Status::kWindowBind, Status::kFlushed));
  EXPECT_EQ(done.at(1).vendor_error,
            static_cast<std::uint32_t>(window_reason(memory::WindowRefusal::kNoSuchWindow)));
  EXPECT_THAT(bench.faults, ElementsAre(WindowFault::kFailed));
}

TEST_F(LocalOperations, AreNotExecutedBehindAFailure) {
  bench.post({.opcode = SendOpcode::kWrite, .sges = {{0, 8, {}}}});
  post_bind();
  EXPECT_THAT(bench.issue(), ElementsAre());
  EXPECT_FALSE(is_bound());
  EXPECT_THAT(statuses(bench.poll()), ElementsAre(Status::kLocalProtection, Status::kFlushed));
}

TEST_F(LocalOperations, AreDoneAlthoughThePeerIsLost) {
  post_bind();
  bench.post_write();
  bench.window.peer_lost(bench.now);
  EXPECT_THAT(statuses(bench.poll()), ElementsAre(Status::kSuccess, Status::kRetryExceeded));
}

TEST_F(LocalOperations, OfADrainingWindowWait) {
  bench.post_write();
  EXPECT_THAT(bench.issue(), ElementsAre(0));
  bench.window.stop_new();
  post_bind();
  bench.answer(0, Answer::kDone);
  EXPECT_THAT(bench.issue(), ElementsAre());
  EXPECT_FALSE(is_bound());
  EXPECT_EQ(bench.drained, 1u);
  bench.window.start(bench.attributes);
  EXPECT_THAT(bench.issue(), ElementsAre());
  EXPECT_TRUE(is_bound());
}

// A peer is writing through the window, on another queue pair.
TEST_F(LocalOperations, WaitForThoseWhoUseTheWindow) {
  window = *bench.memory.table.windows().add(kTestPd, memory::WindowType::kOne);
  post_bind();
  EXPECT_THAT(bench.issue(), ElementsAre());
  ASSERT_TRUE(is_bound());
  const MemoryKey before = window;
  {
    const memory::WindowTable::Use use(bench.memory.table.windows(), {kTestPd, QpNum{9}}, window);
    window.value ^= 1;
    post_bind();
    EXPECT_THAT(bench.issue(), ElementsAre());
    EXPECT_THAT(ids(bench.poll()), ElementsAre(0));
    EXPECT_FALSE(is_bound());
    ASSERT_TRUE(bench.window.resume_at());
    bench.now = *bench.window.resume_at();
  }
  EXPECT_THAT(bench.issue(), ElementsAre());
  EXPECT_THAT(ids(bench.poll()), ElementsAre(1));
  EXPECT_TRUE(is_bound());
  window = before;
  EXPECT_FALSE(is_bound());
}

TEST(LocalOperationsOfUnreliable, AreDoneWithWhatIsBeforeThem) {
  WindowBench bench({.type = QpType::kUc});
  const MemoryKey region = bench.memory.add(kTestPd, kAllAccess | memory::kWindowBind);
  const MemoryKey window = *bench.memory.table.windows().add(kTestPd, memory::WindowType::kOne);
  bench.post_write();
  queues::SendWqe& wqe = bench.post({.opcode = SendOpcode::kBindWindow});
  wqe.immediate = window.value;
  wqe.remote_key = region.value;
  wqe.remote_address = bench.memory.address(0);
  wqe.bind = {64, memory::kRemoteWrite};
  bench.post_write();
  EXPECT_THAT(bench.issue(), ElementsAre(0, 2));
  EXPECT_THAT(ids(bench.poll()), ElementsAre(0, 1, 2));
}

}  // namespace
}  // namespace verbena::qp
