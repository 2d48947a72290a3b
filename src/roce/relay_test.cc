// SPDX-License-Identifier: MIT
// An XRC target on the wire whose peer names shared receive queues of another process: what is
// passed on is acknowledged when that process has executed it, in order and once, whatever the
// network does.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "roce/test_relay.h"

namespace verbena::roce {
namespace {

using queues::SendOpcode;
using queues::Status;

constexpr Duration kBriefly = Duration::milliseconds(5);
constexpr std::uint32_t kOurs = 0x701;

class WireRelay : public testing::Test {
 protected:
  explicit WireRelay(const EndOptions& options = {.is_xrc = true}) : world(options) {
    far().shared_queues.queues = {{kOurs, {&ours, &far().receive_completions, PdId{1}}}};
    for (std::size_t i = 0; i < near().memory.size(); ++i)
      near().memory[i] = static_cast<std::byte>(i * 7 + i / 251);
  }
  TestEnd& near() { return world.near(); }
  TestEnd& far() { return world.far(); }

  qp::SendRequest request(SendOpcode opcode, std::uint32_t queue = TestRelay::kQueue,
                          std::size_t at = 0) {
    const bool is_ours = queue == kOurs;
    return {.opcode = opcode,
            .immediate = next_immediate++,
            .remote_address = is_ours ? far().address(at) : relay.address(at),
            .remote_key = is_ours ? far().key : relay.region,
            .shared_queue = queue};
  }
  void send(std::size_t offset, std::uint32_t length, std::uint32_t queue = TestRelay::kQueue) {
    near().post(request(SendOpcode::kSendWithImmediate, queue), offset, length);
  }
  void run() { world.run(kBriefly); }
  // What has ended, all of it well.
  std::size_t done() {
    const auto all = near().poll();
    for (const auto& each : all)
      EXPECT_EQ(each.status, Status::kSuccess);
    return all.size();
  }
  Status only_status() {
    const auto all = near().poll();
    return all.size() == 1 ? all[0].status : Status::kFatal;
  }
  bool is_there(std::size_t there, std::size_t here, std::size_t length) {
    return std::memcmp(&relay.memory[there], &near().memory[here], length) == 0;
  }

  TestWorld world;
  queues::ReceiveQueue ours{64, 1};
  TestRelay relay{world.far()};
  std::uint32_t next_immediate = 0;
};

TEST_F(WireRelay, IsAcknowledgedWhenItIsExecuted) {
  relay.post_receive(1, 100, 5000);
  send(3, 5000);
  world.run(Duration::microseconds(100));
  EXPECT_EQ(done(), 0u);
  relay.let(4);
  world.run(Duration::microseconds(100));
  EXPECT_EQ(done(), 0u) << "of five packets the last one is missing";
  relay.let(1);
  run();
  EXPECT_EQ(done(), 1u);
  ASSERT_EQ(relay.poll().size(), 1u);
  EXPECT_TRUE(is_there(100, 3, 5000));
}

TEST_F(WireRelay, WhatIsRepeatedMeanwhileIsNotExecutedTwice) {
  relay.post_receive(1, 0, 64);
  relay.post_receive(2, 64, 64);
  send(0, 64);
  run();  // some timeouts
  relay.let(100);
  run();
  EXPECT_EQ(done(), 1u);
  EXPECT_EQ(relay.poll().size(), 1u);
  const std::uint64_t repeated = near().rc().requester().counters().repeated;
  near().post(request(SendOpcode::kFetchAdd), 0, 8);
  run();
  EXPECT_EQ(done(), 1u);
  EXPECT_EQ(relay.executed_atomics, 1u);
  EXPECT_EQ(near().rc().requester().counters().repeated, repeated) << "it was answered";
}

TEST_F(WireRelay, WithoutAReceiveThePeerTriesAgain) {
  relay.let(1000);
  send(0, 3000);
  send(3000, 3000);
  world.run(Duration::microseconds(200));
  EXPECT_EQ(done(), 0u);
  EXPECT_GE(world.far().rc().responder().counters().not_ready, 1u);
  relay.post_receive(1, 0, 4000);
  relay.post_receive(2, 4000, 4000);
  run();
  EXPECT_EQ(done(), 2u);
  EXPECT_TRUE(is_there(0, 0, 3000));
  EXPECT_TRUE(is_there(4000, 3000, 3000));
  EXPECT_EQ(relay.poll().size(), 2u);
}

TEST_F(WireRelay, AWriteWithImmediateNeedsItsReceiveInTheEnd) {
  relay.let(1000);
  near().post(request(SendOpcode::kWriteWithImmediate), 0, 4500);
  world.run(Duration::microseconds(200));
  EXPECT_EQ(done(), 0u);
  relay.post_receive(1, 8000, 8);
  run();
  EXPECT_EQ(done(), 1u);
  const auto received = relay.poll();
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(received[0].byte_length, 4500u);
  EXPECT_TRUE(is_there(0, 0, 4500));
}

TEST_F(WireRelay, ReadsAreFetchedInParts) {
  relay.let(1000);
  std::iota(reinterpret_cast<std::uint8_t*>(relay.memory.data()),
            reinterpret_cast<std::uint8_t*>(relay.memory.data()) + 200'000, std::uint8_t{9});
  near().post(request(SendOpcode::kRead), 10'000, 200'000);
  world.run(Duration::milliseconds(50));
  EXPECT_EQ(done(), 1u);
  EXPECT_TRUE(is_there(0, 10'000, 200'000));
}

// While the answer of a READ is fetched, the next message comes in.
TEST_F(WireRelay, AReadAmidAMessageDoesNotDisturbIt) {
  relay.post_receive(1, 300'000, 100'000);
  near().post(request(SendOpcode::kRead), 100'000, 150'000);
  send(0, 90'000);
  for (int i = 0; i < 400; ++i) {
    relay.let(1);
    world.run(Duration::microseconds(20));
  }
  EXPECT_EQ(done(), 2u);
  EXPECT_TRUE(is_there(300'000, 0, 90'000));
}

// Nothing is asked for again and again while the process is looked for: hardware counts that.
TEST_F(WireRelay, WhatFindsNoWayYetIsAskedForOnce) {
  relay.is_found = false;
  relay.let(1000);
  relay.post_receive(1, 0, 5000);
  relay.post_receive(2, 5000, 5000);
  send(0, 5000);
  send(5000, 5000);
  world.run(Duration::microseconds(500));
  EXPECT_EQ(world.far().rc().responder().counters().naks, 0u);
  relay.is_found = true;
  world.run(Duration::microseconds(100));
  EXPECT_EQ(done(), 2u);
  EXPECT_EQ(world.far().rc().responder().counters().naks, 1u);
  EXPECT_TRUE(is_there(0, 0, 10'000));
}

TEST_F(WireRelay, WhatIsForUsWaitsForWhatIsNot) {
  relay.post_receive(1, 0, 64);
  const Sge sge = far().sge(0, 64);
  ASSERT_FALSE(ours.post(2, {&sge, 1}));
  send(0, 10);
  send(0, 10, kOurs);
  world.run(Duration::microseconds(200));
  EXPECT_TRUE(far().poll_receives().empty());
  relay.let(1);
  run();
  EXPECT_EQ(far().poll_receives().size(), 1u);
  EXPECT_EQ(done(), 2u);
}

TEST_F(WireRelay, RefusalsGoToThePeer) {
  relay.let(10);
  auto wrong = request(SendOpcode::kWrite);
  wrong.remote_key.value ^= 0x5500;
  near().post(wrong, 0, 3000);
  run();
  EXPECT_EQ(only_status(), Status::kRemoteAccess);
  EXPECT_EQ(far().pair.state(), qp::QpState::kError);
}

TEST_F(WireRelay, AReadThatIsRefusedEndsIt) {
  relay.let(10);
  auto wrong = request(SendOpcode::kRead);
  wrong.remote_key.value ^= 0x5500;
  near().post(wrong, 0, 3000);
  run();
  EXPECT_EQ(only_status(), Status::kRemoteAccess);
  EXPECT_EQ(far().pair.state(), qp::QpState::kError);
}

TEST_F(WireRelay, ADeadProcessIsAnOperationalError) {
  relay.post_receive(1, 0, 64);
  send(0, 10);
  world.run(Duration::microseconds(100));
  relay.die();
  run();
  EXPECT_EQ(only_status(), Status::kRemoteOperation);
  EXPECT_EQ(far().pair.state(), qp::QpState::kError);
}

TEST_F(WireRelay, AReadBesideAQueueOfNobodyIsAnInvalidRequest) {
  near().post(request(SendOpcode::kRead, TestRelay::kNobodys), 0, 10);
  run();
  EXPECT_EQ(only_status(), Status::kRemoteInvalidRequest);
  EXPECT_EQ(far().pair.state(), qp::QpState::kError);
}

TEST_F(WireRelay, AQueueOfNobodyIsAnInvalidRequest) {
  near().post(request(SendOpcode::kSend, TestRelay::kNobodys), 0, 10);
  run();
  EXPECT_EQ(only_status(), Status::kRemoteInvalidRequest);
  EXPECT_EQ(far().pair.state(), qp::QpState::kError);
}

// Everything at random, on a line that loses, doubles and swaps, with a process that is slow.
struct Line {
  const char* name;
  std::uint32_t reorder_packets;
  bool is_selective;
  std::uint32_t room;
};
std::ostream& operator<<(std::ostream& out, const Line& line) { return out << line.name; }

class WireRelayAtRandom : public WireRelay,
                          public testing::WithParamInterface<std::tuple<Line, std::uint64_t>> {
 protected:
  static const Line& line() { return std::get<0>(GetParam()); }
  WireRelayAtRandom()
      : WireRelay({.is_xrc = true,
                   .memory = 512 * 1024,
                   .timeout = 9,
                   .reorder_packets = line().reorder_packets,
                   .reorder_patience = Duration::microseconds(20),
                   .selective = line().is_selective}) {
    relay.room = line().room;
    world.link.options.loss = 2000;
    world.link.options.duplicate = 2000;
    world.link.options.reorder = 2000;
  }
  static constexpr std::uint32_t kCell = 6000;
  static constexpr unsigned kOperations = 60;

  struct Posted {
    SendOpcode opcode;
    std::uint32_t queue;
    std::size_t cell;
    std::uint32_t length;
    std::uint32_t immediate;
  };

  void post_one(SeededRandom& random) {
    static constexpr std::array kKinds{SendOpcode::kSendWithImmediate,
                                       SendOpcode::kSendWithImmediate, SendOpcode::kWrite,
                                       SendOpcode::kRead, SendOpcode::kFetchAdd};
    const SendOpcode opcode = kKinds[random.below(kKinds.size())];
    const std::uint32_t queue = random.one_in(3) ? kOurs : TestRelay::kQueue;
    const std::size_t cell = posted.size();
    const bool is_add = opcode == SendOpcode::kFetchAdd;
    const auto length = is_add ? 8 : static_cast<std::uint32_t>(1 + random.below(kCell - 8));
    auto asked = request(opcode, queue, is_add ? 0 : 8 + cell * kCell);
    asked.compare_add = is_add ? 1 : 0;
    // Sources in the lower half, answers elsewhere.
    near().post(asked, opcode == SendOpcode::kRead || is_add ? 400'000 : cell * 64, length);
    posted.push_back({opcode, queue, cell, length, asked.immediate});
    if (opcode == SendOpcode::kSendWithImmediate) post_receive(queue, cell);
  }
  // Now, or a little later.
  void post_receive(std::uint32_t queue, std::size_t cell) {
    if (queue == TestRelay::kQueue) return relay.post_receive(cell, 8 + cell * kCell, kCell - 8);
    const Sge sge = far().sge(8 + cell * kCell, kCell - 8);
    ASSERT_FALSE(ours.post(cell, {&sge, 1}));
  }
  void check(std::uint32_t queue, const std::vector<queues::Completion>& received) {
    std::size_t next = 0;
    std::uint64_t adds = 0;
    const std::byte* const there = queue == kOurs ? far().memory.data() : relay.memory.data();
    for (const Posted& each : posted) {
      if (each.queue != queue) continue;
      adds += each.opcode == SendOpcode::kFetchAdd ? 1 : 0;
      const bool is_send = each.opcode == SendOpcode::kSendWithImmediate;
      if (is_send) {
        ASSERT_LT(next, received.size());
        EXPECT_EQ(received[next].wr_id, each.cell);
        EXPECT_EQ(received[next].immediate, each.immediate);
        EXPECT_EQ(received[next++].byte_length, each.length);
      }
      if (is_send || each.opcode == SendOpcode::kWrite) {
        EXPECT_EQ(0, std::memcmp(there + 8 + each.cell * kCell, &near().memory[each.cell * 64],
                                 each.length));
      }
    }
    EXPECT_EQ(next, received.size()) << "each once";
    std::uint64_t counted = 0;
    std::memcpy(&counted, there, sizeof counted);
    EXPECT_EQ(counted, adds);
  }

  std::vector<Posted> posted;
};

TEST_P(WireRelayAtRandom, KeepsOrderAndLosesNothing) {
  SCOPED_TRACE(testing::Message() << "seed " << std::get<1>(GetParam()));
  SeededRandom random(std::get<1>(GetParam()));
  world.link.options.delay =
      Duration::microseconds(static_cast<std::int64_t>(1 + random.below(20)));
  std::size_t ended = 0;
  for (int step = 0; step < 40'000 && ended < kOperations; ++step) {
    if (posted.size() < kOperations && posted.size() - ended < 12 && random.one_in(2))
      post_one(random);
    if (random.one_in(2)) relay.let(static_cast<std::uint32_t>(random.below(4)));
    const Instant upto =
        world.now() + Duration::microseconds(static_cast<std::int64_t>(1 + random.below(60)));
    world.run(upto - world.now());
    world.link.now = upto;  // timers go on where nothing is on the line
    ended += done();
  }
  ASSERT_EQ(ended, kOperations);
  check(TestRelay::kQueue, relay.poll());
  check(kOurs, far().poll_receives());
}

INSTANTIATE_TEST_SUITE_P(
    Lines, WireRelayAtRandom,
    testing::Combine(testing::Values(Line{"GoBackN", 0, false, 1000}, Line{"Kept", 64, false, 1000},
                                     Line{"Selective", 512, true, 1000},
                                     Line{"GoBackNWithLittleRoom", 0, false, 3},
                                     Line{"SelectiveWithLittleRoom", 512, true, 3}),
                     testing::Range(std::uint64_t{1}, std::uint64_t{41})));

}  // namespace
}  // namespace verbena::roce
