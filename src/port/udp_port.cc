// SPDX-License-Identifier: MIT
#include "port/udp_port.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <mutex>

#include "base/assert.h"
#include "base/log.h"
#include "host/raw_calls.h"
#include "port/udp_message.h"
#include "wire/ip.h"

namespace verbena::port {
namespace {

constexpr std::uint32_t kSegmentsMax = 64;  // UDP_MAX_SEGMENTS
constexpr std::uint32_t kTrainBytesMax = 65535 - wire::kIpv4Bytes - wire::kUdpBytes;
constexpr int kSendFlags = MSG_DONTWAIT | MSG_NOSIGNAL;
// A packet for one of all becomes many: a thousand a second, and as many at once.
constexpr Duration kPauseBetweenAll = Duration::milliseconds(1);
constexpr Duration kBurstOfAll = Duration::seconds(1);
// A conversation is over: some tenths of a second of a program that does nothing but poll.
constexpr std::uint64_t kSilenceMost = 200'000;
// What came to the group's socket before is looked for first, but not for ever.
constexpr unsigned kLooksBefore = 16;

bool is_full(int error) {
  return error == EAGAIN || error == ENOBUFS || error == ENOMEM || error == EINTR;
}

// Not against the rules of port.h, nor beyond what one call takes.
bool is_good(const Train& train) {
  return train.segment_size > 0 && train.bytes.size() <= kTrainBytesMax && train.packets() > 0 &&
         train.packets() <= kSegmentsMax;
}

}  // namespace

UdpPort::UdpPort(UdpOptions options)
    : options_(options),
      offload_(options.offload && can_send_trains()),
      senders_(options.senders_max, options.send_buffer) {
  VERBENA_ASSERT(!options.hand_over || options.now);
  receivers_.reserve(options.receivers_max);
  descriptors_.reserve(options.receivers_max + 1);
}

bool UdpPort::add_receiver(SlotNumber slot, UniqueFd socket) {
  const auto same = [&](const auto& each) { return each->slot() == slot; };
  if (std::ranges::none_of(receivers_, same) && receivers_.size() >= options_.receivers_max)
    return false;
  {
    const std::lock_guard lock(details_lock_);
    told_.clear();  // one of them goes
  }
  std::erase_if(receivers_, same);
  UniqueFd lifted(lift_descriptor(socket.release()));
  receivers_.push_back(std::make_unique<UdpReceiver>(slot, std::move(lifted)));
  slots_.add(slot);
  refresh_receivers();
  return true;
}

void UdpPort::refresh_receivers() {
  descriptors_.clear();
  if (connected_) descriptors_.push_back(connected_->fd());
  ReceiveBudget least{UINT32_MAX, UINT32_MAX};
  for (const auto& each : receivers_) {
    descriptors_.push_back(each->fd());
    const ReceiveBudget budget = receive_budget(each->fd());
    least = {std::min(least.bytes, budget.bytes), std::min(least.packets, budget.packets)};
  }
  {
    const std::lock_guard lock(details_lock_);
    told_.clear();
    for (const auto& each : receivers_)
      told_.push_back({each->fd(), file_of(each->fd()), each.get()});
    tell_all();
  }
  receive_bytes_ = receivers_.empty() ? 0 : least.bytes;
  receive_packets_ = receivers_.empty() ? 0 : least.packets;
}

void UdpPort::tell(const Details& details) {
  const std::lock_guard lock(details_lock_);
  if (details == details_) return;
  details_ = details;
  tell_all();
}

// With details_lock_.
void UdpPort::tell_all() {
  for (const Told& each : told_) {
    if (each.file != 0 && file_of(each.fd) == each.file) tell_details(each.fd, details_);
    each.receiver->tell(details_.destinations || details_.marks);
  }
}

void UdpPort::set_steering(Steering steering) {
  const std::lock_guard lock(steering_lock_);
  std::swap(steering_, steering);
}

// One of our sockets is enough: with more, each packet would come once for each.
Result<void, RouteError> UdpPort::join_multicast(const Gid& group, std::uint32_t interface) {
  if (receivers_.empty()) return refuse(RouteError::kNoSockets);
  return change_membership(receivers_.front()->fd(), group, interface, true);
}

void UdpPort::leave_multicast(const Gid& group, std::uint32_t interface) {
  if (receivers_.empty()) return;
  static_cast<void>(change_membership(receivers_.front()->fd(), group, interface, false));
}

std::optional<SlotNumber> UdpPort::check_sockets() {
  senders_.check();
  if (connected_ && !connected_->is_open()) end_conversation();
  const auto closed = std::ranges::find_if(receivers_, [](const auto& r) { return !r->is_open(); });
  if (closed == receivers_.end()) return std::nullopt;
  return (*closed)->slot();
}

Limits UdpPort::limits() const {
  const bool has_trains = offload_.load(std::memory_order_relaxed);
  return {.segments_max = has_trains ? kSegmentsMax : 1,
          .train_bytes_max = kTrainBytesMax,
          .receive_bytes = receive_bytes_,
          .receive_packets = receive_packets_,
          .sends_uncopied = has_trains && PageSender::is_possible()};
}

std::unique_ptr<PageSender> UdpPort::open_pages(const Route& route) {
  const std::lock_guard lock(opening_lock_);
  return PageSender::open(senders_.get(route), route, options_.port, options_.send_buffer);
}

std::uint16_t UdpPort::source_port(const Route& route) { return senders_.get(route).port; }

// ------------------------------------------------------------------------------------ sending

std::size_t UdpPort::send(std::span<const Train> trains, Instant) {
  std::size_t taken = 0;
  while (taken < trains.size()) {
    const std::size_t went = send_first(trains.subspan(taken));
    taken += went;
    if (went == 0) {
      counters_.add(Count::kSendFull, trains.size() - taken);
      break;
    }
  }
  return taken;
}

// At least the first one is gone or dropped, or there is no room (0).
std::size_t UdpPort::send_first(std::span<const Train> trains) {
  const Train& first = trains[0];
  if (first.lane) return send_by_lane(trains);
  const Sender by = senders_.get(first.route);
  if (!is_good(first) || by.fd < 0) {
    counters_.add(Count::kDroppedBroken, first.packets());
    return 1;
  }
  // As many as one call takes on one socket.
  const std::size_t most = std::min(trains.size(), kTrainsPerCall);
  std::size_t run = 1;
  while (run < most && is_good(trains[run]) && !trains[run].lane &&
         senders_.get(trains[run].route).fd == by.fd) {
    ++run;
  }
  return send_run(trains.first(run), by);
}

// How many are of the first one's lane: they are gone, or lost.
std::size_t UdpPort::send_by_lane(std::span<const Train> trains) {
  Lane* const lane = trains.front().lane;
  const auto end =
      std::ranges::find_if(trains, [&](const Train& each) { return each.lane != lane; });
  const auto given = trains.first(static_cast<std::size_t>(end - trains.begin()));
  const Lane::Sent sent = lane->send(given);
  count_sent(given.first(sent.trains));
  counters_.add(Count::kSentUncopied, sent.uncopied);
  for (const Train& lost : given.subspan(sent.trains))
    counters_.add(Count::kDroppedBroken, lost.packets());
  return given.size();
}

void UdpPort::count_sent(std::span<const Train> trains) {
  for (const Train& train : trains) {
    counters_.add(Count::kSentPackets, train.packets());
    counters_.add(Count::kSentBytes, train.bytes.size());
  }
  counters_.add(Count::kSentTrains, trains.size());
}

std::size_t UdpPort::send_run(std::span<const Train> run, const Sender& by) {
  std::size_t sent = run.size() > 1 ? send_together(run, by) : 0;
  // Alone; or what is wrong with the first one is its own business.
  if (sent == 0) {
    UdpMessage message;
    message.set(run[0], run[0].bytes, options_.port, by.is_bound);
    if (message.send(by.fd, kSendFlags) < 0) {
      return give_up(run[0], by, errno) ? 1 : 0;
    }
    sent = 1;
  }
  count_sent(run.first(sent));
  return sent;
}

// How many went out; 0 also where a filter refuses the call.
std::size_t UdpPort::send_together(std::span<const Train> run, const Sender& by) {
  std::array<UdpMessage, kTrainsPerCall> messages;
  std::array<mmsghdr, kTrainsPerCall> headers;
  for (std::size_t i = 0; i < run.size(); ++i) {
    messages[i].set(run[i], run[i].bytes, options_.port, by.is_bound);
    headers[i] = {messages[i].header(), 0};
  }
  const long sent = syscall(SYS_sendmmsg, by.fd, headers.data(), run.size(), kSendFlags);
  return sent > 0 ? static_cast<std::size_t>(sent) : 0;
}

// The kernel did not send it. False: it may do so later.
bool UdpPort::give_up(const Train& train, const Sender& by, int error) {
  if (is_full(error)) return false;
  switch (error) {
    case EMSGSIZE: counters_.add(Count::kDroppedTooLong, train.packets()); break;
    case EBADF:
    case ENOTSOCK:
      senders_.forget(train.route);
      counters_.add(Count::kDroppedBroken, train.packets());
      break;
    case EIO:
    case EOPNOTSUPP:
    case ENOPROTOOPT:
      if (train.packets() > 1) {
        send_singly(train, by);
        break;
      }
      [[fallthrough]];
    default: counters_.add(Count::kDroppedRefused, train.packets()); break;
  }
  return true;
}

// The way out cannot split trains (IPsec, for one). Alone, every packet has the IPv4 id 0, so of a
// train over IPv4 only the first one is what its ICRC says. The rest is lost, once: limits() says
// so from now on.
void UdpPort::send_singly(const Train& train, const Sender& by) {
  if (offload_.exchange(false)) LOG_INFO("trains cannot be sent: packets go out one by one");
  const bool has_ids = wire::is_ipv4(train.route.to);
  for (std::size_t i = 0; i < train.packets(); ++i) {
    if (has_ids && i > 0) {
      counters_.add(Count::kDroppedOffload, train.packets() - i);
      return;
    }
    UdpMessage message;
    message.set(train, train.packet(i), options_.port, by.is_bound);
    const bool is_sent = message.send(by.fd, kSendFlags) >= 0;
    counters_.add(is_sent ? Count::kSentPackets : Count::kDroppedRefused);
    if (is_sent) counters_.add(Count::kSentBytes, train.packet(i).size());
  }
}

// ---------------------------------------------------------------------------------- receiving

std::size_t UdpPort::receive(std::span<Received> into, Instant /*now*/) {
  return connected_ ? receive_by_turns(into) : receive_from_group(into);
}

std::size_t UdpPort::receive_by_turns(std::span<Received> into) {
  if (fresh_ != 0) [[unlikely]] {
    const std::size_t given = receive_from_group(into);
    fresh_ = given != 0 ? fresh_ - 1 : 0;
    return given;
  }
  std::size_t first = 0;
  if (alternation_.looks_at_first()) [[likely]] {
    first = keep_ours(into.first(connected_->take(into[0], counters_)));
    // Whoever sends such packets there sends everything from that port.
    if (first != 0 && into[0].payload.size() > UdpChannel::kBytesMax) [[unlikely]]
      is_over_ = true;
  }
  const std::size_t more =
      alternation_.looks_at_second(first != 0) ? receive_from_group(into.subspan(first)) : 0;
  alternation_.found(first != 0, more != 0);
  is_over_ |= alternation_.silent() > kSilenceMost;
  return first + more;
}

std::size_t UdpPort::receive_from_group(std::span<Received> into) {
  std::size_t given = 0;
  for (std::size_t n = 0; n < receivers_.size() && given < into.size(); ++n) {
    if (++next_receiver_ >= receivers_.size()) next_receiver_ = 0;
    const auto room = into.subspan(given);
    given += keep_ours(room.first(receivers_[next_receiver_]->take(room, counters_)));
  }
  return given;
}

// How many are left, in front.
std::size_t UdpPort::keep_ours(std::span<Received> packets) {
  std::size_t kept = 0;
  std::size_t bytes = 0;
  for (const Received& packet : packets) {
    if (!is_ours(packet)) [[unlikely]]
      continue;
    bytes += packet.payload.size();
    if (&packets[kept] != &packet) packets[kept] = packet;
    ++kept;
  }
  if (kept > 0) {
    counters_.add_alone(Count::kReceivedPackets, kept);
    counters_.add_alone(Count::kReceivedBytes, bytes);
  }
  return kept;
}

bool UdpPort::converse(const Received& with) {
  if (connected_) return false;
  connected_ = ConnectedReceiver::open(with, options_.port, options_.made);
  if (!connected_) return false;
  descriptors_.insert(descriptors_.begin(), connected_->fd());
  fresh_ = kLooksBefore;
  is_over_ = false;
  alternation_ = {};
  return true;
}

void UdpPort::end_conversation() {
  if (!connected_) return;
  std::erase(descriptors_, connected_->fd());
  connected_.reset();
  is_over_ = false;
}

// What is another's is passed on. Queue pair numbers with a slot of ours need no table.
bool UdpPort::is_ours(const Received& packet) {
  if (const auto slot = plain_slot(packet.payload); slot && slots_.has(*slot)) [[likely]]
    return true;
  return is_steered_to_us(packet);
}

bool UdpPort::is_steered_to_us(const Received& packet) {
  Steering::Owner owner;
  {
    const std::lock_guard lock(steering_lock_);
    owner = steering_.owner(packet.payload);
  }
  if (owner.whose == Steering::Whose::kEverybody) return true;
  if (owner.whose == Steering::Whose::kOneOfAll) {
    pass_to_all(packet);
    return true;
  }
  if (owner.whose == Steering::Whose::kSlot && slots_.has(owner.slot)) return true;
  pass_on(packet, owner);
  return false;
}

// Whoever is not meant knows nothing of it and drops it.
void UdpPort::pass_to_all(const Received& packet) {
  if (!options_.hand_over) return;
  // Whoever calls receive() has no time to tell, where no line needs it.
  const Instant now = options_.now();
  if (passed_to_all_ - now > kBurstOfAll) return counters_.add(Count::kDroppedForeign);
  passed_to_all_ = std::max(passed_to_all_, now) + kPauseBetweenAll;
  std::vector<SlotNumber> others;
  {
    const std::lock_guard lock(steering_lock_);
    steering_.each_slot([&](SlotNumber slot) {
      if (!slots_.has(slot)) others.push_back(slot);
    });
  }
  for (const SlotNumber slot : others)
    pass_on(packet, {Steering::Whose::kSlot, slot});
}

void UdpPort::pass_on(const Received& packet, const Steering::Owner& owner) {
  if (owner.whose == Steering::Whose::kNobody) return counters_.add(Count::kDroppedNobody);
  const bool taken = options_.hand_over && options_.hand_over->hand_over(owner.slot, packet);
  counters_.add(taken ? Count::kHandedOver : Count::kDroppedForeign);
}

const Counters& UdpPort::counters() {
  std::uint64_t lost = 0;
  for (const auto& each : receivers_)
    lost += overflows(each->fd());
  counters_.set(Count::kOverflowed, lost);
  return counters_;
}

Result<std::uint32_t, RouteError> UdpPort::payload_max(const Route& route) {
  const auto mtu = route_mtu(route.from, route.to, route.interface);
  if (!mtu) return refuse(mtu.error());
  const std::uint32_t heads =
      (wire::is_ipv4(route.to) ? wire::kIpv4Bytes : wire::kIpv6Bytes) + wire::kUdpBytes;
  return std::min(*mtu - std::min(*mtu, heads), kTrainBytesMax);
}

}  // namespace verbena::port
