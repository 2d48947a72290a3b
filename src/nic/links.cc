// SPDX-License-Identifier: MIT
// Links: processes that come and go, and connecting queue pairs. Datagrams are in
// links_datagrams.cc.
#include "nic/links.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "host/raw_calls.h"
#include "nic/engine.h"
#include "nic/nic.h"
#include "nic/nic_qp.h"
#include "nic/sharing.h"
#include "nic/target_relay.h"

namespace verbena::nic {
namespace {

// What connects to what: each half of an Extended Reliable Connection to the other one.
constexpr std::uint32_t number_of_half(qp::QpType type, qp::Xrc xrc) {
  return static_cast<std::uint32_t>(type) | static_cast<std::uint32_t>(xrc) << 8;
}
std::uint32_t half_of(const qp::QpConfig& config) {
  return number_of_half(config.type, config.xrc);
}
std::uint32_t other_half_of(const qp::QpConfig& config) {
  switch (config.xrc) {
    case qp::Xrc::kNo: break;
    case qp::Xrc::kInitiator: return number_of_half(config.type, qp::Xrc::kTarget);
    case qp::Xrc::kTarget: return number_of_half(config.type, qp::Xrc::kInitiator);
  }
  return half_of(config);
}

// Until a peer is looked at again that did not read all that we sent; it may be stopped.
constexpr Duration kOfferPauseMin = Duration::milliseconds(1);
constexpr Duration kOfferPauseMax = Duration::milliseconds(64);

bool takes_part(qp::QpState state) {
  return state == qp::QpState::kReadyToReceive || state == qp::QpState::kReadyToSend ||
         state == qp::QpState::kDrained || state == qp::QpState::kSendError;
}

}  // namespace

Links::Links(Nic& nic, Engine& engine) : nic_(nic), engine_(engine) {}

void Links::started(host::Control& control) {
  control_ = &control;
  engine_.gsi().started(control, *this);
  processes_[control.id()].link =
      LinkRef(new Link(*this, nic_.sections(), control.id(), control.page()));
  nic_.sharing().start(control, *this);
  nic_.sharing().introduce(control.id());
}

void Links::connect(QpNum qp) {
  std::vector<QpNum> refused;
  {
    const std::lock_guard guard(looking_lock_);
    looking_.push_back(qp);
    // One task for all: a program may connect faster than the control thread, which keeps a limited
    // number of them.
    const bool is_asked = looking_.size() > 1;
    if (!is_asked && !control_->submit([this] { look_for_peers(); })) {
      refused = std::exchange(looking_, {});
    }
  }
  // The control thread ended, for want of its descriptors: nobody will be found.
  for (const QpNum each : refused)
    absent(each, std::nullopt);
}

void Links::look_for_peers() {
  std::vector<QpNum> all;
  {
    const std::lock_guard guard(looking_lock_);
    all = std::exchange(looking_, {});
  }
  for (const QpNum number : all) {
    QpNum peer;
    {
      const QpTable::Reading reading(nic_.queue_pairs());
      Qp* qp = nic_.queue_pairs().find(number);
      if (!qp) continue;
      const std::lock_guard guard(qp->pair.lock());
      if (qp->connecting != ConnectStage::kLooking) continue;
      peer = qp->pair.attributes().destination;
    }
    waiting_[peer.slot()].connects.insert(number);
    look_for(peer.slot());
  }
}

void Links::look_for(SlotNumber slot) { control_->connect(slot); }

void Links::peer_up(std::unique_ptr<host::Peer> peer) {
  const host::PeerId id = peer->id();
  processes_[id].link = LinkRef(new Link(*this, nic_.sections(), std::move(peer)));
  nic_.sharing().introduce(id);
}

void Links::slot_reached(SlotNumber slot, host::PeerId id) {
  wire_slot_answered(slot, id);
  engine_.gsi().slot_answered(slot);
  const auto found = processes_.find(id);
  if (found != processes_.end()) reached(slot, found->second);
}

void Links::reached(SlotNumber slot, Process& process) {
  const auto found = waiting_.find(slot);
  if (found == waiting_.end()) return;
  const Waiting waiting = std::move(found->second);
  waiting_.erase(found);
  for (const QpNum qp : waiting.connects)
    offer({.qp = qp, .slot = slot}, process);
  for (const WantedRelay& wanted : waiting.relays)
    ask_for_relay(wanted, process);
  if (waiting.datagrams) open_datagrams(slot, process);
}

void Links::slot_unreachable(SlotNumber slot, host::Refusal why) {
  wire_slot_refused(slot, why);
  if (why == host::Refusal::kSelf) {
    engine_.gsi().slot_is_ours(slot);
    return reached(slot, processes_.at(control_->id()));
  }
  engine_.gsi().slot_refused(slot, why);
  const auto found = waiting_.find(slot);
  if (found == waiting_.end()) return;
  const Waiting waiting = std::move(found->second);
  waiting_.erase(found);
  LOG_INFO("slot %u: %s", slot.value, host::to_string(why));
  for (const QpNum qp : waiting.connects)
    absent(qp, slot);
  for (const WantedRelay& wanted : waiting.relays)
    no_relay(wanted.target, slot);
  if (waiting.datagrams) {
    Way& way = ways_[slot.value];
    way.closed_until.store((clock_now() + Duration::seconds(1)).nanoseconds());
    way.opening_since.store(0);
    wake_datagram_senders();
  }
}

void Links::absent(QpNum number, std::optional<SlotNumber> slot) {
  const QpTable::Reading reading(nic_.queue_pairs());
  Qp* qp = nic_.queue_pairs().find(number);
  if (!qp) return;
  const std::lock_guard guard(qp->pair.lock());
  const bool is_looked_for = qp->connecting == ConnectStage::kLooking &&
                             (!slot || qp->pair.attributes().destination.slot() == *slot);
  if (!is_looked_for) return;
  qp->connecting = ConnectStage::kRefused;
  qp->ring()->peer_absent();
  engine_.want_turn(number);
}

// The peer may have its half of the connection already: it shall not wait for ours.
void Links::give_up(QpNum number) {
  const QpTable::Reading reading(nic_.queue_pairs());
  Qp* qp = nic_.queue_pairs().find(number);
  if (!qp) return;
  const std::lock_guard guard(qp->pair.lock());
  if (qp->ring()) qp->ring()->give_up();
  engine_.want_turn(number);
}

// With the queue pair's lock.
bool Links::is_wanted(Qp& qp, const Offer& offer) const {
  return qp.connecting == (offer.again ? ConnectStage::kRefused : ConnectStage::kLooking) &&
         takes_part(qp.pair.state()) && qp.pair.attributes().destination.slot() == offer.slot;
}

// Thousands at a time would be more than a link holds, and more descriptors than there are.
void Links::offer(const Offer& offer, Process& process) {
  const bool waits = !process.offers.empty() || control_->has_queued(process.link->id());
  return waits ? hold_back(offer, process) : make_offer(offer, process);
}

void Links::hold_back(const Offer& offer, Process& process) {
  {
    const QpTable::Reading reading(nic_.queue_pairs());
    Qp* qp = nic_.queue_pairs().find(offer.qp);
    if (!qp) return;
    const std::lock_guard guard(qp->pair.lock());
    if (!is_wanted(*qp, offer)) return;
    // So that it hears when the peer dies.
    qp->link = process.link;
  }
  process.offers.push_back(offer);
  offer_pause_ = kOfferPauseMin;
  offers_at_ = clock_now() + offer_pause_;
  plan_tick();
}

void Links::interfaces_changed() {
  engine_.interfaces_changed();
  engine_.gsi().interfaces_changed();
}

void Links::nudged() {
  nic_.sharing().serve_undo_requests();
  end_hidden_that_are_over();
}

void Links::try_offers(Instant now) {
  bool goes_on = false;
  offer_pause_ = std::min(offer_pause_ * 2, kOfferPauseMax);
  for (auto& [id, process] : processes_) {
    while (!process.offers.empty() && !control_->has_queued(id)) {
      const Offer next = process.offers.front();
      process.offers.pop_front();
      make_offer(next, process);
      offer_pause_ = kOfferPauseMin;
    }
    goes_on |= !process.offers.empty();
  }
  offers_at_ = goes_on ? now + offer_pause_ : Instant::never();
}

// Whether there is one to offer. Each file has room for twice as many as the one before: a process
// with one connection shall not pay for sixteen.
bool Links::has_conduit(Conduits& ours) {
  if (ours.next < ours.conduits) return true;
  const std::uint32_t most = local::ConduitFile::kMost;
  const std::uint32_t conduits = std::clamp<std::uint32_t>(ours.conduits * 2, 1, most);
  auto created =
      control_->make_memory(local::ConduitFile::bytes_for(conduits), host::Backing::kWhenTouched);
  if (!created) {
    LOG_ERROR("no memory for conduits: %s", host::to_string(created.error()));
    return false;
  }
  ours.file = local::ConduitFile(std::move(created->memory));
  ours.conduits = conduits;
  ours.next = 0;
  ours.unsent = std::move(created->fd);
  return true;
}

local::Conduit Links::take_conduit(Conduits& theirs, const Message& offered,
                                   const host::PrivateFd& attachment) {
  if (attachment) {
    const bool fits = offered.conduits <= local::ConduitFile::kMost;
    auto memory = host::SharedMemory::adopt(
        attachment, fits ? local::ConduitFile::bytes_for(offered.conduits) : 0);
    theirs.file = memory ? local::ConduitFile(std::move(*memory)) : local::ConduitFile();
    theirs.next = 0;
  }
  // Not one for two queue pairs.
  if (offered.index < theirs.next) return {};
  theirs.next = offered.index + 1;
  auto conduit = local::Conduit::accept(theirs.file, offered.index, offered.conduit_id);
  if (theirs.next >= theirs.file.conduits()) theirs.file = {};
  return conduit;
}

void Links::make_offer(const Offer& offer, Process& process) {
  Conduits& ours = process.ours;
  if (!has_conduit(ours)) {
    give_up_hidden(offer.qp, process);
    return give_up(offer.qp);
  }
  Message message{.kind = MessageKind::kOffer,
                  .from_qp = offer.qp.value,
                  .to_qp = 0,
                  .qp_type = 0,
                  .conduit_id = nic_.random().next(),
                  .index = ours.next,
                  .conduits = ours.conduits};
  local::Conduit before;
  {
    const QpTable::Reading reading(nic_.queue_pairs());
    Qp* qp = nic_.queue_pairs().find(offer.qp);
    if (!qp) return;
    const std::lock_guard guard(qp->pair.lock());
    if (!is_wanted(*qp, offer)) return;
    const QpNum peer = qp->pair.attributes().destination;
    message.to_qp = peer.value;
    message.qp_type = half_of(qp->pair.config());
    qp->connecting = ConnectStage::kOffered;
    qp->link = process.link;
    before = qp->ring()->offer(
        local::Conduit::prepare(ours.file, ours.next++, message.conduit_id),
        {.doorbell = &process.link->doorbell(), .index = peer.index(), .looks = !qp->relayed_by()},
        &process.link->memory());
  }
  if (before) engine_.wait_for_scan();
  if (ours.next == ours.conduits) ours.file = {};
  const host::PrivateFd unsent = std::exchange(ours.unsent, {});
  send(process, message, unsent ? &unsent : nullptr);
}

void Links::send(Process& process, const Message& message, const host::PrivateFd* attachment) {
  const auto bytes = std::as_bytes(std::span(&message, 1));
  if (!process.link->is_self()) {
    // False means that the peer is going down; that comes as peer_down.
    static_cast<void>(control_->send(process.link->id(), bytes, attachment));
    return;
  }
  // To ourselves: one after the other, so that nothing is entered twice.
  to_self_.push_back(
      {message, host::PrivateFd(attachment ? host::raw::duplicate(attachment->get(), 0) : -1)});
  if (!is_hearing_self_) hear_self();
}

void Links::hear_self() {
  // Also when there is no memory on the way.
  struct Flag {
    explicit Flag(bool& what) : is_set(what) { is_set = true; }
    ~Flag() { is_set = false; }
    bool& is_set;
  };
  const Flag flag(is_hearing_self_);
  while (!to_self_.empty()) {
    OwnMessage next = std::move(to_self_.front());
    to_self_.pop_front();
    message(control_->id(), std::as_bytes(std::span(&next.message, 1)), std::move(next.attachment));
  }
}

bool Links::may_speak_for(const Process& process, QpNum number) const {
  if (process.link->is_self()) return true;
  return control_->holder(number.slot()) == process.link->id();
}

void Links::message(host::PeerId from, std::span<const std::byte> bytes,
                    host::PrivateFd attachment) {
  if (Gsi::is_message(bytes)) return engine_.gsi().message(bytes);
  if (is_for_wire(from, bytes, attachment)) return;
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
    case MessageKind::kTables: return take_tables(process->second, attachment);
    case MessageKind::kWantRelay: return take_want_relay(process->second, message);
    case MessageKind::kNoRelay: return take_no_relay(process->second, message);
    case MessageKind::kFile: return take_file(process->second, message, std::move(attachment));
  }
}

void Links::take_offer(Process& from, const Message& offered, host::PrivateFd attachment) {
  const QpNum ours{offered.to_qp};
  const QpNum theirs{offered.from_qp};
  Taken taken = Taken::kNo;
  // In any case, for it may bring the memory of those that follow.
  local::Conduit conduit = take_conduit(from.theirs, offered, attachment);
  if (may_speak_for(from, theirs)) {
    const QpTable::Reading reading(nic_.queue_pairs());
    if (Qp* qp = nic_.queue_pairs().find(ours)) {
      const std::lock_guard guard(qp->pair.lock());
      taken = attach(*qp, from, offered, std::move(conduit));
    }
  }
  if (taken == Taken::kYes) return;
  if (taken == Taken::kOfferOurs)
    return offer({.qp = ours, .slot = theirs.slot(), .again = true}, from);
  Message refusal = offered;
  refusal.kind = MessageKind::kNotReady;
  std::swap(refusal.from_qp, refusal.to_qp);
  send(from, refusal, nullptr);
}

Links::Taken Links::attach(Qp& qp, Process& from, const Message& offered, local::Conduit conduit) {
  const QpNum theirs{offered.from_qp};
  if (qp.relay() && offered.qp_type == half_of(qp.pair.config()))
    return attach_relay(qp, from, offered, std::move(conduit));
  // It is asked by the conduit that it offered, and asks nothing.
  if (qp.relayed_by()) return Taken::kNo;
  const bool fits = takes_part(qp.pair.state()) && qp.connecting != ConnectStage::kNot &&
                    qp.pair.attributes().destination == theirs &&
                    other_half_of(qp.pair.config()) == offered.qp_type;
  if (!fits || !qp.ring()->may_attach()) return Taken::kNo;
  engine_.want_turn(qp.number());
  if (!conduit) {
    LOG_ERROR("the conduit of QP 0x%x cannot be mapped", theirs.value);
    qp.ring()->give_up();
    return Taken::kNo;
  }
  // It left again: what it took of ours says so, too.
  if (conduit.header().responder_closed.load() != 0) return Taken::kNo;
  // Whoever took our conduit before left and started over. It gets another, unless it used the
  // first.
  if (qp.ring()->peer_left()) {
    if (qp.ring()->was_used()) return Taken::kNo;
    qp.connecting = ConnectStage::kRefused;
  }
  // Our own offer may be on its way yet, and the peer die before.
  qp.link = from.link;
  qp.ring()->set_bell({&qp.link->doorbell(), theirs.index()});
  qp.has_peer.store(true, std::memory_order_relaxed);
  const local::Published& own = nic_.sharing().published();
  // Nothing is lent to whom we could not wait for.
  const bool lends = own && qp.peer_section().lock != nullptr;
  qp.ring()->attach(std::move(conduit),
                    {&qp.link->memory(), qp.number(), theirs, lends ? &own.tables() : nullptr});
  return qp.connecting == ConnectStage::kRefused ? Taken::kOfferOurs : Taken::kYes;
}

void Links::take_not_ready(Process& from, const Message& refusal) {
  const QpNum ours{refusal.to_qp};
  const QpNum theirs{refusal.from_qp};
  bool offer_again = false;
  {
    const QpTable::Reading reading(nic_.queue_pairs());
    Qp* qp = nic_.queue_pairs().find(ours);
    if (!qp || !may_speak_for(from, theirs)) return;
    const std::lock_guard guard(qp->pair.lock());
    const bool is_ours = qp->connecting == ConnectStage::kOffered && qp->ring() &&
                         qp->ring()->offered_id() == refusal.conduit_id;
    if (!is_ours) return;
    qp->connecting = ConnectStage::kRefused;
    // Its own offer may have come meanwhile: then it is ready now.
    offer_again = qp->ring()->is_attached();
    qp->ring()->peer_absent();
    engine_.want_turn(ours);
    if (qp->relayed_by()) end_hidden_target(ours);
  }
  if (offer_again) offer({.qp = ours, .slot = theirs.slot(), .again = true}, from);
}

void Links::peer_down(host::PeerId id) {
  wire_peer_down(id);
  engine_.gsi().peer_down(id);
  const auto found = processes_.find(id);
  if (found == processes_.end()) return;
  Process process = std::move(found->second);
  processes_.erase(found);
  keeps_files_ = true;  // there is room again
  {
    const QpTable::Reading reading(nic_.queue_pairs());
    nic_.queue_pairs().each([&](Qp& qp) {
      const std::lock_guard guard(qp.pair.lock());
      if (qp.relay() && qp.relay()->lost(*process.link.get())) engine_.want_turn(qp.number());
      if (qp.link.get() != process.link.get() || !qp.ring()) return;
      qp.ring()->peer_lost();
      engine_.want_turn(qp.number());
    });
    if (process.receiver) {
      const std::lock_guard guard(receivers_lock_);
      std::erase(receivers_, process.receiver.get());
      departed_.push_back({.link = process.link, .receiver = std::move(process.receiver)});
      count_receivers();
      engine_.want_datagrams();
    }
  }
  for (const SlotNumber slot : process.slots) {
    ways_[slot.value].sender.store(nullptr);
    ways_[slot.value].opening_since.store(0);
  }
  end_hidden_targets_of(*process.link.get());
  nic_.queue_pairs().wait_for_readers();
  let_go_elsewhere(std::move(process.link));
}

}  // namespace verbena::nic
