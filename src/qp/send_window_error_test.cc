// SPDX-License-Identifier: MIT
// How operations fail, flush, drain; and their payload.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "qp/send_window.h"
#include "qp/test_bench.h"

namespace verbena::qp {

namespace {

using queues::SendOpcode;
using queues::Status;
using testing::ElementsAre;
using testing::IsEmpty;
using Numbers = std::vector<std::uint32_t>;

struct AnswerCase {
  Answer answer;
  Status status;
  Reason reason;
};

class FailingAnswer : public testing::TestWithParam<AnswerCase> {};

TEST_P(FailingAnswer, CompletesThoseBeforeFailsThatOneAndFlushesTheRest) {
  WindowBench bench;
  bench.post_write();
  bench.post_write(0);
  bench.post_read(0);
  bench.post_write(0);  // never issued
  bench.issue(3);
  bench.answer(1, GetParam().answer);
  const auto completions = bench.poll();
  EXPECT_THAT(ids(completions), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(statuses(completions),
              ElementsAre(Status::kSuccess, GetParam().status, Status::kFlushed, Status::kFlushed));
  EXPECT_EQ(completions[1].vendor_error, static_cast<std::uint32_t>(GetParam().reason));
  EXPECT_EQ(completions[2].vendor_error, static_cast<std::uint32_t>(Reason::kFlushedAfterFailure));
  EXPECT_EQ(completions[2].kind, queues::CompletionKind::kRead);
  EXPECT_THAT(bench.faults, ElementsAre(WindowFault::kFailed));
  EXPECT_EQ(bench.queue.used(), 0u);
  bench.answer(2, Answer::kDone);
  EXPECT_THAT(bench.poll(), IsEmpty());
  EXPECT_EQ(bench.window.next(bench.now), nullptr);
}

// Who lends the memory of what is outstanding has it back before the program hears of its end.
TEST_P(FailingAnswer, IsKnownBeforeTheRestIsFlushed) {
  WindowBench bench;
  std::vector<queues::Completion> before;
  bench.before_flush = [&] { before = bench.poll(); };
  bench.post_write();
  bench.post_write();
  bench.post_write();
  bench.issue(3);
  bench.answer(1, GetParam().answer);
  EXPECT_THAT(statuses(before), ElementsAre(Status::kSuccess, GetParam().status));
  EXPECT_THAT(statuses(bench.poll()), ElementsAre(Status::kFlushed));
}

INSTANTIATE_TEST_SUITE_P(
    All, FailingAnswer,
    testing::Values(AnswerCase{Answer::kInvalidRequest, Status::kRemoteInvalidRequest,
                               Reason::kPeerInvalidRequest},
                    AnswerCase{Answer::kAccess, Status::kRemoteAccess, Reason::kPeerAccess},
                    AnswerCase{Answer::kOperation, Status::kRemoteOperation,
                               Reason::kPeerOperation},
                    AnswerCase{Answer::kBadResponse, Status::kBadResponse, Reason::kAnswerKind},
                    AnswerCase{Answer::kBadLength, Status::kLocalLength, Reason::kAnswerLength}));

struct LocalCase {
  const char* what;
  Status status;
  Reason reason;
  void (*post)(WindowBench&);
  WindowOptions options = {};
};

void post_with_key(WindowBench& bench, MemoryKey key, SendOpcode opcode = SendOpcode::kWrite) {
  bench.post({.opcode = opcode, .flags = 0, .sges = {{bench.memory.address(0), 8, key}}});
}

const LocalCase kLocalCases[] = {
    {"unknown opcode", Status::kLocalQpOperation, Reason::kUnknownOpcode,
     [](WindowBench& b) { b.post_write(0).opcode = 12; }},
    {"more SGEs than the queue has", Status::kLocalQpOperation, Reason::kTooManySges,
     [](WindowBench& b) { b.post_write(0).sge_count = 5; }},
    {"more inline data than the queue has", Status::kLocalQpOperation, Reason::kInlineTooLong,
     [](WindowBench& b) { b.post({.flags = queues::kInline}).inline_length = 65; }},
    {"inline READ", Status::kLocalQpOperation, Reason::kOpcodeNotForType,
     [](WindowBench& b) { b.post({.opcode = SendOpcode::kRead, .flags = queues::kInline}); }},
    {"READ on UC",
     Status::kLocalQpOperation,
     Reason::kOpcodeNotForType,
     [](WindowBench& b) { b.post_read(0); },
     {.type = QpType::kUc}},
    {"WRITE on UD",
     Status::kLocalQpOperation,
     Reason::kOpcodeNotForType,
     [](WindowBench& b) { b.post_write(0); },
     {.type = QpType::kUd}},
    {"invalidate of a region", Status::kWindowBind, Reason::kInvalidateRefused,
     [](WindowBench& b) { b.post({.opcode = SendOpcode::kLocalInvalidate, .flags = 0}); }},
    {"message over 1 GiB", Status::kLocalLength, Reason::kMessageTooLong,
     [](WindowBench& b) {
       b.post({.flags = 0, .sges = {b.memory.sge(0, 1u << 30), b.memory.sge(0, 1)}});
     }},
    {"lengths that overflow 32 bits", Status::kLocalLength, Reason::kMessageTooLong,
     [](WindowBench& b) {
       b.post({.flags = 0, .sges = {b.memory.sge(0, 0xFFFFFFFF), b.memory.sge(0, 2)}});
     }},
    {"datagram over the MTU",
     Status::kLocalLength,
     Reason::kDatagramTooLong,
     [](WindowBench& b) {
       b.post({.opcode = SendOpcode::kSend, .flags = 0, .sges = {b.memory.sge(0, 4097)}});
     },
     {.type = QpType::kUd}},
    {"raw packet over the longest frame",
     Status::kLocalLength,
     Reason::kDatagramTooLong,
     [](WindowBench& b) {
       b.post({.opcode = SendOpcode::kSend, .flags = 0, .sges = {b.memory.sge(0, 4097)}});
     },
     {.type = QpType::kRawPacket}},
    {"raw packet without a whole header",
     Status::kLocalLength,
     Reason::kFrameTooShort,
     [](WindowBench& b) {
       b.post({.opcode = SendOpcode::kSend, .flags = 0, .sges = {b.memory.sge(0, 13)}});
     },
     {.type = QpType::kRawPacket}},
    {"SEND with immediate as a raw packet",
     Status::kLocalQpOperation,
     Reason::kOpcodeNotForType,
     [](WindowBench& b) { b.post({.opcode = SendOpcode::kSendWithImmediate, .flags = 0}); },
     {.type = QpType::kRawPacket}},
    {"atomic into 4 bytes", Status::kLocalLength, Reason::kAtomicNotEightBytes,
     [](WindowBench& b) {
       b.post({.opcode = SendOpcode::kFetchAdd, .flags = 0, .sges = {b.memory.sge(0, 4)}});
     }},
    {"READ where none is allowed",
     Status::kLocalQpOperation,
     Reason::kNoReadsAllowed,
     [](WindowBench& b) { b.post_read(0); },
     {.reads_out_max = 0}},
    {"unknown lkey", Status::kLocalProtection, Reason::kLocalKey,
     [](WindowBench& b) { post_with_key(b, {b.memory.key.value + 1}); }},
    {"deregistered lkey", Status::kLocalProtection, Reason::kLocalKey,
     [](WindowBench& b) {
       b.memory.table.remove(b.memory.key);
       post_with_key(b, b.memory.key);
     }},
    {"lkey of another domain", Status::kLocalProtection, Reason::kLocalDomain,
     [](WindowBench& b) { post_with_key(b, b.memory.add(kOtherPd, kAllAccess)); }},
    {"SGE beyond its region", Status::kLocalProtection, Reason::kLocalRange,
     [](WindowBench& b) { b.post({.flags = 0, .sges = {b.memory.sge(65'530, 7)}}); }},
    {"SGE that wraps around", Status::kLocalProtection, Reason::kLocalRange,
     [](WindowBench& b) { b.post({.flags = 0, .sges = {{~0ull - 3, 8, b.memory.key}}}); }},
    {"READ into memory without local write", Status::kLocalProtection, Reason::kLocalPermission,
     [](WindowBench& b) { post_with_key(b, b.memory.add(kTestPd, 0), SendOpcode::kRead); }},
    {"atomic into memory without local write", Status::kLocalProtection, Reason::kLocalPermission,
     [](WindowBench& b) { post_with_key(b, b.memory.add(kTestPd, 0), SendOpcode::kFetchAdd); }},
    {"bad second SGE", Status::kLocalProtection, Reason::kLocalKey,
     [](WindowBench& b) {
       b.post({.flags = 0,
               .sges = {b.memory.sge(0, 8), {b.memory.address(0), 8, {b.memory.key.value + 1}}}});
     }},
};

class LocalError : public testing::TestWithParam<LocalCase> {};

TEST_P(LocalError, FailsBeforeAnythingIsSent) {
  SCOPED_TRACE(GetParam().what);
  WindowBench bench(GetParam().options);
  GetParam().post(bench);
  EXPECT_EQ(bench.issue(), Numbers{});
  const auto completions = bench.poll();
  EXPECT_THAT(statuses(completions), ElementsAre(GetParam().status));
  EXPECT_EQ(completions.at(0).vendor_error, static_cast<std::uint32_t>(GetParam().reason));
  EXPECT_THAT(bench.faults, ElementsAre(WindowFault::kFailed));
}

TEST_P(LocalError, WaitsForThoseBeforeAndFlushesThoseBehind) {
  SCOPED_TRACE(GetParam().what);
  if (GetParam().options.type != QpType::kRc) return;  // nothing is ever outstanding there
  WindowBench bench(GetParam().options);
  bench.post_write(0);
  bench.issue();
  GetParam().post(bench);
  bench.post({.flags = 0});
  EXPECT_EQ(bench.issue(), Numbers{});
  EXPECT_THAT(bench.poll(), IsEmpty());
  EXPECT_THAT(bench.faults, IsEmpty());
  bench.answer(0, Answer::kDone);
  EXPECT_THAT(ids(bench.poll()), ElementsAre(1, 2));
  EXPECT_THAT(bench.faults, ElementsAre(WindowFault::kFailed));
}

INSTANTIATE_TEST_SUITE_P(All, LocalError, testing::ValuesIn(kLocalCases));

TEST(SendWindow, NeedsNoKeyForNothing) {
  WindowBench bench;
  bench.post({});
  bench.post({.sges = {{0, 0, {0}}}});
  bench.post({.opcode = SendOpcode::kRead, .sges = {{0, 0, {0}}}});
  EXPECT_EQ(bench.issue(), (Numbers{0, 1, 2}));
  EXPECT_TRUE(bench.window.gather(OpIndex(0), 0, {}));
  EXPECT_TRUE(bench.window.scatter(OpIndex(2), 0, {}));
}

TEST(SendWindow, GathersFromSgesAndFromInlineData) {
  WindowBench bench;
  bench.memory.fill(0, 10, 1);
  bench.memory.fill(100, 10, 2);
  bench.post({.sges = {bench.memory.sge(0, 10), bench.memory.sge(100, 10)}});
  queues::SendWqe& wqe = bench.post({.flags = queues::kInline});
  wqe.inline_length = 20;
  std::memset(queues::SendQueue::inline_room(wqe), 3, 20);
  bench.issue();
  std::array<std::byte, 4> some{};
  ASSERT_TRUE(bench.window.gather(OpIndex(0), 8, some));
  EXPECT_THAT(some, ElementsAre(std::byte{1}, std::byte{1}, std::byte{2}, std::byte{2}));
  ASSERT_TRUE(bench.window.gather(OpIndex(1), 16, some));
  EXPECT_EQ(some[3], std::byte{3});
  std::array<memory::Extent, 2> extents;
  ASSERT_EQ(bench.window.memory_of(OpIndex(0), 8, 4, extents), 2u);
  EXPECT_EQ(extents[0].length, 2u);
  EXPECT_EQ(*extents[1].address, std::byte{2});
  EXPECT_FALSE(bench.window.memory_of(OpIndex(0), 8, 4, std::span(extents).first(1)));
  EXPECT_FALSE(bench.window.memory_of(OpIndex(0), 17, 4, extents)) << "beyond the end";
  ASSERT_EQ(bench.window.memory_of(OpIndex(1), 16, 4, extents), 1u);
  EXPECT_EQ(*extents[0].address, std::byte{3});
  EXPECT_FALSE(bench.window.gather(OpIndex(1), 17, some)) << "beyond the end";
  EXPECT_FALSE(bench.window.gather(OpIndex(1), ~0ull, some)) << "wraps";
  EXPECT_FALSE(bench.window.gather(OpIndex(2), 0, some)) << "no such operation";
  EXPECT_FALSE(bench.window.memory_of(OpIndex(2), 0, 4, extents)) << "no such operation";
  EXPECT_FALSE(bench.window.memory_of(OpIndex(0), 0, 4, {})) << "no room";
  EXPECT_FALSE(bench.window.scatter(OpIndex(0), 0, some)) << "not a READ";
  EXPECT_THAT(bench.faults, IsEmpty()) << "what a peer asks for in vain harms nobody";
}

TEST(SendWindow, ScattersTheAnswerOfARead) {
  WindowBench bench;
  bench.post(
      {.opcode = SendOpcode::kRead, .sges = {bench.memory.sge(0, 2), bench.memory.sge(100, 6)}});
  bench.issue();
  const std::array<std::byte, 4> data{std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};
  ASSERT_TRUE(bench.window.scatter(OpIndex(0), 0, data));
  EXPECT_EQ(bench.memory.bytes[1], std::byte{2});
  EXPECT_EQ(bench.memory.bytes[101], std::byte{4});
  bench.answer(0, Answer::kDone);
  EXPECT_EQ(bench.poll().at(0).byte_length, 8u);
}

TEST(SendWindow, FailsAReadThatIsAnsweredWithTooMuch) {
  WindowBench bench;
  bench.post_read();
  bench.issue();
  const std::array<std::byte, 17> data{};
  EXPECT_FALSE(bench.window.scatter(OpIndex(0), 0, data));
  EXPECT_THAT(statuses(bench.poll()), ElementsAre(Status::kLocalLength));
}

TEST(SendWindow, FailsInOrderWhenMemoryIsTakenAwayAfterTheFetch) {
  WindowBench bench;
  const MemoryKey key = bench.memory.add(kTestPd, kAllAccess);
  bench.post_write();
  bench.post({.sges = {{bench.memory.address(0), 8, key}}});
  bench.post_write();
  bench.issue();
  bench.memory.table.remove(key);
  std::array<std::byte, 8> some{};
  EXPECT_FALSE(bench.window.gather(OpIndex(1), 0, some));
  EXPECT_THAT(bench.poll(), IsEmpty()) << "the first one is not done";
  EXPECT_EQ(bench.window.outstanding(OpIndex(1)), nullptr);
  bench.answer(2, Answer::kDone);
  EXPECT_THAT(statuses(bench.poll()),
              ElementsAre(Status::kSuccess, Status::kLocalProtection, Status::kFlushed));
}

TEST(SendWindow, FlushesEverythingAndWhatIsPostedLater) {
  WindowBench bench;
  for (int i = 0; i < 3; ++i)
    bench.post_write(0);
  bench.issue(1);
  bench.window.flush();
  EXPECT_THAT(ids(bench.poll()), ElementsAre(0, 1, 2));
  bench.post_read(0);
  bench.window.flush();
  const auto completions = bench.poll();
  EXPECT_THAT(statuses(completions), ElementsAre(Status::kFlushed));
  EXPECT_EQ(completions[0].vendor_error, static_cast<std::uint32_t>(Reason::kFlushedByModify));
  EXPECT_THAT(bench.faults, IsEmpty());
  EXPECT_FALSE(bench.window.has_work());
}

TEST(SendWindow, ForgetsEverythingInReset) {
  WindowBench bench;
  bench.post_write();
  bench.issue();
  bench.window.reset();
  EXPECT_FALSE(bench.window.accepts_posts());
  EXPECT_FALSE(bench.window.has_work());
  bench.answer(0, Answer::kDone);
  EXPECT_THAT(bench.poll(), IsEmpty());
  bench.window.start(bench.attributes);
  bench.post_write();
  EXPECT_EQ(bench.issue(), Numbers{0});
}

TEST(SendWindow, BeginsNothingNewWhileItDrains) {
  WindowBench bench;
  for (int i = 0; i < 3; ++i)
    bench.post_write();
  bench.issue(1);
  ASSERT_NE(bench.window.next(bench.now), nullptr);  // the second one is begun
  bench.window.stop_new();
  EXPECT_EQ(bench.issue(), Numbers{1});
  EXPECT_EQ(bench.drained, 0u);
  bench.answer(0, Answer::kSilence);
  EXPECT_EQ(bench.issue(), (Numbers{0, 1})) << "retries go on";
  bench.answer(1, Answer::kDone);
  EXPECT_EQ(bench.drained, 1u);
  EXPECT_FALSE(bench.window.has_work());
  EXPECT_TRUE(bench.window.accepts_posts());
  bench.window.start(bench.attributes);
  EXPECT_EQ(bench.issue(), Numbers{2});
}

TEST(SendWindow, IsDrainedAtOnceWhenNothingIsOutstanding) {
  WindowBench bench;
  bench.post_write();
  bench.window.stop_new();
  EXPECT_EQ(bench.drained, 1u);
  EXPECT_EQ(bench.issue(), Numbers{});
  bench.window.peer_lost(bench.now);
  EXPECT_THAT(bench.faults, IsEmpty());
}

TEST(SendWindow, KeepsDrainingWhenAttributesChange) {
  WindowBench bench;
  bench.window.stop_new();
  bench.attributes.state = QpState::kDrained;
  bench.attributes.retry_count = 1;
  bench.window.start(bench.attributes);
  bench.post_write();
  EXPECT_EQ(bench.issue(), Numbers{});
}

TEST(SendWindow, TellsOnceThatACompletionWasLost) {
  WindowBench bench({.completions = 1});
  for (int i = 0; i < 4; ++i)
    bench.post_write();
  bench.issue();
  bench.answer(2, Answer::kDone);
  EXPECT_THAT(bench.faults, ElementsAre(WindowFault::kCompletionLost));
  EXPECT_THAT(ids(bench.poll()), ElementsAre(0));
  bench.window.flush();
  bench.post_write();
  bench.window.flush();
  EXPECT_EQ(bench.faults.size(), 1u);
}

}  // namespace

}  // namespace verbena::qp
