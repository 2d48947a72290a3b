// SPDX-License-Identifier: MIT
#include "port/sim.h"

#include <algorithm>

#include "base/assert.h"
#include "wire/ip.h"

namespace verbena::port {
namespace {

// What a packet takes on the cable besides its payload: preamble, gap, Ethernet's head and checksum
// (IEEE 802.3, 4.2.3 and 3.1), and the heads of IP and UDP.
constexpr std::size_t kEthernetBytes = 8 + 12 + 14 + 4;

std::size_t bytes_on_line(const Received& packet) {
  const bool ipv4 = wire::is_ipv4(packet.to);
  return kEthernetBytes + (ipv4 ? wire::kIpv4Bytes : wire::kIpv6Bytes) + wire::kUdpBytes +
         packet.payload.size();
}

Duration sending_time(std::size_t bytes, std::uint64_t bits_per_second) {
  constexpr std::uint64_t kBitsInBytePerSecond = 8'000'000'000;
  return Duration::nanoseconds(
      static_cast<std::int64_t>(bytes * kBitsInBytePerSecond / bits_per_second));
}

// What waits at a line, from the time that it still takes.
std::size_t backlog(Instant free, Instant now, std::uint64_t bits_per_second) {
  if (free <= now) return 0;
  const auto nanoseconds = static_cast<std::uint64_t>((free - now).count_nanoseconds());
  return static_cast<std::size_t>(static_cast<double>(nanoseconds) *
                                  static_cast<double>(bits_per_second) / 8e9);
}

}  // namespace

// ------------------------------------------------------------------------------------ network

std::size_t SimNetwork::add_host(const Gid& address, const SimHostOptions& options) {
  VERBENA_ASSERT(options.up.bits_per_second > 0 && options.down.bits_per_second > 0);
  auto host = std::make_unique<Host>();
  host->address = address;
  host->options = options;
  host->up.link = options.up;
  host->down.link = options.down;
  hosts_.push_back(std::move(host));
  return hosts_.size() - 1;
}

SimPort& SimNetwork::add_port(std::size_t host, SlotNumber slot) {
  Host& place = *hosts_.at(host);
  place.ports.push_back(std::make_unique<SimPort>(*this, host, slot));
  std::vector<SlotNumber> slots;
  for (const auto& port : place.ports)
    slots.push_back(port->slot());
  place.steering.set_positions(slots);
  return *place.ports.back();
}

void SimNetwork::change(std::size_t host, const SimLink& up, const SimLink& down) {
  VERBENA_ASSERT(up.bits_per_second > 0 && down.bits_per_second > 0);
  hosts_.at(host)->up.link = up;
  hosts_.at(host)->down.link = down;
}

std::optional<std::size_t> SimNetwork::find_host(const Gid& address) const {
  for (std::size_t i = 0; i < hosts_.size(); ++i)
    if (hosts_[i]->address == address) return i;
  return std::nullopt;
}

std::size_t SimNetwork::new_packet() {
  if (free_.empty()) {
    free_.push_back(packets_.size());
    packets_.push_back(std::make_unique<Packet>());
  }
  const std::size_t index = free_.back();
  free_.pop_back();
  return index;
}

Instant SimNetwork::next_event() const {
  return events_.empty() ? Instant::never() : events_.top().when;
}

void SimNetwork::advance(Instant to) {
  while (!events_.empty() && events_.top().when <= to) {
    const Event event = events_.top();
    events_.pop();
    now_ = std::max(now_, event.when);
    if (event.stage == Stage::kAtHost) {
      arrive(event.packet);
    } else {
      Host& host = *hosts_[packets_[event.packet]->to_host];
      enter(event.packet, host.down, Stage::kAtHost);
    }
  }
  now_ = std::max(now_, to);
}

// A packet comes to the queue of a line, and is on its way to the next stage or lost.
void SimNetwork::enter(std::size_t index, Line& line, Stage next) {
  Packet& packet = *packets_[index];
  const SimLink& link = line.link;
  const std::size_t size = bytes_on_line(packet.head);
  const std::size_t waiting = backlog(line.free, now_, link.bits_per_second);
  if (waiting + size > link.queue_bytes_max) {
    counters_.add(Count::kQueueDrops);
    return release(index);
  }
  if (link.mark_from_bytes > 0 && waiting >= link.mark_from_bytes &&
      packet.head.ecn != Ecn::kNotCapable) {
    packet.head.ecn = Ecn::kCongested;
    counters_.add(Count::kMarked);
  }
  line.free = std::max(line.free, now_) + sending_time(size, link.bits_per_second);
  Instant there = line.free + link.delay;
  // Lost on the cable: it has taken its time there.
  if (chance(link.loss)) {
    counters_.add(Count::kLost);
    return release(index);
  }
  if (chance(link.reorder)) {
    counters_.add(Count::kReordered);
    there = there + link.reorder_by;
  }
  events_.push({there, order_++, next, index});
}

void SimNetwork::arrive(std::size_t index) {
  const Packet& packet = *packets_[index];
  Host& host = *hosts_[packet.to_host];
  if (wire::is_multicast(packet.head.to)) {
    for (const auto& port : host.ports)
      deliver(copy_of(packet), *port);
    return release(index);
  }
  const Steering::Owner owner = host.steering.owner(packet.bytes);
  // What of queue pair 1 is nobody's in particular is the first one's.
  std::optional<std::size_t> position = 0;
  if (owner.whose == Steering::Whose::kSlot) position = host.steering.position(owner.slot);
  if (owner.whose == Steering::Whose::kNobody || !position || host.ports.empty()) {
    counters_.add(Count::kDroppedNobody);
    return release(index);
  }
  deliver(index, *host.ports[*position]);
}

std::size_t SimNetwork::copy_of(const Packet& packet) {
  const std::size_t index = new_packet();
  Packet& copy = *packets_[index];
  copy.bytes = packet.bytes;
  copy.head = packet.head;
  copy.head.payload = copy.bytes;
  copy.to_host = packet.to_host;
  return index;
}

void SimNetwork::deliver(std::size_t index, SimPort& port) {
  const std::size_t size = packets_[index]->bytes.size();
  if (port.arrived_bytes_ + size > hosts_[port.host_]->options.receive_buffer) {
    port.counters_.add(Count::kOverflowed);
    return release(index);
  }
  port.arrived_bytes_ += size;
  port.arrived_.push_back(index);
}

// A train enters the sender's line whole, or not at all.
bool SimNetwork::accept(SimPort& from, const Train& train) {
  Host& host = *hosts_[from.host_];
  const SimLink& link = host.up.link;
  const std::size_t waiting = backlog(host.up.free, now_, link.bits_per_second);
  const std::size_t size = train.bytes.size() + train.packets() * 128;
  if (waiting > 0 && waiting + size > link.queue_bytes_max) return false;
  for (std::size_t i = 0; i < train.packets(); ++i) {
    const auto bytes = train.packet(i);
    from.counters_.add(Count::kSentPackets);
    from.counters_.add(Count::kSentBytes, bytes.size());
    if (bytes.size() > host.options.payload_max) {
      from.counters_.add(Count::kDroppedTooLong);
      continue;
    }
    const auto send_to = [&](std::size_t to_host) {
      const std::size_t index = new_packet();
      Packet& packet = *packets_[index];
      packet.bytes.assign(bytes.begin(), bytes.end());
      packet.head = {.payload = packet.bytes,
                     .from = train.route.from == Gid{} ? host.address : train.route.from,
                     .to = train.route.to,
                     .interface = 1,
                     .source_port = from.source_port(train.route),
                     .segment = static_cast<std::uint16_t>(i),
                     .ecn = train.route.ecn};
      packet.to_host = to_host;
      enter(index, host.up, Stage::kAtSwitch);
    };
    if (wire::is_multicast(train.route.to)) {
      for (std::size_t to = 0; to < hosts_.size(); ++to)
        if (to != from.host_) send_to(to);
    } else if (const auto to = find_host(train.route.to)) {
      send_to(*to);
    } else {
      from.counters_.add(Count::kDroppedRefused);
    }
  }
  from.counters_.add(Count::kSentTrains);
  return true;
}

// --------------------------------------------------------------------------------------- port

std::size_t SimPort::send(std::span<const Train> trains, Instant now) {
  network_.advance(now);
  std::size_t taken = 0;
  while (taken < trains.size() && network_.accept(*this, trains[taken]))
    ++taken;
  counters_.add(Count::kSendFull, trains.size() - taken);
  return taken;
}

std::size_t SimPort::receive(std::span<Received> into, Instant now) {
  network_.advance(now);
  for (const std::size_t each : given_)
    network_.release(each);
  given_.clear();
  while (given_.size() < into.size() && !arrived_.empty()) {
    const std::size_t index = arrived_.front();
    arrived_.pop_front();
    const SimNetwork::Packet& packet = *network_.packets_[index];
    arrived_bytes_ -= packet.bytes.size();
    into[given_.size()] = packet.head;
    given_.push_back(index);
    counters_.add(Count::kReceivedPackets);
    counters_.add(Count::kReceivedBytes, packet.bytes.size());
  }
  return given_.size();
}

Instant SimPort::next_deadline() const {
  return has_packets() ? network_.now() : network_.next_event();
}

Limits SimPort::limits() const {
  const SimHostOptions& options = network_.hosts_[host_]->options;
  return {.segments_max = options.segments_max,
          .train_bytes_max = 65507,
          .receive_bytes = options.receive_buffer,
          .receive_packets = options.receive_buffer / 64};
}

Result<std::uint32_t, RouteError> SimPort::payload_max(const Route& route) {
  const SimNetwork::Host& host = *network_.hosts_[host_];
  if (route.from != Gid{} && route.from != host.address) return refuse(RouteError::kNotOurs);
  if (!wire::is_multicast(route.to) && !network_.find_host(route.to)) {
    return refuse(RouteError::kNoRoute);
  }
  return host.options.payload_max;
}

// As the real ones: one for each of our slots and each of theirs.
std::uint16_t SimPort::source_port(const Route& route) {
  constexpr unsigned kFirst = 49152;
  const unsigned number = slot_.value * 31u + route.slot.value;
  return static_cast<std::uint16_t>(kFirst + number % (65536 - kFirst));
}

}  // namespace verbena::port
