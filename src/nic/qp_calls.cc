// SPDX-License-Identifier: MIT
// Queue pairs: create, modify, query, destroy, post.
#include <sched.h>

#include <mutex>
#include <optional>
#include <utility>

#include "base/time.h"
#include "host/interfaces.h"
#include "nic/engine.h"
#include "nic/nic.h"
#include "nic/nic_qp.h"
#include "nic/objects.h"
#include "nic/raw_nic.h"
#include "nic/sharing.h"
#include "nic/wire_nic.h"
#include "nic/xrc.h"

namespace verbena::nic {
namespace {

bool fits(const QpRequest& request, const Limits& limits) {
  return request.send_cq && request.receive_cq && request.send_depth <= limits.work_requests &&
         request.receive_depth <= limits.work_requests && request.send_sge_max <= limits.sges &&
         request.receive_sge_max <= limits.sges && request.inline_max <= limits.inline_bytes;
}

// What it fetches goes into the queue's buffers.
bool may_match_tags(const Pd& pd, const QpRequest& request) {
  return request.type == qp::QpType::kRc && request.xrc == qp::Xrc::kNo &&
         request.srq->pd->id == pd.id;
}

void count_dependents(Qp& qp, std::uint32_t by) {
  qp.pd().dependents.fetch_add(by);
  qp.send_cq().dependents.fetch_add(by);
  qp.receive_cq().dependents.fetch_add(by);
  if (qp.srq()) qp.srq()->dependents.fetch_add(by);
  if (qp.table()) qp.table()->dependents.fetch_add(by);
}

bool is_connected_type(const Qp& qp) {
  const qp::QpType type = qp.pair.config().type;
  return type == qp::QpType::kRc || type == qp::QpType::kUc;
}

// Which way a queue pair takes from RTR on.
struct Way {
  bool is_begun = false;  // it goes to RTR
  WireNic* wire = nullptr;
  Qp::WireUse use;
};

// Without the queue pair's lock: the wire may have to be made ready.
Way way_of(Qp& qp, const qp::QpAttributes& wanted, std::uint32_t mask) {
  Way way;
  way.is_begun = (mask & qp::kState) != 0 && wanted.state == qp::QpState::kReadyToReceive;
  if (!way.is_begun) return way;
  Context& context = *qp.pd().context;
  if (qp.pair.config().type == qp::QpType::kRawPacket) return way;
  const bool is_datagram = qp.pair.config().type == qp::QpType::kUd;
  way.use.is_local = !is_datagram && host::is_local_address(wanted.path.destination);
  const Policy& policy = context.nic().sharing().policy();
  way.use.is_for_all = policy.path == Path::kWire;
  way.use.asks = policy.agrees;
  // Datagrams may go to others at any time; from the loopback interface to groups only, which few
  // programs have: the others need not wait for the wire.
  const bool stays = is_datagram
                         ? context.device().is_loopback && !context.nic().sends_to_groups().load()
                         : way.use.is_local;
  if (way.use.is_for_all || !stays) way.wire = qp.engine().wire_for(qp.number().slot());
  return way;
}

// What the carrier has to do about a move that queue pair and attributes have made. With the lock.
// True: the peer must be looked for.
bool follow_move(Qp& qp, qp::QpState from, const Way& way) {
  const qp::QpState to = qp.pair.state();
  if (to == qp::QpState::kReset) qp.end_connection();
  if (from == qp::QpState::kInit && to == qp::QpState::kReadyToReceive) {
    if (way.wire) {
      qp.begin_on_wire(*way.wire, way.use);
      return false;
    }
    if (!is_connected_type(qp)) return false;
    const bool is_looked_for = way.use.is_local && !way.use.is_for_all;
    qp.begin_connection(is_looked_for);
    return is_looked_for;
  }
  qp.set_timeout();  // RTS brings it, and SQD may change it
  return false;
}

// On a network what a program has posted has left when it ends the connection right behind it. What
// is lent lies here until the peer copies it, and is the program's own again as soon as that hears
// of the end: a peer that runs gets the time to copy.
void let_lent_be_copied(Qp& qp) {
  constexpr Duration kMost = Duration::milliseconds(2);
  const Instant begin = clock_now();
  for (;;) {
    {
      const std::lock_guard guard(qp.pair.lock());
      if (!qp.is_being_copied()) return;
    }
    if (clock_now() - begin >= kMost) return;
    sched_yield();
  }
}

// Others who take memory away meanwhile wait for that peer, too.
void wait_until_left(Qp& qp, const PeerSection& section) {
  qp.pd().context->nic().sharing().wait_until_left(section);
  PeerSection over;
  const std::lock_guard guard(qp.pair.lock());
  if (qp.leaving.lock == section.lock) over = std::exchange(qp.leaving, {});
}

bool ends_connection(const qp::QpAttributes& wanted, std::uint32_t mask) {
  return (mask & qp::kState) &&
         (wanted.state == qp::QpState::kError || wanted.state == qp::QpState::kReset);
}

}  // namespace

Result<Qp*, Error> create_qp(Pd& pd, const QpRequest& request) {
  Context& context = *pd.context;
  if (!context.is_usable()) return refuse(Error::kGone);
  Nic& nic = context.nic();
  if (!fits(request, nic.limits())) return refuse(Error::kInvalid);
  if (request.srq && request.srq->tags && !may_match_tags(pd, request))
    return refuse(Error::kInvalid);
  auto engine = nic.start_engine();
  if (!engine) return refuse(engine.error());
  RawPort* raw_port = nullptr;
  if (request.type == qp::QpType::kRawPacket && !request.is_work_queue) {
    const auto port = (*engine)->make_raw().port_for(context.device());
    if (!port) return refuse(port.error());
    raw_port = *port;
  }
  Share share(nic.counts().queue_pairs, nic.limits().queue_pairs);
  if (!share) return refuse(Error::kNoRoom);
  auto number = (*engine)->reserve_number();
  if (!number) return refuse(number.error());
  // The number rests when there is no memory for the queue pair.
  struct Release {
    QpTable* table;
    QpNum number;
    ~Release() {
      if (table) table->release(number);
    }
  } release{&nic.queue_pairs(), *number};
  auto* qp = new Qp(pd, request, *number, raw_port);
  release.table = nullptr;
  share.keep();
  count_dependents(*qp, 1);
  request.send_cq->begin_pushing();
  if (request.receive_cq != request.send_cq) request.receive_cq->begin_pushing();
  nic.queue_pairs().insert(*number, qp);
  if (request.type == qp::QpType::kUd) (*engine)->links().open_own_datagrams(number->slot());
  return qp;
}

Result<void, Error> modify_qp(Qp& qp, const qp::QpAttributes& attributes, std::uint32_t mask) {
  Context& context = *qp.pd().context;
  if (!context.is_usable()) return refuse(Error::kGone);
  if (qp.scaling()) return refuse(Error::kNotSupported);  // it has no state
  const Way way = way_of(qp, attributes, mask);
  if (ends_connection(attributes, mask)) let_lent_be_copied(qp);
  bool look_for_peer = false;
  PeerSection section;
  {
    const std::lock_guard guard(qp.pair.lock());
    const qp::QpState from = qp.pair.state();
    section = qp.leaving = qp.peer_section();
    qp.answer_what_is_owed();
    if (!qp.pair.modify(attributes, mask)) {
      qp.leaving = {};
      return refuse(Error::kInvalid);
    }
    look_for_peer = follow_move(qp, from, way);
    qp.pace();
    qp.settle_grant();
  }
  wait_until_left(qp, section);
  if (qp.is_connected()) {
    qp.engine().watch(qp);
  } else {
    qp.engine().unwatch(qp);
  }
  if (look_for_peer) qp.engine().links().connect(qp.number());
  // Requests may wait in the ring, and sends may have been posted in SQD.
  qp.engine().want_turn(qp.number());
  return {};
}

Result<QpStatus, Error> query_qp(Qp& qp) {
  if (!qp.pd().context->is_usable()) return refuse(Error::kGone);
  const std::lock_guard guard(qp.pair.lock());
  return QpStatus{qp.pair.attributes(), qp.pair.is_draining()};
}

Result<void, Error> destroy_qp(Qp* qp, void* cookie) {
  Context& context = *qp->pd().context;
  if (qp->flows.load() != 0) return refuse(Error::kBusy);
  if (qp->pair.config().xrc == qp::Xrc::kTarget && !close_target(*qp, cookie)) return {};
  if (!context.is_usable()) {
    count_dependents(*qp, static_cast<std::uint32_t>(-1));
    delete qp;
    return {};
  }
  const WireNic* const wire = qp->engine().wire();
  if (wire && wire->is_attached(qp->number())) return refuse(Error::kBusy);
  let_lent_be_copied(*qp);
  PeerSection section;
  {
    const std::lock_guard guard(qp->pair.lock());
    section = qp->leaving = qp->peer_section();
    qp->answer_what_is_owed();
    qp->end_connection();
    qp->pair.abandon();
    context.nic().regions().windows().release(qp->number());
  }
  wait_until_left(*qp, section);
  qp->engine().unwatch(*qp);
  // Nobody has it in hands after this.
  context.nic().queue_pairs().remove(qp->number());
  qp->send_cq().queue.remove(qp->number());
  qp->receive_cq().queue.remove(qp->number());
  qp->send_cq().end_pushing();
  if (&qp->receive_cq() != &qp->send_cq()) qp->receive_cq().end_pushing();
  EventCount& count = qp->async_events();
  context.async_events().withdraw([&](const AsyncEvent& event) { return event.count == &count; });
  count.wait_until_acknowledged();
  count_dependents(*qp, static_cast<std::uint32_t>(-1));
  context.nic().counts().queue_pairs.fetch_sub(1);
  delete qp;
  return {};
}

const qp::QpConfig& config_of(const Qp& qp) { return qp.pair.config(); }
QpNum number_of(const Qp& qp) { return qp.number(); }
EventCount& async_events_of(Qp& qp) { return qp.async_events(); }

namespace {

// With the queue pair's lock.
Result<void, qp::PostError> post_locked(Qp& qp, std::span<const qp::SendRequest> requests,
                                        std::size_t& posted) {
  Result<void, qp::PostError> result;
  std::size_t at_once = 0;
  for (const qp::SendRequest& request : requests) {
    if (qp.post_at_once(request)) {
      ++at_once;
      ++posted;
      continue;
    }
    result = qp.pair.post_send(request);
    if (!result) break;
    ++posted;
  }
  // A completion queue that overran ends also what was done at once.
  if (posted != at_once || qp.pair.state() == qp::QpState::kError) {
    // The way of datagrams is looked up inside a reading section.
    std::optional<QpTable::Reading> reading;
    if (qp.pair.config().type == qp::QpType::kUd) {
      reading.emplace(qp.pd().context->nic().queue_pairs());
    }
    if (qp.send(Now(clock_now))) qp.engine().want_turn(qp.number());
  }
  return result;
}

}  // namespace

Result<void, qp::PostError> post_send(Qp& qp, std::span<const qp::SendRequest> requests,
                                      std::size_t& posted) {
  posted = 0;
  qp.engine().note_post();
  const std::lock_guard guard(qp.pair.lock());
  return post_locked(qp, requests, posted);
}

Result<void, qp::PostError> post_send_together(Qp& qp, std::span<const qp::SendRequest> requests) {
  std::size_t posted = 0;
  qp.engine().note_post();
  const std::lock_guard guard(qp.pair.lock());
  if (!qp.pair.has_room(requests.size())) return refuse(qp::PostError::kFull);
  return post_locked(qp, requests, posted);
}

Result<void, qp::PostError> post_receive(Qp& qp, std::uint64_t wr_id, std::span<const Sge> sges) {
  return qp.pair.post_receive(wr_id, sges);
}

bool post_one_receive(Qp& qp, std::uint64_t wr_id, Sge piece) {
  return qp.pair.post_one_receive(wr_id, piece);
}

}  // namespace verbena::nic
