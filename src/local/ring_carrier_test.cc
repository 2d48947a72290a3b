// SPDX-License-Identifier: MIT
#include "local/ring_carrier.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>

#include "local/test_pair.h"

namespace verbena::local {
namespace {

using queues::SendOpcode;
using queues::Status;

class RingPair : public ::testing::Test {
 protected:
  explicit RingPair(qp::QpType type = qp::QpType::kRc) : a(type, kA), b(type, kB) {
    std::iota(source.begin(), source.end(), std::uint8_t{1});
    source_key = a.add(source.data(), source.size(), kAll);
    target_key = b.add(target.data(), target.size(), kAll);
  }

  void join() {
    a.ready(kB);
    b.ready(kA);
    connect(a, b);
  }
  // Turns of both until nothing moves; `now` goes on a little with each.
  void run(int turns = 2000) {
    for (int i = 0; i < turns; ++i) {
      now = now + Duration::microseconds(10);
      a.turn(now);
      b.turn(now);
    }
  }
  qp::SendRequest request(SendOpcode opcode, Sge& sge, std::uint32_t length) {
    sge = {reinterpret_cast<std::uint64_t>(source.data()), length, source_key};
    qp::SendRequest r;
    r.wr_id = 77;
    r.opcode = opcode;
    r.remote_address = reinterpret_cast<std::uint64_t>(target.data());
    r.remote_key = target_key;
    r.sges = {&sge, 1};
    return r;
  }
  void receive(End& end, std::uint8_t* memory, std::uint32_t length, MemoryKey key) {
    const Sge sge{reinterpret_cast<std::uint64_t>(memory), length, key};
    EXPECT_TRUE(end.pair.post_receive(5, {&sge, 1}).has_value());
  }

  static constexpr std::size_t kSize = 300'001;
  std::vector<std::uint8_t> source = std::vector<std::uint8_t>(kSize);
  std::vector<std::uint8_t> target = std::vector<std::uint8_t>(kSize);
  End a;
  End b;
  MemoryKey source_key;
  MemoryKey target_key;
  Instant now = Instant::at(1'000'000'000);
};

class RingPayload : public RingPair, public ::testing::WithParamInterface<std::uint32_t> {};

TEST_P(RingPayload, WriteArrivesWholeAndNothingElseChanges) {
  join();
  Sge sge;
  const std::uint32_t length = GetParam();
  ASSERT_TRUE(a.pair.post_send(request(SendOpcode::kWrite, sge, length)).has_value());
  run(400);
  const auto done = a.poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, Status::kSuccess);
  EXPECT_TRUE(std::equal(source.begin(), source.begin() + length, target.begin()));
  EXPECT_EQ(std::count(target.begin() + length, target.end(), 0),
            static_cast<std::ptrdiff_t>(kSize - length));
  EXPECT_TRUE(b.poll().empty()) << "a WRITE is silent at the target";
}

TEST_P(RingPayload, SendArrivesInTheReceiveAndCompletesBothSides) {
  join();
  receive(b, target.data(), kSize, target_key);
  Sge sge;
  const std::uint32_t length = GetParam();
  ASSERT_TRUE(a.pair.post_send(request(SendOpcode::kSend, sge, length)).has_value());
  run(400);
  ASSERT_EQ(a.poll().size(), 1u);
  const auto received = b.poll();
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(received[0].byte_length, length);
  EXPECT_TRUE(std::equal(source.begin(), source.begin() + length, target.begin()));
}

TEST_P(RingPayload, ReadFetches) {
  join();
  const std::uint32_t length = GetParam();
  std::iota(target.begin(), target.end(), std::uint8_t{9});
  std::fill(source.begin(), source.end(), std::uint8_t{0});
  Sge sge;
  ASSERT_TRUE(a.pair.post_send(request(SendOpcode::kRead, sge, length)).has_value());
  run(400);
  const auto done = a.poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, Status::kSuccess);
  EXPECT_EQ(done[0].byte_length, length);
  EXPECT_TRUE(std::equal(source.begin(), source.begin() + length, target.begin()));
  EXPECT_EQ(std::count(source.begin() + length, source.end(), 0),
            static_cast<std::ptrdiff_t>(kSize - length));
}

INSTANTIATE_TEST_SUITE_P(Sizes, RingPayload,
                         ::testing::Values(0u, 1u, 8u, 16u, 17u, 32u, 33u, 64u, 4096u, 16384u,
                                           16385u, 100'000u, 300'000u));

TEST_F(RingPair, AtomicsGiveTheValueBefore) {
  join();
  alignas(8) std::uint64_t counter = 40;
  alignas(8) std::uint64_t before = 0;
  const MemoryKey counter_key = b.add(&counter, 8, kAll);
  const MemoryKey before_key = a.add(&before, 8, kAll);
  const Sge sge{reinterpret_cast<std::uint64_t>(&before), 8, before_key};
  qp::SendRequest r;
  r.opcode = SendOpcode::kFetchAdd;
  r.remote_address = reinterpret_cast<std::uint64_t>(&counter);
  r.remote_key = counter_key;
  r.compare_add = 2;
  r.sges = {&sge, 1};
  ASSERT_TRUE(a.pair.post_send(r).has_value());
  run(4);
  EXPECT_EQ(before, 40u);
  EXPECT_EQ(counter, 42u);
  r.opcode = SendOpcode::kCompareSwap;
  r.compare_add = 42;
  r.swap = 7;
  ASSERT_TRUE(a.pair.post_send(r).has_value());
  run(4);
  EXPECT_EQ(before, 42u);
  EXPECT_EQ(counter, 7u);
  EXPECT_EQ(a.poll().size(), 2u);
}

TEST_F(RingPair, AMessageWithoutAReceiveWaitsForOne) {
  join();
  Sge sge;
  // Longer than the ring, so that most of it is not sent when the refusal comes.
  ASSERT_TRUE(a.pair.post_send(request(SendOpcode::kSend, sge, kSize)).has_value());
  run(50);
  EXPECT_TRUE(a.poll().empty());
  receive(b, target.data(), kSize, target_key);
  run();
  ASSERT_EQ(a.poll().size(), 1u);
  ASSERT_EQ(b.poll().size(), 1u);
  EXPECT_EQ(source, target);
}

TEST_F(RingPair, WhatFollowsARefusedMessageComesAfterIt) {
  join();
  Sge sge;
  for (std::uint8_t i = 0; i < 5; ++i) {
    source[i] = static_cast<std::uint8_t>(100 + i);
    auto r = request(SendOpcode::kSend, sge, 1);
    sge.address += i;
    ASSERT_TRUE(a.pair.post_send(r).has_value());
  }
  run(20);
  for (int i = 0; i < 5; ++i)
    receive(b, target.data() + i, 1, target_key);
  run();
  EXPECT_EQ(a.poll().size(), 5u);
  for (std::uint8_t i = 0; i < 5; ++i)
    EXPECT_EQ(target[i], 100 + i);
}

TEST_F(RingPair, RnrRetriesAreCounted) {
  a.ready(kB, 2);
  b.ready(kA);
  connect(a, b);
  Sge sge;
  ASSERT_TRUE(a.pair.post_send(request(SendOpcode::kSend, sge, 8)).has_value());
  run();
  const auto done = a.poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, Status::kRnrRetryExceeded);
  EXPECT_EQ(a.pair.state(), qp::QpState::kError);
  EXPECT_EQ(b.pair.state(), qp::QpState::kReadyToSend);
}

TEST_F(RingPair, AWrongKeyIsAnAccessErrorAndTouchesNothing) {
  join();
  Sge sge;
  auto r = request(SendOpcode::kWrite, sge, 64);
  r.remote_key.value ^= 1;
  ASSERT_TRUE(a.pair.post_send(r).has_value());
  ASSERT_TRUE(a.pair.post_send(request(SendOpcode::kWrite, sge, 8)).has_value());
  run(20);
  const auto done = a.poll();
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].status, Status::kRemoteAccess);
  EXPECT_EQ(done[1].status, Status::kFlushed);
  EXPECT_EQ(a.pair.state(), qp::QpState::kError);
  EXPECT_EQ(b.pair.state(), qp::QpState::kError);
  ASSERT_EQ(b.events.size(), 1u);
  EXPECT_EQ(b.events.back(), qp::QpEvent::kAccessError);
  EXPECT_EQ(std::count(target.begin(), target.end(), 0), static_cast<std::ptrdiff_t>(kSize));
}

TEST_F(RingPair, APeerThatIsNotThereIsSilenceAndRetriesAreCounted) {
  a.ready(kB);
  a.carrier.peer_absent();
  Sge sge;
  ASSERT_TRUE(a.pair.post_send(request(SendOpcode::kWrite, sge, 8)).has_value());
  // Code 10 is 4.2 ms; two retries.
  run(300);
  EXPECT_TRUE(a.poll().empty()) << "too early";
  run(1200);
  const auto done = a.poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, Status::kRetryExceeded);
}

TEST_F(RingPair, APeerThatComesLateIsNoError) {
  a.ready(kB);
  a.carrier.peer_absent();
  Sge sge;
  ASSERT_TRUE(a.pair.post_send(request(SendOpcode::kWrite, sge, 8)).has_value());
  run(600);
  b.ready(kA);
  connect(a, b);
  run(100);
  const auto done = a.poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, Status::kSuccess);
  EXPECT_EQ(target[0], source[0]);
}

TEST_F(RingPair, ADeadPeerEndsWhatIsOutstandingSoon) {
  join();
  Sge sge;
  for (int i = 0; i < 3; ++i)
    ASSERT_TRUE(a.pair.post_send(request(SendOpcode::kWrite, sge, 8)).has_value());
  a.turn(now);
  a.carrier.peer_lost();
  a.turn(now);
  EXPECT_TRUE(a.poll().empty());
  ASSERT_TRUE(a.carrier.next_deadline());
  EXPECT_LE(*a.carrier.next_deadline() - now, Duration::milliseconds(100));
  now = *a.carrier.next_deadline();
  a.turn(now);
  const auto done = a.poll();
  ASSERT_EQ(done.size(), 3u);
  EXPECT_EQ(done[0].status, Status::kRetryExceeded);
  EXPECT_EQ(done[1].status, Status::kFlushed);
}

TEST_F(RingPair, APeerThatLeavesIsSilence) {
  join();
  run(2);
  b.carrier.close();
  Sge sge;
  ASSERT_TRUE(a.pair.post_send(request(SendOpcode::kWrite, sge, 8)).has_value());
  run();
  const auto done = a.poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, Status::kRetryExceeded);
}

TEST_F(RingPair, ALocalErrorInAMessageEndsTheSenderOnly) {
  join();
  receive(b, target.data(), kSize, target_key);
  Sge sge;
  auto r = request(SendOpcode::kSend, sge, 64);
  sge.key.value ^= 1;
  ASSERT_TRUE(a.pair.post_send(r).has_value());
  run(20);
  const auto done = a.poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, Status::kLocalProtection);
  EXPECT_TRUE(b.poll().empty());
  EXPECT_EQ(b.pair.state(), qp::QpState::kReadyToSend);
}

TEST_F(RingPair, BothDirectionsAtOnceWithEverythingFull) {
  join();
  std::vector<std::uint8_t> back(kSize);
  const MemoryKey back_key = a.add(back.data(), back.size(), kAll);
  Sge sge;
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(
        a.pair.post_send(request(i % 2 ? SendOpcode::kRead : SendOpcode::kWrite, sge, kSize))
            .has_value());
    const Sge from_b{reinterpret_cast<std::uint64_t>(target.data()), kSize, target_key};
    qp::SendRequest r;
    r.opcode = i % 2 ? SendOpcode::kWrite : SendOpcode::kRead;
    r.remote_address = reinterpret_cast<std::uint64_t>(back.data());
    r.remote_key = back_key;
    r.sges = {&from_b, 1};
    ASSERT_TRUE(b.pair.post_send(r).has_value());
  }
  run(4000);
  EXPECT_EQ(a.poll().size(), 20u);
  EXPECT_EQ(b.poll().size(), 20u);
}

class UnreliablePair : public RingPair {
 protected:
  UnreliablePair() : RingPair(qp::QpType::kUc) {}
};

TEST_F(UnreliablePair, AMessageWithoutAReceiveIsLostAndTheNextOneIsNot) {
  join();
  Sge sge;
  ASSERT_TRUE(a.pair.post_send(request(SendOpcode::kSend, sge, 50'000)).has_value());
  run(20);
  EXPECT_EQ(a.poll().size(), 1u);
  EXPECT_TRUE(b.poll().empty());
  receive(b, target.data(), kSize, target_key);
  ASSERT_TRUE(a.pair.post_send(request(SendOpcode::kSend, sge, 50'000)).has_value());
  run(20);
  EXPECT_EQ(b.poll().size(), 1u);
}

TEST_F(UnreliablePair, AWrongKeyIsDroppedInSilence) {
  join();
  Sge sge;
  auto r = request(SendOpcode::kWrite, sge, 50'000);
  r.remote_key.value ^= 1;
  ASSERT_TRUE(a.pair.post_send(r).has_value());
  ASSERT_TRUE(a.pair.post_send(request(SendOpcode::kWrite, sge, 8)).has_value());
  run(20);
  EXPECT_EQ(a.poll().size(), 2u);
  EXPECT_EQ(b.pair.state(), qp::QpState::kReadyToSend);
  EXPECT_EQ(target[7], source[7]);
  EXPECT_EQ(target[8], 0);
}

}  // namespace
}  // namespace verbena::local
