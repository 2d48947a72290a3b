// SPDX-License-Identifier: MIT
// The short way of small messages, and the acknowledgements that go along with them.
#include <gtest/gtest.h>

#include <algorithm>

#include "local/test_small.h"

namespace verbena::local {
namespace {

using queues::CompletionKind;
using queues::Status;

INSTANTIATE_TEST_SUITE_P(, Small, ::testing::Values(Ways::kTiny, Ways::kSmallOnly),
                         [](const auto& each) {
                           return each.param == Ways::kTiny ? "tiny" : "small";
                         });

class Tiny : public Small {};
INSTANTIATE_TEST_SUITE_P(, Tiny, ::testing::Values(Ways::kTiny));

TEST_P(Tiny, TakeTheShortestWayUpToSomeLength) {
  begin();
  for (const std::uint32_t length : {1u, 2u, 7u, 8u, 16u, 17u, 64u, 255u, kTinyMax}) {
    taken.fill(0);
    receive(b, 512);
    receive(a, 512);
    const std::uint32_t sent = tiny_sent;
    const std::uint32_t received = tiny_taken;
    ASSERT_TRUE(send(a, length));
    ASSERT_TRUE(take(b));
    ASSERT_TRUE(send(b, 1));
    ASSERT_TRUE(take(a)) << "with an acknowledgement";
    EXPECT_EQ(tiny_sent, sent + 2) << length;
    EXPECT_EQ(tiny_taken, received + 2) << length;
    EXPECT_TRUE(std::equal(bytes.begin() + 1, bytes.begin() + length, taken.begin() + 1));
    EXPECT_EQ(taken[length], 0u) << "and not a byte more";
    EXPECT_EQ(a.poll().size(), 2u);
    a.turn(now);
    b.turn(now);
    b.poll();
  }
  receive(b, 512);
  const std::uint32_t sent = tiny_sent;
  ASSERT_TRUE(send(a, kTinyMax + 1));
  ASSERT_TRUE(take(b));
  EXPECT_EQ(tiny_sent, sent);
}

// Several that are acknowledged together are more than it knows of.
TEST_P(Tiny, LeaveWhatIsMoreToTheOtherWays) {
  begin();
  for (int i = 0; i < 3; ++i) {
    receive(b);
    ASSERT_TRUE(send(a, 4));
  }
  receive(a);
  EXPECT_EQ(take(b, 3), 3u);
  const std::uint32_t received = tiny_taken;
  ASSERT_TRUE(send(b, 4));
  ASSERT_TRUE(take(a));
  EXPECT_EQ(tiny_taken, received);
  EXPECT_EQ(a.poll().size(), 4u);
}

// What a peer may write into the record that it shares with us.
TEST_P(Tiny, AreNotTakenWhereTheirRecordIsNotWhatItSays) {
  begin();
  receive(b, 8);
  std::uint32_t units = 1;  // one message came to b in the beginning
  const auto try_with = [&](auto&& change, const char* what) {
    ASSERT_TRUE(send(a, 4));
    auto& record = *reinterpret_cast<RequestRecord*>(requests_to_b + std::size_t{units} * kUnit);
    ++units;
    // Its tag stays.
    std::byte* const rest = reinterpret_cast<std::byte*>(&record) + sizeof record.head.tag;
    std::array<std::byte, sizeof record - sizeof record.head.tag> good;
    std::copy_n(rest, good.size(), good.begin());
    change(record);
    EXPECT_FALSE(b.carrier.take_tiny(b.pair.responder(), b.pair.window())) << what;
    EXPECT_TRUE(b.poll().empty()) << what;
    std::copy(good.begin(), good.end(), rest);
    EXPECT_TRUE(b.carrier.take_tiny(b.pair.responder(), b.pair.window())) << what;
    EXPECT_EQ(b.poll().size(), 1u) << what;
    receive(b, 8);
    a.turn(now);
    a.poll();
  };
  try_with([](RequestRecord& record) { record.piece_length = 5; }, "two lengths");
  try_with([](RequestRecord& record) { record.piece_length = record.total_length = 0; }, "nothing");
  try_with([](RequestRecord& record) { record.piece_length = record.total_length = 17; },
           "more than lies in one unit");
  try_with([](RequestRecord& record) { record.piece_length = record.total_length = kTinyMax + 1; },
           "too much");
  try_with([](RequestRecord& record) { record.piece_length = record.total_length = 9; },
           "more than the receive has room for");
  try_with([](RequestRecord& record) { record.offset = 4; }, "a later piece");
  try_with([](RequestRecord& record) { record.head.extent = 2; }, "too many units");
  try_with([](RequestRecord& record) { record.head.extent = 1 << kUnitsBits | 1; }, "followers");
  try_with([](RequestRecord& record) { record.head.flags = kFirst; }, "not all of it");
  try_with([](RequestRecord& record) { record.head.flags |= kSolicitedEvent; }, "an event");
  try_with(
      [](RequestRecord& record) {
        record.head.kind = static_cast<std::uint8_t>(RequestKind::kWrite);
      },
      "a WRITE");
  try_with([](RequestRecord& record) { record.acknowledged.executed += 2; },
           "what was never sent is executed");
  try_with([](RequestRecord& record) { ++record.acknowledged.executed; }, "nor is the next one");
  try_with([](RequestRecord& record) { ++record.acknowledged.conduit; }, "another conduit");
}

TEST_P(Small, ArriveWholeAndOneAtATime) {
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

TEST_P(Small, TellHowManyTheyWere) {
  begin();
  for (int i = 0; i < 5; ++i)
    receive(b);
  for (int i = 0; i < 5; ++i)
    ASSERT_TRUE(send(a, 4));
  EXPECT_EQ(take(b, 3), 3u);
  EXPECT_EQ(take(b, 3), 2u);
  EXPECT_EQ(take(b, 3), 0u);
}

TEST_P(Small, AreSeenTogetherWhenTheyAreHeld) {
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

TEST_P(Small, SayWhetherTheirSenderMeasures) {
  begin();
  for (const bool measures : {false, true, false}) {
    receive(b);
    ASSERT_TRUE(send(a, 4, measures));
    ASSERT_TRUE(take(b));
    EXPECT_EQ(b.carrier.peer_measures_pace(), measures);
  }
}

// Records of three units leave a rest of each lap, which a filler takes.
TEST_P(Small, NoneTakesTheGeneralWayAtTheEndOfALap) {
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

TEST_P(Small, AcknowledgementsComeAlongWithWhatThePeerSends) {
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
TEST_P(Small, AnswersAreSeenWhileMessagesComeAndCome) {
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
  EXPECT_FALSE(a.glance.has_answer_or_farewell());
  b.turn(now);
  receive(a);
  ASSERT_TRUE(send(b, 4));
  EXPECT_TRUE(a.glance.has_answer_or_farewell());
  EXPECT_FALSE(take(a)) << "the answer was there before";
  a.turn(now);
  const auto done = a.poll();
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].kind, CompletionKind::kRead);
  EXPECT_FALSE(a.glance.has_answer_or_farewell());
}

TEST_P(Small, AMessageThatAcknowledgesNothingWaitsForWhatWasExecutedBefore) {
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

TEST_P(Small, AMessageThatIsTakenIsAUseOfTheConnection) {
  receive(b);
  b.turn(now);  // nothing came yet
  EXPECT_FALSE(b.carrier.was_used());
  ASSERT_TRUE(send(a, 4));
  ASSERT_TRUE(take(b));
  EXPECT_TRUE(b.carrier.was_used());
}

TEST_P(Small, AMessageWithoutAReceiveIsForTheGeneralWay) {
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

TEST_P(Small, AFullCompletionQueueIsTheEndOfBoth) {
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
