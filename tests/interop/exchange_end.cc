// SPDX-License-Identifier: MIT
// An end of the exchange over verbs: the queue pair and what comes to its completion queue.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "exchange.h"

namespace exchange {
namespace {

constexpr std::uint32_t kDepth = 128;
constexpr std::uint32_t kNobody = 0x00fffe;  // a number that neither end hands out here
constexpr auto kPatience = std::chrono::seconds(20);

void check(int error, const char* what) {
  if (error != 0) die("%s: %s", what, strerror(error));
}

ibv_mtu mtu_of(std::uint32_t bytes) {
  for (const ibv_mtu mtu : {IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048}) {
    if (bytes == 128u << mtu) return mtu;
  }
  return IBV_MTU_4096;
}

ibv_context* open(const std::string& name) {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  for (int i = 0; i < count; ++i) {
    if (name != ibv_get_device_name(list[i])) continue;
    ibv_context* context = ibv_open_device(list[i]);
    if (context == nullptr) die("%s: %s", name.c_str(), strerror(errno));
    ibv_free_device_list(list);
    return context;
  }
  die("no device %s among %d", name.c_str(), count);
}

Completion plain(const ibv_wc& wc) {
  return {.id = wc.wr_id,
          .status = static_cast<std::uint32_t>(wc.status),
          .opcode = static_cast<std::uint32_t>(wc.opcode),
          .bytes = wc.byte_len,
          .flags = wc.wc_flags,
          .immediate = wc.imm_data,
          .source = wc.src_qp};
}

}  // namespace

End::End(const Setting& setting)
    : setting_(setting), memory_(kRegion), context_(open(setting.device)) {
  pd_ = ibv_alloc_pd(context_);
  cq_ = ibv_create_cq(context_, 4 * kDepth, nullptr, nullptr, 0);
  if (pd_ == nullptr || cq_ == nullptr) die("PD or CQ: %s", strerror(errno));
  mr_ = ibv_reg_mr(pd_, memory_.data(), kRegion, kAllAccess);
  if (mr_ == nullptr) die("ibv_reg_mr: %s", strerror(errno));
}

void End::create(const Plan& plan, bool is_client) {
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = cq_;
  wanted.qp_type = static_cast<ibv_qp_type>(plan.type);
  wanted.cap = {kDepth, kDepth, 4, 4, 64};
  qp_ = ibv_create_qp(pd_, &wanted);
  if (qp_ == nullptr) die("ibv_create_qp: %s", strerror(errno));
  ibv_qp_attr to{};
  to.qp_state = IBV_QPS_INIT;
  to.port_num = 1;
  to.qkey = kQkey;
  to.qp_access_flags = is_client ? kAllAccess : plan.server_access;
  if (plan.type == IBV_QPT_UC)
    to.qp_access_flags &= IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  const int special = plan.type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
  check(ibv_modify_qp(qp_, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | special), "INIT");
}

void End::ready(const Plan& plan, const Identity& peer, bool is_client) {
  ibv_qp_attr to{};
  to.qp_state = IBV_QPS_RTR;
  to.path_mtu = mtu_of(setting_.mtu);
  to.dest_qp_num = is_client && plan.is_misaddressed != 0 ? kNobody : peer.qpn;
  to.rq_psn = to.sq_psn = kFirstPsn;
  to.max_dest_rd_atomic = to.max_rd_atomic = 4;
  to.min_rnr_timer = 14;  // 1.28 ms
  // 268 ms: a machine that has far too much to do may let nobody run for a second.
  to.timeout = 16;
  to.retry_cnt = plan.is_misaddressed != 0 ? 2 : 7;
  to.rnr_retry = static_cast<std::uint8_t>(plan.rnr_retry);
  to.ah_attr.is_global = 1;
  to.ah_attr.port_num = 1;
  to.ah_attr.grh.dgid = peer.gid;
  to.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(setting_.gid_index);
  to.ah_attr.grh.hop_limit = 64;
  int receive = IBV_QP_STATE;
  int send = IBV_QP_STATE | IBV_QP_SQ_PSN;
  if (plan.type != IBV_QPT_UD) {
    receive |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  }
  if (plan.type == IBV_QPT_RC) {
    receive |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    send |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  }
  check(ibv_modify_qp(qp_, &to, receive), "RTR");
  to.qp_state = IBV_QPS_RTS;
  check(ibv_modify_qp(qp_, &to, send), "RTS");
  if (plan.type == IBV_QPT_UD) {
    address_ = ibv_create_ah(pd_, &to.ah_attr);
    if (address_ == nullptr) die("ibv_create_ah: %s", strerror(errno));
  }
}

Identity End::connect(Talk& talk, const Plan& plan, bool is_client) {
  if (qp_ != nullptr) check(ibv_destroy_qp(qp_), "ibv_destroy_qp");
  if (address_ != nullptr) check(ibv_destroy_ah(address_), "ibv_destroy_ah");
  address_ = nullptr;
  create(plan, is_client);
  Identity own{.qpn = qp_->qp_num,
               .key = mr_->rkey,
               .memory = reinterpret_cast<std::uint64_t>(memory_.data())};
  check(ibv_query_gid(context_, 1, setting_.gid_index, &own.gid), "ibv_query_gid");
  setting_.device.copy(own.device, sizeof own.device - 1);
  talk.put(own);
  const auto peer = talk.get<Identity>();
  ready(plan, peer, is_client);
  talk.put(true);
  talk.get<bool>();
  return peer;
}

void End::post_receive(const Request& request) {
  ibv_sge pieces[4] = {};
  const std::uint32_t count = std::min(request.pieces, 4u);
  const std::uint32_t step = request.length / count;
  for (std::uint32_t i = 0; i < count; ++i) {
    pieces[i].addr = reinterpret_cast<std::uint64_t>(memory_.data()) + request.offset + i * step;
    pieces[i].length = i + 1 == count ? request.length - i * step : step;
    pieces[i].lkey = mr_->lkey;
  }
  ibv_recv_wr wr{};
  ibv_recv_wr* bad = nullptr;
  wr.wr_id = request.offset;
  wr.sg_list = pieces;
  wr.num_sge = request.length == 0 ? 0 : static_cast<int>(count);
  check(ibv_post_recv(qp_, &wr, &bad), "ibv_post_recv");
}

std::vector<Completion> End::poll(std::uint32_t count) {
  std::vector<Completion> found;
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (found.size() < count && std::chrono::steady_clock::now() < deadline) {
    ibv_wc wc{};
    const int polled = ibv_poll_cq(cq_, 1, &wc);
    if (polled < 0) die("ibv_poll_cq: %d", polled);
    if (polled > 0) found.push_back(plain(wc));
  }
  return found;
}

}  // namespace exchange
