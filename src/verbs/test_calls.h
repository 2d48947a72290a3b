// SPDX-License-Identifier: MIT
// Calls of the verbs in any order, with objects in any state and arguments that may be nonsense, as
// long as pointers are good: each is done or refused, nothing hangs, and in the end everything can
// be destroyed. One process, on the loopback device. For tests only.
#pragma once

#include "verbs/test_questions.h"

namespace verbena::verbs {

class CallsRun : private CallsQuestions {
 public:
  using CallsQuestions::CallsQuestions;

  void run() {
    begin();
    for (int steps = 0; !input.empty() && steps < 100; ++steps)
      step();
  }

 private:
  // A protection domain, a completion queue, memory: inputs shall not have to find that.
  void begin() {
    domains[0] = ibv_alloc_pd(world.context);
    cqs[0] = ibv_create_cq(world.context, 64, nullptr, nullptr, 0);
    VERBENA_ASSERT(domains[0] && cqs[0]);
    regions[0] = ibv_reg_mr(domains[0], world.memory, CallsWorld::kBytes, kAllAccess);
    VERBENA_ASSERT(regions[0] != nullptr);
    create_qp(qps[0]);
    create_qp(qps[1]);
  }

  void step() {
    const std::uint8_t what = input.take();
    if ((what & 0x30) == 0x30) {
      return (what & 0x40) != 0 ? step_of_steering(what & 15) : step_of_questions(what & 15);
    }
    switch (what >> 6) {
      case 0: return step_of_memory(what & 15);
      case 1: return step_of_queues(what & 15);
      case 2: return step_of_pairs(what & 15);
      default: return step_of_work(what & 15);
    }
  }

  // -- completion queues, shared receive queues
  void step_of_queues(unsigned what) {
    switch (what) {
      case 0: return create(channels, [&] { return new_channel(); });
      case 1: return destroy(any(channels), ibv_destroy_comp_channel);
      case 2: return create_cq();
      case 3: return destroy_cq(any(cqs));
      case 4: return resize_cq();
      case 5:
      case 6: return poll_cq();
      case 7: return take_event();
      case 8:
      case 9: return create_srq();
      case 10: return destroy(any(srqs), ibv_destroy_srq);
      case 11: return modify_srq();
      case 12: return operate_on_tags();
      default: return post_to_srq();
    }
  }
  ibv_comp_channel* new_channel() const {
    ibv_comp_channel* const channel = ibv_create_comp_channel(world.context);
    if (channel) VERBENA_ASSERT(fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
    return channel;
  }
  void create_cq() {
    ibv_cq*& cq = any(cqs);
    if (cq) return;
    ibv_comp_channel* const channel = any(channels);
    const std::uint8_t how = input.take();
    const int entries = (how & 1) != 0 ? number() & 0xFFFF : 16;
    if ((how & 2) == 0) {
      cq = ibv_create_cq(world.context, entries, channel, nullptr, (how & 4) != 0 ? number() : 0);
      return;
    }
    ibv_cq_init_attr_ex wanted{};
    wanted.cqe = static_cast<std::uint32_t>(entries);
    wanted.channel = channel;
    wanted.wc_flags =
        (how & 8) != 0 ? input.take<std::uint32_t>() : std::uint32_t{IBV_WC_STANDARD_FLAGS};
    wanted.comp_mask = (how & 16) != 0 ? input.take() : 0;
    wanted.flags = (how & 32) != 0 ? input.take() : 0;
    ibv_cq_ex* const made = ibv_create_cq_ex(world.context, &wanted);
    if (!made) return;
    cq = ibv_cq_ex_to_cq(made);
    extended = cq;
  }
  void destroy_cq(ibv_cq*& cq) {
    const ibv_cq* const before = cq;
    destroy(cq, ibv_destroy_cq);
    if (!cq && before == extended) extended = nullptr;
  }
  void resize_cq() {
    if (ibv_cq* const cq = any(cqs)) static_cast<void>(ibv_resize_cq(cq, number() & 0xFFFF));
  }
  void poll_cq() {
    ibv_cq* const cq = any(cqs);
    if (!cq) return;
    std::array<ibv_wc, 8> some{};
    const int count = ibv_poll_cq(cq, input.below(9), some.data());
    VERBENA_ASSERT(count <= 8);
    if (cq == extended) poll_extended(reinterpret_cast<ibv_cq_ex*>(cq));
    if (input.one_in(4)) static_cast<void>(ibv_req_notify_cq(cq, input.below(2)));
  }
  static void poll_extended(ibv_cq_ex* cq) {
    ibv_poll_cq_attr how{};
    if (ibv_start_poll(cq, &how) != 0) return;
    do {
      static_cast<void>(ibv_wc_read_opcode(cq));
      static_cast<void>(ibv_wc_read_vendor_err(cq));
    } while (ibv_next_poll(cq) == 0);
    ibv_end_poll(cq);
  }
  void take_event() {
    ibv_comp_channel* const channel = any(channels);
    if (!channel) return;
    ibv_cq* cq = nullptr;
    void* cookie = nullptr;
    if (ibv_get_cq_event(channel, &cq, &cookie) == 0) ibv_ack_cq_events(cq, 1);
  }
  void create_srq() {
    ibv_pd* const domain = any(domains);
    if (!domain) return;
    ibv_srq_init_attr_ex wanted{};
    wanted.attr = {.max_wr = input.take() & 0x7Fu, .max_sge = input.take() & 7u, .srq_limit = 0};
    wanted.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ |
                       IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_TM;
    constexpr std::array kTypes{IBV_SRQT_BASIC, IBV_SRQT_XRC, IBV_SRQT_TM};
    wanted.srq_type = kTypes[input.below(kTypes.size())];
    if (wanted.srq_type == IBV_SRQT_BASIC) wanted.comp_mask &= 3;
    wanted.pd = domain;
    wanted.cq = any(cqs);
    wanted.xrcd = any(xrc_domains);
    wanted.tm_cap = {.max_num_tags = input.take(), .max_ops = input.take()};
    const bool is_basic = wanted.srq_type == IBV_SRQT_BASIC;
    if (!is_basic && (!wanted.cq || !wanted.xrcd)) return;
    create(srqs, [&] { return ibv_create_srq_ex(world.context, &wanted); });
  }
  void modify_srq() {
    ibv_srq* const srq = any(srqs);
    if (!srq) return;
    ibv_srq_attr wanted{.max_wr = input.take(), .max_sge = 1, .srq_limit = input.take()};
    static_cast<void>(ibv_modify_srq(srq, &wanted, input.below(4)));
    static_cast<void>(ibv_query_srq(srq, &wanted));
    std::uint32_t id = 0;
    static_cast<void>(ibv_get_srq_num(srq, &id));
  }
  void operate_on_tags() {
    ibv_srq* const srq = any(srqs);
    if (!srq) return;
    ibv_sge room = sge();
    ibv_ops_wr request{};
    request.opcode = static_cast<ibv_ops_wr_opcode>(input.below(4));
    request.flags = input.below(4);
    request.tm.handle = input.take();
    request.tm.unexpected_cnt = input.take();
    request.tm.add.tag = input.take();
    request.tm.add.mask = input.take();
    request.tm.add.sg_list = &room;
    request.tm.add.num_sge = input.below(2);
    ibv_ops_wr* bad = nullptr;
    static_cast<void>(ibv_post_srq_ops(srq, &request, &bad));
  }

  // -- queue pairs
  void step_of_pairs(unsigned what) {
    switch (what) {
      case 0:
      case 1: return create_qp(any(qps));
      case 2: return destroy(any(qps), ibv_destroy_qp);
      case 3:
      case 4:
      case 5: return connect(any(qps), any(qps));
      case 6: return move(any(qps), input.below(8), input.take<int>());
      case 7:
      case 8: return modify_anyhow();
      case 9: return query_qp();
      case 10:
      case 11: return create_address();
      case 12: return destroy(any(addresses), ibv_destroy_ah);
      default: return move(any(qps), IBV_QPS_ERR, IBV_QP_STATE);
    }
  }
  void create_qp(ibv_qp*& qp) {
    ibv_pd* const domain = any(domains);
    if (qp || !domain) return;
    constexpr std::array kTypes{IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_SEND,
                                IBV_QPT_XRC_RECV};
    const std::uint8_t how = input.take();
    ibv_qp_init_attr_ex wanted{};
    wanted.qp_type = (how & 0x80) != 0 ? kTypes[how % kTypes.size()] : IBV_QPT_RC;
    if (how == 0x7F) wanted.qp_type = static_cast<ibv_qp_type>(input.take());
    wanted.send_cq = any(cqs);
    wanted.recv_cq = cqs[0];
    wanted.srq = (how & 8) != 0 ? any(srqs) : nullptr;
    wanted.cap = {.max_send_wr = 8,
                  .max_recv_wr = 8,
                  .max_send_sge = 2,
                  .max_recv_sge = 2,
                  .max_inline_data = 64};
    if ((how & 0x30) == 0x30) wanted.cap.max_send_wr = input.take<std::uint32_t>();
    wanted.sq_sig_all = how & 1;
    wanted.comp_mask = IBV_QP_INIT_ATTR_PD;
    wanted.pd = domain;
    if (wanted.qp_type == IBV_QPT_XRC_RECV) {
      wanted.comp_mask = IBV_QP_INIT_ATTR_XRCD;
      wanted.xrcd = any(xrc_domains);
      if (!wanted.xrcd) return;
    }
    if ((how & 0x0C) == 0x04) {
      wanted.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
      wanted.send_ops_flags = input.take<std::uint16_t>();
    }
    qp = ibv_create_qp_ex(world.context, &wanted);
  }
  ibv_qp_attr sensible(const ibv_qp* peer) {
    ibv_qp_attr a{};
    a.path_mtu = IBV_MTU_1024;
    a.dest_qp_num = peer ? peer->qp_num : 0;
    a.qkey = kQkey;
    a.qp_access_flags = kAllAccess & ~IBV_ACCESS_MW_BIND;
    a.max_dest_rd_atomic = a.max_rd_atomic = 4;
    a.min_rnr_timer = 1;
    a.timeout = 8;
    a.retry_cnt = a.rnr_retry = 1;
    a.port_num = 1;
    a.ah_attr = own_address();
    return a;
  }
  ibv_ah_attr own_address() {
    ibv_ah_attr path{};
    VERBENA_ASSERT(ibv_query_gid(world.context, 1, 0, &path.grh.dgid) == 0);
    path.grh.hop_limit = 64;
    path.is_global = 1;
    path.port_num = 1;
    return path;
  }
  void connect(ibv_qp* qp, const ibv_qp* peer) {
    if (!qp) return;
    const auto step = [&](int state, int mask) {
      ibv_qp_attr a = sensible(peer);
      a.qp_state = static_cast<ibv_qp_state>(state);
      static_cast<void>(ibv_modify_qp(qp, &a, mask | IBV_QP_STATE));
    };
    const bool is_ud = qp->qp_type == IBV_QPT_UD;
    const bool has_answers = qp->qp_type == IBV_QPT_RC || qp->qp_type == IBV_QPT_XRC_RECV;
    const bool has_retries = qp->qp_type == IBV_QPT_RC || qp->qp_type == IBV_QPT_XRC_SEND;
    step(IBV_QPS_RESET, 0);
    step(IBV_QPS_INIT,
         IBV_QP_PKEY_INDEX | IBV_QP_PORT | (is_ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
    step(IBV_QPS_RTR, (is_ud ? 0 : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN) |
                          (has_answers ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0));
    step(IBV_QPS_RTS, IBV_QP_SQ_PSN | (has_retries ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                                         IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC
                                       : has_answers ? IBV_QP_TIMEOUT
                                                     : 0));
  }
  void move(ibv_qp* qp, int state, int mask) {
    if (!qp) return;
    ibv_qp_attr a = sensible(qps[0]);
    a.qp_state = static_cast<ibv_qp_state>(state);
    static_cast<void>(ibv_modify_qp(qp, &a, mask));
  }
  // Attributes that are nonsense, but for where packets go: to nowhere but this host.
  void modify_anyhow() {
    ibv_qp* const qp = any(qps);
    if (!qp) return;
    ibv_qp_attr a = sensible(any(qps));
    input.fill(&a, input.below(sizeof a));
    const ibv_ah_attr here = own_address();
    a.ah_attr.grh.dgid = a.alt_ah_attr.grh.dgid = here.grh.dgid;
    static_cast<void>(ibv_modify_qp(qp, &a, input.take<int>()));
  }
  void query_qp() {
    ibv_qp* const qp = any(qps);
    if (!qp) return;
    ibv_qp_attr a{};
    ibv_qp_init_attr init{};
    static_cast<void>(ibv_query_qp(qp, &a, input.take<int>(), &init));
    static_cast<void>(ibv_query_qp_data_in_order(qp, IBV_WR_RDMA_WRITE, input.below(2)));
  }
  void create_address() {
    ibv_pd* const domain = any(domains);
    if (!domain) return;
    ibv_ah_attr path = own_address();
    path.grh.sgid_index = input.one_in(4) ? input.take() : 0;
    path.is_global = !input.one_in(8);
    path.port_num = input.one_in(8) ? input.take() : 1;
    create(addresses, [&] { return ibv_create_ah(domain, &path); });
  }

  // -- work requests
  void step_of_work(unsigned what) {
    if (what < 8) return post_send();
    if (what < 11) return post_receive();
    if (what < 13) return post_extended();
    poll_cq();
  }
  void post_send() {
    ibv_qp* const qp = any(qps);
    if (!qp || (qp->qp_type == IBV_QPT_UD && !addresses[0])) return;
    std::array<std::array<ibv_sge, 2>, 2> lists{};
    std::array<ibv_send_wr, 2> requests{};
    const std::size_t count = 1 + input.below(2);
    for (std::size_t i = 0; i < count; ++i) {
      for (ibv_sge& each : lists[i])
        each = sge();
      requests[i] = request(qp, lists[i]);
      requests[i].next = i + 1 < count ? &requests[i + 1] : nullptr;
    }
    ibv_send_wr* bad = nullptr;
    if (ibv_post_send(qp, requests.data(), &bad) != 0) VERBENA_ASSERT(bad != nullptr);
  }
  ibv_send_wr request(const ibv_qp* qp, std::array<ibv_sge, 2>& list) {
    const std::uint8_t how = input.take();
    ibv_send_wr wr{};
    wr.sg_list = list.data();
    wr.num_sge = how == 0xFF ? -1 : how == 0xFE ? 1000 : how & 1 ? 1 : input.below(3);
    wr.opcode = static_cast<ibv_wr_opcode>(input.below(16));
    wr.send_flags = input.take();
    if ((wr.send_flags & IBV_SEND_INLINE) != 0) {
      // What is copied at once has to be there.
      for (ibv_sge& each : list)
        each = {.addr = reinterpret_cast<std::uint64_t>(world.memory),
                .length = each.length & 0xFF,
                .lkey = 0};
      if (wr.num_sge > 2) wr.num_sge = 2;
    }
    const ibv_mr* const region = any(regions);
    const std::uint64_t remote = (how & 2) != 0 ? input.take<std::uint64_t>()
                                                : reinterpret_cast<std::uint64_t>(place()) & ~7ULL;
    const std::uint32_t key = region ? region->rkey : how;
    if (wr.opcode == IBV_WR_BIND_MW) {
      wr.bind_mw = {.mw = any(windows), .rkey = input.take(), .bind_info = bind_info()};
      if (wr.bind_mw.mw) wr.bind_mw.rkey = ibv_inc_rkey(wr.bind_mw.mw->rkey);
    } else if (qp->qp_type == IBV_QPT_UD) {
      const ibv_qp* const to = any(qps);
      wr.wr.ud = {.ah = addresses[0], .remote_qpn = to ? to->qp_num : how, .remote_qkey = kQkey};
    } else if (wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
      wr.wr.atomic = {.remote_addr = remote, .compare_add = how, .swap = how, .rkey = key};
    } else {
      wr.wr.rdma = {.remote_addr = remote, .rkey = key};
    }
    wr.qp_type.xrc.remote_srqn = input.take();
    return wr;
  }
  void post_receive() {
    ibv_qp* const qp = any(qps);
    if (!qp) return;
    std::array<ibv_sge, 2> list{sge(), sge()};
    ibv_recv_wr wr{};
    wr.sg_list = list.data();
    const std::uint8_t how = input.take();
    wr.num_sge = how == 0xFF ? -1 : how == 0xFE ? 1000 : how % 3;
    ibv_recv_wr* bad = nullptr;
    static_cast<void>(ibv_post_recv(qp, &wr, &bad));
  }
  void post_to_srq() {
    ibv_srq* const srq = any(srqs);
    if (!srq) return;
    ibv_sge room = sge();
    ibv_recv_wr wr{};
    wr.sg_list = &room;
    wr.num_sge = input.below(2);
    ibv_recv_wr* bad = nullptr;
    static_cast<void>(ibv_post_srq_recv(srq, &wr, &bad));
  }
  // One operation. False: the queue pair has no such one.
  bool build(ibv_qp_ex& qp, const ibv_mr& region) {
    const auto remote = reinterpret_cast<std::uint64_t>(place()) & ~7ULL;
    const std::uint32_t key = region.rkey;
    // Without a function there is no such operation; the functions of the header do not look.
    const auto call = [&qp](auto function, auto... arguments) {
      if (function) function(&qp, arguments...);
      return function != nullptr;
    };
    switch (input.below(13)) {
      case 0: return call(qp.wr_send);
      case 1: return call(qp.wr_rdma_read, key, remote);
      case 2: return call(qp.wr_send_imm, __be32{7});
      case 3: return call(qp.wr_send_inv, key);
      case 4: return call(qp.wr_rdma_write_imm, key, remote, __be32{7});
      case 5: return call(qp.wr_atomic_cmp_swp, key, remote, std::uint64_t{1}, std::uint64_t{2});
      case 6: return call(qp.wr_atomic_fetch_add, key, remote, std::uint64_t{1});
      case 7: return call(qp.wr_local_inv, key);
      case 8: {
        ibv_mw* const window = any(windows);
        const ibv_mw_bind_info info = bind_info();
        return window && call(qp.wr_bind_mw, window, ibv_inc_rkey(window->rkey), &info);
      }
      case 9:
        return call(qp.wr_send_tso, static_cast<void*>(world.memory), std::uint16_t{input.take()},
                    static_cast<std::uint16_t>(remote & 0xFFF));
      case 10: return call(qp.wr_atomic_write, key, remote, static_cast<const void*>(world.memory));
      default: return call(qp.wr_rdma_write, key, remote);
    }
  }
  void give_data(ibv_qp_ex& qp, const ibv_mr& region) {
    const auto here = reinterpret_cast<std::uint64_t>(world.memory);
    std::array<ibv_sge, 3> list{sge(), sge(), sge()};
    std::array<ibv_data_buf, 2> parts{
        {{.addr = world.memory, .length = input.take()}, {.addr = place(), .length = 0}}};
    const ibv_qp* const to = any(qps);
    if (qp.wr_set_ud_addr && addresses[0])
      ibv_wr_set_ud_addr(&qp, addresses[0], to ? to->qp_num : 1, kQkey);
    if (qp.wr_set_xrc_srqn) ibv_wr_set_xrc_srqn(&qp, input.take());
    switch (input.below(5)) {
      case 0:
        if (qp.wr_set_inline_data) ibv_wr_set_inline_data(&qp, world.memory, input.take());
        return;
      case 1:
        if (qp.wr_set_inline_data_list)
          ibv_wr_set_inline_data_list(&qp, input.below(3), parts.data());
        return;
      case 2:
        if (qp.wr_set_sge_list) ibv_wr_set_sge_list(&qp, input.below(4), list.data());
        return;
      default:
        if (qp.wr_set_sge) ibv_wr_set_sge(&qp, region.lkey, here, input.take());
        return;
    }
  }
  void post_extended() {
    ibv_qp* const qp = any(qps);
    ibv_qp_ex* const builder = qp ? ibv_qp_to_qp_ex(qp) : nullptr;
    const ibv_mr* const region = any(regions);
    if (!builder || !region) return;
    ibv_wr_start(builder);
    for (unsigned i = input.below(4); i > 0; --i) {
      builder->wr_flags = input.take();
      if (!build(*builder, *region) || input.one_in(3)) continue;  // without data
      give_data(*builder, *region);
    }
    if (input.one_in(4)) return ibv_wr_abort(builder);
    static_cast<void>(ibv_wr_complete(builder));
  }
};

}  // namespace verbena::verbs
