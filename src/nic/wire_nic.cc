// SPDX-License-Identifier: MIT
#include "nic/wire_nic.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/log.h"
#include "nic/engine.h"
#include "nic/forked_descriptors.h"
#include "nic/nic.h"
#include "nic/nic_qp.h"
#include "nic/wire_qp.h"
#include "wire/packet.h"

namespace verbena::nic {
namespace {

// Without connections, pollers go on looking at the sockets for so many polls.
constexpr std::uint32_t kWarmPolls = 100'000;
constexpr std::size_t kInboxMax = 256;
constexpr std::uint32_t kManagementQp = 1;
// What stands before a packet that is handed over (Links::MessageKind tells it from others).
constexpr std::uint32_t kHandOverMagic = 0x56'48'4F'01;

}  // namespace

// Consecutive packets are mostly for one queue pair: its lock is kept, and it answers when the next
// one is another's.
class WireNic::Recipient {
 public:
  Recipient(Nic& nic, Engine& engine, const Now& now) : nic_(nic), engine_(engine), now_(now) {}
  Recipient(const Recipient&) = delete;
  Recipient& operator=(const Recipient&) = delete;
  ~Recipient() { leave(); }

  // Null: there is none on the wire.
  Qp* find(QpNum number) {
    if (qp_ && qp_->number() == number) return qp_;
    leave();
    Qp* const found = nic_.queue_pairs().find(number);
    if (!found) return nullptr;
    found->pair.lock().lock();
    if (!found->wire()) {
      found->pair.lock().unlock();
      return nullptr;
    }
    return qp_ = found;
  }

 private:
  void leave() {
    if (!qp_) return;
    const bool more = qp_->turn(now_);
    qp_->pair.lock().unlock();
    if (more) engine_.want_turn(qp_->number());
    qp_ = nullptr;
  }

  Nic& nic_;
  Engine& engine_;
  const Now& now_;
  Qp* qp_ = nullptr;
};

WireNic::WireNic(Nic& nic, Engine& engine)
    : nic_(nic),
      engine_(engine),
      udp_({.hand_over = this}),
      port_(udp_),
      group_(engine.control(), engine.links(), udp_),
      trains_(port_) {}

bool WireNic::receive_for(SlotNumber slot) {
  const std::lock_guard guard(joining_lock_);
  if (std::ranges::find(slots_, slot) != slots_.end()) return true;
  auto socket = group_.fetch(slot, nic_.random());
  if (!socket) {
    LOG_ERROR("no RoCEv2 for slot %u: %s", slot.value, to_string(socket.error()));
    return false;
  }
  if (!add_receiver(slot, std::move(*socket))) return false;
  slots_.push_back(slot);
  look_again();
  return true;
}

bool WireNic::add_receiver(SlotNumber slot, UniqueFd socket) {
  const std::lock_guard guard(receive_lock_);
  if (!udp_.add_receiver(slot, std::move(socket))) return false;
  close_in_children(udp_.descriptors().back());
  return true;
}

bool WireNic::is_warm() const {
  return connections_.load(std::memory_order_relaxed) != 0 ||
         cold_polls_.load(std::memory_order_relaxed) < kWarmPolls ||
         has_inbox_.load(std::memory_order_relaxed);
}

bool WireNic::poll() {
  if (!is_warm()) return false;
  {
    const std::unique_lock guard(receive_lock_, std::try_to_lock);
    if (!guard.owns_lock()) return false;
    if (receive()) return true;
  }
  const std::uint32_t cold = cold_polls_.load(std::memory_order_relaxed);
  if (cold < kWarmPolls) cold_polls_.store(cold + 1, std::memory_order_relaxed);
  return false;
}

// Who could not get the lock counts on us for what had been handed over before.
bool WireNic::receive_patiently() {
  bool found = false;
  do {
    const std::lock_guard guard(receive_lock_);
    found |= receive();
  } while (has_inbox_.load(std::memory_order_seq_cst));
  return found;
}

// With receive_lock_.
bool WireNic::receive() {
  const Now now(clock_now);
  const bool had_inbox = has_inbox_.load(std::memory_order_acquire) && take_inbox();
  const std::size_t count = port_.receive(batch_, Instant());
  if (count == 0) return had_inbox;
  cold_polls_.store(0, std::memory_order_relaxed);
  const QpTable::Reading reading(nic_.queue_pairs());
  Recipient recipient(nic_, engine_, now);
  for (const port::Received& packet : std::span(batch_).first(count))
    take(packet, recipient, now);
  return true;
}

void WireNic::take(const port::Received& packet, Recipient& recipient, const Now& now) {
  const auto to = wire::destination_of(packet.payload);
  if (!to) {
    counters_.malformed.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  if (to->value == kManagementQp) {
    counters_.management.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  Qp* const qp = recipient.find(*to);
  if (!qp) {
    counters_.nobody.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  if (!flows_.is_intact(packet)) {
    counters_.corrupt.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  roce::Engine& engine = qp->wire()->engine();
  const auto parsed = wire::parse(packet.payload);
  if (!parsed) {
    counters_.malformed.fetch_add(1, std::memory_order_relaxed);
    const auto bth = wire::parse_bth(packet.payload);
    if (bth) engine.receive_broken(*bth, parsed.error(), qp->pair.responder());
    return;
  }
  roce::Arrival arrival{.datagram_bytes = packet.payload.size()};
  arrival.ip.flow = WireFlows::flow_of(packet);
  arrival.ip.traffic_class = static_cast<std::uint8_t>(packet.ecn);
  engine.receive(*parsed, arrival, qp->pair.window(), qp->pair.responder(), now);
}

// ------------------------------------------------------------- packets of another process's queue

// On the thread that receives. The control thread knows the way.
bool WireNic::hand_over(SlotNumber owner, const port::Received& packet) {
  std::vector<std::byte> message(sizeof kHandOverMagic + port::kHandOverHead +
                                 packet.payload.size());
  if (message.size() > host::Control::kMessageMax) return false;
  std::memcpy(message.data(), &kHandOverMagic, sizeof kHandOverMagic);
  if (port::pack(packet, std::span(message).subspan(sizeof kHandOverMagic)) == 0) return false;
  host::Control& control = engine_.control();
  return control.submit([&control, owner, bytes = std::move(message)] {
    const auto holder = control.holder(owner);
    if (holder) static_cast<void>(control.send(*holder, bytes));
  });
}

bool WireNic::is_handed_over(std::span<const std::byte> bytes) {
  std::uint32_t magic = 0;
  if (bytes.size() <= sizeof magic) return false;
  std::memcpy(&magic, bytes.data(), sizeof magic);
  return magic == kHandOverMagic;
}

// The control thread must not answer: sockets are not in its table. Whoever drives does.
void WireNic::take_handed_over(std::span<const std::byte> bytes) {
  const auto packed = bytes.subspan(sizeof kHandOverMagic);
  if (!port::unpack(packed)) return;
  {
    const std::lock_guard guard(inbox_lock_);
    if (inbox_.size() >= kInboxMax) return;
    inbox_.emplace_back(packed.begin(), packed.end());
  }
  has_inbox_.store(true, std::memory_order_release);
  engine_.wake_for_wire();
}

// With receive_lock_.
bool WireNic::take_inbox() {
  std::vector<std::vector<std::byte>> taken;
  {
    const std::lock_guard guard(inbox_lock_);
    taken.swap(inbox_);
    has_inbox_.store(false, std::memory_order_relaxed);
  }
  const Now now(clock_now);
  const QpTable::Reading reading(nic_.queue_pairs());
  Recipient recipient(nic_, engine_, now);
  for (const std::vector<std::byte>& message : taken) {
    const auto packet = port::unpack(message);
    if (packet) take(*packet, recipient, now);
  }
  return !taken.empty();
}

}  // namespace verbena::nic
