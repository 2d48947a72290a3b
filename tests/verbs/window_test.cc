// SPDX-License-Identifier: MIT
// Memory windows: ibv_alloc_mw, ibv_bind_mw, IBV_WR_BIND_MW, IBV_WR_LOCAL_INV,
// IBV_WR_SEND_WITH_INV.
#include <cerrno>
#include <vector>

#include "fixture.h"

namespace verbena::verbs::testing {
namespace {

struct Dealloc {
  void operator()(ibv_mw* mw) const { EXPECT_EQ(0, ibv_dealloc_mw(mw)); }
};
using OwnMw = std::unique_ptr<ibv_mw, Dealloc>;

// Binds on `near`, whose peer `far` comes to use what it gives.
class Window : public VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    bindable.reset(ibv_reg_mr(pd.get(), memory.data(), memory.size(),
                              IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND));
    ASSERT_TRUE(bindable);
    near = make_qp();
    far = make_qp();
    ASSERT_TRUE(near && far);
    connect(near.get(), far.get());
    connect(far.get(), near.get());
  }
  OwnMw alloc(ibv_mw_type type) { return OwnMw(ibv_alloc_mw(pd.get(), type)); }

  ibv_mw_bind_info what(std::size_t offset, std::size_t length,
                        unsigned access = IBV_ACCESS_REMOTE_WRITE) {
    return {.mr = length ? bindable.get() : nullptr,
            .addr = length ? address(offset) : 0,
            .length = length,
            .mw_access_flags = access};
  }
  int post_bind(ibv_mw* mw, std::uint32_t key, const ibv_mw_bind_info& info, ibv_qp* qp) {
    ibv_send_wr request = {};
    request.wr_id = 70;
    request.opcode = IBV_WR_BIND_MW;
    request.send_flags = IBV_SEND_SIGNALED;
    request.bind_mw.mw = mw;
    request.bind_mw.rkey = key;
    request.bind_mw.bind_info = info;
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(qp, &request, &bad);
  }
  // Type 2, and its completion.
  ibv_wc bind(ibv_mw* mw, std::uint32_t key, const ibv_mw_bind_info& info) {
    EXPECT_EQ(0, post_bind(mw, key, info, near.get()));
    return next_completion();
  }
  ibv_wc bind_type_1(ibv_mw* mw, const ibv_mw_bind_info& info) {
    ibv_mw_bind request = {};
    request.wr_id = 71;
    request.send_flags = IBV_SEND_SIGNALED;
    request.bind_info = info;
    EXPECT_EQ(0, ibv_bind_mw(near.get(), mw, &request));
    return next_completion();
  }
  ibv_wc invalidate(ibv_qp* qp, std::uint32_t key) {
    ibv_send_wr request = {};
    request.opcode = IBV_WR_LOCAL_INV;
    request.send_flags = IBV_SEND_SIGNALED;
    request.invalidate_rkey = key;
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(0, ibv_post_send(qp, &request, &bad));
    return next_completion();
  }
  ibv_wc_status access(std::uint32_t key, std::uint64_t remote, std::uint32_t length,
                       ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE) {
    ibv_sge from = sge(4096, length);
    ibv_send_wr request = send(from, 72, opcode);
    request.wr.rdma.rkey = key;
    request.wr.rdma.remote_addr = remote;
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(0, ibv_post_send(far.get(), &request, &bad));
    return next_completion().status;
  }
  // After an access that was refused.
  void connect_again() {
    for (ibv_qp* qp : {near.get(), far.get()}) {
      ibv_qp_attr attributes = {};
      attributes.qp_state = IBV_QPS_RESET;
      ASSERT_EQ(0, ibv_modify_qp(qp, &attributes, IBV_QP_STATE));
    }
    connect(near.get(), far.get());
    connect(far.get(), near.get());
  }

  Own<ibv_mr> bindable;
  Own<ibv_qp> near;
  Own<ibv_qp> far;
};

TEST_F(Window, TheDeviceSaysHowManyThereAre) {
  ibv_device_attr attributes;
  ASSERT_EQ(0, ibv_query_device(context.get(), &attributes));
  EXPECT_EQ(65'536, attributes.max_mw);
  EXPECT_TRUE(attributes.device_cap_flags & IBV_DEVICE_MEM_WINDOW);
  EXPECT_TRUE(attributes.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B);
  EXPECT_FALSE(attributes.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2A);
  EXPECT_EQ(nullptr, ibv_alloc_mw(pd.get(), static_cast<ibv_mw_type>(3)));
  EXPECT_EQ(EINVAL, errno);
}

TEST_F(Window, OfTypeOneMovesWithEachBind) {
  const OwnMw mw = alloc(IBV_MW_TYPE_1);
  ASSERT_TRUE(mw);
  const std::uint32_t unbound = mw->rkey;
  const ibv_wc done = bind_type_1(mw.get(), what(0, 64));
  EXPECT_EQ(IBV_WC_SUCCESS, done.status);
  EXPECT_EQ(IBV_WC_BIND_MW, done.opcode);
  EXPECT_EQ(71u, done.wr_id);
  const std::uint32_t first = mw->rkey;
  EXPECT_NE(unbound, first);
  memory[4096] = 5;
  EXPECT_EQ(IBV_WC_SUCCESS, access(first, address(63), 1));
  EXPECT_EQ(5, memory[63]);
  EXPECT_EQ(IBV_WC_SUCCESS, bind_type_1(mw.get(), what(100, 64)).status);
  EXPECT_EQ(IBV_WC_SUCCESS, access(mw->rkey, address(100), 64));
  EXPECT_EQ(IBV_WC_REM_ACCESS_ERR, access(first, address(0), 1));
  connect_again();
  // Type 1 stays bound, whatever happens to the queue pair.
  EXPECT_EQ(IBV_WC_SUCCESS, access(mw->rkey, address(100), 64));
  EXPECT_EQ(EBUSY, ibv_dereg_mr(bindable.get()));
  EXPECT_EQ(IBV_WC_SUCCESS, bind_type_1(mw.get(), what(0, 0)).status);
  EXPECT_EQ(IBV_WC_REM_ACCESS_ERR, access(mw->rkey, address(100), 1));
}

TEST_F(Window, OfTypeTwoIsInvalidatedHere) {
  const OwnMw mw = alloc(IBV_MW_TYPE_2);
  ASSERT_TRUE(mw);
  const std::uint32_t key = ibv_inc_rkey(mw->rkey);
  EXPECT_EQ(IBV_WC_SUCCESS, bind(mw.get(), key, what(8, 8)).status);
  EXPECT_EQ(IBV_WC_SUCCESS, access(key, address(8), 8));
  const ibv_wc done = invalidate(near.get(), key);
  EXPECT_EQ(IBV_WC_SUCCESS, done.status);
  EXPECT_EQ(IBV_WC_LOCAL_INV, done.opcode);
  EXPECT_EQ(IBV_WC_REM_ACCESS_ERR, access(key, address(8), 8));
}

TEST_F(Window, OfTypeTwoIsInvalidatedByThePeer) {
  const OwnMw mw = alloc(IBV_MW_TYPE_2);
  ASSERT_TRUE(mw);
  const std::uint32_t key = ibv_inc_rkey(mw->rkey);
  EXPECT_EQ(IBV_WC_SUCCESS, bind(mw.get(), key, what(8, 8)).status);
  ibv_sge room = sge(512, 64);
  ibv_recv_wr receive = this->receive(room, 5);
  ibv_recv_wr* bad_receive = nullptr;
  ASSERT_EQ(0, ibv_post_recv(near.get(), &receive, &bad_receive));
  ibv_sge from = sge(4096, 16);
  ibv_send_wr request = send(from, 6, IBV_WR_SEND_WITH_INV);
  request.invalidate_rkey = key;
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(0, ibv_post_send(far.get(), &request, &bad));
  for (int i = 0; i < 2; ++i) {
    const ibv_wc done = next_completion();
    EXPECT_EQ(IBV_WC_SUCCESS, done.status);
    if (done.wr_id != 5) continue;
    EXPECT_EQ(unsigned{IBV_WC_WITH_INV}, done.wc_flags);
    EXPECT_EQ(key, done.invalidated_rkey);
    EXPECT_EQ(16u, done.byte_len);
  }
  EXPECT_EQ(IBV_WC_REM_ACCESS_ERR, access(key, address(8), 8));
}

TEST_F(Window, OfTypeTwoIsOneQueuePairsOwn) {
  const Own<ibv_qp> other = make_qp();
  ASSERT_TRUE(other);
  connect(other.get());
  const OwnMw mw = alloc(IBV_MW_TYPE_2);
  const std::uint32_t key = ibv_inc_rkey(mw->rkey);
  ASSERT_EQ(0, post_bind(mw.get(), key, what(8, 8), other.get()));
  EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
  EXPECT_EQ(IBV_WC_REM_ACCESS_ERR, access(key, address(8), 8));
  connect_again();
  EXPECT_EQ(IBV_WC_MW_BIND_ERR, invalidate(near.get(), key).status);
  EXPECT_EQ(IBV_WC_SUCCESS, invalidate(other.get(), key).status);
}

// 10.3.1.1, 11.2.4.3: RESET and the end of the queue pair end what was bound to it.
TEST_F(Window, OfTypeTwoEndsWithTheConnection) {
  const OwnMw mw = alloc(IBV_MW_TYPE_2);
  const std::uint32_t key = ibv_inc_rkey(mw->rkey);
  EXPECT_EQ(IBV_WC_SUCCESS, bind(mw.get(), key, what(8, 8)).status);
  EXPECT_EQ(EBUSY, ibv_dereg_mr(bindable.get()));
  connect_again();
  EXPECT_EQ(IBV_WC_REM_ACCESS_ERR, access(key, address(8), 8));
  connect_again();
  const std::uint32_t next = ibv_inc_rkey(key);
  EXPECT_EQ(IBV_WC_SUCCESS, bind(mw.get(), next, what(8, 8)).status);
  EXPECT_EQ(EBUSY, ibv_dereg_mr(bindable.get()));
  near.reset();
  EXPECT_EQ(0, ibv_dereg_mr(bindable.release()));
}

TEST_F(Window, CountsFromZeroWhereItIsAsked) {
  const OwnMw mw = alloc(IBV_MW_TYPE_2);
  const std::uint32_t key = ibv_inc_rkey(mw->rkey);
  const unsigned access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ZERO_BASED;
  EXPECT_EQ(IBV_WC_SUCCESS, bind(mw.get(), key, what(200, 64, access_flags)).status);
  memory[4096] = 9;
  EXPECT_EQ(IBV_WC_SUCCESS, access(key, 63, 1));
  EXPECT_EQ(9, memory[263]);
  EXPECT_EQ(IBV_WC_REM_ACCESS_ERR, access(key, address(200), 1));
}

TEST_F(Window, GivesItsOwnRights) {
  const OwnMw mw = alloc(IBV_MW_TYPE_2);
  const std::uint32_t key = ibv_inc_rkey(mw->rkey);
  EXPECT_EQ(IBV_WC_SUCCESS, bind(mw.get(), key, what(8, 8, IBV_ACCESS_REMOTE_READ)).status);
  EXPECT_EQ(IBV_WC_SUCCESS, access(key, address(8), 8, IBV_WR_RDMA_READ));
  EXPECT_EQ(IBV_WC_REM_ACCESS_ERR, access(key, address(8), 8));
}

// Each with the status of the bind.
TEST_F(Window, IsNotBoundToWhatDoesNotAllowIt) {
  const Own<ibv_pd> other_pd(ibv_alloc_pd(context.get()));
  const auto reg = [&](ibv_pd* domain, int access) {
    return Own<ibv_mr>(ibv_reg_mr(domain, memory.data(), memory.size(), access));
  };
  const Own<ibv_mr> foreign = reg(other_pd.get(), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
  const Own<ibv_mr> read_only = reg(pd.get(), IBV_ACCESS_MW_BIND);
  std::vector<ibv_mw_bind_info> wrong(6, what(8, 8));
  wrong[0].mr = mr.get();  // not to be bound
  wrong[1].mr = foreign.get();
  wrong[2].mr = read_only.get();
  wrong[3].length = kBytes;
  wrong[4].addr = address(0) - 1;
  wrong[5].mw_access_flags |= IBV_ACCESS_MW_BIND;
  const OwnMw mw = alloc(IBV_MW_TYPE_2);
  std::uint32_t key = mw->rkey;
  for (std::size_t i = 0; i < wrong.size(); ++i) {
    key = ibv_inc_rkey(key);
    EXPECT_EQ(IBV_WC_MW_BIND_ERR, bind(mw.get(), key, wrong[i]).status) << i;
    ibv_qp_attr attributes;
    ibv_qp_init_attr init;
    EXPECT_EQ(0, ibv_query_qp(near.get(), &attributes, IBV_QP_STATE, &init));
    EXPECT_EQ(IBV_QPS_ERR, attributes.qp_state);
    connect_again();
  }
  EXPECT_EQ(IBV_WC_SUCCESS, bind(mw.get(), key, what(8, 8)).status);
  // Bound as it is.
  EXPECT_EQ(IBV_WC_MW_BIND_ERR, bind(mw.get(), ibv_inc_rkey(key), what(8, 8)).status);
}

TEST_F(Window, IsRefusedAtOnceWhatIsNoBind) {
  const OwnMw one = alloc(IBV_MW_TYPE_1);
  const OwnMw two = alloc(IBV_MW_TYPE_2);
  EXPECT_EQ(EINVAL, post_bind(one.get(), one->rkey, what(8, 8), near.get()));
  EXPECT_EQ(EINVAL, post_bind(nullptr, two->rkey, what(8, 8), near.get()));
  EXPECT_EQ(EINVAL, post_bind(two.get(), one->rkey, what(8, 8), near.get()));
  const Own<ibv_qp> datagrams = make_qp(IBV_QPT_UD);
  connect(datagrams.get());
  EXPECT_EQ(EINVAL, post_bind(two.get(), two->rkey, what(8, 8), datagrams.get()));
  EXPECT_TRUE(no_completion());
}

TEST_F(Window, TakesItsTurnAmongOtherWork) {
  const OwnMw mw = alloc(IBV_MW_TYPE_2);
  const std::uint32_t key = ibv_inc_rkey(mw->rkey);
  ibv_sge from = sge(4096, 64);
  ibv_send_wr first = send(from, 1, IBV_WR_RDMA_WRITE);
  first.wr.rdma = {.remote_addr = address(1024), .rkey = mr->rkey};
  ibv_send_wr last = first;
  last.wr_id = 4;
  ibv_send_wr second = {};
  second.wr_id = 2;
  second.opcode = IBV_WR_BIND_MW;
  second.send_flags = IBV_SEND_SIGNALED;
  second.bind_mw = {.mw = mw.get(), .rkey = key, .bind_info = what(8, 8)};
  ibv_send_wr third = {};
  third.wr_id = 3;
  third.opcode = IBV_WR_LOCAL_INV;
  third.send_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE;
  third.invalidate_rkey = key;
  first.next = &second;
  second.next = &third;
  third.next = &last;
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(0, ibv_post_send(near.get(), &first, &bad));
  for (std::uint64_t id = 1; id <= 4; ++id) {
    const ibv_wc done = next_completion();
    EXPECT_EQ(id, done.wr_id);
    EXPECT_EQ(IBV_WC_SUCCESS, done.status);
  }
}

TEST_F(Window, IsBoundByFunctionCalls) {
  const Own<ibv_qp> qp = make_qp(IBV_QPT_RC, [](ibv_qp_init_attr_ex& wanted) {
    wanted.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    wanted.send_ops_flags =
        IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_SEND_WITH_INV;
  });
  ASSERT_TRUE(qp);
  connect(qp.get());
  const OwnMw mw = alloc(IBV_MW_TYPE_2);
  const std::uint32_t key = ibv_inc_rkey(mw->rkey);
  const ibv_mw_bind_info info = what(8, 8);
  ibv_qp_ex* const ex = ibv_qp_to_qp_ex(qp.get());
  ex->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_start(ex);
  ibv_wr_bind_mw(ex, mw.get(), key, &info);
  ibv_wr_local_inv(ex, key);
  EXPECT_EQ(0, ibv_wr_complete(ex));
  EXPECT_EQ(IBV_WC_BIND_MW, next_completion().opcode);
  EXPECT_EQ(IBV_WC_LOCAL_INV, next_completion().opcode);
  ibv_wr_start(ex);
  ibv_wr_bind_mw(ex, mw.get(), key ^ 0x100, &info);
  EXPECT_EQ(EINVAL, ibv_wr_complete(ex));
}

TEST_F(Window, KeepsItsDomain) {
  Own<ibv_pd> domain(ibv_alloc_pd(context.get()));
  OwnMw mw(ibv_alloc_mw(domain.get(), IBV_MW_TYPE_1));
  ASSERT_TRUE(mw);
  EXPECT_EQ(EBUSY, ibv_dealloc_pd(domain.get()));
  mw.reset();
}

}  // namespace
}  // namespace verbena::verbs::testing
