// SPDX-License-Identifier: MIT
// Thread domains and parent domains (ibv_alloc_td(3), ibv_alloc_parent_domain(3)).
#include <cerrno>

#include "fixture.h"

namespace verbena::verbs::testing {
namespace {

class ParentDomainTest : public VerbsTest {
 protected:
  Own<ibv_pd> on(ibv_pd* parent, ibv_td* td = nullptr) {
    ibv_parent_domain_init_attr wanted{};
    wanted.pd = parent;
    wanted.td = td;
    return Own<ibv_pd>(ibv_alloc_parent_domain(context.get(), &wanted));
  }
  ibv_td* make_td() {
    ibv_td_init_attr wanted{};
    return ibv_alloc_td(context.get(), &wanted);
  }
};

TEST_F(ParentDomainTest, GivesTheProtectionOfItsDomain) {
  const Own<ibv_pd> parent = on(pd.get());
  ASSERT_TRUE(parent);
  const Own<ibv_mr> region(ibv_reg_mr(parent.get(), memory.data(), 64, IBV_ACCESS_LOCAL_WRITE));
  ASSERT_TRUE(region);
  const Own<ibv_qp> qp =
      make_qp(IBV_QPT_RC, [&](ibv_qp_init_attr_ex& wanted) { wanted.pd = parent.get(); });
  ASSERT_TRUE(qp);
  EXPECT_EQ(parent.get(), qp->pd);
  connect(qp.get());
  // The region that was made on the domain itself, and the one of the parent domain.
  ibv_sge room{address(0), 8, region->lkey};
  ibv_recv_wr receiving = receive(room, 1);
  ibv_recv_wr* bad_receive = nullptr;
  ASSERT_EQ(0, ibv_post_recv(qp.get(), &receiving, &bad_receive));
  ibv_sge from = sge(64, 8);
  ibv_send_wr request = send(from, 2);
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(0, ibv_post_send(qp.get(), &request, &bad));
  EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
  EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
}

TEST_F(ParentDomainTest, EachDomainStaysWhileItIsUsed) {
  ibv_td* const td = make_td();
  ASSERT_TRUE(td);
  Own<ibv_pd> parent = on(pd.get(), td);
  ASSERT_TRUE(parent);
  EXPECT_EQ(EBUSY, ibv_dealloc_pd(pd.get()));
  EXPECT_EQ(EBUSY, ibv_dealloc_td(td));
  {
    const Own<ibv_mr> region(ibv_reg_mr(parent.get(), memory.data(), 64, 0));
    ASSERT_TRUE(region);
    EXPECT_EQ(EBUSY, ibv_dealloc_pd(parent.get()));
  }
  parent.reset();
  EXPECT_EQ(0, ibv_dealloc_td(td));
}

TEST_F(ParentDomainTest, MayHoldCompletionQueues) {
  const Own<ibv_pd> parent = on(pd.get());
  ASSERT_TRUE(parent);
  ibv_cq_init_attr_ex wanted{};
  wanted.cqe = 8;
  wanted.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD;
  wanted.parent_domain = parent.get();
  {
    ibv_cq_ex* const made = ibv_create_cq_ex(context.get(), &wanted);
    ASSERT_TRUE(made);
    const Own<ibv_cq> owned(ibv_cq_ex_to_cq(made));
    EXPECT_EQ(EBUSY, ibv_dealloc_pd(parent.get()));
  }
  wanted.parent_domain = pd.get();
  EXPECT_FALSE(ibv_create_cq_ex(context.get(), &wanted)) << "that is no parent domain";
  EXPECT_EQ(EINVAL, errno);
}

TEST_F(ParentDomainTest, WhatItIsAskedForIsChecked) {
  EXPECT_FALSE(on(nullptr));
  EXPECT_EQ(EINVAL, errno);
  ibv_parent_domain_init_attr wanted{};
  wanted.pd = pd.get();
  wanted.comp_mask = 1u << 31;
  EXPECT_FALSE(ibv_alloc_parent_domain(context.get(), &wanted));
  EXPECT_EQ(EOPNOTSUPP, errno);
  ibv_td_init_attr thread{};
  thread.comp_mask = 1;
  EXPECT_FALSE(ibv_alloc_td(context.get(), &thread));
  EXPECT_EQ(EOPNOTSUPP, errno);
}

}  // namespace
}  // namespace verbena::verbs::testing
