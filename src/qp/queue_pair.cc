// SPDX-License-Identifier: MIT
#include "qp/queue_pair.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>

#include "memory/window_table.h"
#include "qp/opcode.h"

namespace verbena::qp {

using queues::SendWqe;

namespace {

std::unique_ptr<queues::ReceiveQueue> receives_for(const QpConfig& config) {
  if (config.shared_receives) return nullptr;
  return std::make_unique<queues::ReceiveQueue>(config.receive_depth, config.receive_sge_max,
                                                nullptr, queues::Takers::kOneAtATime);
}

// Its own work requests have places, SGEs and inline bytes beside those of the program.
std::uint32_t send_depth_of(const QpConfig& config) {
  const std::uint32_t depth = config.send_depth == 0 ? 0 : std::bit_ceil(config.send_depth);
  return config.tags ? depth + RendezvousQueue::kReserve : depth;
}
std::uint32_t send_sge_max_of(const QpConfig& config) {
  return config.tags ? std::max(config.send_sge_max, kTagSgeMax) : config.send_sge_max;
}
std::uint32_t inline_max_of(const QpConfig& config) {
  return config.tags ? std::max(config.inline_max, RendezvousQueue::kFinishBytes)
                     : config.inline_max;
}

std::uint64_t total_length(std::span<const Sge> sges) {
  std::uint64_t length = 0;
  for (const Sge& sge : sges)
    length += sge.length;
  return length;
}

}  // namespace

QueuePair::QueuePair(const QpConfig& config)
    : lock_(config.lock ? config.lock : &own_lock_),
      config_(config),
      may_bypass_queue_(config.xrc == Xrc::kNo && !config.tags && config.send_depth != 0),
      send_queue_(send_depth_of(config), send_sge_max_of(config), inline_max_of(config)),
      own_receives_(receives_for(config)),
      window_({.type = config.type,
               .qp = config.number,
               .pd = config.pd,
               .is_xrc = config.xrc != Xrc::kNo,
               .signal_all = config.signal_all,
               .queue = &send_queue_,
               .completions = config.send_completions,
               .regions = config.regions,
               .owner = this,
               .datagram_max = config.datagram_max}),
      responder_({.type = config.type,
                  .xrc = config.xrc,
                  .qp = config.receives_as.value_or(config.number),
                  .pd = config.pd,
                  .queue = config.shared_receives ? config.shared_receives : own_receives_.get(),
                  .is_shared = config.shared_receives != nullptr || config.xrc == Xrc::kTarget,
                  .shared_queues = config.shared_queues,
                  .tags = config.tags,
                  .receive_pd = config.shared_receives ? config.receive_pd : config.pd,
                  .completions = config.receive_completions,
                  .regions = config.regions,
                  .owner = this}),
      rendezvous_(config.tags
                      ? std::make_unique<RendezvousQueue>(config.number, *config.tags, send_queue_)
                      : nullptr) {
  // What there is may be more than what was asked for.
  config_.send_depth = config.send_depth == 0 ? 0 : std::bit_ceil(config.send_depth);
  if (config.tags) program_ = std::make_unique<ProgramPlaces>(config_.send_depth);
}

// -- states -------------------------------------------------------------------------------------

Result<void, ModifyError> QueuePair::modify(const QpAttributes& wanted, std::uint32_t mask) {
  // A program that names the current state wants to know when the queue pair has left it by itself
  // (11.2.5.2).
  if ((mask & kCurrentState) && wanted.current_state != state())
    return refuse(ModifyError::kBadMove);
  const QpState to = mask & kState ? wanted.state : state();
  if (auto allowed = check_attributes({config_.type, config_.xrc}, state(), to, mask); !allowed)
    return allowed;
  if (auto possible = check_values(config_.type, wanted, mask); !possible) return possible;
  take_values(wanted, mask);
  enter(to);
  return {};
}

void QueuePair::take_values(const QpAttributes& wanted, std::uint32_t mask) {
  QpAttributes& mine = attributes_;
  if (mask & kNotifyDrained) mine.notify_drained = wanted.notify_drained;
  if (mask & kAccessFlags) mine.access = wanted.access;
  if (mask & kPkeyIndex) mine.pkey_index = wanted.pkey_index;
  if (mask & kPort) mine.port = wanted.port;
  if (mask & kQkey) mine.qkey = wanted.qkey;
  if (mask & kAddressVector) mine.path = wanted.path;
  if (mask & kPathMtu) mine.path_mtu = wanted.path_mtu;
  if (mask & kTimeout) mine.timeout = wanted.timeout;
  if (mask & kRetryCount) mine.retry_count = wanted.retry_count;
  if (mask & kRnrRetry) mine.rnr_retry = wanted.rnr_retry;
  if (mask & kReceivePsn) mine.receive_psn = wanted.receive_psn;
  if (mask & kReadsOutMax) mine.reads_out_max = wanted.reads_out_max;
  if (mask & kRnrTimer) mine.rnr_timer = wanted.rnr_timer;
  if (mask & kSendPsn) mine.send_psn = wanted.send_psn;
  if (mask & kReadsInMax) mine.reads_in_max = wanted.reads_in_max;
  if (mask & kPathMigration) mine.path_migration = wanted.path_migration;
  if (mask & kDestinationQp) mine.destination = wanted.destination;
  if (mask & kRateLimit) mine.rate_limit = wanted.rate_limit;
  if (mask & kRateLimit) mine.rate_burst = wanted.rate_burst;
}

void QueuePair::enter(QpState to) {
  const QpState from = state();
  switch (to) {
    case QpState::kReset: return start_afresh();
    case QpState::kError: return enter_error();
    case QpState::kInit: return set_state(to);
    case QpState::kReadyToReceive: set_state(to); return responder_.start(attributes_);
    case QpState::kReadyToSend:
      set_state(to);
      responder_.start(attributes_);
      window_.start(attributes_);
      return post_rendezvous();
    case QpState::kDrained:
      set_state(to);
      responder_.start(attributes_);
      window_.start(attributes_);
      if (from != to) window_.stop_new();
      return;
    case QpState::kSendError: return;  // nobody moves there by hand
  }
}

void QueuePair::set_state(QpState to) {
  attributes_.state = attributes_.current_state = to;
  receive_state_.store(to, std::memory_order_release);
}

void QueuePair::start_afresh() {
  attributes_ = QpAttributes{};
  fatal_told_ = false;
  set_state(QpState::kReset);
  window_.reset();
  responder_.reset();
  if (rendezvous_) rendezvous_->forget();
  if (program_) program_->forget();
  config_.regions->windows().release(config_.number);
  // What was not polled yet belongs to a life that is over (10.3.1.1: removed).
  config_.send_completions->remove(config_.number);
  config_.receive_completions->remove(config_.number);
}

void QueuePair::enter_error() {
  const bool enters = state() != QpState::kError;
  set_state(QpState::kError);
  // A post that did not see this state yet has begun; its receive is flushed, too.
  if (own_receives_) own_receives_->wait_for_posts();
  window_.flush();
  responder_.flush();
  if (rendezvous_) static_cast<void>(rendezvous_->flush());
  if (enters && config_.shared_receives) tell(QpEvent::kLastReceiveReached);
}

void QueuePair::fail(QpEvent event) {
  if (state() == QpState::kReset) return;
  // Both queues may lose a completion over the same failure.
  if (event != QpEvent::kFatal || !fatal_told_) tell(event);
  fatal_told_ |= event == QpEvent::kFatal;
  enter_error();
}

bool QueuePair::is_draining() const { return state() == QpState::kDrained && window_.has_work(); }

void QueuePair::tell(QpEvent event) {
  if (config_.events) config_.events->qp_event(config_.number, event);
}

void QueuePair::abandon() {
  responder_.abandon();
  if (rendezvous_) rendezvous_->forget();
}

// -- what the two halves report -----------------------------------------------------------------

void QueuePair::window_failed(WindowFault fault) {
  if (fault == WindowFault::kCompletionLost) return fail(QpEvent::kFatal);
  if (config_.type == QpType::kRc) return enter_error();
  set_state(QpState::kSendError);
}

// Of the others nothing is needed any more once it is sent, and some go on after it.
void QueuePair::window_flushes() {
  if (config_.type == QpType::kRc && config_.events) config_.events->qp_flushes(config_.number);
}

void QueuePair::window_drained() {
  if (attributes_.notify_drained) tell(QpEvent::kSendQueueDrained);
}

void QueuePair::responder_failed(ResponderFault fault) {
  switch (fault) {
    case ResponderFault::kAccess: return fail(QpEvent::kAccessError);
    case ResponderFault::kRequest: return fail(QpEvent::kRequestError);
    case ResponderFault::kReceive: return enter_error();
    case ResponderFault::kCompletionLost: return fail(QpEvent::kFatal);
  }
}

// A message may match before we can send: in RTR it waits.
void QueuePair::rendezvous_matched(TagHandle entry) {
  rendezvous_->add(entry);
  post_rendezvous();
}

void QueuePair::post_rendezvous() {
  if (rendezvous_ && (state() == QpState::kReadyToSend || state() == QpState::kDrained))
    rendezvous_->post();
}

bool QueuePair::internal_done(std::uint64_t wr_id, OpKind kind, queues::Status status,
                              Reason reason) {
  if (!rendezvous_) return true;
  const bool is_told = rendezvous_->done(wr_id, kind, status, reason);
  if (status == queues::Status::kSuccess) post_rendezvous();
  return is_told;
}

void QueuePair::communication_established() { tell(QpEvent::kCommunicationEstablished); }

// -- posting ------------------------------------------------------------------------------------

Result<void, PostError> QueuePair::post_send(const SendRequest& request) {
  if (!window_.accepts_posts() || config_.xrc == Xrc::kTarget)
    return refuse(PostError::kWrongState);
  const OpcodeShape* shape = shape_of(static_cast<std::uint8_t>(request.opcode));
  const bool is_inline = request.flags & queues::kInline;
  if (!shape || !shape->is_on(config_.type) || (is_inline && !shape->may_be_inline()))
    return refuse(PostError::kBadOpcode);
  if (is_inline && total_length(request.sges) > send_queue_.inline_max())
    return refuse(PostError::kInlineTooLong);
  if (!is_inline && request.sges.size() > send_queue_.sge_max())
    return refuse(PostError::kTooManySges);
  SendWqe* wqe = send_queue_.room();
  if (!wqe || !window_.has_place() || !has_program_places(1)) return refuse(PostError::kFull);
  fill(*wqe, request);
  if (program_) program_->posted(send_queue_.posted());
  send_queue_.post();
  if (state() == QpState::kError || state() == QpState::kSendError) window_.flush();
  return {};
}

bool QueuePair::has_program_places(std::size_t count) const {
  if (!program_ || count == 0) return true;
  if (count > config_.send_depth) return false;
  const auto former = program_->former(count - 1);
  return !former || window_.has_left(*former);
}

void QueuePair::fill(SendWqe& wqe, const SendRequest& request) const {
  wqe.wr_id = request.wr_id;
  wqe.opcode = static_cast<std::uint8_t>(request.opcode);
  wqe.flags = request.flags;
  wqe.sge_count = 0;
  wqe.immediate = request.immediate;
  wqe.remote_address = request.remote_address;
  wqe.remote_key = request.remote_key.value;
  wqe.inline_length = 0;
  if (config_.type == QpType::kUd)
    wqe.datagram = {request.address_handle, request.remote_qp.value, request.remote_qkey,
                    request.address_pd.value};
  else if (request.opcode == queues::SendOpcode::kFlush)
    pack_flush(request.flush, wqe);
  else if (request.opcode == queues::SendOpcode::kBindWindow)
    wqe.bind = {request.compare_add, request.swap};
  else
    wqe.atomic = {request.compare_add, request.swap};
  if (config_.xrc != Xrc::kNo) name_shared_queue(wqe, request.shared_queue);
  if (!(request.flags & queues::kInline)) {
    wqe.sge_count = static_cast<std::uint16_t>(request.sges.size());
    if (!request.sges.empty())
      std::memcpy(queues::SendQueue::sge_room(wqe), request.sges.data(), request.sges.size_bytes());
    return;
  }
  std::byte* to = queues::SendQueue::inline_room(wqe);
  for (const Sge& sge : request.sges) {
    if (sge.length == 0) continue;
    std::memcpy(to + wqe.inline_length, reinterpret_cast<const void*>(sge.address), sge.length);
    wqe.inline_length += sge.length;
  }
}

// A post that did not see that the queue pair goes to ERR, which waits for the queue's lock.
void QueuePair::flush_late_receive() {
  const std::lock_guard guard(*lock_);
  if (state() == QpState::kError) responder_.flush();
}

}  // namespace verbena::qp
