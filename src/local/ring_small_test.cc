// SPDX-License-Identifier: MIT
// The short way of small messages, and the acknowledgements that go along with them.
#include <gtest/gtest.h>

#include <algorithm>

#include "local/test_small.h"

namespace verbena::local {
namespace {

using queues::CompletionKind;
using queues::Status;

TEST_F(Small, ArriveWholeAndOneAtATime) {
  begin();
  for (const std::uint32_t length : {1u, 16u, 17u, 64u, 512u}) {
    taken.fill(0);
    receive(b, 512);
    receive(b, 512);
    ASSERT_TRUE(send(a, length));
    ASSERT_TRUE(send(a, length));
    ASSERT_TRUE(take(b));
    const auto done = b.poll();
    ASSERT_EQ(done.size(), 1u) << length;
    EXPECT_EQ(done[0].wr_id, 5u);
    EXPECT_EQ(done[0].kind, CompletionKind::kReceive);
    EXPECT_EQ(done[0].byte_length, length);
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.begin() + length, taken.begin()));
    EXPECT_TRUE(take(b));
    EXPECT_FALSE(take(b)) << "there was no third one";
    ASSERT_EQ(b.poll().size(), 1u);
    a.turn(now);
    EXPECT_EQ(a.poll().size(), 2u) << "acknowledged";
  }
}

TEST_F(Small, TellHowManyTheyWere) {
  begin();
  for (int i = 0; i < 5; ++i)
    receive(b);
  for (int i = 0; i < 5; ++i)
    ASSERT_TRUE(send(a, 4));
  EXPECT_EQ(take(b, 3), 3u);
  EXPECT_EQ(take(b, 3), 2u);
  EXPECT_EQ(take(b, 3), 0u);
}

TEST_F(Small, AreSeenTogetherWhenTheyAreHeld) {
  begin();
  for (int round = 0; round < 3; ++round) {
    a.carrier.hold();
    for (const std::uint32_t length : {8u, 100u, 8u}) {
      receive(b, 128);
      ASSERT_TRUE(send(a, length));
      EXPECT_FALSE(b.carrier.has_requests());
    }
    EXPECT_EQ(take(b, 3), 0u);
    a.carrier.release();
    EXPECT_EQ(take(b, 9), 3u);
    const auto done = b.poll();
    ASSERT_EQ(done.size(), 3u);
    EXPECT_EQ(done[1].byte_length, 100u);
    a.turn(now);
    EXPECT_EQ(a.poll().size(), 3u);
  }
}

TEST_F(Small, SayWhetherTheirSenderMeasures) {
  begin();
  for (const bool measures : {false, true, false}) {
    receive(b);
    ASSERT_TRUE(send(a, 4, measures));
    ASSERT_TRUE(take(b));
    EXPECT_EQ(b.carrier.peer_measures_pace(), measures);
  }
}

// Records of three units leave a rest of each lap, which a filler takes.
TEST_F(Small, NoneTakesTheGeneralWayAtTheEndOfALap) {
  begin();
  for (std::uint32_t i = 0; i < kRequestUnits; ++i) {
    receive(b, 128);
    ASSERT_TRUE(send(a, 100));
    ASSERT_TRUE(take(b)) << "message " << i;
    ASSERT_EQ(b.poll().size(), 1u);
    a.turn(now);
    ASSERT_EQ(a.poll().size(), 1u);
  }
}

TEST_F(Small, AcknowledgementsComeAlongWithWhatThePeerSends) {
  begin();
  receive(b);
  receive(a);
  ASSERT_TRUE(send(a, 3));
  ASSERT_TRUE(take(b));
  ASSERT_TRUE(send(b, 2));
  ASSERT_TRUE(take(a));
  const auto done = a.poll();
  ASSERT_EQ(done.size(), 2u) << "nobody but the short way has looked";
  EXPECT_EQ(done[0].kind, CompletionKind::kSend) << "the peer had executed it before";
  EXPECT_EQ(done[0].status, Status::kSuccess);
  EXPECT_EQ(done[1].kind, CompletionKind::kReceive);
  a.turn(now);
  EXPECT_TRUE(a.poll().empty()) << "once";
}

// Else a READ would wait for the end of a stream that comes the other way.
TEST_F(Small, AnswersAreSeenWhileMessagesComeAndCome) {
  begin();
  const MemoryKey key =
      b.add(taken.data(), taken.size(), memory::kLocalWrite | memory::kRemoteRead);
  const Sge into = sge(a, 8);
  qp::SendRequest read{.opcode = queues::SendOpcode::kRead,
                       .remote_address = reinterpret_cast<std::uint64_t>(taken.data()),
                       .remote_key = key,
                       .sges = {&into, 1}};
  ASSERT_TRUE(a.pair.post_send(read).has_value());
  a.turn(now);
  EXPECT_FALSE(a.carrier.has_other_work());
  b.turn(now);
  receive(a);
  ASSERT_TRUE(send(b, 4));
  EXPECT_TRUE(a.carrier.has_other_work());
  EXPECT_FALSE(take(a)) << "the answer was there before";
  a.turn(now);
  const auto done = a.poll();
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].kind, CompletionKind::kRead);
  EXPECT_FALSE(a.carrier.has_other_work());
}

TEST_F(Small, AMessageThatAcknowledgesNothingWaitsForWhatWasExecutedBefore) {
  begin();
  receive(b);
  receive(a);
  ASSERT_TRUE(send(a, 3));
  ASSERT_TRUE(take(b));
  const Sge from = sge(b, 2);
  ASSERT_TRUE(b.pair.post_send({.sges = {&from, 1}}).has_value());
  b.turn(now);  // the general way says nothing
  EXPECT_FALSE(take(a));
  a.turn(now);
  const auto done = a.poll();
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].kind, CompletionKind::kSend);
  EXPECT_EQ(done[1].kind, CompletionKind::kReceive);
}

TEST_F(Small, AMessageThatIsTakenIsAUseOfTheConnection) {
  receive(b);
  b.turn(now);  // nothing came yet
  EXPECT_FALSE(b.carrier.was_used());
  ASSERT_TRUE(send(a, 4));
  ASSERT_TRUE(take(b));
  EXPECT_TRUE(b.carrier.was_used());
}

TEST_F(Small, AMessageWithoutAReceiveIsForTheGeneralWay) {
  begin();
  ASSERT_TRUE(send(a, 3));
  EXPECT_FALSE(take(b));
  b.turn(now);  // refuses it for now
  receive(b);
  EXPECT_FALSE(take(b)) << "what was refused is dropped first";
  for (int i = 0; i < 1000; ++i) {
    now = now + Duration::microseconds(10);
    a.turn(now);
    b.turn(now);
  }
  EXPECT_EQ(b.poll().size(), 1u);
  EXPECT_EQ(a.poll().size(), 1u);
}

TEST_F(Small, AFullCompletionQueueIsTheEndOfBoth) {
  begin();
  std::size_t sent = 0;
  for (; sent < 10'000; ++sent) {
    receive(b);
    ASSERT_TRUE(send(a, 1));
    ASSERT_TRUE(take(b)) << "also what has no room for its completion";
    a.turn(now);
    if (b.pair.state() == qp::QpState::kError) break;
    ASSERT_EQ(a.poll().size(), 1u);
  }
  EXPECT_EQ(sent, 4096u);
  EXPECT_TRUE(b.completions.is_overrun());
  ASSERT_FALSE(b.events.empty());
  EXPECT_EQ(b.events.back(), qp::QpEvent::kFatal);
  b.turn(now);
  a.turn(now);
  const auto done = a.poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, Status::kRemoteOperation);
}

}  // namespace
}  // namespace verbena::local
