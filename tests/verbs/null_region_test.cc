// SPDX-License-Identifier: MIT
// Null regions (ibv_alloc_null_mr(3)): zeros to read, and nothing is written. And what this NIC
// says that it does not have.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "fixture.h"

namespace verbena::verbs::testing {
namespace {

class NullRegion : public VerbsTest {
 protected:
  static constexpr std::uint32_t kLarge = 5 << 20;  // more than is behind it

  void SetUp() override {
    VerbsTest::SetUp();
    null.reset(ibv_alloc_null_mr(pd.get()));
    ASSERT_TRUE(null);
    large.assign(kLarge + 64, 7);
    constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                            IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    large_mr.reset(ibv_reg_mr(pd.get(), large.data(), large.size(), kAccess));
    ASSERT_TRUE(large_mr);
    qp = make_qp(IBV_QPT_RC, [](ibv_qp_init_attr_ex& wanted) { wanted.cap.max_send_sge = 3; });
    ASSERT_TRUE(qp);
    connect(qp.get());
  }
  void TearDown() override { qp.reset(); }

  ibv_sge nothing(std::uint64_t at, std::uint32_t length) const {
    return {.addr = at, .length = length, .lkey = null->lkey};
  }
  ibv_wc_status act(ibv_wr_opcode opcode, std::vector<ibv_sge> list, std::uint64_t to = 0) {
    ibv_send_wr request = send(list[0], 1, opcode);
    request.sg_list = list.data();
    request.num_sge = static_cast<int>(list.size());
    const std::uint64_t target = reinterpret_cast<std::uintptr_t>(large.data()) + to;
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
      request.wr.atomic = {
          .remote_addr = target, .compare_add = 1, .swap = 0, .rkey = large_mr->rkey};
    else
      request.wr.rdma = {.remote_addr = target, .rkey = large_mr->rkey};
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(0, ibv_post_send(qp.get(), &request, &bad));
    return next_completion().status;
  }
  bool large_holds(std::size_t from, std::size_t length, std::uint8_t value) const {
    const auto begin = large.begin() + static_cast<std::ptrdiff_t>(from);
    return std::all_of(begin, begin + static_cast<std::ptrdiff_t>(length),
                       [&](std::uint8_t byte) { return byte == value; });
  }

  Own<ibv_mr> null;
  std::vector<std::uint8_t> large;
  Own<ibv_mr> large_mr;
  Own<ibv_qp> qp;
};

TEST_F(NullRegion, ReadsAsZerosWhateverTheAddress) {
  EXPECT_EQ(nullptr, null->addr);
  EXPECT_EQ(0u, null->rkey);
  for (const std::uint32_t length : {1u, 2u, 63u, 64u, 4096u, 70'000u, kLarge}) {
    std::fill(large.begin(), large.end(), std::uint8_t{7});
    ASSERT_EQ(IBV_WC_SUCCESS,
              act(IBV_WR_RDMA_WRITE, {nothing(0xfffffff000000000 + length, length)}, 8));
    EXPECT_TRUE(large_holds(0, 8, 7) && large_holds(8, length, 0) && large_holds(8 + length, 8, 7))
        << length;
  }
}

TEST_F(NullRegion, FillsAMessageBetweenOthers) {
  std::memset(memory.data(), 0x11, 64);
  ASSERT_EQ(IBV_WC_SUCCESS, act(IBV_WR_RDMA_WRITE, {sge(0, 10), nothing(5, 20), sge(0, 10)}, 0));
  EXPECT_TRUE(large_holds(0, 10, 0x11) && large_holds(10, 20, 0) && large_holds(30, 10, 0x11) &&
              large_holds(40, 10, 7));
}

TEST_F(NullRegion, ForgetsWhatIsWritten) {
  for (const std::uint32_t length : {1u, 2u, 64u, 4096u, 70'000u, kLarge})
    ASSERT_EQ(IBV_WC_SUCCESS, act(IBV_WR_RDMA_READ, {nothing(0, length)})) << length;
  ASSERT_EQ(IBV_WC_SUCCESS, act(IBV_WR_ATOMIC_FETCH_AND_ADD, {nothing(64, 8)}));
  // What is behind it is as before.
  ASSERT_EQ(IBV_WC_SUCCESS, act(IBV_WR_RDMA_WRITE, {nothing(0, 4096)}));
  EXPECT_TRUE(large_holds(0, 4096, 0));
  // A part of an answer.
  std::memset(memory.data(), 0, 64);
  ASSERT_EQ(IBV_WC_SUCCESS, act(IBV_WR_RDMA_READ, {nothing(0, 8), sge(0, 8)}, 4084));
  EXPECT_EQ(0, memory[0] | memory[3]);
  EXPECT_EQ(7, memory[7]);
}

TEST_F(NullRegion, ReceivesInto) {
  for (const std::uint32_t length : {1u, 8u, 4000u}) {
    std::vector<ibv_sge> room = {nothing(0, length), sge(4096, 1)};
    ibv_recv_wr request = receive(room[0], 2);
    request.sg_list = room.data();
    request.num_sge = length == 8 ? 2 : 1;
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(0, ibv_post_recv(qp.get(), &request, &bad));
    ibv_sge from = sge(0, length);
    ibv_send_wr message = send(from, 1);
    ibv_send_wr* bad_send = nullptr;
    ASSERT_EQ(0, ibv_post_send(qp.get(), &message, &bad_send));
    for (int i = 0; i < 2; ++i) {
      const ibv_wc completion = next_completion();
      EXPECT_EQ(IBV_WC_SUCCESS, completion.status);
      if (completion.opcode == IBV_WC_RECV) {
        EXPECT_EQ(length, completion.byte_len);
      }
    }
  }
}

TEST_F(NullRegion, IsNotForPeersNorForWindows) {
  ibv_sge part = sge(0, 8);
  ibv_send_wr request = send(part, 1, IBV_WR_RDMA_WRITE);
  request.wr.rdma = {.remote_addr = 0, .rkey = null->lkey};
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(0, ibv_post_send(qp.get(), &request, &bad));
  // The other end is this queue pair, and may have failed first.
  EXPECT_NE(IBV_WC_SUCCESS, next_completion().status);
  EXPECT_NE(0, ibv_rereg_mr(null.get(), IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0,
                            IBV_ACCESS_LOCAL_WRITE));
  ibv_mw* const mw = ibv_alloc_mw(pd.get(), IBV_MW_TYPE_1);
  ASSERT_TRUE(mw);
  ibv_mw_bind bind = {};
  bind.bind_info = {
      .mr = null.get(), .addr = 0, .length = 64, .mw_access_flags = IBV_ACCESS_REMOTE_READ};
  const Own<ibv_qp> other = make_qp();
  connect(other.get());
  bind.send_flags = IBV_SEND_SIGNALED;
  if (ibv_bind_mw(other.get(), mw, &bind) == 0) {
    EXPECT_NE(IBV_WC_SUCCESS, next_completion().status);
  }
  EXPECT_EQ(0, ibv_dealloc_mw(mw));
}

TEST_F(NullRegion, BelongsToItsDomain) {
  const Own<ibv_pd> elsewhere(ibv_alloc_pd(context.get()));
  const Own<ibv_mr> foreign(ibv_alloc_null_mr(elsewhere.get()));
  ASSERT_TRUE(foreign);
  EXPECT_EQ(IBV_WC_LOC_PROT_ERR,
            act(IBV_WR_RDMA_WRITE, {{.addr = 0, .length = 8, .lkey = foreign->lkey}}));
}

// Only raw packets are paced (raw_packet_test.cc), and no features are agreed on with one vendor's
// adapters: what else asks for it is refused, and the device does not claim it.
TEST_F(NullRegion, WhatIsNotThereIsNotClaimed) {
  ibv_device_attr_ex device = {};
  ASSERT_EQ(0, ibv_query_device_ex(context.get(), nullptr, &device));
  EXPECT_EQ(1u << IBV_QPT_RAW_PACKET, device.packet_pacing_caps.supported_qpts);
  ibv_qp_rate_limit_attr limit = {};
  limit.rate_limit = 1000;
  EXPECT_EQ(EOPNOTSUPP, ibv_modify_qp_rate_limit(qp.get(), &limit));
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.rate_limit = 1000;
  EXPECT_EQ(EINVAL, ibv_modify_qp(qp.get(), &attributes, IBV_QP_STATE | IBV_QP_RATE_LIMIT));
  ibv_ece ece = {.vendor_id = 1, .options = 1, .comp_mask = 0};
  EXPECT_EQ(EOPNOTSUPP, ibv_set_ece(qp.get(), &ece));
  EXPECT_EQ(EOPNOTSUPP, ibv_query_ece(qp.get(), &ece));
  EXPECT_EQ(0u, ece.vendor_id | ece.options);
  // Only the last bytes of a message are certain to come last.
  for (const ibv_wr_opcode opcode : {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ})
    EXPECT_EQ(0, ibv_query_qp_data_in_order(qp.get(), opcode, 0));
}

}  // namespace
}  // namespace verbena::verbs::testing
