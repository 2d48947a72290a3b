// SPDX-License-Identifier: MIT
#include "nic/nic_qp.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/fence.h"
#include "nic/engine.h"
#include "nic/nic.h"
#include "nic/raw_carrier.h"
#include "nic/target_relay.h"
#include "nic/wire_qp.h"

namespace verbena::nic {
namespace {

queues::CompletionQueue& completions_of_receives(const QpRequest& request) {
  return request.srq && request.srq->tags ? request.srq->cq->queue : request.receive_cq->queue;
}

qp::QpConfig config_for(Pd& domain, const QpRequest& request, QpNum number, qp::QpEvents& events) {
  return {.type = request.type,
          .xrc = request.xrc,
          .number = number,
          .pd = domain.id,
          .receive_pd = request.srq ? request.srq->pd->id : domain.id,
          .signal_all = request.signal_all,
          .send_depth = request.send_depth,
          .send_sge_max = request.send_sge_max,
          .inline_max = request.inline_max,
          .receive_depth = request.receive_depth,
          .receive_sge_max = request.receive_sge_max,
          .send_completions = &request.send_cq->queue,
          .receive_completions = &completions_of_receives(request),
          .shared_receives = request.srq ? &request.srq->queue : nullptr,
          .tags = request.srq ? request.srq->tags.get() : nullptr,
          .shared_queues = request.shared_queues,
          .regions = &domain.context->nic().regions(),
          .lock = domain.context->nic().sharing().lock_of(number),
          .events = &events,
          .receives_as = request.relayed_by,
          .datagram_max = request.type == qp::QpType::kRawPacket ? RawCarrier::kFrameMax : 4096};
}

AsyncKind kind_of(qp::QpEvent event) {
  switch (event) {
    case qp::QpEvent::kFatal: return AsyncKind::kQpFatal;
    case qp::QpEvent::kRequestError: return AsyncKind::kQpRequestError;
    case qp::QpEvent::kAccessError: return AsyncKind::kQpAccessError;
    case qp::QpEvent::kCommunicationEstablished: return AsyncKind::kCommunicationEstablished;
    case qp::QpEvent::kSendQueueDrained: return AsyncKind::kSendQueueDrained;
    case qp::QpEvent::kLastReceiveReached: return AsyncKind::kLastReceiveReached;
  }
  return AsyncKind::kQpFatal;
}

}  // namespace

Qp::Qp(Pd& domain, const QpRequest& request, QpNum number, RawPort* raw_port)
    : pair(config_for(domain, request, number, *this)),
      pd_(&domain),
      send_cq_(request.send_cq),
      receive_cq_(request.receive_cq),
      srq_(request.srq),
      cookie_(request.cookie),
      engine_(domain.context->nic().engine()),
      relayed_by_(request.relayed_by),
      is_work_queue_(request.is_work_queue),
      raw_port_(raw_port),
      table_(request.table) {
  if (table_) scaling_.emplace(*table_, *request.hashing);
  if (raw_port_ && !table_) raw_ = std::make_unique<RawCarrier>(*raw_port_, clock_now);
  if (request.type == qp::QpType::kUd) {
    datagrams_ = std::make_unique<local::DatagramCarrier>(number, engine_->links());
  }
  if (request.xrc == qp::Xrc::kTarget && !relayed_by_) {
    relay_ = std::make_unique<TargetRelay>(engine_->links(), number);
    pair.responder().relay_by(relay_.get());
  }
}

Qp::~Qp() = default;

bool Qp::turn(const Now& now) {
  if (wire_) [[unlikely]]
    return turn_on_wire(now);
  bool more = false;
  if (ring_) {
    qp::Budget answers;
    ring_->collect(pair.window(), answers, now);
    qp::Budget requests;
    more = ring_->serve(pair.responder(), requests, now);
    more |= answers.spent();
  }
  if (ring_ && !pair.window().has_unissued()) {
    after_turn(now);
  } else {
    more |= send(now);
  }
  return more;
}

bool Qp::send(const Now& now) {
  if (wire_) [[unlikely]]
    return send_on_wire(now);
  qp::Carrier* carrier = ring_ ? static_cast<qp::Carrier*>(ring_.get()) : datagrams_.get();
  if (raw_) carrier = raw_.get();
  if (!carrier) return false;
  qp::Budget budget;
  carrier->issue(pair.window(), budget, now);
  after_turn(now);
  return budget.spent();
}

void Qp::pace() {
  if (raw_) raw_->pace(pair.attributes().rate_limit, pair.attributes().rate_burst);
}

void Qp::after_turn(const Now& now) {
  if (ring_) {
    if (pair.state() == qp::QpState::kError) [[unlikely]] {
      ring_->close();
      settled_connection_ = 0;
    }
    ring_->show();
    ring_->ring_if_needed();
    if (ring_->has_unnoticed_end()) [[unlikely]]
      engine_->want_turn(number());
  }
  if (!is_grant_settled()) settle_grant();
  if (pair.config().xrc == qp::Xrc::kTarget) [[unlikely]]
    settle_relay();
  const bool waits = ring_ ? pair.window().has_outstanding()
                           : datagrams_ && datagrams_->next_deadline().has_value();
  awaits_answer.store(waits, std::memory_order_relaxed);
  if (wants_timer()) engine_->note_deadline(*this, now);
}

bool Qp::wants_timer() {
  if (ring_ && ring_->next_deadline()) return true;
  if (raw_ && raw_->next_deadline()) return true;
  return datagrams_ || wire_ || pair.window().resume_at();
}

Instant Qp::deadline(const Now& now) {
  Instant earliest = Instant::never();
  const auto consider = [&](std::optional<Instant> at) {
    if (at && *at < earliest) earliest = *at;
  };
  if (ring_) consider(ring_->next_deadline());
  if (datagrams_) consider(datagrams_->next_deadline());
  if (raw_) consider(raw_->next_deadline());
  if (wire_) earliest = std::min(earliest, wire_->next_deadline(now));
  // A timer that is over and was not used waits for something else, and that gives a turn.
  const std::optional<Instant> resume = pair.window().resume_at();
  if (resume && *resume > now) consider(resume);
  return earliest;
}

void Qp::begin_connection(bool is_local) {
  end_connection();
  ring_ = std::make_unique<local::RingCarrier>(pair.config().type, &glance);
  if (is_local) {
    connecting = ConnectStage::kLooking;
  } else {
    // Another host, and no wire yet: silence.
    ring_->peer_absent();
  }
}

void Qp::set_timeout() {
  if (ring_) ring_->set_timeout(qp::ack_timeout(pair.attributes().timeout));
  if (wire_ && pair.state() == qp::QpState::kReadyToSend) wire_->engine().start(pair.attributes());
}

void Qp::end_connection() {
  if (ring_) {
    former_ring_ = std::move(ring_);
    // In this order: a peer that still finds the grant has its iovecs emptied, whenever it wakes.
    settle_grant();
    full_fence();
    former_ring_->stop_reaching();
    former_ring_->close();
    former_ring_->ring_if_needed();
    glance.show({});
    answer_pace.reset();
  }
  wire_.reset();
  if (relay_) relay_->close();
  connecting = ConnectStage::kNot;
  given_up_.reset();
  link = LinkRef();
  engine_->forget_deadline(*this);
}

std::uint32_t Qp::wanted_rights() {
  const bool serves = pair.responder().is_receiving() && !pair.responder().awaits_first_message();
  if (given_up_ && !given_up_->watch.is_over()) return 0;
  given_up_.reset();
  // Who cannot be seen in its sections could not be waited for.
  if (!ring_ || !serves || ring_->offered_id() == 0 || !peer_lock()) return 0;
  // Whose memory it is says each request.
  if (pair.config().xrc != qp::Xrc::kNo) return 0;
  const qp::QpAttributes& attributes = pair.attributes();
  std::uint32_t rights = attributes.access & memory::kRemoteWrite;
  if (pair.config().type == qp::QpType::kRc && attributes.reads_in_max != 0) {
    rights |= attributes.access & (memory::kRemoteRead | memory::kRemoteAtomic);
  }
  return rights;
}

void Qp::settle_grant() {
  const std::uint32_t wanted = wanted_rights();
  const std::uint64_t connection = wanted ? ring_->offered_id() : 0;
  const bool is_final = ring_ && pair.responder().is_receiving() && !given_up_ && peer_lock() &&
                        !pair.responder().awaits_first_message();
  settled_connection_ = is_final ? ring_->offered_id() : 0;
  if (wanted == granted_rights_ && connection == granted_connection_) return;
  const local::Published& published = pd_->context->nic().sharing().published();
  if (granted_rights_ != 0) published.revoke(number());
  granted_rights_ = wanted;
  granted_connection_ = connection;
  if (wanted == 0) return;
  has_peer.store(true, std::memory_order_relaxed);
  published.grant(number(), {.pd = pd_->id,
                             .to = pair.attributes().destination,
                             .rights = wanted,
                             .connection = connection});
}

const SectionLock* Qp::peer_lock() const {
  if (!link) return nullptr;
  const local::PublishedTables* tables = link->memory().tables();
  const QpNum peer = pair.attributes().destination;
  if (!tables || tables->slot != peer.slot().value) return nullptr;
  return &tables->queue_pairs[peer.index()].lock;
}

PeerSection Qp::peer_section() {
  if (!has_peer.load(std::memory_order_relaxed)) return {};
  const SectionLock* const lock = peer_lock();
  if (!lock) return {};
  return {.link = link, .lock = lock, .ours = number()};
}

void Qp::give_up(const PeerSection& section, const SectionLock::Watch& watch, bool is_for_good) {
  if (!ring_ || link.get() != section.link.get() || peer_lock() != section.lock) return;
  given_up_ = {.section = section, .watch = watch, .is_for_good = is_for_good};
  settle_grant();
  full_fence();
  ring_->stop_reaching();
  // Grants again when it is over after all.
  engine_->want_turn(number());
}

bool Qp::has_given_up_for_good(const PeerSection& section) const {
  return given_up_ && given_up_->is_for_good && given_up_->section.lock == section.lock &&
         !given_up_->watch.is_over();
}

// After every turn of an XRC target.
void Qp::settle_relay() {
  const bool has_failed = pair.state() == qp::QpState::kError;
  if (relay_) {
    if (has_failed)
      relay_->close();
    else
      relay_->ring_if_needed();
  }
  // Whose requests it would execute has left it.
  if (relayed_by_ && ring_ && (has_failed || ring_->peer_left() || ring_->is_lost()))
    engine_->links().end_hidden_target(number());
}

bool Qp::is_being_copied() {
  if (!ring_ || !link || !ring_->lends(pair.window())) return false;
  link->doorbell().nudge();
  return true;
}

void Qp::qp_flushes(QpNum) {
  if (ring_) ring_->take_back_lent();
}

void Qp::qp_event(QpNum, qp::QpEvent event) {
  if (relayed_by_) return;  // the program has no such queue pair
  if (is_work_queue_) {
    if (event != qp::QpEvent::kFatal) return;  // there is no other one of a work queue
    pd_->context->async_events().push({AsyncKind::kWqFatal, cookie_, &async_events_});
    return;
  }
  pd_->context->async_events().push({kind_of(event), cookie_, &async_events_});
}

}  // namespace verbena::nic
