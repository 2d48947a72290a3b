// SPDX-License-Identifier: MIT
// The states of a session. Its queues are made in session_queues.cc; what is posted and checked is
// in session_data.cc.
#include "session.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <utility>

namespace chaos {
namespace {

constexpr auto kLate = std::chrono::milliseconds(3);

std::optional<std::uint32_t> first_bad(workload::Generator requests) {
  while (!requests.is_over()) {
    const workload::Request request = requests.next();
    if (request.spoiled != workload::Spoiled::kNo) return request.index;
  }
  return std::nullopt;
}

}  // namespace

std::string text(const ibv_wc& completion) {
  std::ostringstream text;
  text << (completion.wr_id & kReceive ? "receive " : "send ") << (completion.wr_id & ~kReceive)
       << " of " << completion.qp_num << ", " << ibv_wc_status_str(completion.status)
       << ", vendor error " << completion.vendor_err;
  return text.str();
}

Session::Session(const Device& device, ibv_cq* cq, const Settings& settings, Pool* pool,
                 ibv_qp* used)
    : device_(device),
      cq_(cq),
      settings_(settings),
      shape_(Shape::of(settings.seed, settings.steps, settings.service)),
      arena_(shape_, settings.seed),
      schedule_(requests_of(settings.seed, settings.role, shape_)),
      peers_(requests_of(settings.seed, 1 - settings.role, shape_)),
      peers_copy_(peers_),
      pool_(pool),
      qp_(used),
      our_bad_(first_bad(schedule_)),
      peers_bad_(first_bad(peers_)),
      shadow_(arena_.window().size()) {
  if (!arena_.register_at(device.pd)) {
    complain("ibv_reg_mr: " + std::string(std::strerror(errno)));
    return;
  }
  make();
}

Session::~Session() { destroy(); }

void Session::complain(const std::string& what) {
  if (!complaint_.empty()) return;
  complaint_ = std::string(to_string(settings_.service)) + " session " +
               std::to_string(settings_.id) + " role " + std::to_string(settings_.role) + " seed " +
               std::to_string(settings_.seed) + " state " +
               std::to_string(static_cast<int>(state_)) + ": " + what;
}

void Session::require(int error, const char* what) {
  if (error != 0) complain(std::string(what) + ": " + std::strerror(error));
}

void Session::connect(const Address& peer) {
  if (state_ != State::kMade) return;  // moved to the error state meanwhile
  peer_ = peer;
  const bool is_good = to_rts();
  state_ = State::kConnected;
  if (!is_good) drain();
}

void Session::start() {
  if (state_ != State::kConnected) return;
  state_ = State::kRunning;
  moved_ = Clock::now();
  if (shape_.has_windows) post_binds();
}

void Session::take(const ibv_wc& completion) {
  moved_ = Clock::now();
  const bool is_receive = (completion.wr_id & kReceive) != 0;
  // The opcode is not there in a completion with an error.
  if (completion.status == IBV_WC_SUCCESS && is_receive != ((completion.opcode & IBV_WC_RECV) != 0))
    return complain("a completion of the wrong kind");
  if (is_receive) {
    take_receive(completion);
  } else {
    take_send(completion);
  }
  const bool is_connected = state_ == State::kRunning || state_ == State::kDone;
  if (completion.status != IBV_WC_SUCCESS && is_connected) state_ = State::kFailed;
  if (state_ == State::kFailed && may_be_refused() && !awaits_pardon_) drain();
  const bool may_end = state_ == State::kDraining || (state_ == State::kFailed && was_told_lost_);
  if (may_end && !is_open()) state_ = State::kOver;
}

void Session::take_failure(ibv_event_type event) {
  if (!peers_bad_ && !was_revoked_) complain(ibv_event_type_str(event));
}

void Session::peer_is_lost() {
  was_told_lost_ = true;
  moved_ = Clock::now();
  if (state_ == State::kFailed && !is_open()) state_ = State::kOver;
  const bool is_connected = state_ == State::kRunning || state_ == State::kDone;
  if (!is_datagram() && is_connected) return post_probe();
  if (state_ != State::kFailed && state_ != State::kOver) drain();
}

void Session::peer_has_revoked() {
  is_pardoned_ = true;
  drain();
}

bool Session::can_revoke() const {
  return is_reliable() && !shape_.has_windows && !was_revoked_ &&
         (state_ == State::kRunning || state_ == State::kDone);
}

void Session::revoke() {
  was_revoked_ = true;
  require(arena_.revoke(), "ibv_dereg_mr");
  when_revoked_.assign(arena_.window().begin(), arena_.window().end());
  cells_when_revoked_ = arena_.cells();
}

// What the peer would have to answer.
void Session::post_probe() {
  if (has_probed_) return;
  has_probed_ = true;
  ibv_send_wr request{};
  ibv_send_wr* bad = nullptr;
  request.wr_id = kProbe;
  request.opcode = IBV_WR_RDMA_WRITE;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = peer_.window;
  request.wr.rdma.rkey = peer_.key;
  request.qp_type.xrc.remote_srqn = peer_.queues[0];
  sends_.posted(request.wr_id, true);
  under_way_.push_back({});
  require(ibv_post_send(qp_, &request, &bad), "the probe");
}

// Unsignaled requests that ended well say nothing: what is flushed after them tells that they did.
void Session::post_last() {
  ibv_send_wr request{};
  ibv_send_wr* bad = nullptr;
  request.wr_id = kLast;
  request.opcode = IBV_WR_SEND;
  request.send_flags = IBV_SEND_SIGNALED;
  request.qp_type.xrc.remote_srqn = peer_.queues[0];
  if (is_datagram()) request.wr.ud = {ah_, peer_.qpn, 0};
  sends_.posted(request.wr_id, true);
  under_way_.push_back({});
  require(ibv_post_send(qp_, &request, &bad), "the last request");
}

void Session::drain() {
  if (state_ == State::kDraining || state_ == State::kOver) return;
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  require(ibv_modify_qp(qp_, &attributes, IBV_QP_STATE), "ERR");
  end_target();
  if (sends_.open() != 0) post_last();
  state_ = is_open() ? State::kDraining : State::kOver;
  moved_ = Clock::now();
}

void Session::end_target() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  if (target_) require(ibv_modify_qp(target_, &attributes, IBV_QP_STATE), "ERR of XRC");
  has_target_ended_ = true;
}

void Session::post_late() {
  if (late_.empty() || Clock::now() < late_until_ || state_ > State::kDone) return;
  late_until_ = Clock::now() + kLate;
  for (std::size_t count = (late_.size() + 1) / 2; count > 0; --count) {
    post_receive(late_.front());
    late_.pop_front();
  }
}

void Session::pump() {
  post_late();
  if (state_ == State::kRunning && was_told_lost_) return;
  while (state_ == State::kRunning && complaint_.empty() && !schedule_.is_over() &&
         sends_.open() < shape_.depth) {
    post(schedule_.next());
  }
  if (state_ == State::kRunning && schedule_.is_over() && sends_.open() == 0) {
    state_ = State::kDone;
  }
}

std::optional<std::string> Session::stuck_for(Clock::duration patience) const {
  const bool waits = state_ == State::kDraining || state_ == State::kFailed || sends_.open() != 0;
  if (!waits || Clock::now() - moved_ < patience) return std::nullopt;
  return std::string(to_string(settings_.service)) + " session " + std::to_string(settings_.id) +
         " seed " + std::to_string(settings_.seed) + " qpn " + std::to_string(qp_->qp_num) +
         " to " + std::to_string(peer_.qpn) + " hangs in state " +
         std::to_string(static_cast<int>(state_)) + ", " + std::to_string(sends_.open()) +
         " sends and " + std::to_string(own_receives()) + " receives open, " +
         (was_told_lost_ ? "the peer is gone" : "the peer is alive") +
         ", first failure: " + first_failure_;
}

}  // namespace chaos
