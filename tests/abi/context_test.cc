// SPDX-License-Identifier: MIT
// A context through the eyes of a program: the header's inlines over what init_context made, and
// the queries that the ABI half derives from the stand-in's.
#include "verbs/abi/context.h"

#include <endian.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "verbs/abi/entry.h"

namespace {

class Context : public testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    list = ibv_get_device_list(&count);
    ASSERT_EQ(count, 1);
    context = ibv_open_device(list[0]);
    ASSERT_TRUE(context);
  }
  void TearDown() override {
    EXPECT_EQ(ibv_close_device(context), 0);
    ibv_free_device_list(list);
  }
  ibv_device** list = nullptr;
  ibv_context* context = nullptr;
};

TEST_F(Context, OperationsThatAreCalledUncheckedRefuse) {
  ibv_qp qp = {};
  qp.context = context;
  ibv_srq srq = {};
  srq.context = context;
  ibv_cq cq = {};
  cq.context = context;
  ibv_pd pd = {context, 0};
  ibv_mw mw = {};
  mw.context = context;
  mw.type = IBV_MW_TYPE_1;
  ibv_xrcd xrcd = {context};

  ibv_send_wr send = {};
  ibv_send_wr* bad_send = nullptr;
  EXPECT_EQ(ibv_post_send(&qp, &send, &bad_send), EOPNOTSUPP);
  EXPECT_EQ(bad_send, &send);
  ibv_recv_wr receive = {};
  ibv_recv_wr* bad_receive = nullptr;
  EXPECT_EQ(ibv_post_recv(&qp, &receive, &bad_receive), EOPNOTSUPP);
  EXPECT_EQ(bad_receive, &receive);
  bad_receive = nullptr;
  EXPECT_EQ(ibv_post_srq_recv(&srq, &receive, &bad_receive), EOPNOTSUPP);
  EXPECT_EQ(bad_receive, &receive);

  ibv_wc completion;
  EXPECT_LT(ibv_poll_cq(&cq, 1, &completion), 0);
  EXPECT_EQ(ibv_req_notify_cq(&cq, 0), EOPNOTSUPP);
  errno = 0;
  EXPECT_EQ(ibv_alloc_mw(&pd, IBV_MW_TYPE_1), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  ibv_mw_bind bind = {};
  EXPECT_EQ(ibv_bind_mw(&qp, &mw, &bind), EOPNOTSUPP);
  EXPECT_EQ(ibv_dealloc_mw(&mw), EOPNOTSUPP);
  EXPECT_EQ(ibv_close_xrcd(&xrcd), EOPNOTSUPP);
}

TEST_F(Context, ExtendedOperationsAreAbsentUntilTheNicHasThem) {
  errno = 0;
  ibv_cq_init_attr_ex attributes = {};
  EXPECT_EQ(ibv_create_cq_ex(context, &attributes), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  ibv_values_ex values = {};
  EXPECT_EQ(ibv_query_rt_values_ex(context, &values), EOPNOTSUPP);
  EXPECT_EQ(context->cmd_fd, -1);
  EXPECT_EQ(context->async_fd, -1);
  EXPECT_EQ(verbs_get_ctx(context)->sz, sizeof(verbs_context));
}

TEST_F(Context, PortAttributesHonourTheCallersSize) {
  ibv_port_attr now;
  std::memset(&now, 0xee, sizeof(now));
  ASSERT_EQ(___ibv_query_port(context, 1, &now), 0);
  EXPECT_EQ(now.port_cap_flags2, 0x1234);

  // The exported function serves programs whose structure ends with `flags`.
  ibv_port_attr old;
  std::memset(&old, 0xee, sizeof(old));
  ASSERT_EQ(ibv_query_port(context, 1, reinterpret_cast<_compat_ibv_port_attr*>(&old)), 0);
  EXPECT_EQ(old.state, now.state);
  EXPECT_EQ(old.gid_tbl_len, now.gid_tbl_len);
  EXPECT_EQ(old.link_layer, IBV_LINK_LAYER_ETHERNET);
  EXPECT_EQ(old.flags, 0x5a);
  EXPECT_EQ(old.port_cap_flags2, 0xeeee);
  EXPECT_EQ(ibv_query_port(context, 2, reinterpret_cast<_compat_ibv_port_attr*>(&old)), EINVAL);

  // Later programs have a longer one: the rest is zero.
  unsigned char longer[sizeof(ibv_port_attr) + 16];
  std::memset(longer, 0xee, sizeof(longer));
  verbena::verbs::copy_out(now, longer, sizeof(longer));
  // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): bytes are what is copied
  EXPECT_EQ(std::memcmp(longer, &now, sizeof(now)), 0);
  for (std::size_t i = sizeof(now); i < sizeof(longer); ++i)
    EXPECT_EQ(longer[i], 0) << i;
}

TEST_F(Context, TheOldestWayToAskGoesThroughTheTable) {
  ibv_device_attr attributes;
  ASSERT_EQ(context->ops._compat_query_device(context, &attributes), 0);
  EXPECT_STREQ(attributes.fw_ver, "stub");
  ibv_port_attr port = {};
  auto* old = reinterpret_cast<_compat_ibv_port_attr*>(&port);
  ASSERT_EQ(context->ops._compat_query_port(context, 1, old), 0);
  EXPECT_EQ(port.state, IBV_PORT_ACTIVE);
}

TEST_F(Context, ADeviceThatCannotBeQueriedSaysSo) {
  verbs_context bare;
  verbena::verbs::init_context(bare, *list[0]);
  ibv_device_attr device;
  EXPECT_EQ(ibv_query_device(&bare.context, &device), EOPNOTSUPP);
  ibv_port_attr port;
  EXPECT_EQ(ibv_query_port(&bare.context, 1, reinterpret_cast<_compat_ibv_port_attr*>(&port)),
            EOPNOTSUPP);
  EXPECT_EQ(ibv_get_pkey_index(&bare.context, 1, 0), -1);
  verbena::verbs::destroy_context(bare);
}

TEST_F(Context, GidsInTheirFourForms) {
  ibv_gid gid;
  ASSERT_EQ(ibv_query_gid(context, 1, 3, &gid), 0);
  EXPECT_EQ(gid.raw[12], 10);
  ASSERT_EQ(ibv_query_gid(context, 1, 4, &gid), 0);  // empty: zeros
  EXPECT_EQ(gid.global.interface_id, 0U);
  errno = 0;
  EXPECT_EQ(ibv_query_gid(context, 1, 6, &gid), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(ibv_query_gid(context, 1, -1, &gid), -1);
  EXPECT_EQ(ibv_query_gid(context, 2, 0, &gid), -1);

  unsigned type = 9;
  EXPECT_EQ(ibv_query_gid_type(context, 1, 2, &type), 0);
  EXPECT_EQ(type, 0U);
  EXPECT_EQ(ibv_query_gid_type(context, 1, 3, &type), 0);
  EXPECT_EQ(type, 1U);
  EXPECT_EQ(ibv_query_gid_type(context, 1, 6, &type), -1);

  ibv_gid_entry entry = {};
  EXPECT_EQ(ibv_query_gid_ex(context, 1, 3, &entry, 0), 0);
  EXPECT_EQ(entry.gid_type, unsigned{IBV_GID_TYPE_ROCE_V2});
  EXPECT_EQ(entry.ndev_ifindex, 7U);
  EXPECT_EQ(ibv_query_gid_ex(context, 1, 4, &entry, 0), ENODATA);
  EXPECT_EQ(ibv_query_gid_ex(context, 1, 6, &entry, 0), EINVAL);
  EXPECT_EQ(ibv_query_gid_ex(context, 1, 3, &entry, 1), EINVAL);
  EXPECT_EQ(_ibv_query_gid_ex(context, 1, 3, &entry, 0, sizeof(entry) - 1), EINVAL);
}

TEST_F(Context, TheGidTableIsWholeOrRefused) {
  ibv_gid_entry entries[8];
  ASSERT_EQ(ibv_query_gid_table(context, entries, 8, 0), 5);
  EXPECT_EQ(entries[4].gid_index, 5U);  // the empty one is left out
  EXPECT_EQ(ibv_query_gid_table(context, entries, 5, 0), 5);
  EXPECT_EQ(ibv_query_gid_table(context, entries, 4, 0), -EINVAL);
  EXPECT_EQ(ibv_query_gid_table(context, entries, 0, 0), -EINVAL);
  EXPECT_EQ(ibv_query_gid_table(context, entries, 8, 1), -EINVAL);
  EXPECT_EQ(_ibv_query_gid_table(context, entries, 8, 0, sizeof(entries[0]) - 4), -EINVAL);

  // A later program's entries are longer.
  struct Longer {
    ibv_gid_entry known;
    std::uint64_t later;
  } longer[8];
  std::memset(longer, 0xee, sizeof(longer));
  ASSERT_EQ(_ibv_query_gid_table(context, &longer[0].known, 8, 0, sizeof(Longer)), 5);
  EXPECT_EQ(longer[4].known.gid_index, 5U);
  EXPECT_EQ(longer[4].later, 0U);
}

TEST_F(Context, PkeysByValue) {
  EXPECT_EQ(ibv_get_pkey_index(context, 1, htobe16(0xffff)), 0);
  EXPECT_EQ(ibv_get_pkey_index(context, 1, htobe16(0x8001)), 1);
  EXPECT_EQ(ibv_get_pkey_index(context, 1, htobe16(0x7fff)), -1);
  EXPECT_EQ(ibv_get_pkey_index(context, 2, htobe16(0xffff)), -1);
}

TEST_F(Context, OlderRegistrationsAreTheNewOneWithFewerArguments) {
  const std::unique_ptr<ibv_pd> pd(ibv_alloc_pd(context));
  char memory[16];
  const std::unique_ptr<ibv_mr> plain(
      ibv_reg_mr(pd.get(), memory, sizeof(memory), IBV_ACCESS_REMOTE_READ));
  EXPECT_EQ(plain->addr, memory);
  EXPECT_EQ(plain->length, sizeof(memory));
  EXPECT_EQ(plain->lkey, unsigned{IBV_ACCESS_REMOTE_READ});
  EXPECT_EQ(plain->rkey, static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(memory)));
  const std::unique_ptr<ibv_mr> offset(ibv_reg_mr_iova(pd.get(), memory, sizeof(memory), 0x77, 0));
  EXPECT_EQ(offset->rkey, 0x77U);
  errno = 0;
  EXPECT_EQ(ibv_reg_dmabuf_mr(pd.get(), 0, 1, 0, 0, 0), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

TEST_F(Context, ACompletionQueueHoldsItsChannel) {
  ibv_comp_channel channel = {};
  channel.context = context;
  ibv_cq cq;
  std::memset(&cq, 0xee, sizeof(cq));
  verbs_init_cq(&cq, context, &channel, this);
  EXPECT_EQ(channel.refcnt, 1);
  EXPECT_EQ(cq.context, context);
  EXPECT_EQ(cq.channel, &channel);
  EXPECT_EQ(cq.cq_context, this);
  EXPECT_EQ(cq.comp_events_completed, 0U);
  EXPECT_EQ(pthread_mutex_lock(&cq.mutex), 0);
  EXPECT_EQ(pthread_mutex_unlock(&cq.mutex), 0);
  verbena::verbs::release_cq(cq);
  EXPECT_EQ(channel.refcnt, 0);

  verbs_init_cq(&cq, context, nullptr, nullptr);
  verbena::verbs::release_cq(cq);
}

TEST_F(Context, WhatNobodyCanDoIsRefused) {
  ibv_ece ece = {1, 2, 3};
  EXPECT_EQ(ibv_set_ece(nullptr, &ece), EOPNOTSUPP);
  EXPECT_EQ(ibv_query_ece(nullptr, &ece), EOPNOTSUPP);
  EXPECT_EQ(ece.vendor_id, 0U);
  EXPECT_EQ(ibv_fork_init(), 0);
  EXPECT_EQ(ibv_is_fork_initialized(), IBV_FORK_UNNEEDED);
  EXPECT_EQ(ibv_dontfork_range(this, 1) | ibv_dofork_range(this, 1), 0);
}

}  // namespace
