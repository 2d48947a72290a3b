// SPDX-License-Identifier: MIT
// Extended Reliable Connections (ibv_open_xrcd(3), ibv_create_srq_ex(3), ibv_open_qp(3)).
#include "xrc.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace verbena::verbs::testing {
namespace {

TEST_F(XrcTest, OneConnectionReachesSeveralQueues) {
  const Own<ibv_srq> first = make_srq(domain.get(), pd.get());
  const Own<ibv_srq> second = make_srq(domain.get(), pd.get());
  const Own<ibv_qp> target = make_target(domain.get());
  const Own<ibv_qp> initiator = make_initiator();
  ASSERT_TRUE(first && second && target && initiator);
  EXPECT_NE(number_of(first.get()), number_of(second.get()));
  connect_pair(initiator.get(), target.get());
  post(first.get(), sge(0, 8), 1);
  post(second.get(), sge(64, 8), 2);
  memory[128] = 0x5A;
  memory[192] = 0xA5;
  ibv_sge from = sge(192, 8);
  post(initiator.get(), send(from, 20), number_of(second.get()));
  from = sge(128, 8);
  post(initiator.get(), send(from, 10), number_of(first.get()));
  unsigned received = 0;
  for (int i = 0; i < 4; ++i) {
    const ibv_wc completion = next_completion();
    EXPECT_EQ(IBV_WC_SUCCESS, completion.status) << completion.wr_id;
    if (!(completion.opcode & IBV_WC_RECV)) continue;
    ++received;
    EXPECT_EQ(target->qp_num, completion.qp_num);
  }
  EXPECT_EQ(2u, received);
  EXPECT_EQ(0x5A, memory[0]);
  EXPECT_EQ(0xA5, memory[64]);
}

TEST_F(XrcTest, TheQueueNamedGivesTheDomainOfProtection) {
  const Own<ibv_pd> other(ibv_alloc_pd(context.get()));
  const Own<ibv_srq> ours = make_srq(domain.get(), pd.get());
  const Own<ibv_srq> theirs = make_srq(domain.get(), other.get());
  const Own<ibv_qp> target = make_target(domain.get());
  const Own<ibv_qp> initiator = make_initiator();
  ASSERT_TRUE(ours && theirs && target && initiator);
  connect_pair(initiator.get(), target.get());
  ibv_sge from = sge(0, 8);
  ibv_send_wr request = send(from, 1, IBV_WR_RDMA_WRITE);
  request.wr.rdma.remote_addr = address(256);
  request.wr.rdma.rkey = mr->rkey;
  memory[0] = 7;
  post(initiator.get(), request, number_of(ours.get()));
  EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
  EXPECT_EQ(7, memory[256]);
  request.opcode = IBV_WR_RDMA_READ;
  post(initiator.get(), request, number_of(ours.get()));
  EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
  post(initiator.get(), request, number_of(theirs.get()));
  EXPECT_EQ(IBV_WC_REM_ACCESS_ERR, next_completion().status);
}

TEST_F(XrcTest, AnUnknownQueueIsAnInvalidRequest) {
  const Domain elsewhere = open(-1, O_CREAT);
  const Own<ibv_srq> foreign = make_srq(elsewhere.get(), pd.get());
  const Own<ibv_qp> target = make_target(domain.get());
  const Own<ibv_qp> initiator = make_initiator();
  ASSERT_TRUE(foreign && target && initiator);
  post(foreign.get(), sge(0, 8), 1);
  connect_pair(initiator.get(), target.get());
  ibv_sge from = sge(64, 8);
  post(initiator.get(), send(from, 2), number_of(foreign.get()));
  const ibv_wc completion = next_completion();
  EXPECT_EQ(2u, completion.wr_id);
  EXPECT_EQ(IBV_WC_REM_INV_REQ_ERR, completion.status);
  EXPECT_TRUE(no_completion());
}

TEST_F(XrcTest, WhatDestroyedAQueueIsNoLongerReached) {
  Own<ibv_srq> srq = make_srq(domain.get(), pd.get());
  const Own<ibv_qp> target = make_target(domain.get());
  const Own<ibv_qp> initiator = make_initiator();
  ASSERT_TRUE(srq && target && initiator);
  connect_pair(initiator.get(), target.get());
  const std::uint32_t number = number_of(srq.get());
  post(srq.get(), sge(0, 8), 1);
  ibv_sge from = sge(64, 8);
  post(initiator.get(), send(from, 2), number);
  EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
  EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
  srq.reset();
  post(initiator.get(), send(from, 3), number);
  EXPECT_EQ(IBV_WC_REM_INV_REQ_ERR, next_completion().status);
}

TEST_F(XrcTest, AFileMakesDomainsOne) {
  const int file = memfd_create("xrc", MFD_CLOEXEC);
  ASSERT_GE(file, 0);
  EXPECT_FALSE(open(file, 0));
  EXPECT_EQ(EAGAIN, errno) << "it is not there";
  Domain first = open(file, O_CREAT | O_EXCL);
  ASSERT_TRUE(first);
  EXPECT_FALSE(open(file, O_CREAT | O_EXCL));
  EXPECT_EQ(EINVAL, errno) << "it is there";
  const int again = dup(file);
  const Domain second = open(again, 0);
  ASSERT_TRUE(second);
  ::close(again);
  ::close(file);
  const Own<ibv_srq> srq = make_srq(second.get(), pd.get());
  const Own<ibv_qp> target = make_target(first.get());
  const Own<ibv_qp> initiator = make_initiator();
  ASSERT_TRUE(srq && target && initiator);
  connect_pair(initiator.get(), target.get());
  post(srq.get(), sge(0, 8), 1);
  ibv_sge from = sge(64, 8);
  post(initiator.get(), send(from, 2), number_of(srq.get()));
  EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
  EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
}

TEST_F(XrcTest, ATargetLivesAsLongAsSomebodyHasIt) {
  const Own<ibv_srq> srq = make_srq(domain.get(), pd.get());
  Own<ibv_qp> target = make_target(domain.get());
  const Own<ibv_qp> initiator = make_initiator();
  ASSERT_TRUE(srq && target && initiator);
  connect_pair(initiator.get(), target.get());
  Own<ibv_qp> again(open_again(domain.get(), target->qp_num));
  ASSERT_TRUE(again);
  EXPECT_EQ(target->qp_num, again->qp_num);
  EXPECT_EQ(IBV_QPS_RTS, again->state);
  target.reset();
  post(srq.get(), sge(0, 8), 1);
  ibv_sge from = sge(64, 8);
  post(initiator.get(), send(from, 2), number_of(srq.get()));
  EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
  EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
  const std::uint32_t number = again->qp_num;
  again.reset();
  EXPECT_FALSE(open_again(domain.get(), number));
  EXPECT_EQ(EINVAL, errno);
}

TEST_F(XrcTest, EachStaysWhileItIsUsed) {
  Own<ibv_srq> srq = make_srq(domain.get(), pd.get());
  ASSERT_TRUE(srq);
  EXPECT_EQ(EBUSY, ibv_close_xrcd(domain.get()));
  EXPECT_EQ(EBUSY, ibv_dealloc_pd(pd.get()));
  EXPECT_EQ(EBUSY, ibv_destroy_cq(cq.get()));
  srq.reset();
  Own<ibv_qp> target = make_target(domain.get());
  ASSERT_TRUE(target);
  EXPECT_EQ(EBUSY, ibv_close_xrcd(domain.get()));
}

TEST_F(XrcTest, NeitherHalfDoesWhatTheOtherDoes) {
  const Own<ibv_qp> target = make_target(domain.get());
  const Own<ibv_qp> initiator = make_initiator();
  const Own<ibv_srq> plain = [&] {
    ibv_srq_init_attr wanted{};
    wanted.attr = {.max_wr = 4, .max_sge = 1, .srq_limit = 0};
    return Own<ibv_srq>(ibv_create_srq(pd.get(), &wanted));
  }();
  ASSERT_TRUE(target && initiator && plain);
  connect_pair(initiator.get(), target.get());
  ibv_sge some = sge(0, 8);
  ibv_recv_wr receiving = receive(some, 1);
  ibv_recv_wr* bad_receive = nullptr;
  EXPECT_EQ(EINVAL, ibv_post_recv(initiator.get(), &receiving, &bad_receive));
  EXPECT_EQ(EINVAL, ibv_post_recv(target.get(), &receiving, &bad_receive));
  ibv_send_wr sending = send(some, 2);
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(EINVAL, ibv_post_send(target.get(), &sending, &bad));
  std::uint32_t number = 0;
  EXPECT_EQ(EOPNOTSUPP, ibv_get_srq_num(plain.get(), &number));
}

TEST_F(XrcTest, WhatItIsAskedForIsChecked) {
  EXPECT_FALSE(open(-1, O_TRUNC));
  EXPECT_EQ(EINVAL, errno);
  EXPECT_FALSE(open(1 << 20, O_CREAT)) << "no such descriptor";
  EXPECT_EQ(EINVAL, errno);
  ibv_srq_init_attr_ex wanted{};
  wanted.attr = {.max_wr = 8, .max_sge = 1, .srq_limit = 0};
  wanted.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
  wanted.srq_type = IBV_SRQT_XRC;
  wanted.pd = pd.get();
  EXPECT_FALSE(ibv_create_srq_ex(context.get(), &wanted)) << "without domain";
  EXPECT_EQ(EINVAL, errno);
  EXPECT_FALSE(make_qp(IBV_QPT_XRC_RECV)) << "without domain";
  EXPECT_EQ(EINVAL, errno);
}

}  // namespace
}  // namespace verbena::verbs::testing
