// SPDX-License-Identifier: MIT
// Each error completion of the specification (IBTA vol 1, 11.6.2), produced: what either end hears,
// and the state in which both end. What stands behind, here or there, ends as flushed. The same on
// each carrier: the modes of this test (tests/verbs/CMakeLists.txt) take them in turn.
//
// A table at the end says of each status which rows produce it, or why none does.
#include <algorithm>
#include <cstdio>
#include <string>

#include "two_ends.h"

namespace verbena::verbs::testing {
namespace {

using Row = TwoEnds::Row;
constexpr std::uint32_t kNoKey = 0x12345678;

void write_with(TwoEnds& t, std::uint32_t key, std::uint64_t at) {
  t.post(IBV_WR_RDMA_WRITE,
         [&](ibv_send_wr& request) { request.wr.rdma = {.remote_addr = at, .rkey = key}; });
}
void atomic_with(TwoEnds& t, std::uint32_t key, std::uint64_t at) {
  t.post(IBV_WR_ATOMIC_FETCH_AND_ADD, [&](ibv_send_wr& request) {
    request.wr.atomic = {.remote_addr = at, .compare_add = 1, .swap = 0, .rkey = key};
  });
}
void read_with(TwoEnds& t, std::uint32_t key, std::uint64_t at) {
  t.post(IBV_WR_RDMA_READ,
         [&](ibv_send_wr& request) { request.wr.rdma = {.remote_addr = at, .rkey = key}; });
}
void write_with_immediate(TwoEnds& t, std::uint32_t key, std::uint64_t at) {
  t.post(IBV_WR_RDMA_WRITE_WITH_IMM,
         [&](ibv_send_wr& request) { request.wr.rdma = {.remote_addr = at, .rkey = key}; });
}
void with_sge(TwoEnds& t, ibv_wr_opcode opcode, ibv_sge sge) {
  t.post(opcode, [&](ibv_send_wr& request) { *request.sg_list = sge; });
}

const Row kRows[] = {
    // -- found by the requester
    {"local_length_of_a_message", IBV_QPT_RC,
     [](TwoEnds& t) {
       ibv_sge list[] = {t.piece(1u << 30, t.mr->lkey), t.piece(1, t.mr->lkey)};
       t.post(IBV_WR_RDMA_WRITE, [&](ibv_send_wr& request) {
         request.sg_list = list;
         request.num_sge = 2;
       });
     },
     IBV_WC_LOC_LEN_ERR, IBV_QPS_ERR, kNone, IBV_QPS_RTS},
    {"local_length_of_an_atomic", IBV_QPT_RC,
     [](TwoEnds& t) {
       t.post(IBV_WR_ATOMIC_FETCH_AND_ADD,
              [](ibv_send_wr& request) { request.sg_list->length = 4; });
     },
     IBV_WC_LOC_LEN_ERR, IBV_QPS_ERR, kNone, IBV_QPS_RTS},
    {"local_length_of_a_datagram", IBV_QPT_UD,
     [](TwoEnds& t) {
       t.post(IBV_WR_SEND, [&](ibv_send_wr& request) {
         *request.sg_list = t.piece(4097, t.mr->lkey);
         to_far(t, request, t.address_in(t.pd.get()));
       });
     },
     IBV_WC_LOC_LEN_ERR, IBV_QPS_SQE, kNone, IBV_QPS_RTS},
    {"local_operation_read_without_resources",
     IBV_QPT_RC,
     [](TwoEnds& t) { t.post(IBV_WR_RDMA_READ); },
     IBV_WC_LOC_QP_OP_ERR,
     IBV_QPS_ERR,
     kNone,
     IBV_QPS_RTS,
     {.reads = 0}},
    {"local_operation_address_of_another_domain", IBV_QPT_UD,
     [](TwoEnds& t) {
       t.post(IBV_WR_SEND,
              [&](ibv_send_wr& request) { to_far(t, request, t.address_in(t.other_pd.get())); });
     },
     IBV_WC_LOC_QP_OP_ERR, IBV_QPS_SQE, kNone, IBV_QPS_RTS},
    {"local_protection_key", IBV_QPT_RC,
     [](TwoEnds& t) { with_sge(t, IBV_WR_SEND, t.piece(64, kNoKey)); }, IBV_WC_LOC_PROT_ERR,
     IBV_QPS_ERR, kNone, IBV_QPS_RTS},
    {"local_protection_range", IBV_QPT_RC,
     [](TwoEnds& t) { with_sge(t, IBV_WR_RDMA_WRITE, t.piece(1 << 20, t.mr->lkey)); },
     IBV_WC_LOC_PROT_ERR, IBV_QPS_ERR, kNone, IBV_QPS_RTS},
    {"local_protection_read_into_constant_memory", IBV_QPT_RC,
     [](TwoEnds& t) {
       const Own<ibv_mr> constant = t.reg(t.pd.get(), IBV_ACCESS_REMOTE_READ);
       with_sge(t, IBV_WR_RDMA_READ, t.piece(64, constant->lkey));
     },
     IBV_WC_LOC_PROT_ERR, IBV_QPS_ERR, kNone, IBV_QPS_RTS},
    {"local_protection_unreliable", IBV_QPT_UC,
     [](TwoEnds& t) { with_sge(t, IBV_WR_SEND, t.piece(64, kNoKey)); }, IBV_WC_LOC_PROT_ERR,
     IBV_QPS_SQE, kNone, IBV_QPS_RTS},
    {"local_protection_datagram", IBV_QPT_UD,
     [](TwoEnds& t) {
       t.post(IBV_WR_SEND, [&](ibv_send_wr& request) {
         request.sg_list->lkey = kNoKey;
         to_far(t, request, t.address_in(t.pd.get()));
       });
     },
     IBV_WC_LOC_PROT_ERR, IBV_QPS_SQE, kNone, IBV_QPS_RTS},
    {"local_protection_memory_is_gone", IBV_QPT_RC,
     [](TwoEnds& t) {
       const ibv_mr* const gone = t.region_without_memory();
       with_sge(t, IBV_WR_SEND, t.all_of(gone));
     },
     IBV_WC_LOC_PROT_ERR, IBV_QPS_ERR, kNone, IBV_QPS_RTS},
    {"flushed_by_modify", IBV_QPT_RC,
     [](TwoEnds& t) {
       ibv_qp_attr attributes = {};
       attributes.qp_state = IBV_QPS_ERR;
       ASSERT_EQ(0, ibv_modify_qp(t.near.get(), &attributes, IBV_QP_STATE));
       t.post(IBV_WR_SEND);
     },
     IBV_WC_WR_FLUSH_ERR, IBV_QPS_ERR, kNone, IBV_QPS_RTS},
    {"window_bind", IBV_QPT_RC,
     [](TwoEnds& t) {
       ibv_mw* const mw = t.new_window(t.pd.get(), IBV_MW_TYPE_2);
       t.post(IBV_WR_BIND_MW, [&](ibv_send_wr& request) {
         request.bind_mw = {.mw = mw,
                            .rkey = mw->rkey,
                            .bind_info = {.mr = t.mr.get(),
                                          .addr = t.address(0),
                                          .length = 8,
                                          .mw_access_flags = IBV_ACCESS_REMOTE_READ}};
       });
     },
     IBV_WC_MW_BIND_ERR, IBV_QPS_ERR, kNone, IBV_QPS_RTS},
    {"window_invalidate", IBV_QPT_UC,
     [](TwoEnds& t) {
       t.post(IBV_WR_LOCAL_INV,
              [&](ibv_send_wr& request) { request.invalidate_rkey = t.mr->rkey; });
     },
     IBV_WC_MW_BIND_ERR, IBV_QPS_SQE, kNone, IBV_QPS_RTS},

    // -- found by the responder
    {"receive_too_short", IBV_QPT_RC,
     [](TwoEnds& t) {
       t.post_receive(63, t.mr->lkey);
       t.post(IBV_WR_SEND);
     },
     IBV_WC_REM_INV_REQ_ERR, IBV_QPS_ERR, IBV_WC_LOC_LEN_ERR, IBV_QPS_ERR},
    {"receive_too_short_unreliable", IBV_QPT_UC,
     [](TwoEnds& t) {
       t.post_receive(63, t.mr->lkey);
       t.post(IBV_WR_SEND);
     },
     IBV_WC_SUCCESS, IBV_QPS_RTS, kNone, IBV_QPS_RTS},
    {"receive_of_bad_memory", IBV_QPT_RC,
     [](TwoEnds& t) {
       t.post_receive(64, kNoKey);
       t.post(IBV_WR_SEND);
     },
     IBV_WC_REM_OP_ERR, IBV_QPS_ERR, IBV_WC_LOC_PROT_ERR, IBV_QPS_ERR},
    {"receive_of_bad_memory_unreliable", IBV_QPT_UC,
     [](TwoEnds& t) {
       t.post_receive(64, kNoKey);
       t.post(IBV_WR_SEND);
     },
     IBV_WC_SUCCESS, IBV_QPS_RTS, IBV_WC_LOC_PROT_ERR, IBV_QPS_ERR},
    {"receive_of_bad_memory_datagram", IBV_QPT_UD,
     [](TwoEnds& t) {
       t.post_receive(200, kNoKey);
       t.post(IBV_WR_SEND,
              [&](ibv_send_wr& request) { to_far(t, request, t.address_in(t.pd.get())); });
     },
     IBV_WC_SUCCESS, IBV_QPS_RTS, IBV_WC_LOC_PROT_ERR, IBV_QPS_ERR},
    {"invalid_request_not_enabled",
     IBV_QPT_RC,
     [](TwoEnds& t) { t.post(IBV_WR_RDMA_WRITE); },
     IBV_WC_REM_INV_REQ_ERR,
     IBV_QPS_ERR,
     kNone,
     IBV_QPS_ERR,
     {.far_access = IBV_ACCESS_REMOTE_READ}},
    {"invalid_request_misaligned_atomic", IBV_QPT_RC,
     [](TwoEnds& t) {
       t.post(IBV_WR_ATOMIC_FETCH_AND_ADD,
              [](ibv_send_wr& request) { ++request.wr.atomic.remote_addr; });
     },
     IBV_WC_REM_INV_REQ_ERR, IBV_QPS_ERR, kNone, IBV_QPS_ERR},
    {"invalid_request_flushes_receives",
     IBV_QPT_RC,
     [](TwoEnds& t) {
       t.post_receive(64, t.mr->lkey);
       t.post(IBV_WR_RDMA_WRITE);
     },
     IBV_WC_REM_INV_REQ_ERR,
     IBV_QPS_ERR,
     IBV_WC_WR_FLUSH_ERR,
     IBV_QPS_ERR,
     {.far_access = IBV_ACCESS_REMOTE_READ}},
    {"invalid_request_invalidate", IBV_QPT_RC,
     [](TwoEnds& t) {
       t.post_receive(64, t.mr->lkey);
       t.post(IBV_WR_SEND_WITH_INV,
              [&](ibv_send_wr& request) { request.invalidate_rkey = t.mr->rkey; });
     },
     IBV_WC_REM_ACCESS_ERR, IBV_QPS_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_QPS_ERR},
    {"remote_access_key", IBV_QPT_RC, [](TwoEnds& t) { write_with(t, kNoKey, t.address(0)); },
     IBV_WC_REM_ACCESS_ERR, IBV_QPS_ERR, kNone, IBV_QPS_ERR},
    {"remote_access_range", IBV_QPT_RC,
     [](TwoEnds& t) { write_with(t, t.mr->rkey, t.address(0) - 1); }, IBV_WC_REM_ACCESS_ERR,
     IBV_QPS_ERR, kNone, IBV_QPS_ERR},
    {"remote_access_rights", IBV_QPT_RC,
     [](TwoEnds& t) {
       const Own<ibv_mr> local = t.reg(t.pd.get(), IBV_ACCESS_LOCAL_WRITE);
       write_with(t, local->rkey, t.address(0));
     },
     IBV_WC_REM_ACCESS_ERR, IBV_QPS_ERR, kNone, IBV_QPS_ERR},
    // The memory of a WRITE with immediate is what its receive fails for.
    {"local_access_key", IBV_QPT_RC,
     [](TwoEnds& t) {
       t.post_receive(64, t.mr->lkey);
       write_with_immediate(t, kNoKey, t.address(0));
     },
     IBV_WC_REM_ACCESS_ERR, IBV_QPS_ERR, IBV_WC_LOC_ACCESS_ERR, IBV_QPS_ERR},
    {"local_access_range", IBV_QPT_RC,
     [](TwoEnds& t) {
       t.post_receive(0, t.mr->lkey);
       write_with_immediate(t, t.mr->rkey, t.address(0) - 1);
     },
     IBV_WC_REM_ACCESS_ERR, IBV_QPS_ERR, IBV_WC_LOC_ACCESS_ERR, IBV_QPS_ERR},
    {"local_access_rights", IBV_QPT_RC,
     [](TwoEnds& t) {
       const Own<ibv_mr> local = t.reg(t.pd.get(), IBV_ACCESS_LOCAL_WRITE);
       t.post_receive(64, t.mr->lkey);
       write_with_immediate(t, local->rkey, t.address(0));
     },
     IBV_WC_REM_ACCESS_ERR, IBV_QPS_ERR, IBV_WC_LOC_ACCESS_ERR, IBV_QPS_ERR},
    {"local_access_memory_is_gone", IBV_QPT_RC,
     [](TwoEnds& t) {
       const ibv_mr* const gone = t.region_without_memory();
       t.post_receive(64, t.mr->lkey);
       write_with_immediate(t, gone->rkey, t.all_of(gone).addr);
     },
     IBV_WC_REM_OP_ERR, IBV_QPS_ERR, IBV_WC_LOC_ACCESS_ERR, IBV_QPS_ERR},
    {"local_access_without_a_receive", IBV_QPT_RC,
     [](TwoEnds& t) { write_with_immediate(t, kNoKey, t.address(0)); }, IBV_WC_REM_ACCESS_ERR,
     IBV_QPS_ERR, kNone, IBV_QPS_ERR},
    {"local_access_unreliable", IBV_QPT_UC,
     [](TwoEnds& t) {
       t.post_receive(64, t.mr->lkey);
       write_with_immediate(t, kNoKey, t.address(0));
     },
     IBV_WC_SUCCESS, IBV_QPS_RTS, kNone, IBV_QPS_RTS},
    {"remote_access_key_of_a_read", IBV_QPT_RC,
     [](TwoEnds& t) { read_with(t, kNoKey, t.address(0)); }, IBV_WC_REM_ACCESS_ERR, IBV_QPS_ERR,
     kNone, IBV_QPS_ERR},
    {"remote_access_range_of_a_read", IBV_QPT_RC,
     [](TwoEnds& t) { read_with(t, t.mr->rkey, t.address(0) - 1); }, IBV_WC_REM_ACCESS_ERR,
     IBV_QPS_ERR, kNone, IBV_QPS_ERR},
    {"remote_access_rights_of_a_read", IBV_QPT_RC,
     [](TwoEnds& t) {
       const Own<ibv_mr> writable =
           t.reg(t.pd.get(), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
       read_with(t, writable->rkey, t.address(0));
     },
     IBV_WC_REM_ACCESS_ERR, IBV_QPS_ERR, kNone, IBV_QPS_ERR},
    {"remote_access_key_of_an_atomic", IBV_QPT_RC,
     [](TwoEnds& t) { atomic_with(t, kNoKey, t.address(4096)); }, IBV_WC_REM_ACCESS_ERR,
     IBV_QPS_ERR, kNone, IBV_QPS_ERR},
    {"remote_access_range_of_an_atomic", IBV_QPT_RC,
     [](TwoEnds& t) { atomic_with(t, t.mr->rkey, t.address(0) - 8); }, IBV_WC_REM_ACCESS_ERR,
     IBV_QPS_ERR, kNone, IBV_QPS_ERR},
    {"remote_access_rights_of_an_atomic", IBV_QPT_RC,
     [](TwoEnds& t) {
       const Own<ibv_mr> writable =
           t.reg(t.pd.get(), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
       atomic_with(t, writable->rkey, t.address(4096));
     },
     IBV_WC_REM_ACCESS_ERR, IBV_QPS_ERR, kNone, IBV_QPS_ERR},
    {"remote_operation_memory_is_gone", IBV_QPT_RC,
     [](TwoEnds& t) {
       const ibv_mr* const gone = t.region_without_memory();
       write_with(t, gone->rkey, t.all_of(gone).addr);
     },
     IBV_WC_REM_OP_ERR, IBV_QPS_ERR, kNone, IBV_QPS_ERR},
    {"remote_operation_memory_to_read_is_gone", IBV_QPT_RC,
     [](TwoEnds& t) {
       const ibv_mr* const gone = t.region_without_memory();
       read_with(t, gone->rkey, t.all_of(gone).addr);
     },
     IBV_WC_REM_OP_ERR, IBV_QPS_ERR, kNone, IBV_QPS_ERR},
    {"invalid_request_read_not_enabled",
     IBV_QPT_RC,
     [](TwoEnds& t) { t.post(IBV_WR_RDMA_READ); },
     IBV_WC_REM_INV_REQ_ERR,
     IBV_QPS_ERR,
     kNone,
     IBV_QPS_ERR,
     {.far_access = IBV_ACCESS_REMOTE_WRITE}},
    {"invalid_request_atomic_not_enabled",
     IBV_QPT_RC,
     [](TwoEnds& t) { t.post(IBV_WR_ATOMIC_FETCH_AND_ADD); },
     IBV_WC_REM_INV_REQ_ERR,
     IBV_QPS_ERR,
     kNone,
     IBV_QPS_ERR,
     {.far_access = IBV_ACCESS_REMOTE_WRITE}},
    {"remote_access_key_unreliable", IBV_QPT_UC,
     [](TwoEnds& t) { write_with(t, kNoKey, t.address(0)); }, IBV_WC_SUCCESS, IBV_QPS_RTS, kNone,
     IBV_QPS_RTS},
    {"no_receive",
     IBV_QPT_RC,
     [](TwoEnds& t) { t.post(IBV_WR_SEND); },
     IBV_WC_RNR_RETRY_EXC_ERR,
     IBV_QPS_ERR,
     kNone,
     IBV_QPS_RTS,
     {.rnr_retry = 1}},
    {"no_receive_for_an_immediate",
     IBV_QPT_RC,
     [](TwoEnds& t) { t.post(IBV_WR_RDMA_WRITE_WITH_IMM); },
     IBV_WC_RNR_RETRY_EXC_ERR,
     IBV_QPS_ERR,
     kNone,
     IBV_QPS_RTS,
     {.rnr_retry = 0}},
    {"nobody_there",
     IBV_QPT_RC,
     [](TwoEnds& t) {
       ibv_qp_attr attributes = {};
       attributes.qp_state = IBV_QPS_RESET;
       ASSERT_EQ(0, ibv_modify_qp(t.far.get(), &attributes, IBV_QP_STATE));
       t.post(IBV_WR_RDMA_WRITE);
     },
     IBV_WC_RETRY_EXC_ERR,
     IBV_QPS_ERR,
     kNone,
     IBV_QPS_RESET,
     {.timeout = 8, .retries = 1}},
};

class ErrorTable : public TwoEnds, public ::testing::WithParamInterface<Row> {};

TEST_P(ErrorTable, EachEndHearsWhatItShould) { check(GetParam()); }

INSTANTIATE_TEST_SUITE_P(All, ErrorTable, ::testing::ValuesIn(kRows),
                         [](const auto& row) { return std::string(row.param.name); });

// -- the table is complete ----------------------------------------------------------------------

// Where a status comes from. A switch, so that the compiler misses none that verbs adds.
constexpr const char* kByRows = nullptr;
const char* where_else(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS:
    case IBV_WC_LOC_LEN_ERR:
    case IBV_WC_LOC_QP_OP_ERR:
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_WR_FLUSH_ERR:
    case IBV_WC_MW_BIND_ERR:
    case IBV_WC_LOC_ACCESS_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_OP_ERR:
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RNR_RETRY_EXC_ERR: return kByRows;
    case IBV_WC_BAD_RESP_ERR:
      return "no responder of ours answers so: src/local/bad_answer_test.cc, by the rings, and "
             "src/roce/bad_answer_test.cc, on the wire, do it by hand and look at both ends; who "
             "executes by itself in the peer's memory gets no answer";
    case IBV_WC_LOC_EEC_OP_ERR:
    case IBV_WC_LOC_RDD_VIOL_ERR:
    case IBV_WC_REM_INV_RD_REQ_ERR:
    case IBV_WC_INV_EECN_ERR:
    case IBV_WC_INV_EEC_STATE_ERR:
      return "of reliable datagrams, which verbs has no queue pairs for";
    case IBV_WC_REM_ABORT_ERR:
      return "of a receive of a shared queue whose unreliable message is not finished: ours waits "
             "for the next message, which src/qp/responder_packets_test.cc shows";
    case IBV_WC_TM_ERR:
    case IBV_WC_TM_RNDV_INCOMPLETE:
      return "not of the specification: tests/verbs/tag_matching_test.cc";
    case IBV_WC_FATAL_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
    case IBV_WC_GENERAL_ERR:
      return "not of the specification: of adapters that break. Here a lost completion is an event "
             "and an error of the queue, and silence is always retry exceeded";
  }
  return "no such status";
}

TEST(ErrorTable, IsComplete) {
  for (int each = IBV_WC_SUCCESS; each <= IBV_WC_TM_RNDV_INCOMPLETE; ++each) {
    const auto status = static_cast<ibv_wc_status>(each);
    const bool is_produced = std::ranges::any_of(
        kRows, [&](const Row& row) { return row.near == status || row.far == status; });
    const char* const elsewhere = where_else(status);
    EXPECT_EQ(elsewhere == kByRows, is_produced) << ibv_wc_status_str(status);
    if (elsewhere != kByRows) std::printf("%s: %s\n", ibv_wc_status_str(status), elsewhere);
  }
}

}  // namespace
}  // namespace verbena::verbs::testing
