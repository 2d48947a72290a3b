// SPDX-License-Identifier: MIT
#include "two_ends.h"

#include <sys/mman.h>

#include <chrono>
#include <thread>

namespace verbena::verbs::testing {
namespace {

constexpr int kAllRights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                           IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;

ibv_qp_state state_of(ibv_qp* qp) {
  ibv_qp_attr attributes = {};
  ibv_qp_init_attr init;
  EXPECT_EQ(0, ibv_query_qp(qp, &attributes, IBV_QP_STATE, &init));
  return attributes.qp_state;
}

}  // namespace

void TwoEnds::SetUp() {
  VerbsTest::SetUp();
  other_pd.reset(ibv_alloc_pd(context.get()));
  near_cq.reset(ibv_create_cq(context.get(), 64, nullptr, nullptr, 0));
  far_cq.reset(ibv_create_cq(context.get(), 64, nullptr, nullptr, 0));
  ASSERT_TRUE(other_pd && near_cq && far_cq);
  foreign = reg(other_pd.get(), kAllRights);
  bindable = reg(pd.get(), kAllRights);
  ASSERT_TRUE(foreign && bindable);
}

void TwoEnds::TearDown() {
  near.reset();
  far.reset();
  for (ibv_qp* qp : others_)
    EXPECT_EQ(0, ibv_destroy_qp(qp));
  for (ibv_mw* mw : windows_)
    EXPECT_EQ(0, ibv_dealloc_mw(mw));
  for (ibv_ah* ah : addresses_)
    EXPECT_EQ(0, ibv_destroy_ah(ah));
}

Own<ibv_mr> TwoEnds::reg(ibv_pd* domain, int access) {
  return Own<ibv_mr>(ibv_reg_mr(domain, memory.data(), memory.size(), access));
}

ibv_mr* TwoEnds::region_without_memory() {
  constexpr std::size_t kPage = 4096;
  void* const page =
      mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_NE(MAP_FAILED, page);
  // By pages that come when they are used, for others would stay as long as the region.
  without_memory_.reset(ibv_reg_mr(pd.get(), page, kPage, kAllRights | IBV_ACCESS_ON_DEMAND));
  EXPECT_TRUE(without_memory_);
  // Not unmapped: whoever maps something next may get the place.
  EXPECT_EQ(page, mmap(page, kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
  return without_memory_.get();
}

ibv_mw* TwoEnds::new_window(ibv_pd* domain, ibv_mw_type type) {
  return windows_.emplace_back(ibv_alloc_mw(domain, type));
}

ibv_ah* TwoEnds::address_in(ibv_pd* domain) {
  ibv_ah_attr path = own_address();
  return addresses_.emplace_back(ibv_create_ah(domain, &path));
}

ibv_qp* TwoEnds::another(ibv_pd* domain) {
  Own<ibv_qp> qp = make_qp(IBV_QPT_RC, [&](ibv_qp_init_attr_ex& wanted) { wanted.pd = domain; });
  connect(qp.get());
  return others_.emplace_back(qp.release());
}

void TwoEnds::join(ibv_qp* qp, ibv_qp* peer, const Options& options, bool is_far) {
  to_init(qp);
  ibv_qp_attr attributes = {};
  const bool is_datagram = qp->qp_type == IBV_QPT_UD;
  const bool is_reliable = qp->qp_type == IBV_QPT_RC;
  if (is_far && is_reliable) {
    attributes.qp_access_flags = options.far_access;
    attributes.qp_state = IBV_QPS_INIT;
    ASSERT_EQ(0, ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS));
  }
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = IBV_MTU_1024;
  attributes.dest_qp_num = peer->qp_num;
  attributes.max_dest_rd_atomic = attributes.max_rd_atomic = options.reads;
  attributes.min_rnr_timer = 1;
  attributes.timeout = options.timeout;
  attributes.retry_cnt = options.retries;
  attributes.rnr_retry = options.rnr_retry;
  attributes.ah_attr = own_address();
  int mask = IBV_QP_STATE;
  if (!is_datagram) mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  if (is_reliable) mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  ASSERT_EQ(0, ibv_modify_qp(qp, &attributes, mask));
  attributes.qp_state = IBV_QPS_RTS;
  mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
  if (is_reliable) {
    mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  }
  ASSERT_EQ(0, ibv_modify_qp(qp, &attributes, mask));
}

void TwoEnds::post(ibv_wr_opcode opcode, const std::function<void(ibv_send_wr&)>& change) const {
  ibv_sge from = piece(64, mr->lkey);
  ibv_send_wr request = {};
  request.sg_list = &from;
  request.num_sge = 1;
  request.opcode = opcode;
  request.send_flags = IBV_SEND_SIGNALED;
  if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    from.length = 8;
    request.wr.atomic = {
        .remote_addr = address(4096), .compare_add = 1, .swap = 0, .rkey = mr->rkey};
  } else if (near->qp_type != IBV_QPT_UD) {
    request.wr.rdma = {.remote_addr = address(4096), .rkey = mr->rkey};
  }
  if (change) change(request);
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(0, ibv_post_send(near.get(), &request, &bad));
}

void TwoEnds::post_receive(std::uint32_t length, std::uint32_t key) const {
  ibv_sge room = {.addr = address(2048), .length = length, .lkey = key};
  ibv_recv_wr request = {.wr_id = 0, .next = nullptr, .sg_list = &room, .num_sge = 1};
  ibv_recv_wr* bad = nullptr;
  ASSERT_EQ(0, srq ? ibv_post_srq_recv(srq.get(), &request, &bad)
                   : ibv_post_recv(far.get(), &request, &bad));
}

void TwoEnds::post_bind(ibv_mw* mw, ibv_mr* region, ibv_qp* qp) const {
  const ibv_mw_bind_info info = {.mr = region,
                                 .addr = address(4096),
                                 .length = 64,
                                 .mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
  ibv_send_wr request = {};
  request.opcode = IBV_WR_BIND_MW;
  request.send_flags = IBV_SEND_SIGNALED;
  request.bind_mw = {.mw = mw, .rkey = mw->rkey, .bind_info = info};
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(0, ibv_post_send(qp ? qp : near.get(), &request, &bad));
}

std::uint32_t TwoEnds::bound_elsewhere() {
  ibv_mw* const mw = new_window(other_pd.get(), IBV_MW_TYPE_2);
  post_bind(mw, foreign.get(), another(other_pd.get()));
  EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
  return mw->rkey;
}

// What is not expected is waited for a little.
std::optional<ibv_wc> TwoEnds::first_of(ibv_cq* completions, bool is_expected) {
  return first_of(completions, std::chrono::milliseconds(is_expected ? 20'000 : 5));
}

std::optional<ibv_wc> TwoEnds::first_of(ibv_cq* completions, std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (std::chrono::steady_clock::now() < deadline) {
    ibv_wc completion = {};
    if (ibv_poll_cq(completions, 1, &completion) == 1) return completion;
    std::this_thread::yield();
  }
  return std::nullopt;
}

// What an unreliable queue pair sends before its peer is found, is lost.
void TwoEnds::wait_until_one_arrives() {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  post_receive(128, srq ? foreign->lkey : mr->lkey);
  do {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    post(IBV_WR_SEND, [this](ibv_send_wr& request) {
      if (near->qp_type != IBV_QPT_UD) return;
      request.wr.ud = {
          .ah = address_in(pd.get()), .remote_qpn = far->qp_num, .remote_qkey = 0x1234};
    });
    ASSERT_TRUE(first_of(near_cq.get(), true));
  } while (!first_of(far_cq.get(), std::chrono::milliseconds(100)));
}

// Whatever is posted to an end in its error state is flushed (10.7.3.1).
void TwoEnds::expect_flush() {
  const ibv_qp_state state = state_of(near.get());
  if (state == IBV_QPS_ERR || state == IBV_QPS_SQE) {
    ibv_wc rest = {};
    while (ibv_poll_cq(near_cq.get(), 1, &rest) == 1)
      EXPECT_EQ(IBV_WC_WR_FLUSH_ERR, rest.status);
    post(IBV_WR_SEND, [this](ibv_send_wr& request) {
      if (near->qp_type == IBV_QPT_UD) request.wr.ud.ah = address_in(pd.get());
    });
    const auto flushed = first_of(near_cq.get(), true);
    EXPECT_TRUE(flushed && flushed->status == IBV_WC_WR_FLUSH_ERR);
  }
  if (state_of(far.get()) != IBV_QPS_ERR || srq) return;
  ibv_wc rest = {};
  while (ibv_poll_cq(far_cq.get(), 1, &rest) == 1)
    EXPECT_EQ(IBV_WC_WR_FLUSH_ERR, rest.status);
  post_receive(64, mr->lkey);
  const auto flushed = first_of(far_cq.get(), true);
  EXPECT_TRUE(flushed && flushed->status == IBV_WC_WR_FLUSH_ERR);
}

void TwoEnds::check(const Row& row) {
  if (row.options.has_srq) {
    ibv_srq_init_attr wanted = {};
    wanted.attr = {.max_wr = 4, .max_sge = 1, .srq_limit = 0};
    srq.reset(ibv_create_srq(other_pd.get(), &wanted));
    ASSERT_TRUE(srq);
  }
  near = make_qp(row.type, [this](ibv_qp_init_attr_ex& wanted) {
    wanted.send_cq = wanted.recv_cq = near_cq.get();
  });
  far = make_qp(row.type, [this](ibv_qp_init_attr_ex& wanted) {
    wanted.send_cq = wanted.recv_cq = far_cq.get();
    wanted.srq = srq.get();
  });
  ASSERT_TRUE(near && far);
  join(near.get(), far.get(), row.options, false);
  join(far.get(), near.get(), row.options, true);
  if (row.type != IBV_QPT_RC) wait_until_one_arrives();
  if (HasFatalFailure()) return;
  row.act(*this);
  if (HasFatalFailure()) return;
  const auto at_near = first_of(near_cq.get(), row.near.has_value());
  ASSERT_EQ(row.near.has_value(), at_near.has_value());
  if (at_near) {
    EXPECT_EQ(*row.near, at_near->status);
  }
  const auto at_far = first_of(far_cq.get(), row.far.has_value());
  ASSERT_EQ(row.far.has_value(), at_far.has_value());
  if (at_far) {
    EXPECT_EQ(*row.far, at_far->status);
  }
  EXPECT_EQ(row.near_state, state_of(near.get()));
  EXPECT_EQ(row.far_state, state_of(far.get()));
  expect_flush();
}

}  // namespace verbena::verbs::testing
