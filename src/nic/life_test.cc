// SPDX-License-Identifier: MIT
// Queue pairs that start over, fail and come back at random times on both sides, with traffic; and
// programs that wait for events instead of polling. Nothing may wait for ever.
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <thread>

#include "base/test_seed.h"
#include "nic/test_world.h"

namespace verbena::nic {
namespace {

using queues::SendOpcode;

void drop_completions(Node& node) {
  queues::Completion some[64];
  while (node.cq->poll(some) > 0) {
  }
}

// One side of a pair: what it does next does not depend on the other.
void misbehave(Node& own, Node& peer, SeededRandom& random, int steps) {
  for (int i = 0; i < steps; ++i) {
    static_cast<void>(own.move(qp::QpState::kReset));
    ASSERT_TRUE(own.move(qp::QpState::kInit).has_value());
    if (random.one_in(8)) continue;
    ASSERT_TRUE(own.move(qp::QpState::kReadyToReceive, peer.number()).has_value());
    if (random.one_in(8)) continue;
    ASSERT_TRUE(own.move(qp::QpState::kReadyToSend).has_value());
    // Whatever the peer does meanwhile, requests that need no receive end.
    const bool waits = random.one_in(2);
    std::size_t posted = 0;
    for (std::uint64_t n = random.below(6); n > 0; --n) {
      if (!waits && random.one_in(2)) own.receive(0, 20'000);
      constexpr SendOpcode kOpcodes[] = {SendOpcode::kWrite, SendOpcode::kRead, SendOpcode::kSend};
      const auto length = static_cast<std::uint32_t>(random.below(40'000));
      if (own.post(kOpcodes[random.below(waits ? 2 : 3)], peer, 0, length)) ++posted;
    }
    if (waits) {
      ASSERT_EQ(own.wait(posted).size(), posted);
      continue;
    }
    if (random.one_in(3)) std::this_thread::sleep_for(std::chrono::microseconds(random.below(300)));
    if (random.one_in(4)) static_cast<void>(own.move(qp::QpState::kError));
    drop_completions(own);
  }
}

class Life : public ::testing::TestWithParam<int> {
 protected:
  World world;
};

// With few queue pairs their rings are looked at, with many they ring bells.
TEST_P(Life, StartsOverAtRandomAndIsConnectedInTheEnd) {
  std::vector<std::unique_ptr<Node>> idle;
  for (int i = 0; i < GetParam(); ++i) {
    idle.push_back(std::make_unique<Node>(world, qp::QpType::kRc, nullptr, 4096));
    idle.back()->ready(idle.back()->number());
  }
  const std::uint64_t seed = test_seed();
  Node a(world, qp::QpType::kRc, nullptr, 65536);
  Node b(world, qp::QpType::kRc, nullptr, 65536);
  for (std::uint64_t round = 0; round < 10; ++round) {
    SeededRandom random_a(seed + 2 * round), random_b(seed + 2 * round + 1);
    a.timeout = b.timeout = 10;  // requests to who is not there end soon
    std::thread other([&] { misbehave(b, a, random_b, 30); });
    misbehave(a, b, random_a, 30);
    other.join();
    for (Node* node : {&a, &b})
      static_cast<void>(node->move(qp::QpState::kReset));
    for (Node* node : {&a, &b})
      drop_completions(*node);
    a.timeout = b.timeout = 15;
    a.ready(b.number());
    b.ready(a.number());
    ASSERT_TRUE(a.post(SendOpcode::kWrite, b, 0, 30'000));
    ASSERT_TRUE(b.post(SendOpcode::kRead, a, 0, 30'000));
    ASSERT_EQ(a.wait(1).at(0).status, queues::Status::kSuccess) << "round " << round;
    ASSERT_EQ(b.wait(1).at(0).status, queues::Status::kSuccess) << "round " << round;
  }
}
INSTANTIATE_TEST_SUITE_P(Many, Life, ::testing::Values(0, 12));

// A thread for each end: takes what is there, arms, takes again, waits.
class EventEnd {
 public:
  explicit EventEnd(World& world) : channel(*create_channel(*world.context)) {
    node = std::make_unique<Node>(world, qp::QpType::kRc, channel, 65536);
  }
  ~EventEnd() {
    node.reset();
    EXPECT_TRUE(destroy_channel(channel).has_value());
  }
  // One receive completion and one send completion for each exchange.
  void run(const Node& peer, int exchanges, bool begins) {
    int received = 0, sent = 0;
    const auto send = [&] { ASSERT_TRUE(node->post(SendOpcode::kSend, peer, 1000, 500)); };
    if (begins) send();
    while (received < exchanges || sent < exchanges) {
      queues::Completion one;
      if (node->cq->poll({&one, 1}) == 0) {
        node->cq->arm(queues::Arm::kNext);
        if (node->cq->poll({&one, 1}) == 0) {
          if (!wait()) return;
          continue;
        }
      }
      ASSERT_EQ(one.status, queues::Status::kSuccess);
      if (one.kind != queues::CompletionKind::kReceive) {
        ++sent;
        continue;
      }
      node->receive(0, 500);
      ++received;
      if (received + (begins ? 1 : 0) <= exchanges) send();
    }
  }
  bool wait() {
    pollfd waiting{channel->queue->fd(), POLLIN, 0};
    if (poll(&waiting, 1, 20'000) != 1) {
      ADD_FAILURE() << "no event came";
      return false;
    }
    if (next_completion_event(*channel)) node->cq->completion_events.acknowledged(1);
    return true;
  }
  Channel* channel;
  std::unique_ptr<Node> node;
};

TEST_P(Life, WaitsForEventsAndMissesNone) {
  constexpr int kPairs = 3;
  std::vector<std::unique_ptr<Node>> idle;
  for (int i = 0; i < GetParam(); ++i) {
    idle.push_back(std::make_unique<Node>(world, qp::QpType::kRc, nullptr, 4096));
    idle.back()->ready(idle.back()->number());
  }
  std::vector<std::unique_ptr<EventEnd>> ends;
  for (int i = 0; i < 2 * kPairs; ++i)
    ends.push_back(std::make_unique<EventEnd>(world));
  for (int i = 0; i < 2 * kPairs; ++i) {
    ends[i]->node->ready(ends[i ^ 1]->node->number());
    for (int r = 0; r < 4; ++r)
      ends[i]->node->receive(0, 500);
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < 2 * kPairs; ++i)
    threads.emplace_back([&, i] { ends[i]->run(*ends[i ^ 1]->node, 2000, i % 2 == 0); });
  for (std::thread& thread : threads)
    thread.join();
}

}  // namespace
}  // namespace verbena::nic
