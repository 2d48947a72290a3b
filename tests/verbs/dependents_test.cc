// SPDX-License-Identifier: MIT
// What something else depends on cannot be destroyed: EBUSY, and everything goes on.
#include <fcntl.h>

#include <cerrno>
#include <functional>
#include <span>

#include "raw_packets.h"

namespace verbena::verbs::testing {
namespace {

using Held = std::unique_ptr<void, std::function<void(void*)>>;

struct Case {
  const char* name;
  std::function<Held()> depend;
  std::function<int()> destroy;
};

// Of whatever type.
template <class Owned>
Held hold(Owned owned) {
  return Held(owned.release(), [destroy = owned.get_deleter()](void* p) {
    destroy(static_cast<typename Owned::pointer>(p));
  });
}

void check(std::span<const Case> cases) {
  for (const Case& each : cases) {
    const auto dependent = each.depend();
    ASSERT_TRUE(dependent) << each.name << ", errno " << errno;
    EXPECT_EQ(EBUSY, each.destroy()) << each.name;
  }
}

class Dependents : public VerbsTest {
 protected:
  Own<ibv_srq> make_srq() {
    ibv_srq_init_attr wanted{};
    wanted.attr = {.max_wr = 4, .max_sge = 1, .srq_limit = 0};
    return Own<ibv_srq>(ibv_create_srq(pd.get(), &wanted));
  }
  Own<ibv_pd> make_parent_domain(ibv_td* td) {
    ibv_parent_domain_init_attr wanted{};
    wanted.pd = pd.get();
    wanted.td = td;
    return Own<ibv_pd>(ibv_alloc_parent_domain(context.get(), &wanted));
  }
};

TEST_F(Dependents, KeepWhatTheyDependOn) {
  mr.reset();  // nothing is in the domain now
  const Own<ibv_pd> other(ibv_alloc_pd(context.get()));
  const Own<ibv_comp_channel> channel(ibv_create_comp_channel(context.get()));
  ibv_td_init_attr of_thread{};
  ibv_td* const td = ibv_alloc_td(context.get(), &of_thread);
  ibv_alloc_dm_attr of_device{.length = 64, .log_align_req = 0, .comp_mask = 0};
  ibv_dm* const dm = ibv_alloc_dm(context.get(), &of_device);
  ASSERT_TRUE(other && channel && td && dm);
  const Own<ibv_srq> srq = make_srq();
  ibv_ah_attr path = own_address();
  const auto release_pd = [&] { return ibv_dealloc_pd(pd.get()); };
  const auto release_other = [&] { return ibv_dealloc_pd(other.get()); };
  const auto release_cq = [&] { return ibv_destroy_cq(cq.get()); };

  const auto memory_region = [&] {
    return hold(Own<ibv_mr>(ibv_reg_mr(other.get(), memory.data(), 64, 0)));
  };
  const auto device_region = [&] {
    return hold(Own<ibv_mr>(
        ibv_reg_dm_mr(other.get(), dm, 0, 64, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE)));
  };
  const auto queue_pair = [&] { return hold(make_qp()); };
  const auto on_srq = [&] {
    return hold(make_qp(IBV_QPT_RC, [&](ibv_qp_init_attr_ex& wanted) { wanted.srq = srq.get(); }));
  };
  const auto with_events = [&] {
    return hold(Own<ibv_cq>(ibv_create_cq(context.get(), 1, nullptr, channel.get(), 0)));
  };
  const Case cases[] = {
      {"region, domain", memory_region, release_other},
      {"region of device memory, domain", device_region, release_other},
      {"region of device memory, memory", device_region, [&] { return ibv_free_dm(dm); }},
      {"window, domain",
       [&] { return hold(Own<ibv_mw>(ibv_alloc_mw(other.get(), IBV_MW_TYPE_1))); }, release_other},
      {"address handle, domain",
       [&] { return hold(Own<ibv_ah>(ibv_create_ah(other.get(), &path))); }, release_other},
      {"queue pair, domain", queue_pair, release_pd},
      {"queue pair, completion queue", queue_pair, release_cq},
      {"queue pair, shared receive queue", on_srq, [&] { return ibv_destroy_srq(srq.get()); }},
      {"completion queue, channel", with_events,
       [&] { return ibv_destroy_comp_channel(channel.get()); }},
      {"parent domain, domain", [&] { return hold(make_parent_domain(nullptr)); }, release_pd},
      {"parent domain, thread domain", [&] { return hold(make_parent_domain(td)); },
       [&] { return ibv_dealloc_td(td); }},
  };
  check(cases);
  // Without them they go.
  EXPECT_EQ(0, ibv_free_dm(dm));
  EXPECT_EQ(0, ibv_dealloc_td(td));
}

TEST_F(Dependents, KeepTheirXrcDomain) {
  mr.reset();
  ibv_xrcd_init_attr of_domain{};
  of_domain.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  of_domain.fd = -1;
  of_domain.oflags = O_CREAT;
  ibv_xrcd* const domain = ibv_open_xrcd(context.get(), &of_domain);
  ASSERT_TRUE(domain);
  const auto queue = [&](ibv_srq_type type) {
    ibv_srq_init_attr_ex wanted{};
    wanted.attr = {.max_wr = 4, .max_sge = 1, .srq_limit = 0};
    wanted.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ;
    wanted.srq_type = type;
    wanted.pd = pd.get();
    wanted.cq = cq.get();
    if (type == IBV_SRQT_XRC) {
      wanted.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD;
      wanted.xrcd = domain;
    } else {
      wanted.comp_mask |= IBV_SRQ_INIT_ATTR_TM;
      wanted.tm_cap = {.max_num_tags = 1, .max_ops = 1};
    }
    return hold(Own<ibv_srq>(ibv_create_srq_ex(context.get(), &wanted)));
  };
  const auto of_domain_queue = [&] { return queue(IBV_SRQT_XRC); };
  const auto target = [&] {
    return hold(make_qp(IBV_QPT_XRC_RECV, [&](ibv_qp_init_attr_ex& wanted) {
      wanted.comp_mask = IBV_QP_INIT_ATTR_XRCD;
      wanted.pd = nullptr;
      wanted.xrcd = domain;
      wanted.send_cq = wanted.recv_cq = nullptr;
      wanted.cap = {};
    }));
  };
  const auto initiator = [&] {
    return hold(
        make_qp(IBV_QPT_XRC_SEND, [](ibv_qp_init_attr_ex& wanted) { wanted.recv_cq = nullptr; }));
  };
  const auto release_pd = [&] { return ibv_dealloc_pd(pd.get()); };
  const auto release_cq = [&] { return ibv_destroy_cq(cq.get()); };
  const Case cases[] = {
      {"queue, XRC domain", of_domain_queue, [&] { return ibv_close_xrcd(domain); }},
      {"queue, completion queue", of_domain_queue, release_cq},
      {"queue, domain", of_domain_queue, release_pd},
      {"target, XRC domain", target, [&] { return ibv_close_xrcd(domain); }},
      {"initiator, domain", initiator, release_pd},
      {"initiator, completion queue", initiator, release_cq},
      {"queue with tags, completion queue", [&] { return queue(IBV_SRQT_TM); }, release_cq},
      {"queue with tags, domain", [&] { return queue(IBV_SRQT_TM); }, release_pd},
  };
  check(cases);
  EXPECT_EQ(0, ibv_close_xrcd(domain));
}

class RawDependents : public RawPacketTest {};

TEST_F(RawDependents, KeepWhatTheyDependOn) {
  const Own<ibv_pd> other(ibv_alloc_pd(context.get()));
  const Own<ibv_cq> completions(ibv_create_cq(context.get(), 1, nullptr, nullptr, 0));
  const auto make_wq = [&](ibv_pd* in, ibv_cq* to) {
    ibv_wq_init_attr wanted{};
    wanted.wq_type = IBV_WQT_RQ;
    wanted.max_wr = wanted.max_sge = 1;
    wanted.pd = in;
    wanted.cq = to;
    return OwnRaw<ibv_wq>(ibv_create_wq(context.get(), &wanted));
  };
  const OwnRaw<ibv_wq> wq = make_wq(pd.get(), cq.get());
  const OwnRaw<ibv_wq> second = make_wq(pd.get(), cq.get());
  const auto make_table = [&](ibv_wq* of) {
    ibv_wq* queues[] = {of};
    ibv_rwq_ind_table_init_attr wanted{};
    wanted.ind_tbl = queues;
    return OwnRaw<ibv_rwq_ind_table>(ibv_create_rwq_ind_table(context.get(), &wanted));
  };
  const OwnRaw<ibv_rwq_ind_table> table = make_table(wq.get());
  const Own<ibv_qp> receiver = make_receiver();
  ibv_counters_init_attr of_counters{};
  const OwnRaw<ibv_counters> counters(ibv_create_counters(context.get(), &of_counters));
  ASSERT_TRUE(other && completions && wq && second && table && counters);
  const auto work_queue = [&] { return hold(make_wq(other.get(), completions.get())); };
  const auto scaling = [&] {
    std::array<std::uint8_t, 40> key{};
    ibv_qp_init_attr_ex wanted{};
    wanted.qp_type = IBV_QPT_RAW_PACKET;
    wanted.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_RX_HASH | IBV_QP_INIT_ATTR_IND_TABLE;
    wanted.pd = other.get();
    wanted.rwq_ind_tbl = table.get();
    wanted.rx_hash_conf = {.rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ,
                           .rx_hash_key_len = static_cast<std::uint8_t>(key.size()),
                           .rx_hash_key = key.data(),
                           .rx_hash_fields_mask = IBV_RX_HASH_SRC_IPV4};
    return hold(Own<ibv_qp>(ibv_create_qp_ex(context.get(), &wanted)));
  };
  const auto flow = [&] { return hold(make_flow(receiver.get(), wish(eth_spec(1)))); };
  const auto counted_flow = [&] {
    auto made = make_flow(receiver.get(), wish(eth_spec(1)));
    ibv_counter_attach_attr point{};
    EXPECT_EQ(0, ibv_attach_counters_point_flow(counters.get(), &point, made.get()));
    return hold(std::move(made));
  };
  const auto release_other = [&] { return ibv_dealloc_pd(other.get()); };
  const Case cases[] = {
      {"work queue, domain", work_queue, release_other},
      {"work queue, completion queue", work_queue,
       [&] { return ibv_destroy_cq(completions.get()); }},
      {"table, work queue", [&] { return hold(make_table(second.get())); },
       [&] { return ibv_destroy_wq(second.get()); }},
      {"queue pair, table", scaling, [&] { return ibv_destroy_rwq_ind_table(table.get()); }},
      {"queue pair of a table, domain", scaling, release_other},
      {"flow, queue pair", flow, [&] { return ibv_destroy_qp(receiver.get()); }},
      {"flow, counters", counted_flow, [&] { return ibv_destroy_counters(counters.get()); }},
  };
  check(cases);
}

}  // namespace
}  // namespace verbena::verbs::testing
