// SPDX-License-Identifier: MIT
// Posting and completing: what is refused, on which work request, and what arrives.
#include <cerrno>
#include <cstring>
#include <vector>

#include "fixture.h"

namespace verbena::verbs::testing {
namespace {

class Post : public VerbsTest {
 protected:
  // A queue pair that is connected with itself.
  Own<ibv_qp> make_loop(ibv_qp_type type = IBV_QPT_RC, const Change& change = {}) {
    Own<ibv_qp> qp = make_qp(type, change);
    if (qp) connect(qp.get());
    return qp;
  }
  void expect_refused(ibv_qp* qp, ibv_send_wr request, int error = EINVAL) {
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(error, ibv_post_send(qp, &request, &bad));
    EXPECT_EQ(&request, bad);
  }
};

TEST_F(Post, ASendArrives) {
  const Own<ibv_qp> qp = make_loop();
  ASSERT_TRUE(qp);
  std::memcpy(memory.data(), "carried", 8);
  ibv_sge from = sge(0, 8);
  ibv_sge to = sge(1024, 64);
  ibv_recv_wr receive_request = receive(to, 11);
  ibv_recv_wr* bad_receive = nullptr;
  ASSERT_EQ(0, ibv_post_recv(qp.get(), &receive_request, &bad_receive));
  ibv_send_wr request = send(from, 22, IBV_WR_SEND_WITH_IMM);
  request.imm_data = 0x01020304;
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(0, ibv_post_send(qp.get(), &request, &bad));
  for (int i = 0; i < 2; ++i) {
    const ibv_wc completion = next_completion();
    EXPECT_EQ(IBV_WC_SUCCESS, completion.status);
    EXPECT_EQ(qp->qp_num, completion.qp_num);
    if (completion.wr_id == 22) {
      EXPECT_EQ(IBV_WC_SEND, completion.opcode);
      continue;
    }
    EXPECT_EQ(11u, completion.wr_id);
    EXPECT_EQ(IBV_WC_RECV, completion.opcode);
    EXPECT_EQ(8u, completion.byte_len);
    EXPECT_EQ(static_cast<unsigned>(IBV_WC_WITH_IMM), completion.wc_flags);
    EXPECT_EQ(0x01020304u, completion.imm_data);
  }
  EXPECT_STREQ("carried", reinterpret_cast<const char*>(memory.data()) + 1024);
}

TEST_F(Post, TheBadOneOfAChainIsNamedAndThoseBeforeItAreDone) {
  const Own<ibv_qp> qp = make_loop();
  ASSERT_TRUE(qp);
  // More than one batch of the translation, a bad one behind.
  constexpr std::size_t kGood = 11;
  std::vector<ibv_sge> parts(3, sge(0, 8));
  std::vector<ibv_send_wr> chain(kGood + 2, send(parts[0], 0, IBV_WR_RDMA_WRITE));
  for (std::size_t i = 0; i < chain.size(); ++i) {
    chain[i].wr_id = i;
    chain[i].wr.rdma = {.remote_addr = address(512), .rkey = mr->rkey};
    chain[i].next = i + 1 < chain.size() ? &chain[i + 1] : nullptr;
  }
  chain[kGood].num_sge = 3;
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(EINVAL, ibv_post_send(qp.get(), &chain[0], &bad));
  EXPECT_EQ(&chain[kGood], bad);
  for (std::size_t i = 0; i < kGood; ++i)
    EXPECT_EQ(i, next_completion().wr_id);
  EXPECT_TRUE(no_completion());

  chain[kGood].num_sge = 1;
  chain[kGood].opcode = IBV_WR_TSO;
  EXPECT_EQ(EINVAL, ibv_post_send(qp.get(), &chain[kGood - 1], &bad));
  EXPECT_EQ(&chain[kGood], bad);
  EXPECT_EQ(kGood - 1, next_completion().wr_id);
}

// SENDs wait for each other in a list, and what lies between them must not overtake one.
TEST_F(Post, AListOfManyKindsIsDoneInOrder) {
  for (const ibv_qp_type type : {IBV_QPT_RC, IBV_QPT_UC}) {
    const Own<ibv_qp> qp = make_loop(type, [](ibv_qp_init_attr_ex& wanted) {
      wanted.cap.max_send_wr = wanted.cap.max_recv_wr = 100;
    });
    ASSERT_TRUE(qp);
    constexpr std::uint32_t kMessages = 90;
    constexpr std::size_t kStep = 8;
    constexpr std::size_t kWord = 1000;
    constexpr std::size_t kTo = 4096;
    const auto value = [](std::uint32_t i) { return std::uint64_t{i} * 0x0101'0101'01 + 1; };
    std::vector<ibv_sge> pieces(kMessages);
    std::vector<ibv_send_wr> list(kMessages);
    for (std::uint32_t i = 0; i < kMessages; ++i) {
      const std::uint64_t word = value(i);
      std::memcpy(&memory[kWord + i * kStep], &word, sizeof word);
      std::memset(&memory[kTo + i * kStep], 0, kStep);
      pieces[i] = sge(kWord + i * kStep, sizeof word);
      const bool is_write = i % 7 == 3;
      list[i] = send(pieces[i], i, is_write ? IBV_WR_RDMA_WRITE : IBV_WR_SEND);
      if (is_write) {
        // Over what the SEND before brings.
        list[i].wr.rdma.remote_addr = address(kTo + (i - 1) * kStep);
        list[i].wr.rdma.rkey = mr->rkey;
      } else {
        ibv_sge to = sge(kTo + i * kStep, kStep);
        ibv_recv_wr wanted = receive(to, 1000 + i);
        ibv_recv_wr* bad_receive = nullptr;
        ASSERT_EQ(0, ibv_post_recv(qp.get(), &wanted, &bad_receive));
      }
      if (i != 0) list[i - 1].next = &list[i];
    }
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(0, ibv_post_send(qp.get(), list.data(), &bad));
    std::uint32_t next_sent = 0;
    std::uint32_t next_received = 0;
    while (next_sent < kMessages || next_received < kMessages) {
      const ibv_wc wc = next_completion();
      ASSERT_EQ(IBV_WC_SUCCESS, wc.status);
      if (wc.opcode != IBV_WC_RECV) {
        EXPECT_EQ(wc.wr_id, next_sent++);
        continue;
      }
      next_received += next_received % 7 == 3 ? 1 : 0;
      EXPECT_EQ(wc.wr_id, 1000 + next_received++);
    }
    for (std::uint32_t i = 0; i < kMessages; ++i) {
      std::uint64_t came = 0;
      std::memcpy(&came, &memory[kTo + i * kStep], sizeof came);
      const std::uint64_t expected = i % 7 == 3 ? 0 : i % 7 == 2 ? value(i + 1) : value(i);
      EXPECT_EQ(came, expected) << i;
    }
  }
}

TEST_F(Post, NonsenseIsRefused) {
  const Own<ibv_qp> qp = make_loop();
  ASSERT_TRUE(qp);
  ibv_sge part = sge(0, 8);
  ibv_send_wr request = send(part);
  request.num_sge = -1;
  expect_refused(qp.get(), request);
  request = send(part);
  request.send_flags = IBV_SEND_IP_CSUM;
  expect_refused(qp.get(), request);
  request = send(part);
  const int number = 99;
  std::memcpy(&request.opcode, &number, sizeof number);
  expect_refused(qp.get(), request);
  part.length = 4096;
  request = send(part);
  request.send_flags |= IBV_SEND_INLINE;
  expect_refused(qp.get(), request);
  EXPECT_TRUE(no_completion());
}

TEST_F(Post, OperationsThatATypeDoesNotHaveAreRefused) {
  const Own<ibv_qp> uc = make_loop(IBV_QPT_UC);
  const Own<ibv_qp> ud = make_loop(IBV_QPT_UD);
  ASSERT_TRUE(uc && ud);
  ibv_sge part = sge(0, 8);
  for (const ibv_wr_opcode opcode :
       {IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD}) {
    expect_refused(uc.get(), send(part, 0, opcode));
  }
  ibv_ah_attr path = own_address();
  const Own<ibv_ah> ah(ibv_create_ah(pd.get(), &path));
  ibv_send_wr request = send(part, 0, IBV_WR_RDMA_WRITE);
  request.wr.ud.ah = ah.get();
  expect_refused(ud.get(), request);
  request = send(part);  // to nobody
  expect_refused(ud.get(), request);
}

TEST_F(Post, AStateThatDoesNotSendRefuses) {
  const Own<ibv_qp> qp = make_qp();
  ASSERT_TRUE(qp);
  ibv_sge part = sge(0, 8);
  expect_refused(qp.get(), send(part));
  ibv_recv_wr request = receive(part);
  ibv_recv_wr* bad = nullptr;
  EXPECT_EQ(EINVAL, ibv_post_recv(qp.get(), &request, &bad));
  EXPECT_EQ(&request, bad);
  to_init(qp.get());
  expect_refused(qp.get(), send(part));
  EXPECT_EQ(0, ibv_post_recv(qp.get(), &request, &bad));
}

TEST_F(Post, AFullReceiveQueueRefuses) {
  const Own<ibv_qp> qp = make_loop();
  ASSERT_TRUE(qp);
  ibv_qp_attr attributes;
  ibv_qp_init_attr initial;
  ASSERT_EQ(0, ibv_query_qp(qp.get(), &attributes, IBV_QP_CAP, &initial));
  ibv_sge part = sge(0, 8);
  std::vector<ibv_recv_wr> chain(initial.cap.max_recv_wr + 1, receive(part));
  for (std::size_t i = 0; i + 1 < chain.size(); ++i)
    chain[i].next = &chain[i + 1];
  ibv_recv_wr* bad = nullptr;
  EXPECT_EQ(ENOMEM, ibv_post_recv(qp.get(), &chain[0], &bad));
  EXPECT_EQ(&chain.back(), bad);
  std::vector<ibv_sge> many(initial.cap.max_recv_sge + 1, part);
  ibv_recv_wr wide = {.wr_id = 0, .next = nullptr, .sg_list = many.data(), .num_sge = 0};
  wide.num_sge = static_cast<int>(many.size());
  EXPECT_EQ(EINVAL, ibv_post_recv(qp.get(), &wide, &bad));
  EXPECT_EQ(&wide, bad);
}

TEST_F(Post, AFullSendQueueRefuses) {
  // Nobody answers, so nothing completes: the peer has no receive and the retries go on.
  const Own<ibv_qp> qp = make_loop();
  ASSERT_TRUE(qp);
  ibv_qp_attr attributes;
  ibv_qp_init_attr initial;
  ASSERT_EQ(0, ibv_query_qp(qp.get(), &attributes, IBV_QP_CAP, &initial));
  ibv_sge part = sge(0, 8);
  std::vector<ibv_send_wr> chain(initial.cap.max_send_wr + 1, send(part));
  for (std::size_t i = 0; i + 1 < chain.size(); ++i)
    chain[i].next = &chain[i + 1];
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(ENOMEM, ibv_post_send(qp.get(), &chain[0], &bad));
  EXPECT_EQ(&chain.back(), bad);
}

TEST_F(Post, AQueuePairThatFailsByItselfSaysSo) {
  const Own<ibv_qp> qp = make_loop();
  ASSERT_TRUE(qp);
  ibv_sge part = sge(0, 8);
  part.lkey ^= 0x55aa;
  ibv_send_wr request = send(part);
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(0, ibv_post_send(qp.get(), &request, &bad));
  const ibv_wc completion = next_completion();
  EXPECT_EQ(IBV_WC_LOC_PROT_ERR, completion.status);
  EXPECT_NE(0u, completion.vendor_err);
  ibv_qp_attr attributes;
  ibv_qp_init_attr initial;
  ASSERT_EQ(0, ibv_query_qp(qp.get(), &attributes, IBV_QP_STATE, &initial));
  EXPECT_EQ(IBV_QPS_ERR, attributes.qp_state);
  EXPECT_EQ(IBV_QPS_ERR, qp->state);
  // What is posted now is flushed.
  ASSERT_EQ(0, ibv_post_send(qp.get(), &request, &bad));
  EXPECT_EQ(IBV_WC_WR_FLUSH_ERR, next_completion().status);
}

TEST_F(Post, QueryingReturnsWhatWasSet) {
  const Own<ibv_qp> qp = make_loop();
  ASSERT_TRUE(qp);
  ibv_qp_attr attributes = {};
  ibv_qp_init_attr initial = {};
  ASSERT_EQ(0, ibv_query_qp(qp.get(), &attributes, -1, &initial));
  EXPECT_EQ(IBV_QPS_RTS, attributes.qp_state);
  EXPECT_EQ(IBV_QPS_RTS, attributes.cur_qp_state);
  EXPECT_EQ(IBV_QPS_RTS, qp->state);
  EXPECT_EQ(IBV_MTU_1024, attributes.path_mtu);
  EXPECT_EQ(qp->qp_num, attributes.dest_qp_num);
  EXPECT_EQ(14, attributes.timeout);
  EXPECT_EQ(7, attributes.retry_cnt);
  EXPECT_EQ(7, attributes.rnr_retry);
  EXPECT_EQ(1, attributes.min_rnr_timer);
  EXPECT_EQ(4, attributes.max_rd_atomic);
  EXPECT_EQ(4, attributes.max_dest_rd_atomic);
  EXPECT_EQ(1, attributes.ah_attr.is_global);
  EXPECT_EQ(cq.get(), initial.send_cq);
  EXPECT_EQ(cq.get(), initial.recv_cq);
  EXPECT_EQ(IBV_QPT_RC, initial.qp_type);
  EXPECT_GE(initial.cap.max_inline_data, 64u);
}

TEST_F(Post, BadModificationsAreRefused) {
  const Own<ibv_qp> qp = make_qp();
  ASSERT_TRUE(qp);
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_RTS;
  EXPECT_EQ(EINVAL, ibv_modify_qp(qp.get(), &attributes, IBV_QP_STATE));
  attributes.qp_state = IBV_QPS_INIT;
  EXPECT_EQ(EINVAL, ibv_modify_qp(qp.get(), &attributes, IBV_QP_STATE));
  attributes.port_num = 9;
  const int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  EXPECT_EQ(EINVAL, ibv_modify_qp(qp.get(), &attributes, mask));
  attributes.port_num = 1;
  EXPECT_EQ(EINVAL, ibv_modify_qp(qp.get(), &attributes, mask | 1 << 30));
  EXPECT_EQ(IBV_QPS_RESET, qp->state);
  EXPECT_EQ(0, ibv_modify_qp(qp.get(), &attributes, mask));
  EXPECT_EQ(IBV_QPS_INIT, qp->state);
}

TEST_F(Post, APathNeedsAGidOfOursAndAGrh) {
  const Own<ibv_qp> qp = make_qp(IBV_QPT_UC);
  ASSERT_TRUE(qp);
  to_init(qp.get());
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = IBV_MTU_1024;
  attributes.ah_attr = own_address();
  const int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  attributes.ah_attr.grh.sgid_index = 200;
  EXPECT_EQ(EINVAL, ibv_modify_qp(qp.get(), &attributes, mask));
  attributes.ah_attr.grh.sgid_index = 0;
  attributes.ah_attr.is_global = 0;
  EXPECT_EQ(EINVAL, ibv_modify_qp(qp.get(), &attributes, mask));
  attributes.ah_attr.is_global = 1;
  EXPECT_EQ(0, ibv_modify_qp(qp.get(), &attributes, mask));
}

TEST_F(Post, AQueuePairOnASharedQueueHasNoReceivesOfItsOwn) {
  ibv_srq_init_attr wanted = {.srq_context = nullptr, .attr = {4, 2, 0}};
  const Own<ibv_srq> srq(ibv_create_srq(pd.get(), &wanted));
  ASSERT_TRUE(srq);
  const Own<ibv_qp> qp = make_loop(IBV_QPT_RC, [&](ibv_qp_init_attr_ex& w) { w.srq = srq.get(); });
  ASSERT_TRUE(qp);
  ibv_sge part = sge(0, 8);
  ibv_recv_wr request = receive(part, 5);
  ibv_recv_wr* bad = nullptr;
  EXPECT_EQ(EINVAL, ibv_post_recv(qp.get(), &request, &bad));
  EXPECT_EQ(&request, bad);
  request.num_sge = 3;
  EXPECT_EQ(EINVAL, ibv_post_srq_recv(srq.get(), &request, &bad));
  request.num_sge = 1;
  EXPECT_EQ(0, ibv_post_srq_recv(srq.get(), &request, &bad));
  ibv_send_wr out = send(part, 6);
  ibv_send_wr* bad_send = nullptr;
  ASSERT_EQ(0, ibv_post_send(qp.get(), &out, &bad_send));
  EXPECT_EQ(11u, next_completion().wr_id + next_completion().wr_id);
}

}  // namespace
}  // namespace verbena::verbs::testing
