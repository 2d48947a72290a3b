// SPDX-License-Identifier: MIT
// Raw packets of verbs: work queues and their tables, queue pairs with a hash, flows and their
// counters; and groups of multicast. For tests only.
#pragma once

#include "verbs/test_objects.h"

namespace verbena::verbs {

class CallsSteering : protected CallsObjects {
 public:
  using CallsObjects::CallsObjects;
  ~CallsSteering() { destroy_steering(); }
  CallsSteering(const CallsSteering&) = delete;
  CallsSteering& operator=(const CallsSteering&) = delete;

 protected:
  void step_of_steering(unsigned what) {
    switch (what) {
      case 0: return create_wq();
      case 1: return destroy(any(wqs_), verbs_destroy_wq);
      case 2: return modify_wq();
      case 3: return create_table();
      case 4: return destroy(any(tables_), verbs_destroy_table);
      case 5: return create_raw_qp();
      case 6: return create_counters();
      case 7: return destroy(any(counters_), verbs_destroy_counters);
      case 8: return attach_counters();
      case 9: return read_counters();
      case 10: return destroy(any(flows_), verbs_destroy_flow);
      case 11: return post_to_wq();
      case 12: return join_group(true);
      case 13: return join_group(false);
      default: return create_flow();
    }
  }
  // Before their queue pairs go.
  void destroy_steering() {
    destroy_each(flows_, verbs_destroy_flow);
    destroy_each(hashed, ibv_destroy_qp);
    destroy_each(tables_, verbs_destroy_table);
    destroy_each(wqs_, verbs_destroy_wq);
    destroy_each(counters_, verbs_destroy_counters);
    for (ibv_qp* const qp : qps) {
      if (qp && qp->qp_type == IBV_QPT_UD) leave_groups(qp);
    }
  }

 private:
  // Inlines of the header have no address that is the same everywhere.
  static int verbs_destroy_wq(ibv_wq* wq) { return ibv_destroy_wq(wq); }
  static int verbs_destroy_table(ibv_rwq_ind_table* table) {
    return ibv_destroy_rwq_ind_table(table);
  }
  static int verbs_destroy_counters(ibv_counters* of) { return ibv_destroy_counters(of); }
  static int verbs_destroy_flow(ibv_flow* flow) { return ibv_destroy_flow(flow); }

  void create_wq() {
    const std::uint8_t how = input.take();
    ibv_wq_init_attr wanted{};
    wanted.wq_type = how == 0xFF ? static_cast<ibv_wq_type>(input.below(4)) : IBV_WQT_RQ;
    wanted.max_wr = (how & 1) != 0 ? input.take<std::uint32_t>() : 8;
    wanted.max_sge = (how & 2) != 0 ? input.take() : 1;
    wanted.pd = any(domains);
    wanted.cq = any(cqs);
    wanted.comp_mask = (how & 4) != 0 ? input.take() : 0;
    wanted.create_flags = (how & 8) != 0 ? input.take() : 0;
    create(wqs_, [&] { return ibv_create_wq(world.context, &wanted); });
  }
  void modify_wq() {
    ibv_wq* const wq = any(wqs_);
    if (!wq) return;
    ibv_wq_attr wanted{};
    wanted.attr_mask = input.one_in(4) ? input.take() : unsigned{IBV_WQ_ATTR_STATE};
    wanted.wq_state = static_cast<ibv_wq_state>(input.below(4));
    wanted.curr_wq_state = static_cast<ibv_wq_state>(input.below(4));
    wanted.flags = input.take();
    wanted.flags_mask = input.take();
    const int error = ibv_modify_wq(wq, &wanted);
    if (error == 0 && (wanted.attr_mask & IBV_WQ_ATTR_STATE) != 0)
      VERBENA_ASSERT(wq->state == wanted.wq_state);
  }
  void post_to_wq() {
    ibv_wq* const wq = any(wqs_);
    if (!wq) return;
    std::array<ibv_sge, 2> list{sge(), sge()};
    ibv_recv_wr wr{};
    wr.sg_list = list.data();
    wr.num_sge = input.below(4) - 1;
    ibv_recv_wr* bad = nullptr;
    if (ibv_post_wq_recv(wq, &wr, &bad) != 0) VERBENA_ASSERT(bad == &wr);
  }
  void create_table() {
    std::array<ibv_wq*, 8> list{};
    const std::uint8_t how = input.take();
    ibv_rwq_ind_table_init_attr wanted{};
    wanted.log_ind_tbl_size = how % 4;
    wanted.ind_tbl = list.data();
    if ((how & 0xF0) == 0xF0) wanted.ind_tbl = nullptr;
    if ((how & 0xF0) == 0xE0) wanted.log_ind_tbl_size = 17 + input.take();
    if ((how & 0xF0) == 0xD0) wanted.comp_mask = input.take();
    for (ibv_wq*& each : list)
      each = any(wqs_);
    create(tables_, [&] { return ibv_create_rwq_ind_table(world.context, &wanted); });
  }
  // Alone, or one that spreads what comes by a hash.
  void create_raw_qp() {
    ibv_qp*& qp = any(hashed);
    ibv_pd* const domain = any(domains);
    if (qp) return destroy(qp, ibv_destroy_qp);
    if (!domain) return;
    const std::uint8_t how = input.take();
    std::array<std::uint8_t, 40> key{};
    input.fill(key.data(), 8);
    ibv_qp_init_attr_ex wanted{};
    wanted.qp_type = IBV_QPT_RAW_PACKET;
    wanted.comp_mask = IBV_QP_INIT_ATTR_PD;
    wanted.pd = domain;
    wanted.send_cq = wanted.recv_cq = any(cqs);
    wanted.cap = {.max_send_wr = 4,
                  .max_recv_wr = 4,
                  .max_send_sge = 1,
                  .max_recv_sge = 1,
                  .max_inline_data = 0};
    if ((how & 1) != 0) {
      wanted.comp_mask |= IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH;
      wanted.rwq_ind_tbl = any(tables_);
      wanted.rx_hash_conf = {.rx_hash_function = input.one_in(8)
                                                     ? input.take()
                                                     : std::uint8_t{IBV_RX_HASH_FUNC_TOEPLITZ},
                             .rx_hash_key_len = input.one_in(8) ? input.take() : std::uint8_t{40},
                             .rx_hash_key = key.data(),
                             .rx_hash_fields_mask = input.take<std::uint16_t>()};
      if (wanted.rx_hash_conf.rx_hash_key_len > key.size())
        wanted.rx_hash_conf.rx_hash_key_len = key.size();
      wanted.send_cq = wanted.recv_cq = nullptr;
      wanted.cap = {};
    }
    qp = ibv_create_qp_ex(world.context, &wanted);
    if (!qp || (how & 2) == 0) return;
    for (const int state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) {
      ibv_qp_attr a{};
      a.qp_state = static_cast<ibv_qp_state>(state);
      a.port_num = 1;
      static_cast<void>(
          ibv_modify_qp(qp, &a, IBV_QP_STATE | (state == IBV_QPS_INIT ? IBV_QP_PORT : 0)));
    }
  }

  void create_counters() {
    ibv_counters_init_attr wanted{};
    wanted.comp_mask = input.one_in(8);
    create(counters_, [&] { return ibv_create_counters(world.context, &wanted); });
  }
  void attach_counters() {
    ibv_counters* const to = any(counters_);
    if (!to) return;
    ibv_counter_attach_attr wanted{};
    wanted.counter_desc = static_cast<ibv_counter_description>(input.below(4));
    wanted.index = input.one_in(8) ? input.take<std::uint32_t>() : input.below(6);
    wanted.comp_mask = input.one_in(8);
    static_cast<void>(
        ibv_attach_counters_point_flow(to, &wanted, input.one_in(2) ? any(flows_) : nullptr));
  }
  void read_counters() {
    ibv_counters* const from = any(counters_);
    if (!from) return;
    std::array<std::uint64_t, 8> values{};
    values.fill(kUntouched);
    const std::uint32_t count = input.below(8);
    static_cast<void>(ibv_read_counters(from, values.data(), count, input.below(4)));
    for (std::size_t i = count; i < values.size(); ++i)
      VERBENA_ASSERT(values[i] == kUntouched);
  }

  // Specs of any kinds, of which lengths and numbers may be wrong; all of it lies in the room.
  void create_flow() {
    ibv_qp* const qp = any(hashed);
    if (!qp) return;
    struct {
      ibv_flow_attr attr;
      std::byte specs[1024];
    } wanted{};
    const std::uint8_t how = input.take();
    wanted.attr.type = static_cast<ibv_flow_attr_type>(input.one_in(4) ? input.below(8) : 0);
    wanted.attr.port = input.one_in(8) ? input.take() : 1;
    wanted.attr.priority = input.one_in(4) ? input.take<std::uint16_t>() : 0;
    wanted.attr.flags = (how & 8) != 0 ? input.take() & 7u : 0;
    wanted.attr.comp_mask = (how & 0xF0) == 0xF0;
    wanted.attr.num_of_specs = how & 7;
    std::byte* at = wanted.specs;
    for (unsigned i = 0; i < wanted.attr.num_of_specs; ++i)
      at += take_spec(at);
    wanted.attr.size = static_cast<std::uint16_t>(sizeof wanted.attr + (at - wanted.specs));
    create(flows_, [&] { return ibv_create_flow(qp, &wanted.attr); });
  }
  std::size_t take_spec(std::byte* at) {
    struct Kind {
      std::uint32_t type;
      std::uint16_t size;
    };
    constexpr std::array<Kind, 9> kKinds{{
        {IBV_FLOW_SPEC_ETH, sizeof(ibv_flow_spec_eth)},
        {IBV_FLOW_SPEC_IPV4, sizeof(ibv_flow_spec_ipv4)},
        {IBV_FLOW_SPEC_IPV4_EXT, sizeof(ibv_flow_spec_ipv4_ext)},
        {IBV_FLOW_SPEC_IPV6, sizeof(ibv_flow_spec_ipv6)},
        {IBV_FLOW_SPEC_UDP, sizeof(ibv_flow_spec_tcp_udp)},
        {IBV_FLOW_SPEC_TCP, sizeof(ibv_flow_spec_tcp_udp)},
        {IBV_FLOW_SPEC_ACTION_DROP, sizeof(ibv_flow_spec_action_drop)},
        {IBV_FLOW_SPEC_ACTION_COUNT, sizeof(ibv_flow_spec_counter_action)},
        {IBV_FLOW_SPEC_ACTION_TAG, sizeof(ibv_flow_spec_action_tag)},
    }};
    static_assert(sizeof(ibv_flow_spec_ipv6) <= 96);
    Kind kind = kKinds[input.below(kKinds.size())];
    const std::uint8_t how = input.take();
    if (kind.type == IBV_FLOW_SPEC_ACTION_COUNT) {
      ibv_flow_spec_counter_action action{};
      action.counters = any(counters_);
      std::memcpy(at, &action, sizeof action);
    } else {
      input.fill(at + sizeof kind, std::min<std::size_t>(how & 0x3F, kind.size - sizeof kind));
    }
    if (how == 0xFE) kind.type = input.take<std::uint32_t>();
    if (how == 0xFF) kind.size = input.below(127);
    std::memcpy(at, &kind.type, sizeof kind.type);
    std::memcpy(at + sizeof kind.type, &kind.size, sizeof kind.size);
    return kind.size;
  }

  static ibv_gid group(std::uint8_t number) {
    ibv_gid gid{};
    gid.raw[0] = number == 3 ? 0xFE : 0xFF;
    gid.raw[1] = 0x0E;
    gid.raw[15] = number;
    return gid;
  }
  void join_group(bool joins) {
    ibv_qp* const qp = any(qps);
    if (!qp) return;
    const ibv_gid gid = group(input.below(4));
    if (joins)
      static_cast<void>(ibv_attach_mcast(qp, &gid, input.take()));
    else
      static_cast<void>(ibv_detach_mcast(qp, &gid, input.take()));
  }
  static void leave_groups(ibv_qp* qp) {
    for (std::uint8_t i = 0; i < 4; ++i) {
      const ibv_gid gid = group(i);
      static_cast<void>(ibv_detach_mcast(qp, &gid, 0));
    }
  }

  static constexpr std::uint64_t kUntouched = 0x5A5A5A5A5A5A5A5A;

  Some<ibv_wq> wqs_{};
  Some<ibv_rwq_ind_table> tables_{};
  Some<ibv_counters> counters_{};
  Some<ibv_flow> flows_{};

 protected:
  Some<ibv_qp> hashed{};  // raw packets
};

}  // namespace verbena::verbs
