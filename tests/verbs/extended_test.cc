// SPDX-License-Identifier: MIT
// The extended forms: ibv_wr_start and its company, ibv_start_poll and the readers.
#include <cerrno>
#include <cstring>
#include <vector>

#include "fixture.h"

namespace verbena::verbs::testing {
namespace {

class Extended : public VerbsTest {
 protected:
  static constexpr std::uint64_t kOperations =
      IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;

  Own<ibv_qp> make_loop(ibv_qp_type type = IBV_QPT_RC, std::uint64_t operations = kOperations) {
    Own<ibv_qp> qp = make_qp(type, [&](ibv_qp_init_attr_ex& wanted) {
      wanted.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
      wanted.send_ops_flags = operations;
    });
    if (qp) connect(qp.get());
    return qp;
  }
};

TEST_F(Extended, WritesOfEveryKindOfPayloadArrive) {
  const Own<ibv_qp> qp = make_loop();
  ASSERT_TRUE(qp);
  ibv_qp_ex* const ex = ibv_qp_to_qp_ex(qp.get());
  ASSERT_TRUE(ex);
  std::memcpy(memory.data(), "0123456789abcdef", 16);
  char inline_part[] = "inline";
  ibv_data_buf pieces[] = {{inline_part, 2}, {inline_part + 2, 4}};
  ibv_sge list[] = {sge(0, 4), sge(8, 4)};
  ex->wr_flags = IBV_SEND_SIGNALED;

  ibv_wr_start(ex);
  ex->wr_id = 1;
  ibv_wr_rdma_write(ex, mr->rkey, address(1024));
  ibv_wr_set_sge(ex, mr->lkey, address(0), 16);
  ex->wr_id = 2;
  ibv_wr_rdma_write(ex, mr->rkey, address(1056));
  ibv_wr_set_sge_list(ex, 2, list);
  ex->wr_id = 3;
  ibv_wr_rdma_write(ex, mr->rkey, address(1088));
  ibv_wr_set_inline_data(ex, inline_part, 6);
  ex->wr_id = 4;
  ibv_wr_rdma_write(ex, mr->rkey, address(1120));
  ibv_wr_set_inline_data_list(ex, 2, pieces);
  std::memset(inline_part, 'x', sizeof inline_part);  // was taken already
  ASSERT_EQ(0, ibv_wr_complete(ex));

  for (std::uint64_t wr_id = 1; wr_id <= 4; ++wr_id) {
    const ibv_wc completion = next_completion();
    EXPECT_EQ(wr_id, completion.wr_id);
    EXPECT_EQ(IBV_WC_SUCCESS, completion.status);
    EXPECT_EQ(IBV_WC_RDMA_WRITE, completion.opcode);
  }
  const auto at = [&](std::size_t offset) {
    return std::string(reinterpret_cast<const char*>(memory.data()) + offset);
  };
  EXPECT_EQ("0123456789abcdef", at(1024));
  EXPECT_EQ("012389ab", at(1056));
  EXPECT_EQ("inline", at(1088));
  EXPECT_EQ("inline", at(1120));
}

TEST_F(Extended, AtomicsBringTheOldValue) {
  const Own<ibv_qp> qp = make_loop();
  ASSERT_TRUE(qp);
  ibv_qp_ex* const ex = ibv_qp_to_qp_ex(qp.get());
  std::uint64_t value = 40;
  std::memcpy(memory.data(), &value, sizeof value);
  ibv_wr_start(ex);
  ex->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_atomic_fetch_add(ex, mr->rkey, address(0), 2);
  ibv_wr_set_sge(ex, mr->lkey, address(64), 8);
  ASSERT_EQ(0, ibv_wr_complete(ex));
  EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
  std::memcpy(&value, memory.data(), sizeof value);
  EXPECT_EQ(42u, value);
  std::memcpy(&value, memory.data() + 64, sizeof value);
  EXPECT_EQ(40u, value);
}

// A mistake anywhere: none is posted.
TEST_F(Extended, AMistakeSpoilsTheWholeBatch) {
  const Own<ibv_qp> qp = make_loop();
  ASSERT_TRUE(qp);
  ibv_qp_ex* const ex = ibv_qp_to_qp_ex(qp.get());
  ex->wr_flags = IBV_SEND_SIGNALED;
  const auto begin = [&] {
    ibv_wr_start(ex);
    ibv_wr_rdma_write(ex, mr->rkey, address(512));
    ibv_wr_set_sge(ex, mr->lkey, address(0), 8);
  };
  begin();
  ibv_wr_rdma_read(ex, mr->rkey, address(0));  // not asked for when it was made
  EXPECT_EQ(EINVAL, ibv_wr_complete(ex));
  begin();
  std::vector<char> large(65536);
  ibv_wr_rdma_write(ex, mr->rkey, address(512));
  ibv_wr_set_inline_data(ex, large.data(), large.size());
  EXPECT_EQ(EINVAL, ibv_wr_complete(ex));
  begin();
  const std::vector<ibv_sge> many(100, sge(0, 8));
  ibv_wr_rdma_write(ex, mr->rkey, address(512));
  ibv_wr_set_sge_list(ex, many.size(), many.data());
  EXPECT_EQ(EINVAL, ibv_wr_complete(ex));
  begin();
  ibv_wr_send_tso(ex, nullptr, 0, 0);
  EXPECT_EQ(EOPNOTSUPP, ibv_wr_complete(ex));
  ibv_wr_start(ex);
  ibv_wr_set_sge(ex, mr->lkey, address(0), 8);  // of what?
  EXPECT_EQ(EINVAL, ibv_wr_complete(ex));
  begin();
  ibv_wr_abort(ex);
  EXPECT_TRUE(no_completion());
  begin();
  EXPECT_EQ(0, ibv_wr_complete(ex));
  EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
  EXPECT_TRUE(no_completion());
}

TEST_F(Extended, ABatchThatDoesNotFitIsNotPosted) {
  const Own<ibv_qp> qp = make_loop();
  ASSERT_TRUE(qp);
  ibv_qp_attr attributes;
  ibv_qp_init_attr initial;
  ASSERT_EQ(0, ibv_query_qp(qp.get(), &attributes, IBV_QP_CAP, &initial));
  ibv_qp_ex* const ex = ibv_qp_to_qp_ex(qp.get());
  // These have no receive and stay.
  const auto batch = [&](std::uint32_t count) {
    ibv_wr_start(ex);
    for (std::uint32_t i = 0; i < count; ++i) {
      ibv_wr_send(ex);
      ibv_wr_set_sge(ex, mr->lkey, address(0), 8);
    }
    return ibv_wr_complete(ex);
  };
  EXPECT_EQ(ENOMEM, batch(initial.cap.max_send_wr + 1));
  EXPECT_EQ(0, batch(initial.cap.max_send_wr - 1));
  EXPECT_EQ(ENOMEM, batch(2));
  EXPECT_EQ(0, batch(1));
}

TEST_F(Extended, DatagramsNeedAnAddress) {
  const Own<ibv_qp> qp = make_loop(IBV_QPT_UD, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM);
  ASSERT_TRUE(qp);
  ibv_ah_attr path = own_address();
  const Own<ibv_ah> ah(ibv_create_ah(pd.get(), &path));
  ibv_sge to = sge(1024, 256);
  ibv_recv_wr request = receive(to, 7);
  ibv_recv_wr* bad = nullptr;
  ASSERT_EQ(0, ibv_post_recv(qp.get(), &request, &bad));
  ibv_qp_ex* const ex = ibv_qp_to_qp_ex(qp.get());
  ibv_wr_start(ex);
  ibv_wr_send(ex);
  ibv_wr_set_sge(ex, mr->lkey, address(0), 8);
  EXPECT_EQ(EINVAL, ibv_wr_complete(ex));
  std::memcpy(memory.data(), "datagram", 8);
  ibv_wr_start(ex);
  ibv_wr_send_imm(ex, 0x11223344);
  ibv_wr_set_ud_addr(ex, ah.get(), qp->qp_num, 0x1234);
  ibv_wr_set_sge(ex, mr->lkey, address(0), 8);
  ASSERT_EQ(0, ibv_wr_complete(ex));
  const ibv_wc completion = next_completion();
  EXPECT_EQ(IBV_WC_SUCCESS, completion.status);
  EXPECT_EQ(7u, completion.wr_id);
  EXPECT_EQ(qp->qp_num, completion.src_qp);
  EXPECT_EQ(48u, completion.byte_len);  // with the 40 bytes of the GRH
  EXPECT_EQ(static_cast<unsigned>(IBV_WC_GRH | IBV_WC_WITH_IMM), completion.wc_flags);
  EXPECT_EQ(0, std::memcmp(memory.data() + 1024 + 40, "datagram", 8));
  // The way back.
  ibv_wc copy = completion;
  auto* const grh = reinterpret_cast<ibv_grh*>(memory.data() + 1024);
  const Own<ibv_ah> back(ibv_create_ah_from_wc(pd.get(), &copy, grh, 1));
  EXPECT_TRUE(back);
}

TEST_F(Extended, CompletionsAreReadOneByOne) {
  ibv_cq_init_attr_ex wanted = {};
  wanted.cqe = 32;
  wanted.wc_flags = IBV_WC_STANDARD_FLAGS;
  ibv_cq_ex* const ex = ibv_create_cq_ex(context.get(), &wanted);
  ASSERT_TRUE(ex);
  const Own<ibv_cq> extended(ibv_cq_ex_to_cq(ex));
  const Own<ibv_qp> qp =
      make_qp(IBV_QPT_RC, [&](ibv_qp_init_attr_ex& w) { w.send_cq = extended.get(); });
  ASSERT_TRUE(qp);
  connect(qp.get());

  ibv_poll_cq_attr attributes = {};
  EXPECT_EQ(ENOENT, ibv_start_poll(ex, &attributes));
  attributes.comp_mask = 1;
  EXPECT_EQ(EINVAL, ibv_start_poll(ex, &attributes));
  attributes.comp_mask = 0;

  ibv_sge part = sge(0, 8);
  ibv_sge to = sge(1024, 8);
  ibv_recv_wr receive_request = receive(to);
  ibv_recv_wr* bad_receive = nullptr;
  ASSERT_EQ(0, ibv_post_recv(qp.get(), &receive_request, &bad_receive));
  std::vector<ibv_send_wr> chain(2, send(part, 1, IBV_WR_RDMA_READ));
  chain[0].wr.rdma = {.remote_addr = address(512), .rkey = mr->rkey};
  chain[0].next = &chain[1];
  chain[1] = send(part, 2);
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(0, ibv_post_send(qp.get(), &chain[0], &bad));
  EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);  // the receive: all has been executed

  int first = ENOENT;  // the answers may still be on their way
  while ((first = ibv_start_poll(ex, &attributes)) == ENOENT) {
  }
  ASSERT_EQ(0, first);
  EXPECT_EQ(1u, ex->wr_id);
  EXPECT_EQ(IBV_WC_SUCCESS, ex->status);
  EXPECT_EQ(IBV_WC_RDMA_READ, ibv_wc_read_opcode(ex));
  EXPECT_EQ(8u, ibv_wc_read_byte_len(ex));
  EXPECT_EQ(qp->qp_num, ibv_wc_read_qp_num(ex));
  EXPECT_EQ(0u, ibv_wc_read_vendor_err(ex));
  EXPECT_EQ(0u, ibv_wc_read_wc_flags(ex));
  int next = ENOENT;
  while ((next = ibv_next_poll(ex)) == ENOENT) {
  }
  ASSERT_EQ(0, next);
  EXPECT_EQ(2u, ex->wr_id);
  EXPECT_EQ(IBV_WC_SEND, ibv_wc_read_opcode(ex));
  EXPECT_EQ(ENOENT, ibv_next_poll(ex));
  ibv_end_poll(ex);
}

}  // namespace
}  // namespace verbena::verbs::testing
