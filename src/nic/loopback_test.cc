// SPDX-License-Identifier: MIT
// The whole NIC, from a queue pair of this process to another one.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <numeric>
#include <thread>

#include "nic/test_world.h"

namespace verbena::nic {
namespace {

using queues::SendOpcode;
using queues::Status;

class Loopback : public ::testing::Test {
 protected:
  World world;
};

void join(Node& a, Node& b) {
  a.ready(b.number());
  b.ready(a.number());
}

TEST_F(Loopback, AllOperationsOfAReliableConnection) {
  Node a(world, qp::QpType::kRc);
  Node b(world, qp::QpType::kRc);
  join(a, b);
  std::iota(a.memory.begin(), a.memory.end(), std::uint8_t{3});

  ASSERT_TRUE(a.post(SendOpcode::kWrite, b, 0, 100'000));
  EXPECT_EQ(a.wait(1).at(0).status, Status::kSuccess);
  EXPECT_TRUE(std::equal(a.memory.begin(), a.memory.begin() + 100'000, b.memory.begin()));

  b.receive(200'000, 50'000);
  ASSERT_TRUE(a.post(SendOpcode::kSend, b, 0, 40'000));
  EXPECT_EQ(a.wait(1).at(0).status, Status::kSuccess);
  EXPECT_EQ(b.wait(1).at(0).byte_length, 40'000u);
  EXPECT_TRUE(std::equal(a.memory.begin(), a.memory.begin() + 40'000, b.memory.begin() + 200'000));

  ASSERT_TRUE(b.post(SendOpcode::kRead, a, 300'000, 70'000));
  EXPECT_EQ(b.wait(1).at(0).status, Status::kSuccess);
  EXPECT_TRUE(std::equal(a.memory.begin() + 300'000, a.memory.begin() + 370'000,
                         b.memory.begin() + 300'000));
}

TEST_F(Loopback, AQueuePairConnectedToItself) {
  Node a(world, qp::QpType::kRc);
  a.ready(a.number());
  a.receive(4096, 64);
  a.memory[7] = 42;
  ASSERT_TRUE(a.post(SendOpcode::kSend, a, 0, 64));
  for (const auto& completion : a.wait(2))
    EXPECT_EQ(completion.status, Status::kSuccess);
  EXPECT_EQ(a.memory[4096 + 7], 42);
}

TEST_F(Loopback, DatagramsBringTheirHeaderAndSender) {
  Node a(world, qp::QpType::kUd);
  Node b(world, qp::QpType::kUd);
  a.ready();
  b.ready();
  qp::AddressVector path;
  path.has_grh = true;
  path.port = 1;
  path.destination = world.context->gids().at(0);
  Ah* ah = *create_ah(*world.pd, path);
  b.receive(0, 40 + 256);
  a.memory[5] = 77;
  const Sge local = a.sge(0, 100);
  qp::SendRequest request;
  request.address_handle = ah->number;
  request.remote_qp = b.number();
  request.remote_qkey = 0x1234;
  request.sges = {&local, 1};
  std::size_t posted = 0;
  ASSERT_TRUE(post_send(*a.qp, {&request, 1}, posted));
  EXPECT_EQ(a.wait(1).at(0).status, Status::kSuccess);
  const auto arrived = b.wait(1);
  EXPECT_EQ(arrived.at(0).byte_length, 140u);
  EXPECT_EQ(arrived.at(0).source_qp, a.number());
  EXPECT_EQ(arrived.at(0).flags & queues::kHasGrh, queues::kHasGrh);
  EXPECT_EQ(b.memory[45], 77);
  EXPECT_TRUE(destroy_ah(ah).has_value());
}

TEST_F(Loopback, NobodyThereIsRetryExceeded) {
  Node a(world, qp::QpType::kRc);
  a.ready(QpNum{a.number().value ^ 0x55});
  ASSERT_TRUE(a.post(SendOpcode::kWrite, a, 0, 8));
  EXPECT_EQ(a.wait(1).at(0).status, Status::kRetryExceeded);
}

TEST_F(Loopback, APeerThatIsDestroyedIsRetryExceeded) {
  Node a(world, qp::QpType::kRc);
  {
    Node b(world, qp::QpType::kRc);
    join(a, b);
    ASSERT_TRUE(a.post(SendOpcode::kWrite, b, 0, 8));
    EXPECT_EQ(a.wait(1).at(0).status, Status::kSuccess);
  }
  ASSERT_TRUE(a.post(SendOpcode::kWrite, a, 0, 8));
  EXPECT_EQ(a.wait(1).at(0).status, Status::kRetryExceeded);
}

TEST_F(Loopback, BothSidesStartOverAndAreConnectedAgain) {
  Node a(world, qp::QpType::kRc);
  Node b(world, qp::QpType::kRc);
  for (int round = 0; round < 20; ++round) {
    join(a, b);
    ASSERT_TRUE(a.post(SendOpcode::kWrite, b, 0, 1000));
    ASSERT_EQ(a.wait(1).at(0).status, Status::kSuccess) << "round " << round;
    ASSERT_TRUE(b.post(SendOpcode::kRead, a, 0, 1000));
    ASSERT_EQ(b.wait(1).at(0).status, Status::kSuccess) << "round " << round;
    ASSERT_TRUE(a.move(qp::QpState::kReset).has_value());
    ASSERT_TRUE(b.move(qp::QpState::kReset).has_value());
  }
}

TEST_F(Loopback, MoreConnectionsThanAreScanned) {
  std::vector<std::unique_ptr<Node>> nodes;
  for (int i = 0; i < 40; ++i)
    nodes.push_back(std::make_unique<Node>(world, qp::QpType::kRc, nullptr, 65536));
  for (int i = 0; i < 40; i += 2)
    join(*nodes[i], *nodes[i + 1]);
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 40; ++i)
      ASSERT_TRUE(nodes[i]->post(SendOpcode::kWrite, *nodes[i ^ 1], 0, 5000));
    for (int i = 0; i < 40; ++i)
      EXPECT_EQ(nodes[i]->wait(1).at(0).status, Status::kSuccess);
  }
}

// Nobody polls: the NIC thread does it all, and the channel wakes the program.
TEST_F(Loopback, CompletionEventsWithoutAnyPolling) {
  Channel* channel = *create_channel(*world.context);
  {
    Node a(world, qp::QpType::kRc);
    Node b(world, qp::QpType::kRc, channel);
    join(a, b);
    for (int round = 0; round < 50; ++round) {
      b.cq->arm(queues::Arm::kNext);
      b.receive(0, 4096);
      ASSERT_TRUE(a.post(SendOpcode::kSend, b, 0, 1000));
      auto fired = next_completion_event(*channel);
      ASSERT_TRUE(fired.has_value());
      EXPECT_EQ(*fired, b.cq);
      b.cq->completion_events.acknowledged(1);
      queues::Completion one;
      while (b.cq->queue.poll({&one, 1}) == 0) {
      }
      EXPECT_EQ(one.byte_length, 1000u);
    }
  }
  EXPECT_TRUE(destroy_channel(channel).has_value());
}

TEST_F(Loopback, ManyThreadsPostAndPollAtOnce) {
  constexpr int kPairs = 4;
  constexpr int kRounds = 300;
  std::vector<std::unique_ptr<Node>> nodes;
  for (int i = 0; i < 2 * kPairs; ++i)
    nodes.push_back(std::make_unique<Node>(world, qp::QpType::kRc, nullptr, 65536));
  for (int i = 0; i < 2 * kPairs; i += 2)
    join(*nodes[i], *nodes[i + 1]);
  std::vector<std::thread> threads;
  for (int i = 0; i < 2 * kPairs; ++i) {
    threads.emplace_back([&nodes, i] {
      Node& own = *nodes[i];
      Node& peer = *nodes[i ^ 1];
      const std::uint64_t half = i % 2 == 0 ? 0 : 32768;
      for (int round = 0; round < kRounds; ++round) {
        EXPECT_TRUE(own.post(SendOpcode::kWrite, peer, half, 3000));
        EXPECT_EQ(own.wait(1).at(0).status, Status::kSuccess);
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
}

TEST_F(Loopback, QueuePairsAreDestroyedUnderTraffic) {
  Node a(world, qp::QpType::kRc, nullptr, 65536);
  for (int round = 0; round < 30; ++round) {
    Node b(world, qp::QpType::kRc, nullptr, 65536);
    join(a, b);
    for (int i = 0; i < 20; ++i)
      ASSERT_TRUE(a.post(SendOpcode::kWrite, b, 0, 30'000));
    static_cast<void>(a.wait(static_cast<std::size_t>(round % 5)));
    ASSERT_TRUE(destroy_qp(b.qp).has_value());
    b.qp = nullptr;
    ASSERT_TRUE(a.move(qp::QpState::kReset).has_value());
    // What completed before the reset may still be there.
    queues::Completion rest[64];
    while (a.cq->queue.poll(rest) != 0) {
    }
  }
}

TEST_F(Loopback, ObjectsWithDependentsStay) {
  Node a(world, qp::QpType::kRc);
  EXPECT_EQ(dealloc_pd(world.pd).error(), Error::kBusy);
  EXPECT_EQ(destroy_cq(a.cq).error(), Error::kBusy);
}

TEST_F(Loopback, AnIdleProcessUsesNoCpu) {
  Node a(world, qp::QpType::kRc);
  Node b(world, qp::QpType::kRc);
  join(a, b);
  ASSERT_TRUE(a.post(SendOpcode::kWrite, b, 0, 1000));
  EXPECT_EQ(a.wait(1).size(), 1u);
  const auto used = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1'000'000L + usage.ru_utime.tv_usec +
           usage.ru_stime.tv_usec;
  };
  // The lease of the polls above ends within a few of its checks.
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const long before = used();
  std::this_thread::sleep_for(std::chrono::seconds(1));
  EXPECT_LT(used() - before, 5'000) << "microseconds in a second of idling";
}

TEST_F(Loopback, AForkedChildIsRefusedAndTheParentGoesOn) {
  Node a(world, qp::QpType::kRc);
  Node b(world, qp::QpType::kRc);
  join(a, b);
  const pid_t child = fork();
  if (child == 0) {
    queues::Completion one;
    const bool refused = a.cq->poll({&one, 1}) < 0 && !alloc_pd(*world.context).has_value() &&
                         query_qp(*a.qp).error() == Error::kGone && destroy_qp(a.qp).has_value();
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  ASSERT_TRUE(a.post(SendOpcode::kWrite, b, 0, 8));
  EXPECT_EQ(a.wait(1).at(0).status, Status::kSuccess);
}

}  // namespace
}  // namespace verbena::nic
