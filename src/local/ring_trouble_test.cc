// SPDX-License-Identifier: MIT
// The ring carrier where things go wrong half-way: refusals of messages that are still on their
// way, peers that leave before they were heard of, and ends that have nothing to do although
// something lies in a ring.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "local/test_pair.h"

namespace verbena::local {
namespace {

using queues::SendOpcode;
using queues::Status;

class RingTrouble : public ::testing::Test {
 protected:
  RingTrouble() : a(qp::QpType::kRc, kA), b(qp::QpType::kRc, kB) {
    source_key = a.add(source.data(), source.size(), kAll);
    target_key = b.add(target.data(), target.size(), kAll);
  }
  void join(std::uint8_t rnr_retry = 7) {
    a.ready(kB, rnr_retry);
    b.ready(kA, rnr_retry);
    connect(a, b);
  }
  void run(int turns = 2000) {
    for (int i = 0; i < turns; ++i) {
      now = now + Duration::microseconds(10);
      a.turn(now);
      b.turn(now);
    }
  }
  void post(SendOpcode opcode, std::uint32_t length, std::uint32_t key_change = 0) {
    const Sge sge{reinterpret_cast<std::uint64_t>(source.data()), length, source_key};
    qp::SendRequest r;
    r.opcode = opcode;
    r.remote_address = reinterpret_cast<std::uint64_t>(target.data());
    r.remote_key = {target_key.value ^ key_change};
    r.sges = {&sge, 1};
    ASSERT_TRUE(a.pair.post_send(r).has_value());
  }
  void to_error(End& end) {
    qp::QpAttributes attributes;
    attributes.state = qp::QpState::kError;
    ASSERT_TRUE(end.pair.modify(attributes, qp::kState).has_value());
  }

  // Longer than a ring, so that most of a message is not sent when its refusal comes.
  static constexpr std::size_t kSize = 1'000'000;
  std::vector<std::uint8_t> source = std::vector<std::uint8_t>(kSize);
  std::vector<std::uint8_t> target = std::vector<std::uint8_t>(kSize);
  End a;
  End b;
  MemoryKey source_key;
  MemoryKey target_key;
  Instant now = Instant::at(1'000'000'000);
};

TEST_F(RingTrouble, ALongMessageWithoutAReceiveCountsItsRetries) {
  join(2);
  post(SendOpcode::kSend, kSize);
  run();
  const auto done = a.poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, Status::kRnrRetryExceeded);
}

TEST_F(RingTrouble, ALongMessageWaitsForTheTimerOfThePeer) {
  join();
  post(SendOpcode::kSend, kSize);
  a.turn(now);
  b.turn(now);
  a.turn(now);
  EXPECT_TRUE(a.pair.window().resume_at().has_value());
}

TEST_F(RingTrouble, ALongMessageWithAWrongKeyIsAnAccessError) {
  join();
  post(SendOpcode::kWrite, kSize, 1);
  run();
  const auto done = a.poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, Status::kRemoteAccess);
}

// Whoever looks for work would look for ever.
TEST_F(RingTrouble, RequestsToAQueuePairInErrorAreNoWork) {
  join();
  run(2);
  post(SendOpcode::kWrite, 8);
  a.turn(now);
  EXPECT_TRUE(b.carrier.has_work());
  to_error(b);
  b.turn(now);
  EXPECT_FALSE(b.carrier.has_work());
}

TEST_F(RingTrouble, RequestsBehindAStalledReadAreNoWork) {
  join();
  post(SendOpcode::kRead, kSize);
  post(SendOpcode::kRead, kSize);
  a.turn(now);
  for (int i = 0; i < 10; ++i)
    b.turn(now);
  // The ring for answers is full, and `a` takes none.
  EXPECT_FALSE(b.carrier.has_work());
  run();
  EXPECT_EQ(a.poll().size(), 2u);
}

TEST_F(RingTrouble, RubbishIsNoWork) {
  a.ready(kB);
  b.ready(kA);
  SharedConduit to_a = make_conduit(1);
  SharedConduit to_b = make_conduit(2);
  b.carrier.offer(std::move(to_b.first), {&a.doorbell, kA.index()});
  b.carrier.attach(std::move(to_a.first));
  for (RingWriter writer : {to_b.second.request_writer(), to_a.second.response_writer()}) {
    auto* record = reinterpret_cast<RecordHead*>(writer.reserve(1));
    ASSERT_NE(record, nullptr);
    writer.publish(1, 99, 0xff);
    record->extent = 0xffff;
  }
  EXPECT_TRUE(b.carrier.has_work());
  b.turn(now);
  EXPECT_FALSE(b.carrier.has_work());
}

// Who takes small messages at once has no reason to look for anything else.
TEST_F(RingTrouble, AnEndBehindMessagesIsWork) {
  join();
  run(2);
  post(SendOpcode::kSend, 8);
  b.carrier.peer_lost();
  EXPECT_TRUE(b.carrier.has_unnoticed_end());
  EXPECT_TRUE(b.carrier.has_work());
  b.takes_small = false;
  b.turn(now);
  EXPECT_FALSE(b.carrier.has_unnoticed_end());
  EXPECT_TRUE(b.carrier.next_deadline().has_value());
}

// What breaks the rules is found where requests are taken, behind the look for answers.
TEST_F(RingTrouble, ABrokenRingIsWorkUntilItsEndIsKnown) {
  a.ready(kB);
  b.ready(kA);
  SharedConduit to_a = make_conduit(1);
  SharedConduit to_b = make_conduit(2);
  b.carrier.offer(std::move(to_b.first), {&a.doorbell, kA.index()});
  b.carrier.attach(std::move(to_a.first));
  RingWriter writer = to_b.second.request_writer();
  ASSERT_NE(writer.reserve(1), nullptr);
  writer.publish(1, 99, kFirst | kLast);
  b.takes_small = false;
  b.turn(now);
  EXPECT_TRUE(b.carrier.has_work());
  b.turn(now);
  EXPECT_FALSE(b.carrier.has_work());
  EXPECT_TRUE(b.carrier.next_deadline().has_value());
}

// Two queue pairs in error would wake each other for ever.
TEST_F(RingTrouble, AQueuePairInErrorSaysSoOnce) {
  join();
  run(2);
  to_error(b);
  b.turn(now);
  ASSERT_TRUE(a.doorbell.take([](std::uint32_t) {}));
  b.turn(now);
  EXPECT_FALSE(a.doorbell.any_ready());
}

TEST_F(RingTrouble, APeerThatLeftBeforeItsOfferCameIsSilence) {
  a.ready(kB);
  b.ready(kA);
  SharedConduit to_a = make_conduit(1);
  a.carrier.offer(std::move(to_a.first), {&b.doorbell, kB.index()});
  b.carrier.attach(std::move(to_a.second));
  post(SendOpcode::kWrite, 8);
  run();
  EXPECT_TRUE(a.poll().empty()) << "the peer is there, and has not offered anything yet";
  b.carrier.close();
  EXPECT_TRUE(a.carrier.has_work());
  run();
  const auto done = a.poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, Status::kRetryExceeded);
}

// A reader holds the lock of a queue pair while it looks for a record.
TEST_F(RingTrouble, FillersWithoutEndAreRubbish) {
  SharedConduit conduit = make_conduit(1);
  RingReader reader = conduit.first.request_reader();
  RingWriter writer = conduit.second.request_writer();
  ASSERT_NE(writer.reserve(3), nullptr);
  writer.publish(3, kFiller, 0);
  Unit unit;
  const std::byte* payload = nullptr;
  std::uint32_t units = 0;
  EXPECT_FALSE(reader.peek(unit, payload, units));
  EXPECT_TRUE(reader.is_broken()) << "a filler goes to the end of the ring";
}

}  // namespace
}  // namespace verbena::local
