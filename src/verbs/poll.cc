// SPDX-License-Identifier: MIT
// Taking completions: ibv_poll_cq(3), and one by one with ibv_start_poll and the readers
// (ibv_create_cq_ex(3)).
#include <ctime>

#include "verbs/border.h"
#include "verbs/objects.h"

namespace verbena::verbs {
namespace {

using queues::Completion;

static_assert(int{IBV_WC_FATAL_ERR} == static_cast<int>(queues::Status::kFatal));
static_assert(int{IBV_WC_RNR_RETRY_EXC_ERR} == static_cast<int>(queues::Status::kRnrRetryExceeded));
static_assert(int{IBV_WC_LOCAL_INV} == static_cast<int>(queues::CompletionKind::kLocalInvalidate));
static_assert(int{IBV_WC_RECV_RDMA_WITH_IMM} ==
              static_cast<int>(queues::CompletionKind::kReceiveWithImmediate));
static_assert(int{IBV_WC_TM_RNDV_INCOMPLETE} ==
                  static_cast<int>(queues::Status::kRendezvousIncomplete) &&
              int{IBV_WC_TM_ERR} == static_cast<int>(queues::Status::kTagOperation));
static_assert(int{IBV_WC_TM_ADD} == static_cast<int>(queues::CompletionKind::kTagAdd) &&
              int{IBV_WC_TM_DEL} == static_cast<int>(queues::CompletionKind::kTagDelete) &&
              int{IBV_WC_TM_SYNC} == static_cast<int>(queues::CompletionKind::kTagSync) &&
              int{IBV_WC_TM_RECV} == static_cast<int>(queues::CompletionKind::kTagReceive) &&
              int{IBV_WC_TM_NO_TAG} == static_cast<int>(queues::CompletionKind::kNoTag));
static_assert(int{IBV_WC_TM_SYNC_REQ} == queues::kTagSyncWanted &&
              int{IBV_WC_TM_MATCH} == queues::kTagMatched &&
              int{IBV_WC_TM_DATA_VALID} == queues::kTagDataValid);
static_assert(int{IBV_WC_GRH} == queues::kHasGrh && int{IBV_WC_WITH_IMM} == queues::kHasImmediate &&
              int{IBV_WC_WITH_INV} == queues::kHasInvalidatedKey);

void show(const Completion& from, ibv_wc& to) {
  to.wr_id = from.wr_id;
  to.status = static_cast<ibv_wc_status>(from.status);
  to.opcode = static_cast<ibv_wc_opcode>(from.kind);
  to.vendor_err = from.vendor_error;
  to.byte_len = from.byte_length;
  to.imm_data = from.immediate;
  to.qp_num = from.qp.value;
  to.src_qp = from.source_qp.value;
  to.wc_flags = from.flags;
  to.pkey_index = from.pkey_index;
  to.slid = from.source_lid;
  to.sl = from.service_level;
  to.dlid_path_bits = 0;
}

// One completion into `current`; ENOENT when there is none.
int take_next(Cq& cq) {
  const int got = cq.nic->poll({&cq.current, 1});
  if (got < 0) return EIO;
  if (got == 0) return ENOENT;
  cq.face.status = static_cast<ibv_wc_status>(cq.current.status);
  cq.face.wr_id = cq.current.wr_id;
  return 0;
}

void end_poll(ibv_cq_ex* cq) {
  if (!own(cq).is_single_threaded) own(cq).polling.unlock();
}

int start_poll(ibv_cq_ex* cq, ibv_poll_cq_attr* attributes) {
  if (attributes && attributes->comp_mask) return EINVAL;
  if (is_inherited(cq)) return EIO;
  if (!own(cq).is_single_threaded) own(cq).polling.lock();
  const int error = take_next(own(cq));
  if (error) end_poll(cq);  // the program calls it only after a success
  return error;
}

int next_poll(ibv_cq_ex* cq) { return take_next(own(cq)); }

ibv_wc_opcode read_opcode(ibv_cq_ex* cq) {
  return static_cast<ibv_wc_opcode>(own(cq).current.kind);
}
std::uint32_t read_vendor_error(ibv_cq_ex* cq) { return own(cq).current.vendor_error; }
std::uint32_t read_byte_length(ibv_cq_ex* cq) { return own(cq).current.byte_length; }
__be32 read_immediate(ibv_cq_ex* cq) { return own(cq).current.immediate; }
std::uint32_t read_qp(ibv_cq_ex* cq) { return own(cq).current.qp.value; }
std::uint32_t read_source_qp(ibv_cq_ex* cq) { return own(cq).current.source_qp.value; }
unsigned read_flags(ibv_cq_ex* cq) { return own(cq).current.flags; }
std::uint32_t read_source_lid(ibv_cq_ex* cq) { return own(cq).current.source_lid; }
std::uint8_t read_service_level(ibv_cq_ex* cq) { return own(cq).current.service_level; }
std::uint8_t read_path_bits(ibv_cq_ex*) { return 0; }
std::uint64_t read_timestamp(ibv_cq_ex* cq) { return own(cq).current.timestamp; }
// RoCEv2 comes by sockets: no VLAN's tag is left there.
std::uint16_t read_vlan(ibv_cq_ex*) { return 0; }
std::uint32_t read_flow_tag(ibv_cq_ex* cq) { return own(cq).current.flow_tag; }
void read_tag_matching(ibv_cq_ex* cq, ibv_wc_tm_info* to) {
  const Completion& completion = own(cq).current;
  *to = {.tag = queues::tag_of(completion), .priv = completion.flow_tag};
}

std::int64_t nanoseconds_of(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// The clock of the wall is set now and then, so timestamps are of the other; what lies between them
// is asked for here.
std::uint64_t read_wallclock(ibv_cq_ex* cq) {
  // Whoever is interrupted between two clocks takes them once more.
  constexpr std::int64_t kAtOnce = 10'000;
  std::int64_t before = 0;
  std::int64_t wall = 0;
  std::int64_t after = 0;
  for (int tries = 0; tries < 3; ++tries) {
    before = nanoseconds_of(CLOCK_MONOTONIC);
    wall = nanoseconds_of(CLOCK_REALTIME);
    after = nanoseconds_of(CLOCK_MONOTONIC);
    if (after - before < kAtOnce) break;
  }
  const std::int64_t between = before + (after - before) / 2;
  return own(cq).current.timestamp + static_cast<std::uint64_t>(wall - between);
}

}  // namespace

void set_readers(ibv_cq_ex& cq) {
  cq.start_poll = start_poll;
  cq.next_poll = next_poll;
  cq.end_poll = end_poll;
  cq.read_opcode = read_opcode;
  cq.read_vendor_err = read_vendor_error;
  cq.read_byte_len = read_byte_length;
  cq.read_imm_data = read_immediate;
  cq.read_qp_num = read_qp;
  cq.read_src_qp = read_source_qp;
  cq.read_wc_flags = read_flags;
  cq.read_slid = read_source_lid;
  cq.read_sl = read_service_level;
  cq.read_dlid_path_bits = read_path_bits;
  cq.read_completion_ts = read_timestamp;
  cq.read_cvlan = read_vlan;
  cq.read_flow_tag = read_flow_tag;
  cq.read_tm_info = read_tag_matching;
  cq.read_completion_wallclock_ns = read_wallclock;
}

int poll_cq(ibv_cq* cq, int room, ibv_wc* to) noexcept {
  if (is_inherited(cq)) [[unlikely]] {
    errno = EIO;
    return -1;
  }
  if (room <= 0) [[unlikely]]
    return 0;
  return own(cq).nic->poll(static_cast<std::size_t>(room),
                           [&to](const Completion& completion) { show(completion, *to++); });
}

}  // namespace verbena::verbs
