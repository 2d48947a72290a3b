// SPDX-License-Identifier: MIT
// The queue pair of a session, and its states. What is posted and checked is in session_data.cc.
#include "session.h"

#include <cerrno>
#include <cstring>
#include <utility>

namespace chaos {
namespace {

constexpr std::uint32_t kQkey = 0x11223344;

ibv_qp_type type_of(Kind kind) {
  return kind == Kind::kRc ? IBV_QPT_RC : kind == Kind::kUc ? IBV_QPT_UC : IBV_QPT_UD;
}

}  // namespace

Session::Session(const Device& device, ibv_cq* cq, const Settings& settings, ibv_qp* used)
    : device_(device),
      cq_(cq),
      settings_(settings),
      shape_(Shape::of(settings.seed, settings.steps, settings.kind)),
      arena_(shape_, settings.seed),
      schedule_(settings.seed, settings.role, settings.kind, shape_),
      peers_(settings.seed, 1 - settings.role, settings.kind, shape_),
      peers_copy_(peers_),
      shadow_(arena_.window().size()) {
  if (!arena_.register_at(device.pd)) {
    complain("ibv_reg_mr: " + std::string(std::strerror(errno)));
    return;
  }
  qp_ = used;
  if (!qp_) create_qp();
  if (!qp_) return;
  to_init();
  for (std::uint32_t place = 0; place < shape_.depth; ++place)
    post_receive(place);
}

Session::~Session() { destroy(); }

void Session::destroy() {
  if (qp_) require(ibv_destroy_qp(qp_), "ibv_destroy_qp");
  if (ah_) require(ibv_destroy_ah(ah_), "ibv_destroy_ah");
  qp_ = nullptr;
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

void Session::complain(const std::string& what) {
  if (!complaint_.empty()) return;
  complaint_ = std::string(to_string(settings_.kind)) + " session " + std::to_string(settings_.id) +
               " role " + std::to_string(settings_.role) + " state " +
               std::to_string(static_cast<int>(state_)) + ": " + what;
}

void Session::require(int error, const char* what) {
  if (error != 0) complain(std::string(what) + ": " + std::strerror(error));
}

void Session::create_qp() {
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = cq_;
  wanted.cap = {Shape::kDepthMax + 1, Shape::kDepthMax, 3, 1, 64};
  wanted.qp_type = type_of(settings_.kind);
  qp_ = ibv_create_qp(device_.pd, &wanted);
  if (!qp_) complain("ibv_create_qp: " + std::string(std::strerror(errno)));
}

Address Session::address() const {
  return {qp_->qp_num, device_.gid, arena_.window_address(), arena_.cells_address(),
          arena_.remote_key()};
}

void Session::to_init() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = 1;
  attributes.qkey = kQkey;
  attributes.qp_access_flags =
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
      (settings_.kind == Kind::kRc ? IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC : 0);
  require(ibv_modify_qp(qp_, &attributes,
                        IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                            (settings_.kind == Kind::kUd ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)),
          "INIT");
}

void Session::to_rts() {
  ibv_qp_attr attributes{};
  attributes.ah_attr.is_global = 1;
  attributes.ah_attr.port_num = 1;
  attributes.ah_attr.grh.dgid = peer_.gid;
  attributes.ah_attr.grh.hop_limit = 1;
  attributes.path_mtu = IBV_MTU_1024;
  attributes.dest_qp_num = peer_.qpn;
  attributes.max_dest_rd_atomic = attributes.max_rd_atomic = 4;
  attributes.min_rnr_timer = 6;
  // A second try after 0.5 s, eight in all: a peer may be stopped for a while before it is
  // connected.
  attributes.timeout = 17;
  attributes.retry_cnt = attributes.rnr_retry = 7;
  int to_receive = IBV_QP_STATE, to_send = IBV_QP_STATE | IBV_QP_SQ_PSN;
  if (settings_.kind != Kind::kUd)
    to_receive |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  if (settings_.kind == Kind::kRc) {
    to_receive |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    to_send |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  }
  attributes.qp_state = IBV_QPS_RTR;
  require(ibv_modify_qp(qp_, &attributes, to_receive), "RTR");
  attributes.qp_state = IBV_QPS_RTS;
  require(ibv_modify_qp(qp_, &attributes, to_send), "RTS");
  if (settings_.kind != Kind::kUd) return;
  ah_ = ibv_create_ah(device_.pd, &attributes.ah_attr);
  if (!ah_) complain("ibv_create_ah: " + std::string(std::strerror(errno)));
}

void Session::connect(const Address& peer) {
  peer_ = peer;
  to_rts();
  state_ = State::kRunning;
  moved_ = Clock::now();
}

void Session::take(const ibv_wc& completion) {
  moved_ = Clock::now();
  const bool is_receive = (completion.wr_id >> 63) != 0;
  // The opcode is not there in a completion with an error.
  if (completion.status == IBV_WC_SUCCESS && is_receive != ((completion.opcode & IBV_WC_RECV) != 0))
    return complain("a completion of the wrong kind");
  if (is_receive) {
    take_receive(completion);
  } else {
    take_send(completion);
  }
  if (completion.status != IBV_WC_SUCCESS && state_ == State::kRunning) state_ = State::kFailed;
  if (completion.status != IBV_WC_SUCCESS && state_ == State::kDone) state_ = State::kFailed;
  const bool may_end = state_ == State::kDraining || (state_ == State::kFailed && was_told_lost_);
  if (may_end && !is_open()) state_ = State::kOver;
}

void Session::peer_is_lost() {
  was_told_lost_ = true;
  moved_ = Clock::now();
  if (state_ == State::kFailed && !is_open()) state_ = State::kOver;
  const bool is_connected = state_ == State::kRunning || state_ == State::kDone;
  if (settings_.kind != Kind::kUd && is_connected) return post_probe();
  if (state_ != State::kFailed && state_ != State::kOver) drain();
}

// What the peer would have to answer.
void Session::post_probe() {
  if (has_probed_) return;
  has_probed_ = true;
  ibv_send_wr request{};
  ibv_send_wr* bad = nullptr;
  request.wr_id = std::uint64_t{1} << 32;
  request.opcode = IBV_WR_RDMA_WRITE;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = peer_.window;
  request.wr.rdma.rkey = peer_.key;
  sends_.posted(request.wr_id, true);
  require(ibv_post_send(qp_, &request, &bad), "the probe");
}

void Session::drain() {
  if (state_ == State::kDraining || state_ == State::kOver) return;
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  require(ibv_modify_qp(qp_, &attributes, IBV_QP_STATE), "ERR");
  state_ = is_open() ? State::kDraining : State::kOver;
  moved_ = Clock::now();
}

std::optional<std::string> Session::stuck_for(Clock::duration patience) const {
  const bool waits = state_ == State::kDraining || state_ == State::kFailed || sends_.open() != 0;
  if (!waits || Clock::now() - moved_ < patience) return std::nullopt;
  return std::string(to_string(settings_.kind)) + " session " + std::to_string(settings_.id) +
         " qpn " + std::to_string(qp_->qp_num) + " to " + std::to_string(peer_.qpn) +
         " hangs in state " + std::to_string(static_cast<int>(state_)) + ", " +
         std::to_string(sends_.open()) + " sends and " + std::to_string(receives_.open()) +
         " receives open, " + (was_told_lost_ ? "the peer is gone" : "the peer is alive") +
         ", first failure: " + first_failure_;
}

}  // namespace chaos
