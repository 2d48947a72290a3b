// SPDX-License-Identifier: MIT
// Two processes with few descriptors that connect many queue pairs to each other at once.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "nic/test_world.h"

namespace verbena::nic {
namespace {

constexpr std::size_t kCount = 600;
constexpr rlim_t kDescriptors = 64;
// A descriptor number: this process is one of the two, and the other is at its far end.
constexpr const char* kVariable = "VERBENA_TEST_BURST";

std::vector<std::uint32_t> trade(int fd, const std::vector<std::uint32_t>& mine) {
  std::vector<std::uint32_t> theirs(mine.size());
  const std::size_t size = mine.size() * sizeof mine[0];
  EXPECT_EQ(write(fd, mine.data(), size), static_cast<ssize_t>(size));
  EXPECT_EQ(recv(fd, theirs.data(), size, MSG_WAITALL), static_cast<ssize_t>(size));
  return theirs;
}

void connect(Qp& qp, QpNum destination, const Gid& gid) {
  qp::QpAttributes a;
  a.port = 1;
  a.path_mtu = 5;
  a.path = {.destination = gid, .has_grh = true, .port = 1};
  a.destination = destination;
  a.timeout = 18;
  a.retry_count = a.rnr_retry = 7;
  a.rnr_timer = 1;
  const auto move = [&](qp::QpState to, std::uint32_t mask) {
    a.state = to;
    EXPECT_TRUE(modify_qp(qp, a, mask | qp::kState).has_value());
  };
  move(qp::QpState::kInit, qp::kPkeyIndex | qp::kPort | qp::kAccessFlags);
  move(qp::QpState::kReadyToReceive, qp::kAddressVector | qp::kPathMtu | qp::kDestinationQp |
                                         qp::kReceivePsn | qp::kReadsInMax | qp::kRnrTimer);
  move(qp::QpState::kReadyToSend,
       qp::kSendPsn | qp::kTimeout | qp::kRetryCount | qp::kRnrRetry | qp::kReadsOutMax);
}

// One of the two.
TEST(Burst, Peer) {
  const char* given = std::getenv(kVariable);
  if (!given) GTEST_SKIP() << "only as a process of the test below";
  const int fd = std::atoi(given);
  const rlimit limit{kDescriptors, kDescriptors};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  World world;
  Cq* cq = *create_cq(*world.context, 2 * kCount, nullptr, nullptr);
  std::vector<Qp*> all;
  std::vector<std::uint32_t> mine;
  for (std::size_t i = 0; i < kCount; ++i) {
    all.push_back(*create_qp(
        *world.pd, {.send_cq = cq, .receive_cq = cq, .signal_all = true, .receive_depth = 1}));
    mine.push_back(number_of(*all[i]).value);
  }
  const std::vector<std::uint32_t> theirs = trade(fd, mine);
  const Gid gid = world.context->gids().at(0);
  for (std::size_t i = 0; i < kCount; ++i) {
    connect(*all[i], {theirs[i]}, gid);
    std::size_t posted = 0;
    ASSERT_TRUE(post_receive(*all[i], 0, {}));
    ASSERT_TRUE(post_send(*all[i], std::vector<qp::SendRequest>(1), posted));
  }
  std::size_t done = 0;
  const Instant patience = clock_now() + Duration::seconds(60);
  while (done < 2 * kCount && clock_now() < patience) {
    queues::Completion some[64];
    const int taken = cq->poll(some);
    ASSERT_GE(taken, 0);
    for (int i = 0; i < taken; ++i)
      ASSERT_EQ(some[i].status, queues::Status::kSuccess);
    done += static_cast<std::size_t>(taken);
  }
  EXPECT_EQ(done, 2 * kCount);
  static_cast<void>(trade(fd, {1}));  // neither leaves before the other is through
  for (Qp* qp : all)
    EXPECT_TRUE(destroy_qp(qp).has_value());
  EXPECT_TRUE(destroy_cq(cq).has_value());
}

// The descriptors on their way are more than either may have.
TEST(Burst, OfConnectionsKeepsTheLink) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  std::vector<pid_t> peers;
  for (const int end : ends) {
    std::string value = kVariable;
    value += '=';
    value += std::to_string(end);
    const pid_t peer = fork();
    if (peer == 0) {
      const char* words[] = {"nic_test", "--gtest_filter=Burst.Peer", nullptr};
      const char* variables[] = {value.c_str(), nullptr};
      execve("/proc/self/exe", const_cast<char**>(words), const_cast<char**>(variables));
      _exit(127);
    }
    peers.push_back(peer);
  }
  close(ends[0]);
  close(ends[1]);
  for (const pid_t peer : peers) {
    int status = 0;
    ASSERT_EQ(waitpid(peer, &status, 0), peer);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
}

}  // namespace
}  // namespace verbena::nic
