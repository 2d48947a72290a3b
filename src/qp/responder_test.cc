// SPDX-License-Identifier: MIT
#include "qp/responder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "qp/test_bench.h"

namespace verbena::qp {

namespace {

using queues::CompletionKind;
using queues::Status;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr QpType kTransports[] = {QpType::kRc, QpType::kUc, QpType::kUd};

TEST(Responder, ReceivesIntoThePostedMemory) {
  ResponderBench bench;
  bench.post({bench.memory.sge(0, 10), bench.memory.sge(100, 30)});
  EXPECT_EQ(bench.send(25, 7), std::nullopt);
  EXPECT_TRUE(bench.memory.holds(0, 10, 7));
  EXPECT_TRUE(bench.memory.holds(100, 15, 7));
  EXPECT_TRUE(bench.memory.holds(115, 1, 0));
  EXPECT_TRUE(bench.memory.holds(10, 1, 0));
  const auto completions = bench.poll();
  ASSERT_EQ(completions.size(), 1u);
  EXPECT_EQ(completions[0].wr_id, 100u);
  EXPECT_EQ(completions[0].status, Status::kSuccess);
  EXPECT_EQ(completions[0].kind, CompletionKind::kReceive);
  EXPECT_EQ(completions[0].byte_length, 25u);
  EXPECT_EQ(completions[0].flags, 0);
  EXPECT_EQ(completions[0].qp, kTestQp);
}

TEST(Responder, HandsOverImmediateDataAndTheSolicitedEvent) {
  ResponderBench bench;
  bench.post({});
  bench.post({});
  bench.completions.arm(queues::Arm::kSolicited);
  EXPECT_EQ(bench.send(0, 0), std::nullopt);
  EXPECT_EQ(bench.events, 0u);
  EXPECT_EQ(
      bench.send(0, 0, {.has_immediate = true, .is_solicited = true, .immediate = 0x01020304}),
      std::nullopt);
  EXPECT_EQ(bench.events, 1u);
  const auto completions = bench.poll();
  EXPECT_EQ(completions.at(1).flags, queues::kHasImmediate);
  EXPECT_EQ(completions.at(1).immediate, 0x01020304u);
}

// In one call as in three: what it answers, completes, places and breaks.
TEST(Responder, ReceivesAWholeMessageAsInSteps) {
  const Arrived usual{};
  const Arrived with_immediate{.has_immediate = true, .is_solicited = true, .immediate = 7};
  const Arrived invalidating{.invalidates = true, .immediate = 7};
  for (const Arrived& arrived : {usual, with_immediate, invalidating}) {
    for (const std::size_t length : {0, 1, 16, 17}) {
      for (const int sges : {-1, 0, 1, 2, 3}) {
        ResponderBench whole({.takers = queues::Takers::kOneAtATime});
        ResponderBench steps({.takers = queues::Takers::kOneAtATime});
        for (ResponderBench* bench : {&whole, &steps}) {
          Sge bad = bench->memory.sge(0, 16);
          bad.key = {0x7777};
          if (sges == 3) bench->post({bad});
          if (sges >= 0 && sges < 3)
            bench->post(std::vector<Sge>(static_cast<unsigned>(sges), bench->memory.sge(0, 16)));
        }
        const std::vector<std::byte> payload(length, std::byte{5});
        const auto done = whole.responder.receive_whole(payload, arrived);
        const auto refused = steps.send(length, 5, arrived);
        ASSERT_EQ(done ? std::nullopt : std::optional(done.error()), refused);
        ASSERT_EQ(whole.faults, steps.faults);
        ASSERT_EQ(whole.responder.last_refusal(), steps.responder.last_refusal());
        ASSERT_EQ(whole.memory.holds(0, length, 5), steps.memory.holds(0, length, 5));
        ASSERT_EQ(whole.queue.waiting(), steps.queue.waiting());
        const auto mine = whole.poll();
        const auto other = steps.poll();
        ASSERT_EQ(mine.size(), other.size());
        if (mine.empty()) continue;
        const auto content = [](const queues::Completion& c) {
          return std::tuple(c.wr_id, c.status, c.kind, c.flags, c.vendor_error, c.byte_length,
                            c.immediate, c.qp, c.source_qp);
        };
        ASSERT_EQ(content(mine[0]), content(other[0]));
      }
    }
  }
}

TEST(Responder, IsNotReadyWithoutAReceive) {
  ResponderBench bench;
  EXPECT_EQ(bench.send(8, 1), Refusal::kNotReady);
  EXPECT_EQ(bench.responder.rnr_timer(), 12);
  EXPECT_EQ(bench.responder.finish_write_with_immediate(0, {.has_immediate = true}).error(),
            Refusal::kNotReady);
  EXPECT_THAT(bench.faults, IsEmpty());
  bench.post({bench.memory.sge(0, 8)});
  EXPECT_EQ(bench.send(8, 1), std::nullopt) << "a retry succeeds";
}

TEST(Responder, KeepsTheReceiveOfAMessageThatIsRepeated) {
  ResponderBench bench;
  bench.post({bench.memory.sge(0, 64)});
  ASSERT_TRUE(bench.responder.begin_receive(64));
  const std::array<std::byte, 8> some{std::byte{9}};
  ASSERT_TRUE(bench.responder.place(0, some));
  EXPECT_EQ(bench.send(64, 5), std::nullopt);
  EXPECT_TRUE(bench.memory.holds(0, 64, 5));
  EXPECT_THAT(ids(bench.poll()), ElementsAre(100));
}

TEST(Responder, GivesTheReceiveOfAnAbandonedMessageToTheNextOne) {
  ResponderBench bench({.type = QpType::kUc});
  bench.post({bench.memory.sge(0, 64)});
  ASSERT_TRUE(bench.responder.begin_receive(64));
  ASSERT_TRUE(bench.responder.begin_write(bench.memory.key, bench.memory.address(0), 8));
  EXPECT_FALSE(bench.responder.finish_receive({})) << "it was abandoned";
  ASSERT_TRUE(bench.responder.finish_write_with_immediate(8, {.has_immediate = true}));
  EXPECT_THAT(ids(bench.poll()), ElementsAre(100));
}

TEST(Responder, CompletesAWriteWithImmediateWithoutTouchingTheReceive) {
  ResponderBench bench;
  bench.post({{1, 1, {1}}});  // a receive of nonsense: not looked at
  bench.memory.fill(0, 64, 0);
  const std::array<std::byte, 4> data{std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};
  ASSERT_TRUE(bench.responder.begin_write(bench.memory.key, bench.memory.address(8), 4));
  ASSERT_TRUE(bench.responder.write(bench.memory.key, bench.memory.address(8), data));
  ASSERT_TRUE(bench.responder.finish_write_with_immediate(
      4, {.has_immediate = true, .is_solicited = false, .immediate = 77}));
  const auto completions = bench.poll();
  EXPECT_EQ(completions.at(0).kind, CompletionKind::kReceiveWithImmediate);
  EXPECT_EQ(completions[0].byte_length, 4u);
  EXPECT_EQ(completions[0].immediate, 77u);
  EXPECT_EQ(bench.memory.bytes[11], std::byte{4});
}

TEST(Responder, ReadsAndDoesAtomics) {
  ResponderBench bench;
  bench.memory.fill(0, 16, 0x11);
  std::array<std::byte, 8> to{};
  const MemoryKey key = bench.memory.key;
  ASSERT_TRUE(bench.responder.begin_read(key, bench.memory.address(4), 8));
  ASSERT_TRUE(bench.responder.read(key, bench.memory.address(4), to));
  EXPECT_EQ(to[7], std::byte{0x11});
  const auto before =
      bench.responder.atomic(key, bench.memory.address(8), {.add = true, .operand = 1});
  EXPECT_EQ(before.value(), 0x1111111111111111u);
  const auto swapped = bench.responder.atomic(key, bench.memory.address(8),
                                              {.operand = 0x1111111111111112u, .swap = 5});
  EXPECT_EQ(swapped.value(), 0x1111111111111112u);
  EXPECT_EQ(bench.memory.bytes[8], std::byte{5});
}

TEST(Responder, ChecksNoKeyForNothing) {
  ResponderBench bench;
  EXPECT_TRUE(bench.responder.begin_write({0}, 0, 0));
  EXPECT_TRUE(bench.responder.begin_read({0}, ~0ull, 0));
  EXPECT_TRUE(bench.responder.write({0}, 0, {}));
  EXPECT_TRUE(bench.responder.read({0}, 0, {}));
}

struct RefusalCase {
  const char* what;
  Refusal refusal;
  ResponderFault fault;
  Reason reason;
  Result<void, Refusal> (*ask)(ResponderBench&);
  ResponderOptions options = {};
};

Result<void, Refusal> no_value(Result<std::uint64_t, Refusal> result) {
  if (result) return {};
  return refuse(result.error());
}

constexpr std::uint32_t kOnlyWrite = memory::kRemoteWrite;
constexpr std::uint32_t kOnlyRead = memory::kRemoteRead;

const RefusalCase kRefusals[] = {
    {"unknown rkey", Refusal::kAccess, ResponderFault::kAccess, Reason::kRemoteKey,
     [](ResponderBench& b) {
       return b.responder.begin_write({b.memory.key.value + 1}, b.memory.address(0), 8);
     }},
    {"rkey of another domain", Refusal::kAccess, ResponderFault::kAccess, Reason::kRemoteDomain,
     [](ResponderBench& b) {
       return b.responder.begin_read(b.memory.add(kOtherPd, kAllAccess), b.memory.address(0), 8);
     }},
    {"range beyond the region", Refusal::kAccess, ResponderFault::kAccess, Reason::kRemoteRange,
     [](ResponderBench& b) {
       return b.responder.begin_write(b.memory.key, b.memory.address(65'530), 7);
     }},
    {"range that wraps around", Refusal::kAccess, ResponderFault::kAccess, Reason::kRemoteRange,
     [](ResponderBench& b) { return b.responder.begin_read(b.memory.key, ~0ull - 3, 8); }},
    {"WRITE to a region without remote write", Refusal::kAccess, ResponderFault::kAccess,
     Reason::kRemotePermission,
     [](ResponderBench& b) {
       const MemoryKey key = b.memory.add(kTestPd, memory::kRemoteRead);
       return b.responder.begin_write(key, b.memory.address(0), 8);
     }},
    {"READ of a region without remote read", Refusal::kAccess, ResponderFault::kAccess,
     Reason::kRemotePermission,
     [](ResponderBench& b) {
       const MemoryKey key = b.memory.add(kTestPd, memory::kLocalWrite | memory::kRemoteWrite);
       return b.responder.begin_read(key, b.memory.address(0), 8);
     }},
    {"atomic on a region without remote atomic", Refusal::kAccess, ResponderFault::kAccess,
     Reason::kRemotePermission,
     [](ResponderBench& b) {
       const MemoryKey key = b.memory.add(kTestPd, memory::kLocalWrite | memory::kRemoteWrite);
       return no_value(b.responder.atomic(key, b.memory.address(0), {}));
     }},
    {"region taken away in the middle", Refusal::kAccess, ResponderFault::kAccess,
     Reason::kRemoteKey,
     [](ResponderBench& b) {
       const MemoryKey key = b.memory.add(kTestPd, kAllAccess);
       const auto begun = b.responder.begin_write(key, b.memory.address(0), 8);
       if (!begun) return begun;
       b.memory.table.remove(key);
       const std::array<std::byte, 8> data{};
       return b.responder.write(key, b.memory.address(0), data);
     }},
    {"misaligned atomic", Refusal::kInvalidRequest, ResponderFault::kRequest,
     Reason::kMisalignedAtomic,
     [](ResponderBench& b) {
       return no_value(b.responder.atomic(b.memory.key, b.memory.address(4), {.add = true}));
     }},
    {"WRITE not enabled",
     Refusal::kInvalidRequest,
     ResponderFault::kRequest,
     Reason::kOperationNotEnabled,
     [](ResponderBench& b) {
       return b.responder.begin_write(b.memory.key, b.memory.address(0), 8);
     },
     {.access = kOnlyRead}},
    {"empty WRITE not enabled",
     Refusal::kInvalidRequest,
     ResponderFault::kRequest,
     Reason::kOperationNotEnabled,
     [](ResponderBench& b) { return b.responder.begin_write({0}, 0, 0); },
     {.access = kOnlyRead}},
    {"WRITE with immediate not enabled",
     Refusal::kInvalidRequest,
     ResponderFault::kRequest,
     Reason::kOperationNotEnabled,
     [](ResponderBench& b) { return b.responder.finish_write_with_immediate(0, {}); },
     {.access = kOnlyRead}},
    {"READ not enabled",
     Refusal::kInvalidRequest,
     ResponderFault::kRequest,
     Reason::kOperationNotEnabled,
     [](ResponderBench& b) { return b.responder.begin_read(b.memory.key, b.memory.address(0), 8); },
     {.access = kOnlyWrite}},
    {"atomic not enabled",
     Refusal::kInvalidRequest,
     ResponderFault::kRequest,
     Reason::kOperationNotEnabled,
     [](ResponderBench& b) {
       return no_value(b.responder.atomic(b.memory.key, b.memory.address(0), {.add = true}));
     },
     {.access = kOnlyWrite | kOnlyRead}},
    {"READ without resources for it",
     Refusal::kInvalidRequest,
     ResponderFault::kRequest,
     Reason::kNoReadResources,
     [](ResponderBench& b) { return b.responder.begin_read(b.memory.key, b.memory.address(0), 8); },
     {.reads_in_max = 0}},
    {"WRITE over 1 GiB", Refusal::kInvalidRequest, ResponderFault::kRequest,
     Reason::kRequestTooLong,
     [](ResponderBench& b) {
       return b.responder.begin_write(b.memory.key, b.memory.address(0), (1ull << 30) + 1);
     }},
};

class RefusedRequest : public testing::TestWithParam<RefusalCase> {};

TEST_P(RefusedRequest, TellsThePeerFailsHereAndTouchesNothing) {
  SCOPED_TRACE(GetParam().what);
  ResponderBench bench(GetParam().options);
  bench.post({bench.memory.sge(0, 64)});
  bench.memory.fill(0, bench.memory.bytes.size(), 0x5A);
  const auto result = GetParam().ask(bench);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error(), GetParam().refusal);
  EXPECT_THAT(bench.faults, ElementsAre(GetParam().fault));
  EXPECT_EQ(bench.responder.last_refusal(), GetParam().reason);
  EXPECT_TRUE(bench.memory.holds(0, bench.memory.bytes.size(), 0x5A));
  EXPECT_THAT(statuses(bench.poll()), ElementsAre(Status::kFlushed));
  EXPECT_FALSE(bench.responder.is_receiving());
}

TEST_P(RefusedRequest, IsDroppedInSilenceOnUnreliableTypes) {
  SCOPED_TRACE(GetParam().what);
  for (QpType type : {QpType::kUc, QpType::kUd}) {
    ResponderOptions options = GetParam().options;
    options.type = type;
    ResponderBench bench(options);
    bench.post({bench.memory.sge(0, 64)});
    EXPECT_FALSE(GetParam().ask(bench));
    EXPECT_THAT(bench.faults, IsEmpty());
    EXPECT_THAT(bench.poll(), IsEmpty());
    EXPECT_TRUE(bench.responder.is_receiving());
    EXPECT_EQ(bench.send(8, 1), std::nullopt) << "the next message is received";
  }
}

INSTANTIATE_TEST_SUITE_P(All, RefusedRequest, testing::ValuesIn(kRefusals));

TEST(Responder, FailsAReceiveThatIsTooShort) {
  ResponderBench bench;
  bench.post({bench.memory.sge(0, 10)});
  bench.post({bench.memory.sge(0, 10)});
  EXPECT_EQ(bench.send(11, 1), Refusal::kInvalidRequest);
  const auto completions = bench.poll();
  EXPECT_THAT(statuses(completions), ElementsAre(Status::kLocalLength, Status::kFlushed));
  EXPECT_EQ(completions[0].vendor_error, static_cast<std::uint32_t>(Reason::kReceiveTooShort));
  EXPECT_THAT(bench.faults, ElementsAre(ResponderFault::kReceive));
  EXPECT_TRUE(bench.memory.holds(0, 16, 0));
}

TEST(Responder, DropsAnUnreliableMessageThatIsTooLongAndKeepsTheReceive) {
  for (QpType type : {QpType::kUc, QpType::kUd}) {
    ResponderBench bench({.type = type});
    bench.post({bench.memory.sge(0, 50)});
    EXPECT_EQ(bench.send(51, 1), Refusal::kInvalidRequest);
    EXPECT_THAT(bench.poll(), IsEmpty());
    EXPECT_THAT(bench.faults, IsEmpty());
    EXPECT_EQ(bench.send(10, 1), std::nullopt);
    EXPECT_THAT(ids(bench.poll()), ElementsAre(100));
  }
}

TEST(Responder, FailsAnUnreliableMessageThatIsTooLongForASharedReceive) {
  ResponderBench bench({.type = QpType::kUd, .is_shared = true});
  bench.post({bench.memory.sge(0, 50)});
  EXPECT_EQ(bench.send(11, 1), Refusal::kInvalidRequest);
  EXPECT_THAT(statuses(bench.poll()), ElementsAre(Status::kLocalLength));
  EXPECT_THAT(bench.faults, ElementsAre(ResponderFault::kReceive));
}

TEST(Responder, FailsAReceiveWhoseOwnMemoryIsBad) {
  for (QpType type : kTransports) {
    ResponderBench bench({.type = type});
    const MemoryKey read_only = bench.memory.add(kTestPd, 0);
    bench.post({{bench.memory.address(0), 64, read_only}});
    EXPECT_EQ(bench.send(8, 1), Refusal::kOperation);
    const auto completions = bench.poll();
    EXPECT_THAT(statuses(completions), ElementsAre(Status::kLocalProtection));
    EXPECT_EQ(completions[0].vendor_error, static_cast<std::uint32_t>(Reason::kLocalPermission));
    EXPECT_THAT(bench.faults, ElementsAre(ResponderFault::kReceive));
    EXPECT_TRUE(bench.memory.holds(0, 64, 0));
  }
}

TEST(Responder, DoesNotLookAtSgesThatAMessageDoesNotReach) {
  ResponderBench bench;
  bench.post({bench.memory.sge(0, 8), {0, 100, {0}}});
  EXPECT_EQ(bench.send(8, 1), std::nullopt);
}

TEST(Responder, PlacesNothingBeyondTheAnnouncedLength) {
  ResponderBench bench;
  bench.post({bench.memory.sge(0, 64)});
  ASSERT_TRUE(bench.responder.begin_receive(8));
  const std::array<std::byte, 9> data{std::byte{1}};
  EXPECT_FALSE(bench.responder.place(0, data));
  EXPECT_TRUE(bench.memory.holds(0, 64, 0));
  EXPECT_THAT(statuses(bench.poll()), ElementsAre(Status::kLocalLength));
}

TEST(Responder, RefusesBytesOfAMessageThatDidNotBegin) {
  ResponderBench bench;
  bench.post({bench.memory.sge(0, 64)});
  const std::array<std::byte, 9> data{};
  EXPECT_FALSE(bench.responder.place(0, data));
  EXPECT_FALSE(bench.responder.finish_receive({}));
  EXPECT_THAT(bench.poll(), IsEmpty());
}

TEST(Responder, RefusesToInvalidateWhatIsNoWindow) {
  ResponderBench bench;
  bench.post({bench.memory.sge(0, 64)});
  EXPECT_EQ(bench.send(8, 1, {.invalidates = true, .immediate = bench.memory.key.value}),
            Refusal::kAccess);
  EXPECT_THAT(statuses(bench.poll()), ElementsAre(Status::kRemoteInvalidRequest));
  EXPECT_THAT(bench.faults, ElementsAre(ResponderFault::kAccess));
  EXPECT_TRUE(bench.memory.table.lease(bench.memory.key, kTestPd, bench.memory.address(0), 8, 0));
}

TEST(Responder, PutsADatagramBehindItsHeader) {
  ResponderBench bench({.type = QpType::kUd});
  bench.post({bench.memory.sge(0, 60)});
  ASSERT_TRUE(bench.responder.begin_receive(20));
  std::array<std::byte, 40> grh;
  grh.fill(std::byte{9});
  std::array<std::byte, 20> payload;
  payload.fill(std::byte{1});
  ASSERT_TRUE(bench.responder.place_grh(grh));
  ASSERT_TRUE(bench.responder.place(0, payload));
  ASSERT_TRUE(bench.responder.finish_receive({.source_qp = {0x42}, .has_grh = true}));
  EXPECT_TRUE(bench.memory.holds(0, 40, 9));
  EXPECT_TRUE(bench.memory.holds(40, 20, 1));
  const auto completions = bench.poll();
  EXPECT_EQ(completions.at(0).byte_length, 60u);
  EXPECT_EQ(completions[0].flags, queues::kHasGrh);
  EXPECT_EQ(completions[0].source_qp, QpNum{0x42});
}

TEST(Responder, NeedsRoomForTheHeaderOfADatagram) {
  ResponderBench bench({.type = QpType::kUd});
  bench.post({bench.memory.sge(0, 60)});
  EXPECT_FALSE(bench.responder.begin_receive(21));
  EXPECT_TRUE(bench.responder.begin_receive(20));
}

TEST(Responder, CountsDatagramsWithAnotherQkey) {
  ResponderBench bench({.type = QpType::kUd});
  EXPECT_TRUE(bench.responder.datagram_allowed(0x1111));
  EXPECT_FALSE(bench.responder.datagram_allowed(0x1112));
  EXPECT_EQ(bench.responder.wrong_qkeys(), 1u);
  ResponderBench connected;
  EXPECT_FALSE(connected.responder.datagram_allowed(0x1111));
}

TEST(Responder, ReceivesOnlyInTheStatesThatReceive) {
  for (const auto& [state, receives] : {std::pair{QpState::kReset, false},
                                        {QpState::kInit, false},
                                        {QpState::kReadyToReceive, true},
                                        {QpState::kReadyToSend, true},
                                        {QpState::kDrained, true},
                                        {QpState::kSendError, true},
                                        {QpState::kError, false}}) {
    ResponderBench bench({.state = state});
    bench.post({bench.memory.sge(0, 64)});
    EXPECT_EQ(bench.responder.is_receiving(), receives);
    const auto written = bench.responder.begin_write(bench.memory.key, bench.memory.address(0), 8);
    EXPECT_EQ(written.has_value(), receives);
    EXPECT_EQ(bench.send(8, 1).has_value(), !receives);
    EXPECT_THAT(bench.faults, IsEmpty());
  }
}

TEST(Responder, TellsOnceThatTheFirstMessageCame) {
  ResponderBench bench({.state = QpState::kReadyToReceive});
  EXPECT_EQ(bench.established, 0u);
  EXPECT_EQ(bench.send(8, 1), Refusal::kNotReady);
  EXPECT_EQ(bench.established, 1u);
  EXPECT_TRUE(bench.responder.begin_read({0}, 0, 0));
  EXPECT_EQ(bench.established, 1u);
  ResponderBench late;
  late.post({});
  EXPECT_EQ(late.send(0, 0), std::nullopt);
  EXPECT_EQ(late.established, 0u) << "RTS knows already";
}

TEST(Responder, FlushesItsOwnReceivesInOrder) {
  ResponderBench bench;
  for (int i = 0; i < 3; ++i)
    bench.post({bench.memory.sge(0, 64)});
  ASSERT_TRUE(bench.responder.begin_receive(64));
  bench.responder.flush();
  const auto completions = bench.poll();
  EXPECT_THAT(ids(completions), ElementsAre(100, 101, 102));
  for (const auto& completion : completions)
    EXPECT_EQ(completion.status, Status::kFlushed);
}

TEST(Responder, FlushesOfASharedQueueOnlyWhatItTook) {
  ResponderBench bench({.is_shared = true});
  for (int i = 0; i < 3; ++i)
    bench.post({bench.memory.sge(0, 64)});
  ASSERT_TRUE(bench.responder.begin_receive(64));
  bench.responder.flush();
  EXPECT_THAT(ids(bench.poll()), ElementsAre(100));
  EXPECT_EQ(bench.queue.waiting(), 2u);
}

TEST(Responder, TellsOnceThatACompletionWasLost) {
  ResponderBench bench({.completions = 1});
  for (int i = 0; i < 4; ++i)
    bench.post({});
  EXPECT_EQ(bench.send(0, 0), std::nullopt);
  EXPECT_EQ(bench.send(0, 0), Refusal::kOperation);
  EXPECT_THAT(bench.faults, ElementsAre(ResponderFault::kCompletionLost));
  EXPECT_THAT(ids(bench.poll()), ElementsAre(100));
}

}  // namespace

}  // namespace verbena::qp
