// SPDX-License-Identifier: MIT
// Links: processes that come and go, and connecting queue pairs. Datagrams are in
// links_datagrams.cc.
#include "nic/links.h"

#include <cstring>
#include <utility>

#include "base/log.h"
#include "host/raw_calls.h"
#include "nic/engine.h"
#include "nic/nic.h"
#include "nic/nic_qp.h"

namespace verbena::nic {
namespace {

bool takes_part(qp::QpState state) {
  return state == qp::QpState::kReadyToReceive || state == qp::QpState::kReadyToSend ||
         state == qp::QpState::kDrained || state == qp::QpState::kSendError;
}

}  // namespace

Links::Links(Nic& nic, Engine& engine) : nic_(nic), engine_(engine) {}

void Links::started(host::Control& control) {
  control_ = &control;
  processes_[control.id()].link = LinkRef(new Link(control.id(), control.page()));
}

void Links::connect(QpNum qp) {
  const bool accepted = control_->submit([this, qp] {
    QpNum peer;
    {
      const QpTable::Reading reading(nic_.queue_pairs());
      Qp* found = nic_.queue_pairs().find(qp);
      if (!found) return;
      const std::lock_guard guard(found->pair.lock());
      if (found->connecting != Connecting::kLooking) return;
      peer = found->pair.attributes().destination;
    }
    waiting_[peer.slot()].connects.insert(qp);
    look_for(peer.slot());
  });
  if (!accepted) LOG_ERROR("the control thread has too much to do: QP 0x%x stays alone", qp.value);
}

void Links::look_for(SlotNumber slot) { control_->connect(slot); }

void Links::peer_up(std::unique_ptr<host::Peer> peer) {
  const host::PeerId id = peer->id();
  processes_[id].link = LinkRef(new Link(std::move(peer)));
}

void Links::slot_reached(SlotNumber slot, host::PeerId id) {
  const auto found = processes_.find(id);
  if (found != processes_.end()) reached(slot, found->second);
}

void Links::reached(SlotNumber slot, Process& process) {
  const auto found = waiting_.find(slot);
  if (found == waiting_.end()) return;
  const Waiting waiting = std::move(found->second);
  waiting_.erase(found);
  for (const QpNum qp : waiting.connects)
    offer(qp, process, false);
  if (waiting.datagrams) open_datagrams(slot, process);
}

void Links::slot_unreachable(SlotNumber slot, host::Refusal why) {
  if (why == host::Refusal::kSelf) return reached(slot, processes_.at(control_->id()));
  const auto found = waiting_.find(slot);
  if (found == waiting_.end()) return;
  const Waiting waiting = std::move(found->second);
  waiting_.erase(found);
  LOG_INFO("slot %u: %s", slot.value, host::to_string(why));
  for (const QpNum qp : waiting.connects)
    absent(qp);
  if (waiting.datagrams) {
    Way& way = ways_[slot.value];
    way.closed_until.store((clock_now() + Duration::seconds(1)).nanoseconds());
    way.is_opening.store(false);
    wake_datagram_senders();
  }
}

void Links::absent(QpNum number) {
  const QpTable::Reading reading(nic_.queue_pairs());
  Qp* qp = nic_.queue_pairs().find(number);
  if (!qp) return;
  const std::lock_guard guard(qp->pair.lock());
  if (!qp->ring() || qp->connecting == Connecting::kNot) return;
  qp->connecting = Connecting::kRefused;
  qp->ring()->peer_absent();
  engine_.want_turn(number);
}

void Links::offer(QpNum number, Process& process, bool again) {
  auto created = host::SharedMemory::create(local::kConduitSize, host::Backing::kWhenTouched);
  if (!created) {
    LOG_ERROR("no memory for a conduit: %s", host::to_string(created.error()));
    return absent(number);
  }
  Message message{.kind = MessageKind::kOffer,
                  .from_qp = number.value,
                  .to_qp = 0,
                  .qp_type = 0,
                  .conduit_id = nic_.random().next()};
  {
    const QpTable::Reading reading(nic_.queue_pairs());
    Qp* qp = nic_.queue_pairs().find(number);
    if (!qp) return;
    const std::lock_guard guard(qp->pair.lock());
    const bool wanted = qp->connecting == (again ? Connecting::kRefused : Connecting::kLooking);
    if (!wanted || !takes_part(qp->pair.state())) return;
    const QpNum peer = qp->pair.attributes().destination;
    message.to_qp = peer.value;
    message.qp_type = static_cast<std::uint32_t>(qp->pair.config().type);
    qp->connecting = Connecting::kOffered;
    qp->link = process.link;
    qp->ring()->offer(local::Conduit::prepare(std::move(created->memory), message.conduit_id),
                      {&process.link->doorbell(), peer.index()});
  }
  send(process, message, &created->fd);
}

void Links::send(Process& process, const Message& message, const host::PrivateFd* attachment) {
  const auto bytes = std::as_bytes(std::span(&message, 1));
  if (!process.link->is_self()) {
    // False means that the peer is going down; that comes as peer_down.
    static_cast<void>(control_->send(process.link->id(), bytes, attachment));
    return;
  }
  // To ourselves: the next task, so that nothing is entered twice.
  auto* copy = new host::PrivateFd(attachment ? host::raw::duplicate(attachment->get(), 0) : -1);
  const host::PeerId self = process.link->id();
  const bool accepted = control_->submit([this, self, message, copy] {
    this->message(self, std::as_bytes(std::span(&message, 1)), std::move(*copy));
    delete copy;
  });
  if (!accepted) delete copy;
}

bool Links::may_speak_for(const Process& process, QpNum number) const {
  if (process.link->is_self()) return true;
  return control_->holder(number.slot()) == process.link->id();
}

void Links::message(host::PeerId from, std::span<const std::byte> bytes,
                    host::PrivateFd attachment) {
  const auto process = processes_.find(from);
  Message message;
  if (process == processes_.end() || bytes.size() != sizeof message) return;
  std::memcpy(&message, bytes.data(), sizeof message);
  switch (message.kind) {
    case MessageKind::kOffer: return take_offer(process->second, message, std::move(attachment));
    case MessageKind::kNotReady: return take_not_ready(process->second, message);
    case MessageKind::kWantDatagrams: return offer_datagrams(process->second);
    case MessageKind::kOfferDatagrams:
      return take_datagrams(process->second, message, std::move(attachment));
  }
}

void Links::take_offer(Process& from, const Message& offered, host::PrivateFd attachment) {
  const QpNum ours{offered.to_qp};
  const QpNum theirs{offered.from_qp};
  bool offer_again = false;
  bool taken = false;
  if (may_speak_for(from, theirs)) {
    auto memory = host::SharedMemory::adopt(attachment, local::kConduitSize);
    local::Conduit conduit =
        memory ? local::Conduit::accept(std::move(*memory), offered.conduit_id) : local::Conduit();
    const QpTable::Reading reading(nic_.queue_pairs());
    Qp* qp = nic_.queue_pairs().find(ours);
    if (qp && conduit && conduit.header().responder_closed.load() == 0) {
      const std::lock_guard guard(qp->pair.lock());
      const bool fits = takes_part(qp->pair.state()) && qp->ring() &&
                        qp->pair.attributes().destination == theirs &&
                        static_cast<std::uint32_t>(qp->pair.config().type) == offered.qp_type;
      if (fits && !qp->ring()->was_attached()) {
        qp->ring()->attach(std::move(conduit));
        // Our own offer may be on its way yet, and the peer die before.
        qp->link = from.link;
        offer_again = qp->connecting == Connecting::kRefused;
        taken = true;
        engine_.want_turn(ours);
      }
    }
  }
  if (offer_again) return offer(ours, from, true);
  if (taken) return;
  Message refusal = offered;
  refusal.kind = MessageKind::kNotReady;
  std::swap(refusal.from_qp, refusal.to_qp);
  send(from, refusal, nullptr);
}

void Links::take_not_ready(Process& from, const Message& refusal) {
  const QpNum ours{refusal.to_qp};
  bool offer_again = false;
  {
    const QpTable::Reading reading(nic_.queue_pairs());
    Qp* qp = nic_.queue_pairs().find(ours);
    if (!qp || !may_speak_for(from, QpNum{refusal.from_qp})) return;
    const std::lock_guard guard(qp->pair.lock());
    const bool is_ours = qp->connecting == Connecting::kOffered && qp->ring() &&
                         qp->ring()->offered_id() == refusal.conduit_id;
    if (!is_ours) return;
    qp->connecting = Connecting::kRefused;
    // Its own offer may have come meanwhile: then it is ready now.
    offer_again = qp->ring()->is_attached();
    qp->ring()->peer_absent();
    engine_.want_turn(ours);
  }
  if (offer_again) offer(ours, from, true);
}

void Links::peer_down(host::PeerId id) {
  const auto found = processes_.find(id);
  if (found == processes_.end()) return;
  Process process = std::move(found->second);
  processes_.erase(found);
  {
    const QpTable::Reading reading(nic_.queue_pairs());
    nic_.queue_pairs().each([&](Qp& qp) {
      const std::lock_guard guard(qp.pair.lock());
      if (qp.link.get() != process.link.get() || !qp.ring()) return;
      qp.ring()->peer_lost();
      engine_.want_turn(qp.number());
    });
    if (process.receiver) {
      const std::lock_guard guard(receivers_lock_);
      // What arrived before the peer died is delivered.
      deliver_from(*process.receiver, local::kRequestUnits);
      std::erase(receivers_, process.receiver.get());
      receiver_count_.store(receivers_.size(), std::memory_order_relaxed);
    }
  }
  for (const SlotNumber slot : process.slots) {
    ways_[slot.value].sender.store(nullptr);
    ways_[slot.value].is_opening.store(false);
  }
  nic_.queue_pairs().wait_for_readers();
}

}  // namespace verbena::nic
