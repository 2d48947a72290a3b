// SPDX-License-Identifier: MIT
// The functions in an ibv_qp_ex, through which a program reaches the builder of its queue pair.
#include "verbs/border.h"
#include "verbs/builder.h"
#include "verbs/objects.h"
#include "verbs/post.h"

namespace verbena::verbs {
namespace {

using queues::SendOpcode;

SendBuilder& builder_of(ibv_qp_ex* qp) { return *own(qp).builder; }

// Runs `body`; what cannot be remembered for lack of memory is a mistake like others.
template <class Body>
void build(ibv_qp_ex* qp, Body body) noexcept {
  SendBuilder& builder = builder_of(qp);
  try {
    body(builder);
  } catch (const std::bad_alloc&) {
    builder.fail(ENOMEM);
  }
}

template <class Fill>
void begin(ibv_qp_ex* qp, SendOpcode opcode, std::uint64_t operation, Fill fill) noexcept {
  build(qp, [&](SendBuilder& builder) {
    if (qp::SendRequest* const request = builder.begin(*qp, opcode, operation)) fill(*request);
  });
}

template <SendOpcode opcode, std::uint64_t operation>
void remote(ibv_qp_ex* qp, std::uint32_t key, std::uint64_t address) {
  begin(qp, opcode, operation, [&](qp::SendRequest& request) {
    request.remote_key = {key};
    request.remote_address = address;
  });
}

void write_with_immediate(ibv_qp_ex* qp, std::uint32_t key, std::uint64_t address,
                          __be32 immediate) {
  begin(qp, SendOpcode::kWriteWithImmediate, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
        [&](qp::SendRequest& request) {
          request.remote_key = {key};
          request.remote_address = address;
          request.immediate = immediate;
        });
}

void compare_swap(ibv_qp_ex* qp, std::uint32_t key, std::uint64_t address, std::uint64_t compare,
                  std::uint64_t swap) {
  begin(qp, SendOpcode::kCompareSwap, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
        [&](qp::SendRequest& request) {
          request.remote_key = {key};
          request.remote_address = address;
          request.compare_add = compare;
          request.swap = swap;
        });
}

void fetch_add(ibv_qp_ex* qp, std::uint32_t key, std::uint64_t address, std::uint64_t add) {
  begin(qp, SendOpcode::kFetchAdd, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
        [&](qp::SendRequest& request) {
          request.remote_key = {key};
          request.remote_address = address;
          request.compare_add = add;
        });
}

// The eight bytes are taken now, as inline data would be.
void atomic_write(ibv_qp_ex* qp, std::uint32_t key, std::uint64_t address, const void* word) {
  build(qp, [&](SendBuilder& builder) {
    qp::SendRequest* const request =
        builder.begin(*qp, SendOpcode::kAtomicWrite, IBV_QP_EX_WITH_ATOMIC_WRITE);
    if (!request) return;
    request->remote_key = {key};
    request->remote_address = address;
    const ibv_data_buf piece{.addr = const_cast<void*>(word), .length = kAtomicWriteBytes};
    builder.set_inline({&piece, 1});
  });
}

// ibv_wr_flush(3), which came after the headers that we are built with. Selectivity: a range, or
// all of the region.
void flush(ibv_qp_ex* qp, std::uint32_t key, std::uint64_t address, std::size_t length,
           std::uint8_t placement, std::uint8_t selectivity) {
  constexpr std::uint8_t kGlobal = 1;
  constexpr std::uint8_t kPersistent = 2;
  constexpr std::uint8_t kWholeRegion = 1;
  build(qp, [&](SendBuilder& builder) {
    qp::SendRequest* const request = builder.begin(*qp, SendOpcode::kFlush, kWithFlush);
    if (!request) return;
    if (length > UINT32_MAX || placement & ~(kGlobal | kPersistent) || selectivity > kWholeRegion) {
      return builder.fail(EINVAL);
    }
    request->remote_key = {key};
    request->remote_address = address;
    request->flush = {.length = static_cast<std::uint32_t>(length),
                      .global_visibility = (placement & kGlobal) != 0,
                      .persistence = (placement & kPersistent) != 0,
                      .whole_region = selectivity == kWholeRegion};
  });
}

void send(ibv_qp_ex* qp) {
  begin(qp, SendOpcode::kSend, IBV_QP_EX_WITH_SEND, [](qp::SendRequest&) {});
}

// The key to invalidate lies where an immediate does.
template <SendOpcode opcode, std::uint64_t operation>
void with_word(ibv_qp_ex* qp, std::uint32_t word) {
  begin(qp, opcode, operation, [&](qp::SendRequest& request) { request.immediate = word; });
}

void set_address(ibv_qp_ex* qp, ibv_ah* ah, std::uint32_t remote_qp, std::uint32_t remote_qkey) {
  build(qp, [&](SendBuilder& builder) {
    if (!ah) return builder.fail(EINVAL);
    builder.set_address(*own(ah).nic, {remote_qp}, remote_qkey);
  });
}

void set_sge(ibv_qp_ex* qp, std::uint32_t key, std::uint64_t address, std::uint32_t length) {
  const Sge sge{.address = address, .length = length, .key = {key}};
  build(qp, [&](SendBuilder& builder) { builder.set_sges({&sge, 1}); });
}

void set_sge_list(ibv_qp_ex* qp, std::size_t count, const ibv_sge* list) {
  build(qp, [&](SendBuilder& builder) { builder.set_sges(sges_from(list, count)); });
}

void set_inline_data(ibv_qp_ex* qp, void* address, std::size_t length) {
  const ibv_data_buf piece{.addr = address, .length = length};
  build(qp, [&](SendBuilder& builder) { builder.set_inline({&piece, 1}); });
}

void set_inline_data_list(ibv_qp_ex* qp, std::size_t count, const ibv_data_buf* list) {
  build(qp, [&](SendBuilder& builder) { builder.set_inline({list, count}); });
}

void bind_window(ibv_qp_ex* qp, ibv_mw* window, std::uint32_t key, const ibv_mw_bind_info* wanted) {
  build(qp, [&](SendBuilder& builder) {
    qp::SendRequest* const request =
        builder.begin(*qp, SendOpcode::kBindWindow, IBV_QP_EX_WITH_BIND_MW);
    if (!request) return;
    const bool is_good = window && wanted && window->type == IBV_MW_TYPE_2 &&
                         take_binding(*window, key, *wanted, *request);
    if (!is_good) builder.fail(EINVAL);
  });
}

// What this NIC does not have: creating refuses the flags that go with these.
void send_segmented(ibv_qp_ex* qp, void*, std::uint16_t, std::uint16_t) {
  builder_of(qp).fail(EOPNOTSUPP);
}
void set_xrc_srq(ibv_qp_ex* qp, std::uint32_t number) { builder_of(qp).set_shared_queue(number); }

void start(ibv_qp_ex* qp) { builder_of(qp).start(); }
void abort(ibv_qp_ex* qp) { builder_of(qp).abort(); }
int complete(ibv_qp_ex* qp) {
  if (is_inherited(&qp->qp_base)) builder_of(qp).fail(EIO);
  return builder_of(qp).complete();
}

}  // namespace

// A program looks for it behind what its header had before.
static_assert(offsetof(QpFace, wr_flush) == sizeof(ibv_qp_ex));

void set_builders(Qp& ours) {
  ibv_qp_ex& qp = ours.face;
  ours.wr_flush = flush;
  qp.wr_atomic_cmp_swp = compare_swap;
  qp.wr_atomic_fetch_add = fetch_add;
  qp.wr_bind_mw = bind_window;
  qp.wr_local_inv = with_word<SendOpcode::kLocalInvalidate, IBV_QP_EX_WITH_LOCAL_INV>;
  qp.wr_rdma_read = remote<SendOpcode::kRead, IBV_QP_EX_WITH_RDMA_READ>;
  qp.wr_rdma_write = remote<SendOpcode::kWrite, IBV_QP_EX_WITH_RDMA_WRITE>;
  qp.wr_rdma_write_imm = write_with_immediate;
  qp.wr_send = send;
  qp.wr_send_imm = with_word<SendOpcode::kSendWithImmediate, IBV_QP_EX_WITH_SEND_WITH_IMM>;
  qp.wr_send_inv = with_word<SendOpcode::kSendWithInvalidate, IBV_QP_EX_WITH_SEND_WITH_INV>;
  qp.wr_send_tso = send_segmented;
  qp.wr_set_ud_addr = set_address;
  qp.wr_set_xrc_srqn = set_xrc_srq;
  qp.wr_set_inline_data = set_inline_data;
  qp.wr_set_inline_data_list = set_inline_data_list;
  qp.wr_set_sge = set_sge;
  qp.wr_set_sge_list = set_sge_list;
  qp.wr_start = start;
  qp.wr_complete = complete;
  qp.wr_abort = abort;
  qp.wr_atomic_write = atomic_write;
}

}  // namespace verbena::verbs
