// SPDX-License-Identifier: MIT
#include "nic/wire_nic.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/futex.h"
#include "base/log.h"
#include "base/ticks.h"
#include "host/interfaces.h"
#include "nic/engine.h"
#include "nic/forked_descriptors.h"
#include "nic/nic.h"
#include "nic/nic_qp.h"
#include "nic/sharing.h"
#include "nic/wire_qp.h"
#include "wire/datagram.h"
#include "wire/packet.h"

namespace verbena::nic {
namespace {

constexpr std::size_t kInboxMax = 256;
// After so many bytes the answer does not wait for what the program posts.
constexpr std::size_t kLittle = 2048;
constexpr std::size_t kOwingMax = 64;
constexpr std::uint32_t kManagementQp = 1;
// What stands before a packet that is handed over (Links::MessageKind tells it from others).
constexpr std::uint32_t kHandOverMagic = 0x56'48'4F'01;

}  // namespace

// Consecutive packets are mostly for one queue pair: its lock is kept, and it answers when the next
// one is another's.
class WireNic::Recipient {
 public:
  Recipient(WireNic& wire, const Now& now, Answer when) : wire_(wire), now_(now), when_(when) {}
  Recipient(const Recipient&) = delete;
  Recipient& operator=(const Recipient&) = delete;
  ~Recipient() { leave(); }

  // Null: there is none on the wire.
  Qp* find(QpNum number) {
    if (qp_ && qp_->number() == number) return qp_;
    leave();
    Qp* const found = wire_.nic_.queue_pairs().find(number);
    if (!found) return nullptr;
    found->pair.lock().lock();
    if (!found->wire()) {
      found->pair.lock().unlock();
      return nullptr;
    }
    bytes_ = 0;
    return qp_ = found;
  }
  void got(std::size_t bytes) { bytes_ += bytes; }
  void leave() {
    if (!qp_) return;
    const bool waits = when_ == Answer::kSoon && bytes_ <= kLittle && qp_->wire()->may_owe() &&
                       wire_.owing_.size() < kOwingMax;
    bool more = false;
    if (waits && !qp_->wants_turn_on_wire()) [[likely]]
      qp_->wire()->owe();
    else
      more = waits ? qp_->turn_without_answers(now_) : qp_->turn(now_);
    qp_->pair.lock().unlock();
    if (waits) wire_.note_owing(qp_->number());
    if (more) [[unlikely]]
      wire_.engine_.want_turn(qp_->number());
    qp_ = nullptr;
  }

 private:
  WireNic& wire_;
  const Now& now_;
  const Answer when_;
  Qp* qp_ = nullptr;
  std::size_t bytes_ = 0;
};

WireNic::WireNic(Nic& nic, Engine& engine)
    : nic_(nic),
      engine_(engine),
      udp_({.hand_over = this, .now = clock_now, .made = close_in_children}),
      line_(udp_, nic.sharing().policy().line),
      port_(line_.port()),
      group_(engine.control(), engine.links(), udp_),
      trains_(port_),
      multicast_(nic.limits().multicast_groups, nic.limits().multicast_members) {
  owing_.reserve(kOwingMax);
  // A recording shows all of them.
  count_wanted({.destinations = line_.records(), .marks = line_.records()}, 1);
}

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
  port::set_merging(socket.get(), true);  // whoever had it before may have left it otherwise
  if (!udp_.add_receiver(slot, std::move(socket))) return false;
  close_in_children(udp_.descriptors().back());
  return true;
}

bool WireNic::is_warm() const {
  return connections_.load(std::memory_order_relaxed) != 0 ||
         cold_polls_.load(std::memory_order_relaxed) < WatchPace::kWarmPolls ||
         has_inbox_.load(std::memory_order_relaxed);
}

std::uint64_t WireNic::stamp() {
  const std::uint64_t count = ticks();
  return count != 0 ? count : static_cast<std::uint64_t>(clock_now().nanoseconds());
}

bool WireNic::poll() {
  if (!is_warm()) return false;
  const std::uint64_t begin = stamp();
  const std::uint64_t before = driven_at_.load(std::memory_order_relaxed);
  driven_at_.store(begin, std::memory_order_relaxed);
  {
    const std::unique_lock guard(receive_lock_, std::try_to_lock);
    if (!guard.owns_lock()) return false;
    const bool soon = nap_.is_napping();
    // Whoever polls seldom is to find all that has come.
    if (begin - before > WatchPace::kLong) udp_.look_everywhere();
    // The program has had its time to post something that these go along with.
    answer_owed();
    if (receive(soon ? Answer::kSoon : Answer::kNow) != 0) {
      const std::uint64_t end = stamp();
      busy_.store(busy_.load(std::memory_order_relaxed) + (end - begin), std::memory_order_relaxed);
      driven_at_.store(end, std::memory_order_relaxed);
      return true;
    }
  }
  const std::uint32_t cold = cold_polls_.load(std::memory_order_relaxed);
  if (cold < WatchPace::kWarmPolls) cold_polls_.store(cold + 1, std::memory_order_relaxed);
  return false;
}

// Who could not get the lock counts on us for what had been handed over before.
std::size_t WireNic::receive_patiently() {
  std::size_t found = 0;
  do {
    const std::lock_guard guard(receive_lock_);
    udp_.look_everywhere();
    found += receive(Answer::kNow);
    answer_owed();
  } while (has_inbox_.load(std::memory_order_seq_cst));
  return found;
}

// Who holds the lock is just reading, and left nothing.
std::size_t WireNic::receive_what_lies() {
  const std::unique_lock guard(receive_lock_, std::try_to_lock);
  if (!guard.owns_lock()) return 0;
  udp_.look_everywhere();
  const std::size_t found = receive(Answer::kNow);
  answer_owed();
  return found;
}

// The program polled a moment ago, and may be waiting for just this: then it posts something on
// account of it. An acknowledgement that went ahead would end the peer's polls, and the next packet
// of both would wait for the end of a nap.
std::size_t WireNic::receive_after_nap() {
  const std::unique_lock guard(receive_lock_, std::try_to_lock);
  if (!guard.owns_lock()) return 0;
  answer_owed();
  udp_.look_everywhere();
  return receive(Answer::kSoon);
}

// With receive_lock_.
std::size_t WireNic::receive(Answer when) {
  const Now now(clock_now);
  const bool had_inbox = has_inbox_.load(std::memory_order_acquire) && take_inbox();
  const std::size_t count = port_.receive(batch_, line_.wants_time() ? Instant(now) : Instant());
  if (count == 0 && !had_inbox) return 0;
  if (count == 0) return 1;
  cold_polls_.store(0, std::memory_order_relaxed);
  const QpTable::Reading reading(nic_.queue_pairs());
  Recipient recipient(*this, now, when);
  if (count != 1) talk_.packets = 0;
  for (std::size_t taken = 0; taken < count;)
    taken += take(std::span(batch_).first(count).subspan(taken), recipient, now);
  if (udp_.is_conversation_over()) [[unlikely]]
    end_talk();
  return count;
}

// With receive_lock_.
void WireNic::note_owing(QpNum number) {
  owing_.push_back(number);
  is_owing_.store(1, std::memory_order_relaxed);
}

// With receive_lock_.
void WireNic::answer_owed() {
  if (owing_.empty()) return;
  const Now now(clock_now);
  const QpTable::Reading reading(nic_.queue_pairs());
  for (const QpNum number : owing_) {
    Qp* const qp = nic_.queue_pairs().find(number);
    if (!qp) continue;
    const std::lock_guard guard(qp->pair.lock());
    // What it posted meanwhile took the answer along.
    if (qp->owes_on_wire() && qp->turn(now)) engine_.want_turn(number);
  }
  owing_.clear();
  is_owing_.store(0, std::memory_order_relaxed);
  if (is_leaving_.load(std::memory_order_relaxed)) futex_wake(is_owing_, 1, FutexScope::kProcess);
}

std::size_t WireNic::take(std::span<port::Received> packets, Recipient& recipient, const Now& now) {
  port::Received& packet = packets.front();
  Qp* const qp = recipient_of(packet, recipient);
  if (!qp) [[unlikely]]
    return 1;
  // Nobody but its own peer reaches a connection, which sends to this address.
  // What comes by a conversation's socket says so itself.
  const bool is_by_group = packet.to == Gid{};
  if (is_by_group) packet.to = qp->wire()->source();
  std::size_t taken = receive_run(packets, *qp);
  if (taken == 0) {
    taken = 1;
    if (!find_destination(packet)) [[unlikely]] {
      counters_.corrupt.fetch_add(1, std::memory_order_relaxed);
      return 1;
    }
    take_one(packet, is_by_group, *qp, now);
  }
  recipient.got(taken * packet.payload.size());
  return taken;
}

// Null: there is none, or it was no queue pair's.
Qp* WireNic::recipient_of(port::Received& packet, Recipient& recipient) {
  const auto to = wire::destination_of(packet.payload);
  if (!to) [[unlikely]] {
    counters_.malformed.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  if (to->value == kManagementQp) [[unlikely]] {
    recipient.leave();
    take_management(packet);
    return nullptr;
  }
  if (*to == kMulticastQp) [[unlikely]] {
    recipient.leave();
    take_multicast(packet);
    return nullptr;
  }
  Qp* const qp = recipient.find(*to);
  if (!qp) [[unlikely]]
    counters_.nobody.fetch_add(1, std::memory_order_relaxed);
  return qp;
}

// Of a train, what can be received together. How many are done with; none: nothing has happened.
std::size_t WireNic::receive_run(std::span<const port::Received> packets, Qp& qp) {
  const port::Received& first = packets.front();
  const std::size_t bytes = first.payload.size();
  const bool is_long = bytes > port::UdpChannel::kBytesMax;
  if (!is_long || first.to == Gid{} || first.ecn == port::Ecn::kCongested) return 0;
  // Of others none are looked for behind it.
  if (!wire::parse_middle(first.payload)) return 0;
  // Those of a train lie behind each other.
  const auto follows = [&](std::size_t i) {
    return packets[i].payload.size() == bytes &&
           packets[i].payload.data() == first.payload.data() + i * bytes;
  };
  std::size_t count = 1;
  while (count < std::min<std::size_t>(packets.size(), roce::kRunMost) && follows(count))
    ++count;
  wire::Unverified unverified = flows_.unverified(first, {first.payload.data(), count * bytes});
  const roce::Taken taken =
      qp.wire()->engine().receive_run(unverified, first.from, qp.pair.responder());
  if (taken.packets != 0) flows_.note(packets[taken.packets - 1], unverified.verified());
  if (taken.is_corrupt) [[unlikely]]
    counters_.corrupt.fetch_add(1, std::memory_order_relaxed);
  if (taken.seen() != 0) talk_.packets = 0;
  return taken.seen();
}

// It is intact.
void WireNic::take_one(port::Received& packet, bool is_by_group, Qp& qp, const Now& now) {
  roce::Engine& engine = qp.wire()->engine();
  if (packet.ecn != port::Ecn::kCongested &&
      engine.receive_at_once(packet.payload, packet.from, qp.pair.window(), qp.pair.responder(),
                             now)) [[likely]] {
    if (is_by_group) note_talk(packet, *qp.wire());
    return;
  }
  talk_.packets = 0;
  roce::Arrival arrival{.datagram_bytes = packet.payload.size()};
  arrival.ip.flow = WireFlows::flow_of(packet);
  arrival.ip.traffic_class = static_cast<std::uint8_t>(packet.ecn);
  const auto parsed = wire::parse(packet.payload);
  if (!parsed) return take_malformed(packet, parsed.error(), arrival, qp);
  engine.receive(*parsed, arrival, qp.pair.window(), qp.pair.responder(), now);
}

// It is what its sender sent, who is told where the specification says so.
void WireNic::take_malformed(const port::Received& packet, wire::Malformed why,
                             const roce::Arrival& arrival, Qp& qp) {
  counters_.malformed.fetch_add(1, std::memory_order_relaxed);
  const auto bth = wire::parse_bth(packet.payload);
  if (bth) qp.wire()->engine().receive_broken(*bth, why, arrival, qp.pair.responder());
}

void WireNic::take_management(port::Received& packet) {
  counters_.management.fetch_add(1, std::memory_order_relaxed);
  if (find_destination(packet)) return engine_.gsi().take_packet(*this, packet);
  counters_.corrupt.fetch_add(1, std::memory_order_relaxed);
}

// Whether the packet is intact. Where nobody told its destination, that is the address with which
// the ICRC is right, and from now on it is told.
bool WireNic::find_destination(port::Received& packet) {
  if (packet.to != Gid{}) [[likely]]
    return flows_.is_intact(packet);
  return guess_destination(packet);
}

bool WireNic::guess_destination(port::Received& packet) {
  want_for_good();
  for (const host::Interface& each : host::all_interfaces()) {
    for (const Gid& gid : each.addresses) {
      packet.to = gid;
      packet.interface = each.index;
      if (flows_.is_intact(packet)) return true;
    }
  }
  return false;
}

void WireNic::want_for_good() {
  if (!is_wanted_for_good_.exchange(true)) want({});
}

void WireNic::count_wanted(const port::Details& details, int by) {
  const std::lock_guard guard(wanted_lock_);
  wanted_destinations_ += details.destinations ? by : 0;
  wanted_marks_ += details.marks ? by : 0;
  udp_.tell({.destinations = wanted_destinations_ != 0, .marks = wanted_marks_ != 0});
}

void WireNic::send_management(const wire::Head& head, const port::Route& route,
                              std::span<const std::byte> mad) {
  const std::uint16_t source_port = port_.source_port(route);
  if (source_port == 0) return;
  auto builder = trains_.take();
  const std::size_t size = wire::datagram_bytes(head.opcode, mad.size());
  if (const auto place = builder->place(route, static_cast<std::uint32_t>(size))) {
    wire::DatagramBuilder datagram(place->room, head, mad.size());
    std::ranges::copy(mad, datagram.payload().begin());
    wire::FlowIcrc icrc(
        {.source = route.from, .destination = route.to, .source_port = source_port});
    datagram.finish(icrc, place->ip_id);
    builder->commit();
  }
  if (!builder->flush(port_, clock_now())) builder->clear();
  trains_.give_back(std::move(builder));
}

// ------------------------------------------------------------- packets of another process's queue

std::vector<std::byte> WireNic::wrap(const port::Received& packet) {
  std::vector<std::byte> message(sizeof kHandOverMagic + port::kHandOverHead +
                                 packet.payload.size());
  std::memcpy(message.data(), &kHandOverMagic, sizeof kHandOverMagic);
  const std::size_t packed = port::pack(packet, std::span(message).subspan(sizeof kHandOverMagic));
  if (packed == 0 || message.size() > host::Control::kMessageMax) message.clear();
  return message;
}

// On the thread that receives. The control thread knows the way.
bool WireNic::hand_over(SlotNumber owner, const port::Received& packet) {
  // We know what our own queue pairs want.
  want_for_good();
  std::vector<std::byte> message = wrap(packet);
  if (message.empty()) return false;
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
  Recipient recipient(*this, now, Answer::kNow);
  for (const std::vector<std::byte>& message : taken) {
    auto packet = port::unpack(message);
    if (packet) take({&*packet, 1}, recipient, now);
  }
  return !taken.empty();
}

}  // namespace verbena::nic
