// SPDX-License-Identifier: MIT
// Bugs that other software NICs have had, as a program would meet them: what they broke holds here.
// docs/security.md lists them all.
#include <fcntl.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <set>
#include <thread>

#include "fixture.h"

namespace verbena::verbs::testing {
namespace {

class KnownBugs : public VerbsTest {};

// Nobody polls for a long time; what happened meanwhile is there at the first look.
TEST_F(KnownBugs, TheFirstPollAfterALongPauseFindsWhatIsThere) {
  const Own<ibv_qp> near = make_qp();
  const Own<ibv_qp> far = make_qp();
  connect(near.get(), far.get());
  connect(far.get(), near.get());
  for (int round = 0; round < 3; ++round) {
    ibv_sge to = sge(4096, 64);
    ibv_recv_wr wanted = receive(to, 1);
    ibv_recv_wr* bad_receive = nullptr;
    ASSERT_EQ(0, ibv_post_recv(far.get(), &wanted, &bad_receive));
    ibv_sge from = sge(0, 64);
    ibv_send_wr request = send(from, 2);
    ibv_send_wr* bad = nullptr;
    memory[0] = static_cast<std::uint8_t>(round + 1);
    ASSERT_EQ(0, ibv_post_send(near.get(), &request, &bad));
    // The bytes are in place long before anybody polls, and after that there is a pause.
    const auto* const there = static_cast<volatile std::uint8_t*>(&memory[4096]);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (*there != round + 1 && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ASSERT_EQ(round + 1, *there);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    ibv_wc completions[4] = {};
    EXPECT_EQ(2, ibv_poll_cq(cq.get(), 4, completions));
    for (int i = 0; i < 2; ++i)
      EXPECT_EQ(IBV_WC_SUCCESS, completions[i].status);
  }
}

TEST_F(KnownBugs, DescriptorsAreClosedByExec) {
  const Own<ibv_comp_channel> channel(ibv_create_comp_channel(context.get()));
  ASSERT_TRUE(channel);
  for (const int fd : {context->async_fd, context->cmd_fd, channel->fd}) {
    if (fd < 0) continue;
    EXPECT_NE(0, fcntl(fd, F_GETFD) & FD_CLOEXEC) << fd;
  }
  EXPECT_GE(context->async_fd, 0);
}

TEST_F(KnownBugs, QueuePairsOfUnknownTypesAreRefused) {
  const std::set<int> known{IBV_QPT_RC,       IBV_QPT_UC,       IBV_QPT_UD,
                            IBV_QPT_XRC_SEND, IBV_QPT_XRC_RECV, IBV_QPT_RAW_PACKET};
  for (int type = 0; type < 256; ++type) {  // all values that the enumeration can have
    if (known.contains(type)) continue;
    ibv_qp_type asked{};
    std::memcpy(&asked, &type, sizeof asked);
    errno = 0;
    EXPECT_FALSE(make_qp(asked)) << type;
    EXPECT_NE(0, errno) << type;
  }
}

TEST_F(KnownBugs, ANumberIsNotUsedAgainAtOnce) {
  std::set<std::uint32_t> lately;
  for (int i = 0; i < 200; ++i) {
    const Own<ibv_qp> qp = make_qp();
    ASSERT_TRUE(qp);
    EXPECT_TRUE(lately.insert(qp->qp_num).second) << "after " << i << " others";
  }
}

TEST_F(KnownBugs, AFullSharedQueueRefuses) {
  ibv_srq_init_attr wanted = {};
  wanted.attr = {.max_wr = 4, .max_sge = 1, .srq_limit = 0};
  const Own<ibv_srq> srq(ibv_create_srq(pd.get(), &wanted));
  ASSERT_TRUE(srq);
  ibv_sge room = sge(0, 64);
  unsigned posted = 0;
  int error = 0;
  while (error == 0 && posted <= wanted.attr.max_wr) {
    ibv_recv_wr request = receive(room);
    ibv_recv_wr* bad = nullptr;
    error = ibv_post_srq_recv(srq.get(), &request, &bad);
    if (error) {
      EXPECT_EQ(&request, bad);
    }
    posted += error == 0;
  }
  EXPECT_EQ(ENOMEM, error);
  EXPECT_EQ(wanted.attr.max_wr, posted);
}

}  // namespace
}  // namespace verbena::verbs::testing
