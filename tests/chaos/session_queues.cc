// SPDX-License-Identifier: MIT
// The queue pairs of a session, and what they need.
#include <cerrno>
#include <cstring>
#include <utility>

#include "session.h"

namespace chaos {
namespace {

// FLUSH came after the headers that we are built with.
constexpr std::uint64_t kWithFlush = 1 << 11;
constexpr unsigned kMayFlush = 1 << 8;

ibv_qp_type type_of(Service service) {
  switch (service) {
    case Service::kReliable: return IBV_QPT_RC;
    case Service::kUnreliable: return IBV_QPT_UC;
    case Service::kDatagrams: return IBV_QPT_UD;
    case Service::kExtended: return IBV_QPT_XRC_SEND;
  }
  return IBV_QPT_RC;
}

}  // namespace

void Session::make() {
  if (is_extended()) create_queues();
  if (!qp_) create_qp();
  if (shape_.has_windows) create_windows();
  if (!complaint_.empty()) return;
  to_init();
  if (pool_) return;
  for (std::uint32_t place = 0; place < shape_.depth * shape_.habits.queues; ++place) {
    if (shape_.posts_late) {
      late_.push_back(place);
    } else {
      post_receive(place);
    }
  }
}

void Session::create_queues() {
  ibv_srq_init_attr_ex wanted{};
  wanted.attr = {Shape::kDepthMax, 1, 0};
  wanted.comp_mask =
      IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
  wanted.srq_type = IBV_SRQT_XRC;
  wanted.pd = device_.pd;
  wanted.xrcd = device_.domain;
  wanted.cq = cq_;
  for (ibv_srq*& queue : queues_) {
    queue = ibv_create_srq_ex(device_.context, &wanted);
    if (!queue) return complain("ibv_create_srq_ex: " + std::string(std::strerror(errno)));
  }
}

void Session::create_qp() {
  ibv_qp_init_attr_ex wanted{};
  wanted.send_cq = cq_;
  wanted.recv_cq = is_extended() ? nullptr : cq_;
  wanted.srq = pool_ ? pool_->queue() : nullptr;
  wanted.cap = {Shape::kDepthMax + Shape::kWindows + 1, is_extended() ? 0 : Shape::kDepthMax,
                workload::Request::kPiecesMax, is_extended() ? 0u : 1u, Shape::kInlineMax};
  wanted.qp_type = type_of(settings_.service);
  wanted.comp_mask = IBV_QP_INIT_ATTR_PD;
  wanted.pd = device_.pd;
  if (is_reliable()) {
    wanted.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    wanted.send_ops_flags = kWithFlush;
  }
  qp_ = ibv_create_qp_ex(device_.context, &wanted);
  if (!qp_) return complain("ibv_create_qp_ex: " + std::string(std::strerror(errno)));
  if (!is_extended()) return;
  wanted = {};
  wanted.qp_type = IBV_QPT_XRC_RECV;
  wanted.comp_mask = IBV_QP_INIT_ATTR_XRCD;
  wanted.xrcd = device_.domain;
  target_ = ibv_create_qp_ex(device_.context, &wanted);
  if (!target_) complain("ibv_create_qp_ex of XRC: " + std::string(std::strerror(errno)));
}

void Session::create_windows() {
  for (ibv_mw*& window : windows_) {
    window = ibv_alloc_mw(device_.pd, IBV_MW_TYPE_2);
    if (!window) return complain("ibv_alloc_mw: " + std::string(std::strerror(errno)));
  }
}

void Session::destroy() {
  if (qp_) require(ibv_destroy_qp(qp_), "ibv_destroy_qp");
  if (target_) require(ibv_destroy_qp(target_), "ibv_destroy_qp of XRC");
  if (ah_) require(ibv_destroy_ah(ah_), "ibv_destroy_ah");
  for (ibv_srq*& queue : queues_) {
    if (queue) require(ibv_destroy_srq(queue), "ibv_destroy_srq");
    queue = nullptr;
  }
  for (ibv_mw*& window : windows_) {
    if (window) require(ibv_dealloc_mw(window), "ibv_dealloc_mw");
    window = nullptr;
  }
  qp_ = target_ = nullptr;
  ah_ = nullptr;
}

ibv_qp* Session::release() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RESET;
  require(ibv_modify_qp(qp_, &attributes, IBV_QP_STATE), "RESET");
  if (ah_) require(ibv_destroy_ah(ah_), "ibv_destroy_ah");
  ah_ = nullptr;
  return std::exchange(qp_, nullptr);
}

Address Session::address() const {
  Address at{.qpn = target_qpn(),
             .sender = qp_->qp_num,
             .gid = device_.gid,
             .window = arena_.window_address(),
             .cells = arena_.cells_address(),
             .key = arena_.remote_key()};
  for (std::size_t i = 0; i < queues_.size(); ++i)
    if (queues_[i]) ibv_get_srq_num(queues_[i], &at.queues[i]);
  if (device_.foreign) ibv_get_srq_num(device_.foreign, &at.foreign_queue);
  for (std::size_t i = 0; i < windows_.size(); ++i)
    if (windows_[i]) at.windows[i] = ibv_inc_rkey(windows_[i]->rkey);
  return at;
}

void Session::to_init() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = 1;
  attributes.qkey = kQkey;
  attributes.qp_access_flags =
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
      (is_reliable() ? IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | kMayFlush : 0u);
  const int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                   (is_datagram() ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
  require(ibv_modify_qp(qp_, &attributes, mask), "INIT");
  if (target_) require(ibv_modify_qp(target_, &attributes, mask), "INIT of XRC");
}

std::uint32_t Session::psn_of(unsigned role) const {
  const bool may_be_used_again = settings_.service == Service::kReliable;
  return settings_.is_wire && may_be_used_again ? psn_apart(settings_.id, settings_.steps)
                                                : first_psn(settings_.seed, role);
}

bool Session::to_rts() {
  ibv_qp_attr attributes{};
  attributes.ah_attr.is_global = 1;
  attributes.ah_attr.port_num = 1;
  attributes.ah_attr.grh.dgid = peer_.gid;
  attributes.ah_attr.grh.hop_limit = 1;
  attributes.path_mtu = IBV_MTU_1024;
  attributes.dest_qp_num = peer_.qpn;
  attributes.max_dest_rd_atomic = attributes.max_rd_atomic = 4;
  attributes.min_rnr_timer = 6;
  // Eight tries in all: a peer may be stopped for a while before it is connected.
  attributes.timeout = static_cast<std::uint8_t>(settings_.timeout);
  attributes.retry_cnt = attributes.rnr_retry = 7;
  attributes.sq_psn = psn_of(settings_.role);
  attributes.rq_psn = psn_of(1 - settings_.role);
  int to_receive = IBV_QP_STATE, to_send = IBV_QP_STATE | IBV_QP_SQ_PSN;
  if (!is_datagram()) to_receive |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  const int as_responder = is_reliable() ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0;
  if (is_reliable())
    to_send |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  attributes.qp_state = IBV_QPS_RTR;
  require(ibv_modify_qp(qp_, &attributes, to_receive | (target_ ? 0 : as_responder)), "RTR");
  if (target_) {
    attributes.dest_qp_num = peer_.sender;
    require(ibv_modify_qp(target_, &attributes, to_receive | as_responder), "RTR of XRC");
  }
  attributes.qp_state = IBV_QPS_RTS;
  const int error = ibv_modify_qp(qp_, &attributes, to_send);
  // The peer's first request may have been one that had to be refused.
  if (error != 0 && peers_bad_) return false;
  require(error, "RTS");
  if (!is_datagram()) return true;
  ah_ = ibv_create_ah(device_.pd, &attributes.ah_attr);
  if (!ah_) complain("ibv_create_ah: " + std::string(std::strerror(errno)));
  return true;
}

}  // namespace chaos
