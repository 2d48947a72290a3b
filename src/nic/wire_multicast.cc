// SPDX-License-Identifier: MIT
// Multicast of datagrams (IBTA vol 1, 10.5; annex A17.9.1 has the addresses). It takes the wire
// wherever the receivers are: the kernel brings a copy to each process that has joined, on this
// host as on others, and each process gives one to each of its queue pairs that are attached. A
// group that others joined is not ours: what comes is filtered, and nothing is passed on.
#include "nic/engine.h"
#include "nic/nic.h"
#include "nic/nic_qp.h"
#include "nic/sharing.h"
#include "nic/wire_nic.h"
#include "roce/datagram_engine.h"
#include "wire/packet.h"

namespace verbena::nic {
namespace {

// Which group a packet is for.
constexpr port::Details kGroupDetails{.destinations = true, .marks = false};

Error error_of(port::RouteError error) {
  switch (error) {
    case port::RouteError::kNoRoute:
    case port::RouteError::kNotOurs: return Error::kNotSupported;
    case port::RouteError::kNoSockets: return Error::kNoRoom;
  }
  return Error::kNotSupported;
}

}  // namespace

Result<void, Error> WireNic::attach(const MulticastGroup& group, QpNum qp) {
  const std::lock_guard guard(receive_lock_);
  const auto is_new = multicast_.attach(group, qp);
  if (!is_new) return refuse(is_new.error());
  if (!*is_new) return {};
  want(kGroupDetails);
  const auto joined = udp_.join_multicast(group.gid, group.interface);
  if (joined) return {};
  want_no_more(kGroupDetails);
  static_cast<void>(multicast_.detach(group, qp));
  return refuse(error_of(joined.error()));
}

Result<void, Error> WireNic::detach(const MulticastGroup& group, QpNum qp) {
  const std::lock_guard guard(receive_lock_);
  const auto is_empty = multicast_.detach(group, qp);
  if (!is_empty) return refuse(is_empty.error());
  if (!*is_empty) return {};
  want_no_more(kGroupDetails);
  udp_.leave_multicast(group.gid, group.interface);
  return {};
}

// With receive_lock_, and no queue pair's.
void WireNic::take_multicast(const port::Received& packet) {
  multicast_.find({packet.to, packet.interface}, members_);
  if (members_.empty()) {
    counters_.nobody.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  if (!flows_.is_intact(packet)) {
    counters_.corrupt.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  const auto parsed = wire::parse(packet.payload);
  if (!parsed) {
    counters_.malformed.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  roce::Arrival arrival{.datagram_bytes = packet.payload.size()};
  arrival.ip.flow = WireFlows::flow_of(packet);
  arrival.ip.traffic_class = static_cast<std::uint8_t>(packet.ecn);
  for (const QpNum number : members_) {
    Qp* const qp = nic_.queue_pairs().find(number);
    if (!qp) continue;
    const std::lock_guard guard(qp->pair.lock());
    static_cast<void>(roce::deliver_multicast(*parsed, arrival, qp->pair.responder()));
  }
}

namespace {

Result<MulticastGroup, Error> group_for(Qp& qp, const Gid& gid) {
  Context& context = *qp.pd().context;
  if (!context.is_usable()) return refuse(Error::kGone);
  if (qp.pair.config().type != qp::QpType::kUd || !wire::is_multicast(gid)) {
    return refuse(Error::kInvalid);
  }
  return MulticastGroup{gid, context.device().interface_index};
}

}  // namespace

// Queue pairs that are there already get the wire now.
void send_to_groups(Nic& nic) {
  Engine* const engine = nic.engine();
  if (nic.sends_to_groups().exchange(true) || !engine) return;
  std::vector<QpNum> numbers;
  {
    const QpTable::Reading reading(nic.queue_pairs());
    nic.queue_pairs().each([&](Qp& qp) {
      if (qp.pair.config().type == qp::QpType::kUd) numbers.push_back(qp.number());
    });
  }
  for (const QpNum number : numbers) {
    WireNic* const wire = engine->wire_for(number.slot());
    const QpTable::Reading reading(nic.queue_pairs());
    Qp* const qp = nic.queue_pairs().find(number);
    if (!wire || !qp) continue;
    const std::lock_guard guard(qp->pair.lock());
    if (qp->wire() || !qp->pair.responder().is_receiving()) continue;
    qp->begin_on_wire(*wire, {.asks = nic.sharing().policy().agrees});
    qp->set_timeout();
    engine->want_turn(number);
  }
}

Result<void, Error> attach_multicast(Qp& qp, const Gid& gid) {
  const auto group = group_for(qp, gid);
  if (!group) return refuse(group.error());
  WireNic* const wire = qp.engine().wire_for(qp.number().slot());
  if (!wire) return refuse(Error::kNotSupported);
  return wire->attach(*group, qp.number());
}

Result<void, Error> detach_multicast(Qp& qp, const Gid& gid) {
  const auto group = group_for(qp, gid);
  if (!group) return refuse(group.error());
  WireNic* const wire = qp.engine().wire();
  if (!wire) return refuse(Error::kInvalid);
  return wire->detach(*group, qp.number());
}

}  // namespace verbena::nic
