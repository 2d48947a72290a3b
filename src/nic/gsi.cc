// SPDX-License-Identifier: MIT
#include "nic/gsi.h"

#include <time.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>
#include <variant>

#include "base/futex.h"
#include "base/log.h"
#include "host/interfaces.h"
#include "nic/engine.h"
#include "nic/nic.h"
#include "nic/sharing.h"
#include "nic/wire_nic.h"
#include "port/steering.h"
#include "wire/packet.h"

namespace verbena::nic {
namespace {

// What stands before management datagrams (Links::MessageKind tells it from others).
constexpr std::uint32_t kMagic = 0x56'47'53'01;
// A peer that does not read is looked at again.
constexpr Duration kUnreadPause = Duration::milliseconds(1);
// Addresses come and go.
constexpr Duration kKnownFor = Duration::seconds(1);
// So long a caller waits for a service that was there a moment ago.
constexpr Duration kServicePatience = Duration::milliseconds(500);
constexpr long kPauseToLookAgain = 2'000'000;  // nanoseconds
constexpr Duration kFlushPatience = Duration::milliseconds(50);
constexpr QpNum kGsiQp{1};

template <class Message>
wire::Rej unknown_id_of(const Message& message, wire::RejOf which) {
  return {.local_comm_id = message.remote_comm_id,
          .remote_comm_id = message.local_comm_id,
          .message = which,
          .reason = wire::RejReason::kInvalidCommId};
}

}  // namespace

Gsi::Gsi(Nic& nic, Engine& engine) : nic_(nic), engine_(engine) {}

void Gsi::started(host::Control& control, Links& links) {
  control_ = &control;
  links_ = &links;
  names_.emplace(control);
}

SlotNumber Gsi::slot() const { return control_->first_slot(); }

void Gsi::open(const GsiEvents& events) {
  const std::lock_guard guard(receiver_lock_);
  events_ = events;
}

void Gsi::deliver(const GsiMad& mad) {
  const std::lock_guard guard(receiver_lock_);
  if (events_.arrived) events_.arrived(events_.context, &mad);
}

bool Gsi::listen_on_wire(bool is_loopback) {
  if (is_loopback && nic_.sharing().policy().path != Path::kWire) return true;
  return engine_.wire_for(slot()) != nullptr;
}

bool Gsi::is_near(const Gid& address) {
  const Instant now = clock_now();
  {
    const std::lock_guard guard(known_lock_);
    for (const std::optional<Known>& each : known_)
      if (each && each->address == address && each->until > now) return each->is_near;
  }
  const bool is_near = host::is_local_address(address);
  const std::lock_guard guard(known_lock_);
  known_[next_known_++ % known_.size()] = Known{address, is_near, now + kKnownFor};
  return is_near;
}

void Gsi::send(const GsiMad& mad) {
  const bool all_by_wire = nic_.sharing().policy().path == Path::kWire;
  if (!all_by_wire && is_near(mad.to)) return send_near(mad);
  send_on_wire(mad);
}

// ---------------------------------------------------------------------------------- whose it is

auto Gsi::known(const Request& request) -> std::optional<Went> {
  const std::lock_guard guard(requests_lock_);
  const auto found = requests_.find(request);
  if (found == requests_.end()) return std::nullopt;
  return found->second;
}

std::optional<SlotNumber> Gsi::slot_of_request(const Request& request) {
  const auto went = known(request);
  return went ? std::optional(went->slot) : std::nullopt;
}

// A request that comes again goes where it went before: who took it may have stopped listening. One
// of another transaction is new, whoever had its id before.
std::optional<SlotNumber> Gsi::slot_of_service(std::uint64_t service, const GsiMad& mad,
                                               std::uint32_t asker, std::uint64_t transaction) {
  const Request request{mad.from, asker};
  const auto went = known(request);
  if (went && went->transaction == transaction) return went->slot;
  const auto slot = names_->find(service, mad.to, clock_now());
  if (!slot) return slot;
  const std::lock_guard guard(requests_lock_);
  if (!requests_.insert_or_assign(request, Went{*slot, transaction}).second) return slot;
  requests_in_order_.push_back(request);
  if (requests_in_order_.size() > kRequestsMax) {
    requests_.erase(requests_in_order_.front());
    requests_in_order_.pop_front();
  }
  return slot;
}

std::optional<SlotNumber> Gsi::slot_for(const wire::CmMad& parsed, const GsiMad& mad) {
  return std::visit(
      [&](const auto& message) -> std::optional<SlotNumber> {
        using M = std::decay_t<decltype(message)>;
        if constexpr (std::is_same_v<M, wire::Req>) {
          return slot_of_service(message.service_id, mad, message.local_comm_id,
                                 parsed.transaction_id);
        } else if constexpr (std::is_same_v<M, wire::SidrReq>) {
          return slot_of_service(message.service_id, mad, message.request_id,
                                 parsed.transaction_id);
        } else if constexpr (std::is_same_v<M, wire::Rej>) {
          // Who withdraws its request may not know the id of whoever has it (12.6.7).
          return message.remote_comm_id != 0 ? port::slot_of_id(message.remote_comm_id)
                                             : slot_of_request({mad.from, message.local_comm_id});
        } else if constexpr (std::is_same_v<M, wire::SidrRep>) {
          return port::slot_of_id(message.request_id);
        } else {
          return port::slot_of_id(message.remote_comm_id);
        }
      },
      parsed.message);
}

// Of a request that nobody here serves (12.6.7.2, 12.11.2.1).
std::optional<GsiMad> Gsi::refusal_of(const wire::CmMad& request, const GsiMad& mad) {
  wire::CmMad answer{.transaction_id = request.transaction_id, .message = wire::Rej{}};
  if (const auto* const req = std::get_if<wire::Req>(&request.message)) {
    answer.message = wire::Rej{.remote_comm_id = req->local_comm_id,
                               .message = wire::RejOf::kReq,
                               .reason = wire::RejReason::kInvalidServiceId};
  } else if (const auto* const sidr = std::get_if<wire::SidrReq>(&request.message)) {
    answer.message = wire::SidrRep{.request_id = sidr->request_id,
                                   .status = wire::SidrStatus::kUnsupportedServiceId,
                                   .service_id = sidr->service_id};
  } else {
    return std::nullopt;
  }
  return answer_to(mad, answer);
}

GsiMad Gsi::answer_to(const GsiMad& mad, const wire::CmMad& answer) {
  GsiMad back{.from = mad.to, .to = mad.from, .interface = mad.interface};
  back.traffic_class = mad.traffic_class;
  back.bytes = wire::encode_cm(answer);
  return back;
}

// What a process would have answered that has ended: that it knows nothing of this connection. An
// RTU has no answer else; but whoever sends it has not heard of the end, for it came when there was
// no connection yet.
std::optional<GsiMad> Gsi::last_word_to(const GsiMad& mad) {
  const auto parsed = wire::parse_cm(mad.bytes);
  if (!parsed) return std::nullopt;
  wire::CmMad answer{.transaction_id = parsed->transaction_id, .message = wire::Rej{}};
  if (const auto* const rep = std::get_if<wire::Rep>(&parsed->message)) {
    answer.message = unknown_id_of(*rep, wire::RejOf::kRep);
  } else if (const auto* const rtu = std::get_if<wire::Rtu>(&parsed->message)) {
    answer.message = unknown_id_of(*rtu, wire::RejOf::kOther);
  } else if (const auto* const dreq = std::get_if<wire::Dreq>(&parsed->message)) {
    answer.message =
        wire::Drep{.local_comm_id = dreq->remote_comm_id, .remote_comm_id = dreq->local_comm_id};
  } else {
    return refusal_of(*parsed, mad);
  }
  return answer_to(mad, answer);
}

void Gsi::send_near(const GsiMad& mad) {
  const auto parsed = wire::parse_cm(mad.bytes);
  if (!parsed) return;
  auto slot = slot_for(*parsed, mad);
  // Programs close their listener and open it again while their peer connects anew: what was served
  // a moment ago may soon be again.
  const Instant until = clock_now() + kServicePatience;
  while (!slot && was_served(*parsed) && clock_now() < until) {
    const timespec pause{.tv_sec = 0, .tv_nsec = kPauseToLookAgain};
    nanosleep(&pause, nullptr);
    slot = slot_for(*parsed, mad);
  }
  if (slot) return send_to_slot(*slot, mad);
  LOG_INFO("nobody on this host serves what was asked for");
  if (const auto refusal = refusal_of(*parsed, mad)) deliver(*refusal);
}

bool Gsi::was_served(const wire::CmMad& request) {
  const auto* const req = std::get_if<wire::Req>(&request.message);
  const auto* const sidr = std::get_if<wire::SidrReq>(&request.message);
  if (!req && !sidr) return false;
  return names_->was_found(req ? req->service_id : sidr->service_id, clock_now());
}

void Gsi::send_to_slot(SlotNumber slot, const GsiMad& mad) {
  if (slot == this->slot()) return deliver(mad);
  const std::lock_guard guard(outgoing_lock_);
  if (outgoing_.size() >= kWaitingMax) return;
  outgoing_.push_back({slot, mad});
  if (outgoing_.size() > 1) return;  // one task for all that come until it runs
  is_sending_.store(1, std::memory_order_relaxed);
  bool is_accepted = false;
  try {
    is_accepted = control_->submit([this] { distribute(); });
  } catch (const std::bad_alloc&) {
    LOG_WARN("no memory to send management datagrams");
  }
  if (is_accepted) return;
  // The control thread has ended, or has too much to do: what is lossy is lost.
  outgoing_.clear();
  is_sending_.store(0, std::memory_order_release);
  futex_wake(is_sending_, INT32_MAX, FutexScope::kProcess);
}

// ------------------------------------------------------------------------------------- the wire

void Gsi::send_on_wire(const GsiMad& mad) {
  if (WireNic* const wire = engine_.wire_for(slot())) send_on_wire(*wire, mad);
}

void Gsi::send_on_wire(WireNic& wire, const GsiMad& mad) {
  wire::Head head{};
  head.opcode = wire::Opcode::of(wire::Service::kUd, wire::Code::kSendOnly);
  head.dest_qp = kGsiQp;
  head.psn = wire::Psn(psn_.fetch_add(1, std::memory_order_relaxed) & 0xFFFFFF);
  head.qkey = wire::kGsiQkey;
  head.source_qp = kGsiQp;
  const port::Route route{.from = mad.from,
                          .to = mad.to,
                          .interface = mad.interface,
                          .traffic_class = mad.traffic_class};
  wire.send_management(head, route, mad.bytes);
}

void Gsi::take_packet(WireNic& wire, const port::Received& received) {
  const auto packet = wire::parse(received.payload);
  const auto datagram = wire::Opcode::of(wire::Service::kUd, wire::Code::kSendOnly);
  if (!packet || packet->opcode != datagram || packet->qkey != wire::kGsiQkey) return;
  if (packet->payload.size() != wire::kMadBytes) return;
  GsiMad mad{.from = received.from, .to = received.to, .interface = received.interface};
  std::ranges::copy(packet->payload, mad.bytes.begin());
  const auto parsed = wire::parse_cm(mad.bytes);
  if (!parsed) return;
  const auto slot = slot_for(*parsed, mad);
  if (slot) return send_to_slot(*slot, mad);
  // Here nobody may wait until it is served again; but who asks will ask again.
  if (was_served(*parsed)) return;
  if (const auto refusal = refusal_of(*parsed, mad)) send_on_wire(wire, *refusal);
}

// --------------------------------------------------------------------------- the control thread

void Gsi::distribute() {
  std::vector<Addressed> taken;
  {
    const std::lock_guard guard(outgoing_lock_);
    taken.swap(outgoing_);
  }
  std::vector<SlotNumber> slots;
  for (const Addressed& each : taken) {
    std::deque<GsiMad>& mads = waiting_[each.slot];
    if (mads.size() < kWaitingMax) mads.push_back(each.mad);
    if (std::ranges::find(slots, each.slot) == slots.end()) slots.push_back(each.slot);
  }
  for (const SlotNumber slot : slots)
    pass(slot);
  links_->plan_tick();
  {
    const std::lock_guard guard(outgoing_lock_);
    if (!outgoing_.empty()) return;  // there is another task
    is_sending_.store(0, std::memory_order_release);
  }
  futex_wake(is_sending_, INT32_MAX, FutexScope::kProcess);
}

void Gsi::flush() {
  const Instant until = clock_now() + kFlushPatience;
  for (Instant now; has_unsent();) {
    now = clock_now();
    if (now >= until) return;
    futex_wait(is_sending_, 1, FutexScope::kProcess, until - now);
  }
}

void Gsi::pass(SlotNumber slot) {
  const auto found = waiting_.find(slot);
  if (found == waiting_.end()) return;
  const auto holder = control_->holder(slot);
  if (!holder) return control_->connect(slot);
  partners_[slot] = *holder;
  pass(*holder, found->second);
  if (found->second.empty()) {
    waiting_.erase(found);
  } else {
    next_ = clock_now() + kUnreadPause;
  }
}

// What a peer does not read now stays here: a link holds little, and one that overflows is given
// up.
void Gsi::pass(host::PeerId peer, std::deque<GsiMad>& mads) {
  Message message;
  while (!mads.empty() && !control_->has_queued(peer)) {
    message.magic = kMagic;
    message.count = 0;
    for (; message.count < kMadsPerMessage && !mads.empty(); mads.pop_front())
      message.mads[message.count++] = mads.front();
    const std::size_t size = offsetof(Message, mads) + message.count * sizeof(GsiMad);
    const auto bytes = std::as_bytes(std::span(&message, 1)).first(size);
    if (!control_->send(peer, bytes)) return mads.clear();
  }
}

bool Gsi::is_message(std::span<const std::byte> bytes) {
  std::uint32_t magic = 0;
  if (bytes.size() < offsetof(Message, mads)) return false;
  std::memcpy(&magic, bytes.data(), sizeof magic);
  return magic == kMagic;
}

void Gsi::message(std::span<const std::byte> bytes) {
  for (auto rest = bytes.subspan(offsetof(Message, mads)); rest.size() >= sizeof(GsiMad);
       rest = rest.subspan(sizeof(GsiMad))) {
    GsiMad mad;
    std::memcpy(static_cast<void*>(&mad), rest.data(), sizeof mad);
    deliver(mad);
  }
}

void Gsi::slot_answered(SlotNumber slot) { pass(slot); }

void Gsi::slot_refused(SlotNumber slot, host::Refusal why) {
  const auto found = waiting_.extract(slot);
  if (!found) return;
  // Whoever is only stopped goes on later, and who sent to it will send again.
  if (why == host::Refusal::kBusy) return;
  LOG_INFO("slot %u: %s, and management datagrams for it", slot.value, host::to_string(why));
  for (const GsiMad& mad : found.mapped())
    if (const auto answer = last_word_to(mad)) deliver(*answer);
}

void Gsi::peer_down(host::PeerId peer) {
  std::erase_if(partners_, [&](const auto& partner) {
    if (partner.second != peer) return false;
    const std::lock_guard guard(receiver_lock_);
    if (events_.gone) events_.gone(events_.context, partner.first.value);
    return true;
  });
}

void Gsi::interfaces_changed() {
  {
    const std::lock_guard guard(known_lock_);
    known_.fill(std::nullopt);
  }
  const std::lock_guard guard(receiver_lock_);
  if (events_.interfaces_changed) events_.interfaces_changed(events_.context);
}

void Gsi::slot_is_ours(SlotNumber slot) {
  const auto found = waiting_.extract(slot);
  if (!found) return;
  for (const GsiMad& mad : found.mapped())
    deliver(mad);
}

void Gsi::tick(Instant now) {
  if (now < next_) return;
  next_ = Instant::never();
  std::vector<SlotNumber> slots;
  for (const auto& [slot, mads] : waiting_)
    slots.push_back(slot);
  for (const SlotNumber slot : slots)
    pass(slot);
}

}  // namespace verbena::nic
