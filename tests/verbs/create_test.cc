// SPDX-License-Identifier: MIT
// Devices and objects: what is granted, what is refused and how, what depends on what.
#include <cerrno>
#include <cstring>
#include <string>

#include "fixture.h"

namespace verbena::verbs::testing {
namespace {

TEST(Devices, TheListIsWhole) {
  int count = -1;
  ibv_device** const list = ibv_get_device_list(&count);
  ASSERT_TRUE(list);
  ASSERT_GT(count, 0);
  EXPECT_EQ(nullptr, list[count]);
  for (int i = 0; i < count; ++i) {
    EXPECT_EQ(0u, std::string(list[i]->name).rfind("vrb_", 0)) << list[i]->name;
    EXPECT_EQ("uverbs" + std::to_string(i), list[i]->dev_name);
    EXPECT_EQ("/sys/class/infiniband/" + std::string(list[i]->name), list[i]->ibdev_path);
    EXPECT_EQ(IBV_NODE_CA, list[i]->node_type);
    EXPECT_EQ(IBV_TRANSPORT_IB, list[i]->transport_type);
    EXPECT_NE(0u, ibv_get_device_guid(list[i]));
    EXPECT_EQ(i, ibv_get_device_index(list[i]));
  }
  EXPECT_EQ("vrb_lo", std::string(list[count - 1]->name));
  ibv_free_device_list(list);
}

TEST(Devices, TheSameDeviceIsTheSamePointer) {
  ibv_device** const first = ibv_get_device_list(nullptr);
  ibv_device** const second = ibv_get_device_list(nullptr);
  EXPECT_EQ(first[0], second[0]);
  ibv_context* const context = ibv_open_device(first[0]);
  ibv_free_device_list(first);
  ibv_free_device_list(second);
  ASSERT_TRUE(context);
  EXPECT_EQ(0u, std::string(context->device->name).rfind("vrb_", 0));
  EXPECT_EQ(0, ibv_close_device(context));
}

TEST(Devices, ClosingLeavesObjectsForLater) {
  ibv_device** const list = ibv_get_device_list(nullptr);
  ibv_context* const context = ibv_open_device(list[0]);
  ibv_free_device_list(list);
  ibv_pd* const pd = ibv_alloc_pd(context);
  ASSERT_TRUE(pd);
  EXPECT_EQ(0, ibv_close_device(context));
  EXPECT_EQ(0, ibv_dealloc_pd(pd));
}

class Create : public VerbsTest {};

TEST_F(Create, AContextIsExtended) {
  verbs_context* const table = verbs_get_ctx(context.get());
  ASSERT_TRUE(table);
  EXPECT_EQ(sizeof(verbs_context), table->sz);
  EXPECT_GE(context->async_fd, 0);
  EXPECT_GT(context->num_comp_vectors, 0);
}

TEST_F(Create, AnswersEndWhereTheCallersStructureEnds) {
  verbs_context* const table = verbs_get_ctx(context.get());
  ibv_device_attr_ex attributes;
  std::memset(&attributes, 0xa5, sizeof attributes);
  constexpr std::size_t kShort = offsetof(ibv_device_attr_ex, tso_caps);
  ASSERT_EQ(0, table->query_device_ex(context.get(), nullptr, &attributes, kShort));
  EXPECT_EQ(1, attributes.orig_attr.phys_port_cnt);
  EXPECT_EQ(0xa5a5a5a5u, attributes.tso_caps.max_tso);
  EXPECT_EQ(EINVAL, table->query_device_ex(context.get(), nullptr, &attributes, 8));
  ibv_query_device_ex_input input = {.comp_mask = 1};
  EXPECT_EQ(EINVAL, ibv_query_device_ex(context.get(), &input, &attributes));

  ibv_port_attr port;
  std::memset(&port, 0xa5, sizeof port);
  ASSERT_EQ(0, table->query_port(context.get(), 1, &port, offsetof(ibv_port_attr, link_layer)));
  EXPECT_EQ(IBV_PORT_ACTIVE, port.state);
  EXPECT_EQ(0xa5, port.link_layer);
  EXPECT_EQ(EINVAL, table->query_port(context.get(), 2, &port, sizeof port));
  EXPECT_EQ(EINVAL, table->query_port(context.get(), 0, &port, sizeof port));
}

TEST_F(Create, TheGidTableHasFreePlaces) {
  ibv_port_attr port = {};
  ASSERT_EQ(0, verbs_get_ctx(context.get())->query_port(context.get(), 1, &port, sizeof port));
  int used = 0;
  for (int i = 0; i < port.gid_tbl_len; ++i) {
    ibv_gid_entry entry = {};
    const int error = ibv_query_gid_ex(context.get(), 1, static_cast<std::uint32_t>(i), &entry, 0);
    if (error == ENODATA) continue;
    ASSERT_EQ(0, error);
    ++used;
    EXPECT_EQ(static_cast<std::uint32_t>(IBV_GID_TYPE_ROCE_V2), entry.gid_type);
    EXPECT_EQ(1u, entry.port_num);
    EXPECT_NE(0u, entry.ndev_ifindex);
  }
  EXPECT_GT(used, 0);
  EXPECT_LT(used, port.gid_tbl_len);
  ibv_gid_entry entry;
  const auto behind = static_cast<std::uint32_t>(port.gid_tbl_len);
  EXPECT_EQ(EINVAL, ibv_query_gid_ex(context.get(), 1, behind, &entry, 0));
  EXPECT_EQ(EINVAL, ibv_query_gid_ex(context.get(), 2, 0, &entry, 0));
}

TEST_F(Create, OnePkey) {
  __be16 key = 0;
  EXPECT_EQ(0, ibv_query_pkey(context.get(), 1, 0, &key));
  EXPECT_EQ(0xffff, key);
  EXPECT_EQ(0, ibv_get_pkey_index(context.get(), 1, key));
  EXPECT_EQ(-1, ibv_query_pkey(context.get(), 1, 1, &key));
  EXPECT_EQ(EINVAL, errno);
}

TEST_F(Create, TheClockTicks) {
  ibv_values_ex values = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK, .raw_clock = {}};
  ASSERT_EQ(0, ibv_query_rt_values_ex(context.get(), &values));
  EXPECT_EQ(static_cast<std::uint32_t>(IBV_VALUES_MASK_RAW_CLOCK), values.comp_mask);
  EXPECT_GT(values.raw_clock.tv_nsec, 0);
  values.comp_mask = 0x80;
  EXPECT_EQ(EINVAL, ibv_query_rt_values_ex(context.get(), &values));
}

TEST_F(Create, RegistrationsAreChecked) {
  const auto reg = [&](void* at, std::size_t length, int access) {
    errno = 0;
    return Own<ibv_mr>(ibv_reg_mr(pd.get(), at, length, access));
  };
  EXPECT_FALSE(reg(memory.data(), 16, IBV_ACCESS_REMOTE_WRITE));
  EXPECT_EQ(EINVAL, errno);
  EXPECT_FALSE(reg(memory.data(), 0, 0));
  EXPECT_EQ(EINVAL, errno);
  EXPECT_FALSE(reg(reinterpret_cast<void*>(8), 16, 0));
  EXPECT_EQ(EFAULT, errno);
  // Optional bits are a wish.
  const auto wish = reg(memory.data(), 16, IBV_ACCESS_RELAXED_ORDERING | 1 << 29);
  ASSERT_TRUE(wish);
  EXPECT_EQ(memory.data(), wish->addr);
  EXPECT_EQ(16u, wish->length);
  EXPECT_EQ(wish->lkey, wish->rkey);
  EXPECT_EQ(pd.get(), wish->pd);
  EXPECT_EQ(context.get(), wish->context);
}

TEST_F(Create, ReregistrationsSayWhatIsWrong) {
  const Own<ibv_mr> region(ibv_reg_mr(pd.get(), memory.data(), 64, 0));
  ASSERT_TRUE(region);
  const auto rereg = [&](int flags, void* at, std::size_t length, int access) {
    errno = 0;
    return ibv_rereg_mr(region.get(), flags, nullptr, at, length, access);
  };
  EXPECT_EQ(IBV_REREG_MR_ERR_INPUT, rereg(0, nullptr, 0, 0));
  EXPECT_EQ(EINVAL, errno);
  EXPECT_EQ(IBV_REREG_MR_ERR_INPUT, rereg(8, nullptr, 0, 0));
  EXPECT_EQ(IBV_REREG_MR_ERR_INPUT, rereg(IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, 64, 0));
  EXPECT_EQ(IBV_REREG_MR_ERR_INPUT, rereg(IBV_REREG_MR_CHANGE_PD, nullptr, 0, 0));
  EXPECT_EQ(IBV_REREG_MR_ERR_INPUT,
            rereg(IBV_REREG_MR_CHANGE_ACCESS, nullptr, 0, IBV_ACCESS_REMOTE_WRITE));
  EXPECT_EQ(EINVAL, errno);
  EXPECT_EQ(0, rereg(IBV_REREG_MR_CHANGE_TRANSLATION, memory.data() + 64, 128, 0));
  EXPECT_EQ(memory.data() + 64, region->addr);
  EXPECT_EQ(128u, region->length);
}

TEST_F(Create, CompletionQueuesAreChecked) {
  ibv_device_attr device;
  ASSERT_EQ(0, ibv_query_device(context.get(), &device));
  const auto create = [&](int capacity, int vector) {
    errno = 0;
    return Own<ibv_cq>(ibv_create_cq(context.get(), capacity, this, nullptr, vector));
  };
  for (const int bad : {0, -1, device.max_cqe + 1}) {
    EXPECT_FALSE(create(bad, 0)) << bad;
    EXPECT_EQ(EINVAL, errno);
  }
  for (const int bad : {-1, context->num_comp_vectors}) {
    EXPECT_FALSE(create(1, bad)) << bad;
    EXPECT_EQ(EINVAL, errno);
  }
  const auto good = create(3, context->num_comp_vectors - 1);
  ASSERT_TRUE(good);
  EXPECT_GE(good->cqe, 3);
  EXPECT_EQ(this, good->cq_context);
  EXPECT_EQ(0, ibv_resize_cq(good.get(), 100));
  EXPECT_GE(good->cqe, 100);
  // What perftest needs whose acknowledgement comes after the answer (see places_for()).
  const auto smallest = create(1, 0);
  ASSERT_TRUE(smallest);
  EXPECT_GE(smallest->cqe, 2);
  EXPECT_EQ(0, ibv_resize_cq(smallest.get(), 1));
  EXPECT_GE(smallest->cqe, 2);
  EXPECT_EQ(EINVAL, ibv_resize_cq(good.get(), 0));
  EXPECT_EQ(EINVAL, ibv_resize_cq(good.get(), device.max_cqe + 1));
}

TEST_F(Create, ExtendedCompletionQueuesAreChecked) {
  const auto create = [&](std::uint64_t reads, std::uint32_t mask, std::uint32_t flags) {
    ibv_cq_init_attr_ex wanted = {};
    wanted.cqe = 8;
    wanted.wc_flags = reads;
    wanted.comp_mask = mask;
    wanted.flags = flags;
    errno = 0;
    ibv_cq_ex* const made = ibv_create_cq_ex(context.get(), &wanted);
    return Own<ibv_cq>(made ? ibv_cq_ex_to_cq(made) : nullptr);
  };
  constexpr std::uint32_t kWithFlags = IBV_CQ_INIT_ATTR_MASK_FLAGS;
  EXPECT_TRUE(create(IBV_WC_STANDARD_FLAGS, 0, 0));
  EXPECT_TRUE(create(0, kWithFlags, IBV_CREATE_CQ_ATTR_SINGLE_THREADED));
  EXPECT_TRUE(create(IBV_CREATE_CQ_SUP_WC_FLAGS, 0, 0));
  EXPECT_FALSE(create(1ull << 40, 0, 0));
  EXPECT_EQ(EINVAL, errno);
  EXPECT_FALSE(create(0, 1 << 7, 0));
  EXPECT_EQ(EINVAL, errno);
  EXPECT_TRUE(create(0, kWithFlags, IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN));
  EXPECT_FALSE(create(0, kWithFlags, 4));
  EXPECT_EQ(EOPNOTSUPP, errno);
}

TEST_F(Create, QueuePairsGetWhatTheyAskedForOrMore) {
  ibv_qp_init_attr wanted = {};
  wanted.send_cq = wanted.recv_cq = cq.get();
  wanted.qp_type = IBV_QPT_UC;
  wanted.qp_context = this;
  wanted.cap = {3, 5, 2, 3, 33};
  const Own<ibv_qp> qp(ibv_create_qp(pd.get(), &wanted));
  ASSERT_TRUE(qp);
  EXPECT_GE(wanted.cap.max_send_wr, 3u);
  EXPECT_GE(wanted.cap.max_recv_wr, 5u);
  EXPECT_GE(wanted.cap.max_send_sge, 2u);
  EXPECT_GE(wanted.cap.max_recv_sge, 3u);
  EXPECT_GE(wanted.cap.max_inline_data, 33u);
  EXPECT_EQ(IBV_QPS_RESET, qp->state);
  EXPECT_EQ(IBV_QPT_UC, qp->qp_type);
  EXPECT_EQ(this, qp->qp_context);
  EXPECT_GT(qp->qp_num, 1u);
  EXPECT_LT(qp->qp_num, 1u << 24);
  EXPECT_EQ(pd.get(), qp->pd);
  EXPECT_EQ(nullptr, ibv_qp_to_qp_ex(qp.get()));
}

TEST_F(Create, QueuePairsAreChecked) {
  ibv_device_attr device;
  ASSERT_EQ(0, ibv_query_device(context.get(), &device));
  const auto refused = [&](ibv_qp_type type, const Change& change) {
    errno = 0;
    EXPECT_FALSE(make_qp(type, change));
    return errno;
  };
  using Wanted = ibv_qp_init_attr_ex;
  EXPECT_EQ(EOPNOTSUPP, refused(IBV_QPT_DRIVER, {}));
  EXPECT_EQ(EINVAL, refused(IBV_QPT_RC, [](Wanted& w) { w.send_cq = nullptr; }));
  EXPECT_EQ(EINVAL, refused(IBV_QPT_RC, [&](Wanted& w) {
              w.cap.max_send_wr = static_cast<std::uint32_t>(device.max_qp_wr) + 1;
            }));
  EXPECT_EQ(EINVAL, refused(IBV_QPT_RC, [&](Wanted& w) {
              w.cap.max_recv_sge = static_cast<std::uint32_t>(device.max_sge) + 1;
            }));
  EXPECT_EQ(EINVAL, refused(IBV_QPT_RC, [](Wanted& w) { w.cap.max_inline_data = 1 << 20; }));
  EXPECT_EQ(EINVAL, refused(IBV_QPT_RC, [](Wanted& w) { w.comp_mask |= 1u << 30; }));
  EXPECT_EQ(EOPNOTSUPP, refused(IBV_QPT_UD, [](Wanted& w) {
              w.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
              w.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE;
            }));
  EXPECT_EQ(EOPNOTSUPP, refused(IBV_QPT_UD, [](Wanted& w) {
              w.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS;
              w.create_flags = IBV_QP_CREATE_CVLAN_STRIPPING;
            }));
}

TEST_F(Create, WhatIsInUseCannotBeDestroyed) {
  const Own<ibv_comp_channel> channel(ibv_create_comp_channel(context.get()));
  ASSERT_TRUE(channel);
  const Own<ibv_cq> used(ibv_create_cq(context.get(), 4, nullptr, channel.get(), 0));
  ASSERT_TRUE(used);
  ibv_srq_init_attr wanted = {.srq_context = nullptr, .attr = {4, 1, 0}};
  const Own<ibv_srq> srq(ibv_create_srq(pd.get(), &wanted));
  ASSERT_TRUE(srq);
  const Own<ibv_qp> qp = make_qp(IBV_QPT_RC, [&](ibv_qp_init_attr_ex& w) {
    w.recv_cq = used.get();
    w.srq = srq.get();
  });
  ASSERT_TRUE(qp);
  EXPECT_EQ(EBUSY, ibv_dealloc_pd(pd.get()));
  EXPECT_EQ(EBUSY, ibv_destroy_comp_channel(channel.get()));
  EXPECT_EQ(EBUSY, ibv_destroy_cq(used.get()));
  EXPECT_EQ(EBUSY, ibv_destroy_srq(srq.get()));
}

TEST_F(Create, AddressHandlesNeedAGid) {
  ibv_ah_attr path = own_address();
  const Own<ibv_ah> good(ibv_create_ah(pd.get(), &path));
  EXPECT_TRUE(good);
  const auto refused = [&](ibv_ah_attr bad) {
    errno = 0;
    EXPECT_EQ(nullptr, ibv_create_ah(pd.get(), &bad));
    return errno;
  };
  ibv_ah_attr bad = path;
  bad.is_global = 0;
  EXPECT_EQ(EINVAL, refused(bad));
  bad = path;
  bad.port_num = 2;
  EXPECT_EQ(EINVAL, refused(bad));
  bad = path;
  bad.grh.sgid_index = 200;
  EXPECT_EQ(EINVAL, refused(bad));
}

TEST_F(Create, SharedReceiveQueuesAreChecked) {
  ibv_srq_init_attr wanted = {.srq_context = this, .attr = {0, 1, 0}};
  errno = 0;
  EXPECT_EQ(nullptr, ibv_create_srq(pd.get(), &wanted));
  EXPECT_EQ(EINVAL, errno);
  wanted.attr.max_wr = 5;
  const Own<ibv_srq> srq(ibv_create_srq(pd.get(), &wanted));
  ASSERT_TRUE(srq);
  EXPECT_GE(wanted.attr.max_wr, 5u);
  EXPECT_EQ(this, srq->srq_context);
  ibv_srq_attr attributes = {.max_wr = 9, .max_sge = 0, .srq_limit = 3};
  EXPECT_EQ(EINVAL, ibv_modify_srq(srq.get(), &attributes, 4));
  EXPECT_EQ(0, ibv_modify_srq(srq.get(), &attributes, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT));
  ibv_srq_attr now = {};
  EXPECT_EQ(0, ibv_query_srq(srq.get(), &now));
  EXPECT_GE(now.max_wr, 9u);
  EXPECT_EQ(3u, now.srq_limit);
  attributes.srq_limit = now.max_wr + 1;
  EXPECT_EQ(EINVAL, ibv_modify_srq(srq.get(), &attributes, IBV_SRQ_LIMIT));
  std::uint32_t number = 0;
  EXPECT_EQ(EOPNOTSUPP, ibv_get_srq_num(srq.get(), &number));
}

TEST_F(Create, WhatIsMissingIsRefused) {
  const Own<ibv_qp> qp = make_qp(IBV_QPT_RC);  // has no multicast
  const ibv_gid group{.raw = {0xff, 0x15, 1}};
  EXPECT_EQ(EINVAL, ibv_attach_mcast(qp.get(), &group, 0));
}

}  // namespace
}  // namespace verbena::verbs::testing
