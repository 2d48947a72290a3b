// SPDX-License-Identifier: MIT
// Calls of verbs that make little: questions, domains of threads, second names of objects, senders
// of what came. For tests only.
#pragma once

#include "verbs/test_steering.h"

namespace verbena::verbs {

class CallsQuestions : protected CallsSteering {
 public:
  using CallsSteering::CallsSteering;
  ~CallsQuestions() {
    destroy_steering();
    destroy_each(opened_, ibv_destroy_qp);
    destroy_each(parents_, ibv_dealloc_pd);
    destroy_each(threads_, dealloc_td);
  }
  CallsQuestions(const CallsQuestions&) = delete;
  CallsQuestions& operator=(const CallsQuestions&) = delete;

 protected:
  void step_of_questions(unsigned what) {
    switch (what) {
      case 0: return query_device();
      case 1: return query_gids();
      case 2: return alloc_null();
      case 3: return create(threads_, [&] { return new_thread_domain(); });
      case 4: return destroy(any(threads_), dealloc_td);
      case 5: return alloc_parent();
      case 6: return destroy(any(parents_), ibv_dealloc_pd);
      case 7: return open_qp();
      case 8: return destroy(any(opened_), ibv_destroy_qp);
      case 9: return address_of_sender();
      case 10: return exchange_ece();
      case 11: return limit_rate();
      case 12: return modify_cq();
      case 13: return import();
      case 14: return reg_dmabuf();
      default: return say_names();
    }
  }

 private:
  static int dealloc_td(ibv_td* td) { return ibv_dealloc_td(td); }

  void query_device() {
    ibv_query_device_ex_input ask{};
    ask.comp_mask = input.one_in(4);
    ibv_device_attr_ex answer{};
    static_cast<void>(ibv_query_device_ex(world.context, &ask, &answer));
    ibv_values_ex values{};
    values.comp_mask = input.below(4);
    static_cast<void>(ibv_query_rt_values_ex(world.context, &values));
    VERBENA_ASSERT(ibv_get_pkey_index(world.context, 1, input.take<std::uint16_t>()) < 1);
  }
  void query_gids() {
    ibv_gid_entry entry{};
    static_cast<void>(
        _ibv_query_gid_ex(world.context, input.below(3), input.take(), &entry, 0, sizeof entry));
    std::array<ibv_gid_entry, 4> table{};
    const ssize_t found = _ibv_query_gid_table(world.context, table.data(), input.below(5),
                                               input.one_in(8), sizeof entry);
    VERBENA_ASSERT(found <= 4);
    unsigned type = 0;
    static_cast<void>(ibv_query_gid_type(world.context, input.below(3), input.take(), &type));
  }
  void alloc_null() {
    ibv_pd* const domain = any(domains);
    if (domain) create(regions, [&] { return ibv_alloc_null_mr(domain); });
  }
  ibv_td* new_thread_domain() {
    ibv_td_init_attr wanted{};
    wanted.comp_mask = input.one_in(8);
    return ibv_alloc_td(world.context, &wanted);
  }
  void alloc_parent() {
    ibv_parent_domain_init_attr wanted{};
    wanted.pd = any(domains);
    wanted.td = any(threads_);
    wanted.comp_mask = input.one_in(4) ? input.take() : 0;
    create(parents_, [&] { return ibv_alloc_parent_domain(world.context, &wanted); });
    ibv_pd* const parent = any(parents_);
    if (!parent) return;
    // What is made of it does not outlive it.
    ibv_mr* const region = ibv_reg_mr(parent, world.memory, 4096, kAllAccess);
    if (!region) return;
    VERBENA_ASSERT(ibv_dealloc_pd(parent) != 0);
    VERBENA_ASSERT(ibv_dereg_mr(region) == 0);
  }
  void open_qp() {
    const ibv_qp* const target = any(qps);
    ibv_qp_open_attr wanted{};
    wanted.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    if (input.one_in(8)) wanted.comp_mask = input.take();
    wanted.qp_num = target && !input.one_in(8) ? target->qp_num : input.take<std::uint32_t>();
    wanted.xrcd = any(xrc_domains);
    wanted.qp_type = input.one_in(8) ? IBV_QPT_RC : IBV_QPT_XRC_RECV;
    create(opened_, [&] { return ibv_open_qp(world.context, &wanted); });
  }
  // The header of a packet that anybody may have sent.
  void address_of_sender() {
    ibv_wc came{};
    came.wc_flags = input.below(8);
    came.slid = input.take<std::uint16_t>();
    came.sl = input.take();
    ibv_grh header{};
    input.fill(&header, sizeof header);
    ibv_ah_attr to{};
    const std::uint8_t port = input.one_in(8) ? input.take() : 1;
    const int failed = ibv_init_ah_from_wc(world.context, port, &came, &header, &to);
    VERBENA_ASSERT(failed == 0 || failed == -1);
    ibv_pd* const domain = any(domains);
    // Not kept: nothing shall be sent to who knows whom.
    if (!domain || failed != 0) return;
    if (ibv_ah* const address = ibv_create_ah(domain, &to))
      VERBENA_ASSERT(ibv_destroy_ah(address) == 0);
  }
  void exchange_ece() {
    ibv_qp* const qp = any(qps);
    if (!qp) return;
    ibv_ece ece{};
    static_cast<void>(ibv_query_ece(qp, &ece));
    ece.vendor_id = input.take<std::uint32_t>();
    static_cast<void>(ibv_set_ece(qp, &ece));
  }
  void limit_rate() {
    ibv_qp* const qp = input.one_in(2) ? any(hashed) : any(qps);
    if (!qp) return;
    ibv_qp_rate_limit_attr wanted{};
    wanted.rate_limit = input.take<std::uint32_t>();
    wanted.max_burst_sz = input.take<std::uint16_t>();
    wanted.typical_pkt_sz = input.take<std::uint16_t>();
    wanted.comp_mask = input.one_in(8);
    static_cast<void>(ibv_modify_qp_rate_limit(qp, &wanted));
  }
  void modify_cq() {
    ibv_cq* const cq = any(cqs);
    if (!cq) return;
    ibv_modify_cq_attr wanted{};
    wanted.attr_mask = input.below(4);
    wanted.moderate = {.cq_count = input.take(), .cq_period = input.take()};
    static_cast<void>(ibv_modify_cq(cq, &wanted));
  }
  void import() {
    ibv_pd* const domain = any(domains);
    const std::uint32_t handle =
        domain && !input.one_in(4) ? domain->handle : input.take<std::uint32_t>();
    ibv_pd* const again = ibv_import_pd(world.context, handle);
    if (!again) return;
    const ibv_mr* const region = any(regions);
    ibv_mr* const mr = ibv_import_mr(again, region ? region->handle : input.take());
    if (mr) ibv_unimport_mr(mr);
    const ibv_dm* const memory = any(memories);
    ibv_dm* const dm = ibv_import_dm(world.context, memory ? memory->handle : input.take());
    if (dm) ibv_unimport_dm(dm);
    ibv_unimport_pd(again);
  }
  void reg_dmabuf() {
    ibv_pd* const domain = any(domains);
    if (!domain) return;
    create(regions, [&] {
      return ibv_reg_dmabuf_mr(domain, input.take(), input.take<std::uint16_t>(), input.take(), -1,
                               kAllAccess);
    });
  }
  // Of any number.
  void say_names() {
    const int number = this->number();
    VERBENA_ASSERT(ibv_wc_status_str(static_cast<ibv_wc_status>(input.below(32))) != nullptr);
    VERBENA_ASSERT(ibv_rate_to_mbps(mbps_to_ibv_rate(number)) != 0);
    static_cast<void>(ibv_rate_to_mult(mult_to_ibv_rate(number)));
  }

  Some<ibv_td> threads_{};
  Some<ibv_pd> parents_{};
  Some<ibv_qp> opened_{};
};

}  // namespace verbena::verbs
