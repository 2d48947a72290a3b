// SPDX-License-Identifier: MIT
#include "fixture.h"

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

namespace verbena::verbs::testing {
namespace {

ibv_context* open_loopback() {
  int count = 0;
  ibv_device** const list = ibv_get_device_list(&count);
  ibv_context* context = nullptr;
  for (int i = 0; i < count && !context; ++i) {
    if (std::string(ibv_get_device_name(list[i])) == "vrb_lo") context = ibv_open_device(list[i]);
  }
  ibv_free_device_list(list);
  return context;
}

}  // namespace

bool is_another_path() { return std::getenv("VERBENA_PATH") || std::getenv("VERBENA_ADOPT"); }

void VerbsTest::SetUp() {
  context.reset(open_loopback());
  ASSERT_TRUE(context) << "no device vrb_lo";
  pd.reset(ibv_alloc_pd(context.get()));
  ASSERT_TRUE(pd);
  cq.reset(ibv_create_cq(context.get(), 256, nullptr, nullptr, 0));
  ASSERT_TRUE(cq);
  constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                          IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  mr.reset(ibv_reg_mr(pd.get(), memory.data(), memory.size(), kAccess));
  ASSERT_TRUE(mr);
}

Own<ibv_qp> VerbsTest::make_qp(ibv_qp_type type, const Change& change) {
  ibv_qp_init_attr_ex wanted = {};
  wanted.send_cq = wanted.recv_cq = cq.get();
  wanted.cap = {.max_send_wr = 16,
                .max_recv_wr = 16,
                .max_send_sge = 2,
                .max_recv_sge = 2,
                .max_inline_data = 64};
  wanted.qp_type = type;
  wanted.comp_mask = IBV_QP_INIT_ATTR_PD;
  wanted.pd = pd.get();
  if (change) change(wanted);
  return Own<ibv_qp>(ibv_create_qp_ex(context.get(), &wanted));
}

ibv_ah_attr VerbsTest::own_address() const {
  ibv_ah_attr path = {};
  EXPECT_EQ(0, ibv_query_gid(context.get(), 1, 0, &path.grh.dgid));
  path.grh.hop_limit = 64;
  path.is_global = 1;
  path.port_num = 1;
  return path;
}

void VerbsTest::to_init(ibv_qp* qp) {
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = 1;
  attributes.qkey = 0x1234;
  attributes.qp_access_flags =
      IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
  mask |= qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
  if (qp->qp_type == IBV_QPT_UC) attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  ASSERT_EQ(0, ibv_modify_qp(qp, &attributes, mask));
}

void VerbsTest::connect(ibv_qp* qp, ibv_qp* peer) {
  to_init(qp);
  const bool is_datagram = qp->qp_type == IBV_QPT_UD;
  const bool is_initiator = qp->qp_type == IBV_QPT_XRC_SEND;
  const bool is_target = qp->qp_type == IBV_QPT_XRC_RECV;
  const bool is_reliable = qp->qp_type == IBV_QPT_RC;
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = IBV_MTU_1024;
  attributes.dest_qp_num = (peer ? peer : qp)->qp_num;
  attributes.max_dest_rd_atomic = attributes.max_rd_atomic = 4;
  attributes.min_rnr_timer = 1;
  attributes.timeout = 14;
  attributes.retry_cnt = attributes.rnr_retry = 7;
  attributes.ah_attr = own_address();
  int mask = IBV_QP_STATE;
  if (!is_datagram) mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  if (is_reliable || is_target) mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  ASSERT_EQ(0, ibv_modify_qp(qp, &attributes, mask));
  attributes.qp_state = IBV_QPS_RTS;
  mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
  if (is_target) mask |= IBV_QP_TIMEOUT;
  if (is_reliable || is_initiator) {
    mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  }
  ASSERT_EQ(0, ibv_modify_qp(qp, &attributes, mask));
}

ibv_sge VerbsTest::sge(std::size_t offset, std::uint32_t length) const {
  return {.addr = address(offset), .length = length, .lkey = mr->lkey};
}

ibv_recv_wr VerbsTest::receive(ibv_sge& sge, std::uint64_t wr_id) const {
  return {.wr_id = wr_id, .next = nullptr, .sg_list = &sge, .num_sge = 1};
}

ibv_send_wr VerbsTest::send(ibv_sge& sge, std::uint64_t wr_id, ibv_wr_opcode opcode) const {
  ibv_send_wr request = {};
  request.wr_id = wr_id;
  request.sg_list = &sge;
  request.num_sge = 1;
  request.opcode = opcode;
  request.send_flags = IBV_SEND_SIGNALED;
  return request;
}

ibv_wc VerbsTest::next_completion() {
  ibv_wc completion = {};
  // Long: a busy machine is no failure.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (std::chrono::steady_clock::now() < deadline) {
    const int got = ibv_poll_cq(cq.get(), 1, &completion);
    EXPECT_GE(got, 0);
    if (got == 1) return completion;
    std::this_thread::yield();
  }
  ADD_FAILURE() << "no completion";
  completion.status = IBV_WC_GENERAL_ERR;
  return completion;
}

bool VerbsTest::no_completion() {
  ibv_wc completion;
  return ibv_poll_cq(cq.get(), 1, &completion) == 0;
}

}  // namespace verbena::verbs::testing
