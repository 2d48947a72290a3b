// SPDX-License-Identifier: MIT
// The way of datagrams: a conduit for each direction of a link, made when the first datagram asks
// for it.
#include <algorithm>

#include "base/futex.h"
#include "base/log.h"
#include "nic/engine.h"
#include "nic/links.h"
#include "nic/nic.h"
#include "nic/nic_qp.h"

namespace verbena::nic {
namespace {

// So many from one sender before the next has a turn.
constexpr unsigned kTurn = 64;
constexpr Duration kOwnWayPatience = Duration::milliseconds(500);

}  // namespace

local::DatagramPaths::Path Links::path_of(const qp::Operation& op) {
  Path path;
  const auto address = nic_.address_handles().find(op.address_handle);
  if (!address || !address->is_on_this_host) return path;
  path.source = address->source;
  path.destination = address->destination;
  path.traffic_class = address->traffic_class;
  path.hop_limit = address->hop_limit;
  const SlotNumber slot = op.remote_qp.slot();
  Way& way = ways_[slot.value];
  path.sender = way.sender.load(std::memory_order_acquire);
  if (path.sender) {
    path.state = Path::State::kOpen;
    return path;
  }
  const Instant now = clock_now();
  if (op.remote_qp.is_reserved() || way.closed_until.load() > now.nanoseconds()) return path;
  path.state = Path::State::kOpening;
  std::int64_t since = 0;
  const bool is_first = way.opening_since.compare_exchange_strong(since, now.nanoseconds());
  path.opening_since = is_first ? now : Instant::at(since);
  if (!is_first) return path;
  const bool accepted = control_->submit([this, slot] {
    waiting_[slot].datagrams = true;
    look_for(slot);
  });
  if (!accepted) way.opening_since.store(0);
  return path;
}

void Links::open_own_datagrams(SlotNumber slot) {
  Way& way = ways_[slot.value];
  if (way.sender.load(std::memory_order_acquire)) return;
  const Instant begin = clock_now();
  std::int64_t since = 0;
  if (!way.opening_since.compare_exchange_strong(since, begin.nanoseconds())) return;
  const bool accepted =
      control_->submit([this, slot] { open_datagrams(slot, processes_.at(control_->id())); });
  if (!accepted) return way.opening_since.store(0);
  const Instant deadline = begin + kOwnWayPatience;
  for (;;) {
    const std::uint32_t opened = ways_opened_.load(std::memory_order_acquire);
    const Instant now = clock_now();
    if (way.sender.load(std::memory_order_acquire) || now >= deadline) return;
    futex_wait(ways_opened_, opened, FutexScope::kProcess, deadline - now);
  }
}

void Links::open_datagrams(SlotNumber slot, Process& process) {
  process.slots.insert(slot);
  if (process.sender) {
    ways_[slot.value].sender.store(process.sender.get(), std::memory_order_release);
    ways_[slot.value].opening_since.store(0);
    ways_opened_.fetch_add(1, std::memory_order_release);
    futex_wake(ways_opened_, INT32_MAX, FutexScope::kProcess);
    wake_datagram_senders();
    return;
  }
  if (std::exchange(process.asked_for_datagrams, true)) return;
  send(process,
       {.kind = MessageKind::kWantDatagrams,
        .from_qp = 0,
        .to_qp = 0,
        .qp_type = 0,
        .conduit_id = 0},
       nullptr);
}

void Links::offer_datagrams(Process& to) {
  // One for each link: a peer that asks again has lost its own.
  if (to.receiver) return;
  auto created = control_->make_memory(local::kConduitSize, host::Backing::kWhenTouched);
  if (!created) {
    LOG_ERROR("no memory for datagrams: %s", host::to_string(created.error()));
    return;
  }
  const std::uint64_t id = nic_.random().next();
  to.receiver = std::make_unique<local::DatagramReceiver>(
      local::Conduit::prepare(std::move(created->memory), id),
      local::PeerBell{&to.link->doorbell(), QpTable::kDatagramIndex});
  {
    const std::lock_guard guard(receivers_lock_);
    receivers_.push_back(to.receiver.get());
    count_receivers();
  }
  send(to,
       {.kind = MessageKind::kOfferDatagrams,
        .from_qp = 0,
        .to_qp = 0,
        .qp_type = 0,
        .conduit_id = id},
       &created->fd);
}

void Links::take_datagrams(Process& from, const Message& offer, host::PrivateFd attachment) {
  if (from.sender || !from.asked_for_datagrams) return;
  auto memory = host::SharedMemory::adopt(attachment, local::kConduitSize);
  if (!memory) return;
  local::Conduit conduit = local::Conduit::accept(std::move(*memory), offer.conduit_id);
  if (!conduit) return;
  from.sender = std::make_unique<local::DatagramSender>(
      std::move(conduit), local::PeerBell{&from.link->doorbell(), QpTable::kDatagramIndex},
      room_wanted_);
  const std::set<SlotNumber> slots = from.slots;
  for (const SlotNumber slot : slots)
    open_datagrams(slot, from);
}

void Links::wake_datagram_senders() {
  const QpTable::Reading reading(nic_.queue_pairs());
  let_datagrams_try();
}

Links::Received Links::receive_datagrams() {
  const std::unique_lock guard(receivers_lock_, std::try_to_lock);
  if (!guard.owns_lock()) return Received::kMore;
  Received received = Received::kNone;
  for (local::DatagramReceiver* receiver : receivers_) {
    if (!receiver->has_datagram()) continue;
    const bool more = deliver_from(*receiver, kTurn);
    if (received != Received::kMore) received = more ? Received::kMore : Received::kSome;
  }
  return departed_.empty() ? received : std::max(received, receive_last_datagrams());
}

Links::Received Links::receive_last_datagrams() {
  for (Departed& each : departed_) {
    const unsigned most = std::min(each.left, kTurn);
    const bool has_more = each.receiver && deliver_from(*each.receiver, most);
    each.left = has_more ? each.left - most : 0;
  }
  std::erase_if(departed_, [](const Departed& each) { return each.left == 0; });
  count_receivers();
  return departed_.empty() ? Received::kSome : Received::kMore;
}

void Links::let_go_elsewhere(LinkRef link) {
  if (!link->memory().file().is_open()) return;
  const std::lock_guard guard(receivers_lock_);
  departed_.push_back({.link = std::move(link), .receiver = nullptr});
  count_receivers();
  engine_.want_datagrams();
}

void Links::count_receivers() {
  receiver_count_.store(receivers_.size() + departed_.size(), std::memory_order_relaxed);
}

bool Links::has_datagrams() {
  if (!has_receivers()) return false;
  const std::lock_guard guard(receivers_lock_);
  if (!departed_.empty()) return true;
  return std::any_of(receivers_.begin(), receivers_.end(),
                     [](const auto* receiver) { return receiver->has_datagram(); });
}

void Links::resume_datagram_senders() {
  const bool is_wanted = room_wanted_.load(std::memory_order_seq_cst) &&
                         room_wanted_.exchange(false, std::memory_order_seq_cst);
  if (is_wanted) let_datagrams_try();
}

// All of them: one that finds out just now that it must wait has not said so yet.
void Links::let_datagrams_try() {
  nic_.queue_pairs().each([this](Qp& qp) {
    if (qp.pair.config().type == qp::QpType::kUd) engine_.want_turn(qp.number());
  });
}

bool Links::deliver_from(local::DatagramReceiver& receiver, unsigned most) {
  return receiver.take(
      most, [this](const local::DatagramRecord& record, std::span<const std::byte> payload) {
        Qp* qp = nic_.queue_pairs().find(QpNum{record.destination_qp});
        if (!qp || qp->pair.config().type != qp::QpType::kUd) return;
        const std::lock_guard guard(qp->pair.lock());
        local::deliver_datagram(record, payload, qp->pair.responder());
      });
}

}  // namespace verbena::nic
