// SPDX-License-Identifier: MIT
#include "qp/queue_pair.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include "qp/test_pair.h"

namespace verbena::qp {

namespace {

using queues::SendOpcode;
using queues::Status;
using testing::ElementsAre;
using testing::IsEmpty;

const QpConfig kWithShared{.receive_pd = kTestPd};

TEST(QueuePair, SaysThatItFlushesBeforeItDoes) {
  for (const QpType type : {QpType::kRc, QpType::kUc}) {
    Pair pair({.type = type});
    pair.move_to(QpState::kReadyToSend);
    ASSERT_TRUE(pair.send(SendOpcode::kSend, queues::kSignaled));
    pair.step(QpState::kError, 0);
    EXPECT_FALSE(pair.sends.empty());
    EXPECT_EQ(pair.flushes, type == QpType::kRc ? 1u : 0u);
    EXPECT_TRUE(pair.is_told_first);
  }
}

TEST(QueuePair, ReportsTheAttributesThatWereSet) {
  Pair pair;
  pair.move_to(QpState::kReadyToSend);
  const QpAttributes& seen = pair.qp.attributes();
  EXPECT_EQ(seen.state, QpState::kReadyToSend);
  EXPECT_EQ(seen.current_state, QpState::kReadyToSend);
  EXPECT_EQ(seen.path_mtu, 5);
  EXPECT_EQ(seen.receive_psn, 0x111111u);
  EXPECT_EQ(seen.send_psn, 0x222222u);
  EXPECT_EQ(seen.destination, QpNum{0x654321});
  EXPECT_EQ(seen.access, kAllAccess);
  EXPECT_TRUE(seen.path.has_grh);
  EXPECT_EQ(seen.reads_out_max, 4);
  EXPECT_EQ(seen.reads_in_max, 5);
  EXPECT_EQ(seen.rnr_timer, 12);
  EXPECT_EQ(seen.timeout, 14);
  EXPECT_EQ(seen.retry_count, 6);
  EXPECT_EQ(seen.rnr_retry, 7);
  EXPECT_EQ(seen.qkey, 0u) << "was not in the mask";
}

TEST(QueuePair, ChangesNothingWhenAModificationIsRefused) {
  Pair pair;
  pair.move_to(QpState::kInit);
  QpAttributes wanted = pair.values;
  wanted.state = QpState::kReadyToReceive;
  wanted.path_mtu = 6;
  const std::uint32_t mask =
      kState | kAddressVector | kPathMtu | kDestinationQp | kReceivePsn | kReadsInMax | kRnrTimer;
  EXPECT_EQ(pair.qp.modify(wanted, mask).error(), ModifyError::kBadValue);
  EXPECT_EQ(pair.qp.modify(wanted, mask & ~kPathMtu).error(), ModifyError::kMissing);
  EXPECT_EQ(pair.qp.modify(wanted, mask | kSendPsn).error(), ModifyError::kNotAllowed);
  EXPECT_EQ(pair.qp.state(), QpState::kInit);
  EXPECT_EQ(pair.qp.attributes().destination, QpNum{0});
}

TEST(QueuePair, RefusesAModificationThatIsWrongAboutTheCurrentState) {
  Pair pair;
  pair.move_to(QpState::kReadyToSend);
  QpAttributes wanted = pair.values;
  wanted.state = QpState::kReadyToSend;
  wanted.current_state = QpState::kSendError;
  EXPECT_EQ(pair.qp.modify(wanted, kState | kCurrentState).error(), ModifyError::kBadMove);
  wanted.current_state = QpState::kReadyToSend;
  EXPECT_TRUE(pair.qp.modify(wanted, kState | kCurrentState));
}

TEST(QueuePair, TakesPostsInTheStatesOfTheSpecification) {
  struct Case {
    QpState state;
    bool sends;
    bool receives;
  };
  for (const Case& c :
       {Case{QpState::kInit, false, true}, Case{QpState::kReadyToReceive, false, true},
        Case{QpState::kReadyToSend, true, true}, Case{QpState::kDrained, true, true},
        Case{QpState::kError, true, true}}) {
    Pair pair;
    EXPECT_EQ(pair.send().error(), PostError::kWrongState) << "RESET";
    EXPECT_EQ(pair.receive().error(), PostError::kWrongState) << "RESET";
    pair.move_to(c.state);
    EXPECT_EQ(pair.send().has_value(), c.sends);
    EXPECT_EQ(pair.receive().has_value(), c.receives);
  }
}

TEST(QueuePair, RefusesWhatDoesNotFit) {
  Pair pair;
  pair.move_to(QpState::kReadyToSend);
  const std::array<Sge, 3> three{};
  EXPECT_EQ(pair.qp.post_send({.sges = three}).error(), PostError::kTooManySges);
  EXPECT_EQ(pair.qp.post_receive(1, three).error(), PostError::kTooManySges);
  const Sge long_one = pair.memory.sge(0, 33);
  EXPECT_EQ(pair.qp.post_send({.flags = queues::kInline, .sges = {&long_one, 1}}).error(),
            PostError::kInlineTooLong);
  const Sge eight = pair.memory.sge(0, 8);
  EXPECT_EQ(
      pair.qp
          .post_send({.opcode = SendOpcode::kRead, .flags = queues::kInline, .sges = {&eight, 1}})
          .error(),
      PostError::kBadOpcode);
  EXPECT_EQ(pair.qp.post_send({.opcode = static_cast<SendOpcode>(12)}).error(),
            PostError::kBadOpcode);
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(pair.send());
    EXPECT_TRUE(pair.receive());
  }
  EXPECT_EQ(pair.send().error(), PostError::kFull);
  EXPECT_EQ(pair.receive().error(), PostError::kFull);
}

TEST(QueuePair, CopiesInlineDataWhenItIsPosted) {
  Pair pair;
  pair.move_to(QpState::kReadyToSend);
  pair.memory.fill(0, 8, 1);
  pair.memory.fill(100, 4, 2);
  const std::array<Sge, 3> parts{Sge{pair.memory.address(0), 8, {0}}, Sge{0, 0, {0}},
                                 Sge{pair.memory.address(100), 4, {0}}};
  ASSERT_TRUE(pair.qp.post_send({.flags = queues::kInline, .sges = parts}));
  pair.memory.fill(0, 200, 9);
  const Operation* op = pair.qp.window().next(Instant());
  ASSERT_NE(op, nullptr);
  EXPECT_EQ(op->length, 12u);
  std::array<std::byte, 12> sent{};
  ASSERT_TRUE(pair.qp.window().gather(op->index, 0, sent));
  EXPECT_EQ(sent[7], std::byte{1});
  EXPECT_EQ(sent[8], std::byte{2});
}

TEST(QueuePair, HandsTheAddressOfADatagramOver) {
  Pair pair({.type = QpType::kUd});
  pair.move_to(QpState::kReadyToSend);
  ASSERT_TRUE(pair.qp.post_send({.address_handle = 3, .remote_qp = {0x99}, .remote_qkey = 0x1234}));
  const Operation* op = pair.qp.window().next(Instant());
  ASSERT_NE(op, nullptr);
  EXPECT_EQ(op->address_handle, 3u);
  EXPECT_EQ(op->remote_qp, QpNum{0x99});
  EXPECT_EQ(op->remote_qkey, 0x1234u);
  EXPECT_EQ(pair.send(SendOpcode::kWrite).error(), PostError::kBadOpcode);
}

TEST(QueuePair, FlushesBothQueuesInError) {
  Pair pair;
  pair.move_to(QpState::kReadyToSend);
  ASSERT_TRUE(pair.send());
  ASSERT_TRUE(pair.receive());
  pair.step(QpState::kError, 0);
  EXPECT_THAT(statuses(poll_all(pair.sends)), ElementsAre(Status::kFlushed));
  EXPECT_THAT(statuses(poll_all(pair.receives)), ElementsAre(Status::kFlushed));
  ASSERT_TRUE(pair.send());
  ASSERT_TRUE(pair.receive());
  EXPECT_THAT(statuses(poll_all(pair.sends)), ElementsAre(Status::kFlushed));
  EXPECT_THAT(statuses(poll_all(pair.receives)), ElementsAre(Status::kFlushed));
  EXPECT_THAT(pair.events, IsEmpty());
}

TEST(QueuePair, ForgetsEverythingInReset) {
  Pair pair;
  pair.move_to(QpState::kReadyToSend);
  ASSERT_TRUE(pair.send());
  ASSERT_TRUE(pair.receive());
  pair.step(QpState::kError, 0);
  ASSERT_TRUE(pair.receive());
  pair.step(QpState::kReset, 0);
  EXPECT_THAT(poll_all(pair.sends), IsEmpty()) << "completions not polled are removed";
  EXPECT_THAT(poll_all(pair.receives), IsEmpty());
  EXPECT_EQ(pair.qp.attributes().path_mtu, 0);
  EXPECT_EQ(pair.qp.attributes().access, 0u);
  pair.move_to(QpState::kReadyToSend);
  ASSERT_TRUE(pair.send());
  EXPECT_EQ(pair.qp.window().next(Instant())->index, OpIndex(0));
  EXPECT_EQ(pair.qp.responder().begin_receive(8).error(), Refusal::kNotReady);
}

TEST(QueuePair, GoesToItsErrorStateWhenASendFails) {
  Pair pair;
  pair.move_to(QpState::kReadyToSend);
  ASSERT_TRUE(pair.send());
  ASSERT_TRUE(pair.receive());
  pair.qp.window().next(Instant());
  pair.qp.window().issued(Instant());
  pair.qp.window().answered(OpIndex(0), Answer::kAccess, Instant());
  EXPECT_EQ(pair.qp.state(), QpState::kError);
  EXPECT_THAT(statuses(poll_all(pair.sends)), ElementsAre(Status::kRemoteAccess));
  EXPECT_THAT(statuses(poll_all(pair.receives)), ElementsAre(Status::kFlushed));
  EXPECT_THAT(pair.events, IsEmpty()) << "the completion tells";
}

TEST(QueuePair, OnlyStopsSendingWhenAnUnreliableSendFails) {
  for (QpType type : {QpType::kUc, QpType::kUd}) {
    Pair pair({.type = type});
    pair.move_to(QpState::kReadyToSend);
    const Sge bad{0, 8, {0}};
    ASSERT_TRUE(pair.qp.post_send({.sges = {&bad, 1}}));
    EXPECT_EQ(pair.qp.window().next(Instant()), nullptr);
    EXPECT_EQ(pair.qp.state(), QpState::kSendError);
    EXPECT_THAT(statuses(poll_all(pair.sends)), ElementsAre(Status::kLocalProtection));
    ASSERT_TRUE(pair.send());
    EXPECT_THAT(statuses(poll_all(pair.sends)), ElementsAre(Status::kFlushed));
    EXPECT_TRUE(pair.qp.responder().is_receiving());
    pair.step(QpState::kReadyToSend, 0);
    ASSERT_TRUE(pair.send(SendOpcode::kSend, queues::kSignaled));
    ASSERT_NE(pair.qp.window().next(Instant()), nullptr);
    pair.qp.window().issued(Instant());
    EXPECT_THAT(statuses(poll_all(pair.sends)), ElementsAre(Status::kSuccess));
  }
}

TEST(QueuePair, TellsThatItIsDrainedWhenAsked) {
  for (bool asked : {false, true}) {
    Pair pair;
    pair.move_to(QpState::kReadyToSend);
    ASSERT_TRUE(pair.send());
    pair.qp.window().next(Instant());
    pair.qp.window().issued(Instant());
    pair.values.notify_drained = asked;
    pair.step(QpState::kDrained, kNotifyDrained);
    EXPECT_TRUE(pair.qp.is_draining());
    EXPECT_THAT(pair.events, IsEmpty());
    pair.qp.window().answered(OpIndex(0), Answer::kDone, Instant());
    EXPECT_FALSE(pair.qp.is_draining());
    EXPECT_EQ(pair.events.size(), asked ? 1u : 0u);
    ASSERT_TRUE(pair.send());
    EXPECT_EQ(pair.qp.window().next(Instant()), nullptr);
    pair.step(QpState::kReadyToSend, 0);
    EXPECT_NE(pair.qp.window().next(Instant()), nullptr);
  }
}

TEST(QueuePair, TellsThatCommunicationIsEstablished) {
  Pair pair;
  pair.move_to(QpState::kReadyToReceive);
  EXPECT_TRUE(pair.qp.responder().awaits_first_message());
  EXPECT_TRUE(pair.qp.responder().begin_write({0}, 0, 0));
  EXPECT_THAT(pair.events, ElementsAre(QpEvent::kCommunicationEstablished));
  EXPECT_FALSE(pair.qp.responder().awaits_first_message());

  Pair ready;
  ready.move_to(QpState::kReadyToSend);
  EXPECT_FALSE(ready.qp.responder().awaits_first_message());
}

struct FaultCase {
  const char* what;
  QpEvent event;
  void (*ask)(Pair&);
};

TEST(QueuePair, TellsOfThePeersMistakesAndGoesToItsErrorState) {
  const FaultCase cases[] = {
      {"bad rkey", QpEvent::kAccessError,
       [](Pair& p) { EXPECT_FALSE(p.qp.responder().begin_write({0}, 0, 8)); }},
      {"misaligned atomic", QpEvent::kRequestError,
       [](Pair& p) { EXPECT_FALSE(p.qp.responder().atomic(p.memory.key, 1, {})); }},
      {"the carrier broke", QpEvent::kFatal, [](Pair& p) { p.qp.fail(QpEvent::kFatal); }},
  };
  for (const FaultCase& c : cases) {
    SCOPED_TRACE(c.what);
    Pair pair;
    pair.move_to(QpState::kReadyToSend);
    ASSERT_TRUE(pair.receive());
    c.ask(pair);
    EXPECT_EQ(pair.qp.state(), QpState::kError);
    EXPECT_THAT(pair.events, ElementsAre(c.event));
    EXPECT_THAT(statuses(poll_all(pair.receives)), ElementsAre(Status::kFlushed));
  }
}

TEST(QueuePair, TellsThatItTakesNoMoreSharedReceives) {
  Pair pair(kWithShared);
  EXPECT_EQ(pair.receive().error(), PostError::kWrongState);
  pair.move_to(QpState::kReadyToSend);
  const Sge sge = pair.memory.sge(64, 64);
  ASSERT_FALSE(pair.shared.post(5, {&sge, 1}));
  pair.step(QpState::kError, 0);
  EXPECT_THAT(pair.events, ElementsAre(QpEvent::kLastReceiveReached));
  EXPECT_THAT(poll_all(pair.receives), IsEmpty());
  EXPECT_EQ(pair.shared.waiting(), 1u);
  pair.step(QpState::kError, 0);
  EXPECT_EQ(pair.events.size(), 1u);
}

TEST(QueuePair, ChecksSharedReceivesInTheirOwnDomain) {
  Pair pair({.receive_pd = kOtherPd});
  pair.move_to(QpState::kReadyToSend);
  const Sge sge{pair.memory.address(64), 64, pair.memory.add(kOtherPd, kAllAccess)};
  ASSERT_FALSE(pair.shared.post(5, {&sge, 1}));
  ASSERT_TRUE(pair.qp.responder().begin_receive(8));
  const std::array<std::byte, 8> data{};
  EXPECT_TRUE(pair.qp.responder().place(0, data));
}

TEST(QueuePair, FailsForGoodWhenACompletionIsLost) {
  Pair pair;
  pair.move_to(QpState::kReadyToSend);
  queues::Completion filler;
  filler.qp = {0x222222};
  for (int i = 0; i < 64; ++i)
    ASSERT_TRUE(pair.sends.push(filler, false));
  ASSERT_TRUE(pair.send(SendOpcode::kSend, queues::kSignaled));
  ASSERT_TRUE(pair.receive());
  pair.qp.window().next(Instant());
  pair.qp.window().issued(Instant());
  pair.qp.window().answered(OpIndex(0), Answer::kDone, Instant());
  EXPECT_EQ(pair.qp.state(), QpState::kError);
  EXPECT_THAT(pair.events, ElementsAre(QpEvent::kFatal));
  EXPECT_THAT(statuses(poll_all(pair.receives)), ElementsAre(Status::kFlushed));
}

TEST(QueuePair, TellsOfAFailureOnceInEachLife) {
  Pair pair;
  for (int life = 1; life <= 2; ++life) {
    pair.move_to(QpState::kReadyToSend);
    pair.qp.fail(QpEvent::kFatal);
    pair.qp.fail(QpEvent::kFatal);
    EXPECT_EQ(pair.events.size(), static_cast<std::size_t>(life));
    pair.step(QpState::kReset, 0);
  }
}

TEST(QueuePair, LosesNoReceiveThatIsPostedWhileItFails) {
  for (int round = 0; round < 200; ++round) {
    Pair pair;
    pair.move_to(QpState::kReadyToSend);
    std::thread poster([&] {
      for (int i = 0; i < 4; ++i)
        EXPECT_TRUE(pair.receive());
    });
    {
      std::lock_guard guard(pair.qp.lock());
      QpAttributes wanted;
      wanted.state = QpState::kError;
      EXPECT_TRUE(pair.qp.modify(wanted, kState));
    }
    poster.join();
    EXPECT_EQ(poll_all(pair.receives).size(), 4u);
  }
}

}  // namespace

}  // namespace verbena::qp
