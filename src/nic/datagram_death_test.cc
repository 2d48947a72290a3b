// SPDX-License-Identifier: MIT
// A process that dies right after it has sent: what arrived is delivered, and a program that sleeps
// on its completion channel hears of all of it.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "nic/nic_qp.h"
#include "nic/test_world.h"

namespace verbena::nic {
namespace {

constexpr std::size_t kDatagrams = 200;
// A number of a queue pair: this process sends there, and dies.
constexpr const char* kDestination = "VERBENA_TEST_DATAGRAMS_TO";

TEST(DatagramDeath, Sender) {
  const char* given = std::getenv(kDestination);
  if (!given) GTEST_SKIP() << "only as a process of the test below";
  World world;
  Node node(world, qp::QpType::kUd);
  node.ready();
  Ah* const ah = *create_ah(
      *world.pd, {.destination = world.context->gids().at(0), .has_grh = true, .port = 1});
  const Sge piece = node.sge(0, 64);
  for (std::size_t i = 0; i < kDatagrams; ++i) {
    qp::SendRequest request;
    request.opcode = queues::SendOpcode::kSend;
    request.address_handle = ah->number;
    request.remote_qp = {static_cast<std::uint32_t>(std::strtoul(given, nullptr, 10))};
    request.remote_qkey = 0x1234;
    request.sges = {&piece, 1};
    std::size_t posted = 0;
    ASSERT_TRUE(post_send(*node.qp, {&request, 1}, posted).has_value());
  }
  ASSERT_EQ(node.wait(kDatagrams).size(), kDatagrams);
  _exit(0);
}

pid_t start_sender(QpNum to) {
  std::string value = kDestination;
  value += '=';
  value += std::to_string(to.value);
  const pid_t sender = fork();
  if (sender != 0) return sender;
  const char* words[] = {"nic_test", "--gtest_filter=DatagramDeath.Sender", nullptr};
  const char* variables[] = {value.c_str(), nullptr};
  execve("/proc/self/exe", const_cast<char**>(words), const_cast<char**>(variables));
  _exit(127);
}

TEST(DatagramDeath, RaisesTheEventsOfWhatWasSentBefore) {
  World world;
  Channel* const channel = *create_channel(*world.context);
  {
    Node node(world, qp::QpType::kUd, channel);
    node.ready();
    for (std::size_t i = 0; i < kDatagrams; ++i)
      node.receive(i * 128, 128);
    node.cq->arm(queues::Arm::kNext);
    {
      // Nothing is delivered before the sender is dead: that it is dead, and what it has sent, is
      // found by several threads together.
      const std::lock_guard nobody_delivers(node.qp->pair.lock());
      const pid_t sender = start_sender(node.number());
      int status = 0;
      ASSERT_EQ(waitpid(sender, &status, 0), sender);
      ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
      usleep(50'000);
    }
    std::size_t got = 0;
    pollfd readable{channel->queue->fd(), POLLIN, 0};
    while (got < kDatagrams && poll(&readable, 1, 10'000) == 1) {
      ASSERT_TRUE(next_completion_event(*channel).has_value());
      node.cq->completion_events.acknowledged(1);
      node.cq->arm(queues::Arm::kNext);
      // Without driving: only the events make us look.
      std::vector<queues::Completion> some(kDatagrams);
      got += node.cq->queue.poll(some);
    }
    EXPECT_EQ(got, kDatagrams);
  }
  EXPECT_TRUE(destroy_channel(channel).has_value());
}

}  // namespace
}  // namespace verbena::nic
