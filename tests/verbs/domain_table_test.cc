// SPDX-License-Identifier: MIT
// What belongs to one protection domain is of no use in another (IBTA vol 1, 10.2.3): regions,
// windows, address handles and shared receive queues, by every way in which a queue pair may come
// to them. `foreign` is memory of another domain; the queue pairs are of `pd`.
#include <string>

#include "two_ends.h"

namespace verbena::verbs::testing {
namespace {

using Row = TwoEnds::Row;

void sge_of(TwoEnds& t, ibv_wr_opcode opcode, std::uint32_t key) {
  t.post(opcode, [&](ibv_send_wr& request) { request.sg_list->lkey = key; });
}
void remote(TwoEnds& t, ibv_wr_opcode opcode, std::uint32_t key) {
  t.post(opcode, [&](ibv_send_wr& request) {
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
      request.wr.atomic.rkey = key;
    else
      request.wr.rdma.rkey = key;
    if (opcode == IBV_WR_ATOMIC_WRITE) request.sg_list->length = 8;
  });
}

const Row kDomainRows[] = {
    {"region_sent", IBV_QPT_RC, [](TwoEnds& t) { sge_of(t, IBV_WR_SEND, t.foreign->lkey); },
     IBV_WC_LOC_PROT_ERR, IBV_QPS_ERR, kNone, IBV_QPS_RTS},
    {"region_sent_unreliable", IBV_QPT_UC,
     [](TwoEnds& t) { sge_of(t, IBV_WR_SEND, t.foreign->lkey); }, IBV_WC_LOC_PROT_ERR, IBV_QPS_SQE,
     kNone, IBV_QPS_RTS},
    {"region_written_from", IBV_QPT_RC,
     [](TwoEnds& t) { sge_of(t, IBV_WR_RDMA_WRITE, t.foreign->lkey); }, IBV_WC_LOC_PROT_ERR,
     IBV_QPS_ERR, kNone, IBV_QPS_RTS},
    {"region_read_into", IBV_QPT_RC,
     [](TwoEnds& t) { sge_of(t, IBV_WR_RDMA_READ, t.foreign->lkey); }, IBV_WC_LOC_PROT_ERR,
     IBV_QPS_ERR, kNone, IBV_QPS_RTS},
    {"region_for_the_value_of_an_atomic", IBV_QPT_RC,
     [](TwoEnds& t) { sge_of(t, IBV_WR_ATOMIC_FETCH_AND_ADD, t.foreign->lkey); },
     IBV_WC_LOC_PROT_ERR, IBV_QPS_ERR, kNone, IBV_QPS_RTS},
    {"region_received_into", IBV_QPT_RC,
     [](TwoEnds& t) {
       t.post_receive(64, t.foreign->lkey);
       t.post(IBV_WR_SEND);
     },
     IBV_WC_REM_OP_ERR, IBV_QPS_ERR, IBV_WC_LOC_PROT_ERR, IBV_QPS_ERR},
    {"region_written", IBV_QPT_RC,
     [](TwoEnds& t) { remote(t, IBV_WR_RDMA_WRITE, t.foreign->rkey); }, IBV_WC_REM_ACCESS_ERR,
     IBV_QPS_ERR, kNone, IBV_QPS_ERR},
    {"region_read", IBV_QPT_RC, [](TwoEnds& t) { remote(t, IBV_WR_RDMA_READ, t.foreign->rkey); },
     IBV_WC_REM_ACCESS_ERR, IBV_QPS_ERR, kNone, IBV_QPS_ERR},
    {"region_of_an_atomic", IBV_QPT_RC,
     [](TwoEnds& t) { remote(t, IBV_WR_ATOMIC_FETCH_AND_ADD, t.foreign->rkey); },
     IBV_WC_REM_ACCESS_ERR, IBV_QPS_ERR, kNone, IBV_QPS_ERR},
    {"region_of_an_atomic_write", IBV_QPT_RC,
     [](TwoEnds& t) { remote(t, IBV_WR_ATOMIC_WRITE, t.foreign->rkey); }, IBV_WC_REM_ACCESS_ERR,
     IBV_QPS_ERR, kNone, IBV_QPS_ERR},

    {"region_of_a_compare_and_swap", IBV_QPT_RC,
     [](TwoEnds& t) {
       t.post(IBV_WR_ATOMIC_CMP_AND_SWP, [&](ibv_send_wr& request) {
         request.sg_list->length = 8;
         request.wr.atomic = {
             .remote_addr = t.address(4096), .compare_add = 0, .swap = 1, .rkey = t.foreign->rkey};
       });
     },
     IBV_WC_REM_ACCESS_ERR, IBV_QPS_ERR, kNone, IBV_QPS_ERR},
    {"region_written_with_immediate", IBV_QPT_RC,
     [](TwoEnds& t) {
       t.post_receive(64, t.mr->lkey);
       remote(t, IBV_WR_RDMA_WRITE_WITH_IMM, t.foreign->rkey);
     },
     IBV_WC_REM_ACCESS_ERR, IBV_QPS_ERR, IBV_WC_LOC_ACCESS_ERR, IBV_QPS_ERR},
    {"region_written_from_unreliable", IBV_QPT_UC,
     [](TwoEnds& t) { sge_of(t, IBV_WR_RDMA_WRITE, t.foreign->lkey); }, IBV_WC_LOC_PROT_ERR,
     IBV_QPS_SQE, kNone, IBV_QPS_RTS},
    // Nobody tells the requester; the bytes are not written.
    {"region_written_unreliable", IBV_QPT_UC,
     [](TwoEnds& t) {
       t.memory[0] = 0x5A;
       remote(t, IBV_WR_RDMA_WRITE, t.foreign->rkey);
     },
     IBV_WC_SUCCESS, IBV_QPS_RTS, kNone, IBV_QPS_RTS},
    {"region_received_into_unreliable", IBV_QPT_UC,
     [](TwoEnds& t) {
       t.post_receive(64, t.foreign->lkey);
       t.post(IBV_WR_SEND);
     },
     IBV_WC_SUCCESS, IBV_QPS_RTS, IBV_WC_LOC_PROT_ERR, IBV_QPS_ERR},
    {"region_of_a_datagram", IBV_QPT_UD,
     [](TwoEnds& t) {
       t.post(IBV_WR_SEND, [&](ibv_send_wr& request) {
         request.sg_list->lkey = t.foreign->lkey;
         to_far(t, request, t.address_in(t.pd.get()));
       });
     },
     IBV_WC_LOC_PROT_ERR, IBV_QPS_SQE, kNone, IBV_QPS_RTS},
    {"region_of_a_datagrams_receive", IBV_QPT_UD,
     [](TwoEnds& t) {
       t.post_receive(200, t.foreign->lkey);
       t.post(IBV_WR_SEND,
              [&](ibv_send_wr& request) { to_far(t, request, t.address_in(t.pd.get())); });
     },
     IBV_WC_SUCCESS, IBV_QPS_RTS, IBV_WC_LOC_PROT_ERR, IBV_QPS_ERR},
    {"shared_receive_of_a_datagram_in_the_queue_pairs_domain",
     IBV_QPT_UD,
     [](TwoEnds& t) {
       t.post_receive(200, t.mr->lkey);
       t.post(IBV_WR_SEND,
              [&](ibv_send_wr& request) { to_far(t, request, t.address_in(t.pd.get())); });
     },
     IBV_WC_SUCCESS,
     IBV_QPS_RTS,
     IBV_WC_LOC_PROT_ERR,
     IBV_QPS_ERR,
     {.has_srq = true}},

    // A shared receive queue has a domain of its own (10.2.9.3): its receives are of that one.
    {"shared_receive_of_the_queue_pairs_domain",
     IBV_QPT_RC,
     [](TwoEnds& t) {
       t.post_receive(64, t.mr->lkey);
       t.post(IBV_WR_SEND);
     },
     IBV_WC_REM_OP_ERR,
     IBV_QPS_ERR,
     IBV_WC_LOC_PROT_ERR,
     IBV_QPS_ERR,
     {.has_srq = true}},
    {"shared_receive_of_its_own_domain",
     IBV_QPT_RC,
     [](TwoEnds& t) {
       t.post_receive(64, t.foreign->lkey);
       t.post(IBV_WR_SEND);
     },
     IBV_WC_SUCCESS,
     IBV_QPS_RTS,
     IBV_WC_SUCCESS,
     IBV_QPS_RTS,
     {.has_srq = true}},
    {"shared_receive_gives_no_rights_to_peers",
     IBV_QPT_RC,
     [](TwoEnds& t) { remote(t, IBV_WR_RDMA_WRITE, t.foreign->rkey); },
     IBV_WC_REM_ACCESS_ERR,
     IBV_QPS_ERR,
     kNone,
     IBV_QPS_ERR,
     {.has_srq = true}},

    {"address", IBV_QPT_UD,
     [](TwoEnds& t) {
       t.post(IBV_WR_SEND, [&](ibv_send_wr& request) {
         request.wr.ud = {.ah = t.address_in(t.other_pd.get()),
                          .remote_qpn = t.far->qp_num,
                          .remote_qkey = 0x1234};
       });
     },
     IBV_WC_LOC_QP_OP_ERR, IBV_QPS_SQE, kNone, IBV_QPS_RTS},

    {"window_written", IBV_QPT_RC,
     [](TwoEnds& t) {
       ibv_mw* const mw = t.new_window(t.other_pd.get(), IBV_MW_TYPE_1);
       ibv_mw_bind wanted = {};
       wanted.send_flags = IBV_SEND_SIGNALED;
       wanted.bind_info = {.mr = t.foreign.get(),
                           .addr = t.address(4096),
                           .length = 64,
                           .mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
       ASSERT_EQ(0, ibv_bind_mw(t.another(t.other_pd.get()), mw, &wanted));
       ASSERT_EQ(IBV_WC_SUCCESS, t.next_completion().status);
       remote(t, IBV_WR_RDMA_WRITE, mw->rkey);
     },
     IBV_WC_REM_ACCESS_ERR, IBV_QPS_ERR, kNone, IBV_QPS_ERR},
    {"window_bound", IBV_QPT_RC,
     [](TwoEnds& t) {
       ibv_mw* const mw = t.new_window(t.other_pd.get(), IBV_MW_TYPE_2);
       t.post_bind(mw, t.bindable.get());
     },
     IBV_WC_MW_BIND_ERR, IBV_QPS_ERR, kNone, IBV_QPS_RTS},
    {"window_bound_to_a_region", IBV_QPT_RC,
     [](TwoEnds& t) { t.post_bind(t.new_window(t.pd.get(), IBV_MW_TYPE_2), t.foreign.get()); },
     IBV_WC_MW_BIND_ERR, IBV_QPS_ERR, kNone, IBV_QPS_RTS},
    {"window_and_region_bound", IBV_QPT_RC,
     [](TwoEnds& t) {
       t.post_bind(t.new_window(t.other_pd.get(), IBV_MW_TYPE_2), t.foreign.get());
     },
     IBV_WC_MW_BIND_ERR, IBV_QPS_ERR, kNone, IBV_QPS_RTS},
    {"window_invalidated", IBV_QPT_RC,
     [](TwoEnds& t) {
       const std::uint32_t key = t.bound_elsewhere();
       t.post(IBV_WR_LOCAL_INV, [&](ibv_send_wr& request) { request.invalidate_rkey = key; });
     },
     IBV_WC_MW_BIND_ERR, IBV_QPS_ERR, kNone, IBV_QPS_RTS},
    {"window_invalidated_by_the_peer", IBV_QPT_RC,
     [](TwoEnds& t) {
       const std::uint32_t key = t.bound_elsewhere();
       t.post_receive(64, t.mr->lkey);
       t.post(IBV_WR_SEND_WITH_INV, [&](ibv_send_wr& request) { request.invalidate_rkey = key; });
     },
     IBV_WC_REM_ACCESS_ERR, IBV_QPS_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_QPS_ERR},
    {"window_written_of_another_queue_pair", IBV_QPT_RC,
     [](TwoEnds& t) { remote(t, IBV_WR_RDMA_WRITE, t.bound_elsewhere()); }, IBV_WC_REM_ACCESS_ERR,
     IBV_QPS_ERR, kNone, IBV_QPS_ERR},
    // No key of a window is a key of the program's own memory.
    {"window_sent", IBV_QPT_RC, [](TwoEnds& t) { sge_of(t, IBV_WR_SEND, t.bound_elsewhere()); },
     IBV_WC_LOC_PROT_ERR, IBV_QPS_ERR, kNone, IBV_QPS_RTS},
};

class DomainTable : public TwoEnds, public ::testing::WithParamInterface<Row> {};

TEST_P(DomainTable, WhatIsOfAnotherDomainIsRefused) {
  check(GetParam());
  EXPECT_NE(0x5A, memory[4096]) << "it was written all the same";
}

INSTANTIATE_TEST_SUITE_P(All, DomainTable, ::testing::ValuesIn(kDomainRows),
                         [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace verbena::verbs::testing
