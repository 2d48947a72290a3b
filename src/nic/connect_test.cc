// SPDX-License-Identifier: MIT
// Connecting queue pairs that come and go in every order, many at once, and what they leave behind.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <new>
#include <string>
#include <thread>

#include "nic/nic.h"
#include "nic/test_world.h"

namespace verbena::nic {
namespace {

using queues::SendOpcode;
using queues::Status;

class Connecting : public ::testing::Test {
 protected:
  World world;
};

std::int64_t cpu_microseconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1'000'000L + usage.ru_utime.tv_usec +
         usage.ru_stime.tv_usec;
}

// Half a second of doing nothing, after the lease of earlier polls has ended.
std::int64_t cpu_while_idle() {
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const std::int64_t before = cpu_microseconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  return cpu_microseconds() - before;
}
constexpr std::int64_t kIdleMax = 20'000;

// The peer may have taken our offer, and be gone before we get its own.
TEST_F(Connecting, APeerThatIsDestroyedAtOnceIsRetryExceeded) {
  for (int round = 0; round < 100; ++round) {
    Node a(world, qp::QpType::kRc, nullptr, 4096);
    {
      Node b(world, qp::QpType::kRc, nullptr, 4096);
      a.timeout = 10;
      a.ready(b.number());
      if (round % 2) std::this_thread::sleep_for(std::chrono::microseconds(200));
      b.ready(a.number());
    }
    ASSERT_TRUE(a.post(SendOpcode::kWrite, a, 0, 8));
    ASSERT_EQ(a.wait(1).at(0).status, Status::kRetryExceeded) << "round " << round;
  }
}

// Its second life may meet what is left of the first. It may fail; it may not wait for ever.
TEST_F(Connecting, APeerThatStartsOverAtOnceHasAnAnswer) {
  for (int round = 0; round < 100; ++round) {
    Node a(world, qp::QpType::kRc, nullptr, 4096);
    Node b(world, qp::QpType::kRc, nullptr, 4096);
    a.timeout = b.timeout = 10;
    a.ready(b.number());
    b.ready(a.number());
    if (round % 2) std::this_thread::sleep_for(std::chrono::microseconds(round * 4));
    ASSERT_TRUE(b.move(qp::QpState::kReset).has_value());
    b.ready(a.number());
    ASSERT_TRUE(b.post(SendOpcode::kWrite, a, 0, 8));
    ASSERT_TRUE(a.post(SendOpcode::kWrite, b, 0, 8));
    ASSERT_EQ(b.wait(1).size(), 1u) << "round " << round;
    ASSERT_EQ(a.wait(1).size(), 1u) << "round " << round;
  }
}

TEST_F(Connecting, MoreAtOnceThanTheControlThreadKeepsTasks) {
  constexpr int kCount = 6000;
  Cq* cq = *create_cq(*world.context, 2 * kCount, nullptr, nullptr);
  std::vector<Qp*> all;
  qp::QpAttributes a;
  a.port = 1;
  a.path_mtu = 5;
  a.path = {.destination = world.context->gids().at(0), .has_grh = true, .port = 1};
  a.rnr_retry = 7;
  for (int i = 0; i < kCount; ++i) {
    all.push_back(*create_qp(
        *world.pd, {.send_cq = cq, .receive_cq = cq, .signal_all = true, .receive_depth = 1}));
    a.state = qp::QpState::kInit;
    ASSERT_TRUE(modify_qp(*all[i], a, qp::kState | qp::kPkeyIndex | qp::kPort | qp::kAccessFlags));
  }
  const auto begin = clock_now();
  for (Qp* qp : all) {
    a.state = qp::QpState::kReadyToReceive;
    a.destination = number_of(*qp);
    ASSERT_TRUE(modify_qp(*qp, a,
                          qp::kState | qp::kAddressVector | qp::kPathMtu | qp::kDestinationQp |
                              qp::kReceivePsn | qp::kReadsInMax | qp::kRnrTimer));
    a.state = qp::QpState::kReadyToSend;
    ASSERT_TRUE(modify_qp(*qp, a,
                          qp::kState | qp::kSendPsn | qp::kTimeout | qp::kRetryCount |
                              qp::kRnrRetry | qp::kReadsOutMax));
    std::size_t posted = 0;
    ASSERT_TRUE(post_send(*qp, std::vector<qp::SendRequest>(1), posted));
  }
  // Nobody posted a receive: every request waits for one, on a connection that is there.
  for (Qp* qp : all)
    ASSERT_TRUE(post_receive(*qp, 0, {}));
  int done = 0;
  const Instant limit = clock_now() + Duration::seconds(60);
  while (done < 2 * kCount && clock_now() < limit) {
    queues::Completion some[64];
    const int taken = cq->poll(some);
    ASSERT_GE(taken, 0);
    for (int i = 0; i < taken; ++i)
      EXPECT_EQ(some[i].status, Status::kSuccess);
    done += taken;
  }
  EXPECT_EQ(done, 2 * kCount);
  RecordProperty("nanoseconds_per_connection",
                 std::to_string((clock_now() - begin).count_nanoseconds() / kCount));
  for (Qp* qp : all)
    EXPECT_TRUE(destroy_qp(qp).has_value());
  EXPECT_TRUE(destroy_cq(cq).has_value());
}

TEST_F(Connecting, AQueuePairInErrorLeavesTheProcessIdle) {
  Node a(world, qp::QpType::kRc);
  Node b(world, qp::QpType::kRc);
  a.ready(b.number());
  b.ready(a.number());
  ASSERT_TRUE(a.post(SendOpcode::kWrite, b, 0, 8));
  ASSERT_EQ(a.wait(1).at(0).status, Status::kSuccess);
  // The first is refused; the others lie in the ring, and nobody will take them.
  std::vector<qp::SendRequest> requests(50);
  const Sge local = a.sge(0, 64);
  for (auto& request : requests) {
    request.opcode = SendOpcode::kWrite;
    request.remote_address = 1;
    request.remote_key = b.mr->key;
    request.sges = {&local, 1};
  }
  std::size_t posted = 0;
  ASSERT_TRUE(post_send(*a.qp, requests, posted));
  EXPECT_EQ(a.wait(50).at(0).status, Status::kRemoteAccess);
  EXPECT_LT(cpu_while_idle(), kIdleMax);
}

// The timer of a peer that was not ready, and then left: a timeout of 0 waits for ever.
TEST_F(Connecting, ATimerThatNobodyWaitsForLeavesTheProcessIdle) {
  Node a(world, qp::QpType::kRc);
  a.timeout = 0;
  {
    Node b(world, qp::QpType::kRc);
    a.ready(b.number());
    b.ready(a.number());
    ASSERT_TRUE(a.post(SendOpcode::kSend, b, 0, 8));
    const Instant limit = clock_now() + Duration::milliseconds(50);
    queues::Completion none;
    while (clock_now() < limit)
      ASSERT_EQ(a.cq->poll({&none, 1}), 0);
  }
  EXPECT_LT(cpu_while_idle(), kIdleMax);
}

// A datagram that waits for a way, and is flushed.
TEST_F(Connecting, AFlushedDatagramLeavesTheProcessIdle) {
  Node a(world, qp::QpType::kUd);
  a.ready();
  qp::AddressVector path{.destination = world.context->gids().at(0), .has_grh = true, .port = 1};
  Ah* ah = *create_ah(*world.pd, path);
  const Sge local = a.sge(0, 100);
  qp::SendRequest request;
  request.address_handle = ah->number;
  request.remote_qp = {a.number().value ^ 1u << QpNum::kSlotShift};
  request.sges = {&local, 1};
  std::size_t posted = 0;
  ASSERT_TRUE(post_send(*a.qp, {&request, 1}, posted));
  ASSERT_TRUE(a.move(qp::QpState::kError).has_value());
  EXPECT_EQ(a.wait(1).size(), 1u);
  std::this_thread::sleep_for(std::chrono::milliseconds(2000));
  EXPECT_LT(cpu_while_idle(), kIdleMax);
  EXPECT_TRUE(destroy_ah(ah).has_value());
}

// What could not be made for lack of memory takes nothing of what is limited.
TEST_F(Connecting, WhatThereIsNoMemoryForIsNotCounted) {
#ifdef VERBENA_SANITIZED
  GTEST_SKIP() << "the sanitizers need more address space than this test leaves";
#endif
  const pid_t child = fork();
  if (child == 0) {
    World fresh;
    auto& counts = fresh.context->nic().counts();
    Cq* cq = *create_cq(*fresh.context, 16, nullptr, nullptr);
    const QpRequest small{.send_cq = cq, .receive_cq = cq};
    QpRequest large = small;
    large.send_depth = large.receive_depth = 32'768;
    large.send_sge_max = large.receive_sge_max = 32;
    Qp* qp = *create_qp(*fresh.pd, small);
    const rlimit limit{1, 1};  // nothing more than there is
    setrlimit(RLIMIT_AS, &limit);
    // How many could be made of what the heap still had.
    const auto made_until_thrown = [](auto make) {
      for (std::uint32_t made = 0; made < 1000; ++made) {
        try {
          static_cast<void>(make());
        } catch (const std::bad_alloc&) {
          return made;
        }
      }
      return 1000u;
    };
    const auto qps = made_until_thrown([&] { return create_qp(*fresh.pd, large); });
    const auto srqs = made_until_thrown([&] { return create_srq(*fresh.pd, 32'768, 32, nullptr); });
    const auto cqs =
        made_until_thrown([&] { return create_cq(*fresh.context, 1 << 22, nullptr, nullptr); });
    const bool is_right =
        qps < 1000 && counts.queue_pairs == qps + 1 && counts.shared_receive_queues == srqs &&
        counts.completion_queues == cqs + 1 && destroy_qp(qp) && fresh.pd->dependents == qps + srqs;
    _exit(is_right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace verbena::nic
