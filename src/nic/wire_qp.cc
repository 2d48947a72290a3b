// SPDX-License-Identifier: MIT
#include "nic/wire_qp.h"

#include <algorithm>
#include <utility>

#include "nic/engine.h"
#include "roce/agreement.h"
#include "roce/dcqcn.h"
#include "roce/delay_control.h"
#include "wire/datagram.h"

namespace verbena::nic {
namespace {

// Round trips are shorter than the time for which the system takes a core away from a thread that
// is to answer. A timer that took them at their word would wake a thread for each message.
constexpr Duration kGrainNear = Duration::microseconds(500);
constexpr Duration kGrainFar = Duration::microseconds(100);
// When the system takes no more.
constexpr Duration kFullPause = Duration::microseconds(100);
// So much is sent to a process of this host between two looks at its receive buffer.
constexpr std::size_t kBytesUnseen = 64 * 1024;
// And so much before the first look.
constexpr std::size_t kBytesBlind = 32 * 1024;
// May leave at once where the rate is limited: our timers have a grain.
constexpr std::size_t kBurst = 64 * 1024;
// A process of this host that takes nothing for so long is stopped: what it is sent is lost.
constexpr Duration kReceiverPatience = Duration::seconds(1);
// What a receive buffer of common size holds (net.core.rmem_max: 212,992), with a reserve; the
// peer's is not known.
constexpr std::uint32_t kInFlightBytes = 192 * 1024;
constexpr std::uint32_t kInFlightPackets = 400;
constexpr std::uint32_t kInFlightPacketsMin = 4;
// To a process of this host, whose buffer we know: this share of it, and no more than stays in the
// processor's caches on the way.
constexpr std::uint32_t kNearShare = 8;
constexpr std::uint32_t kInFlightBytesNear = 960 * 1024;
constexpr std::uint32_t kInFlightPacketsNear = 1000;

// On one host nothing marks packets, and without the mark acknowledgements fit into trains of data.
// Nor does anything count hops: the system's number costs no control message.
port::Route route_of(const roce::Outgoing& packet, const roce::Path& path, bool is_on_this_host) {
  const bool is_ecn_capable = packet.is_ecn_capable && !is_on_this_host;
  return {.from = path.source,
          .to = path.destination,
          .interface = path.interface,
          .slot = packet.head.dest_qp.slot(),
          .ecn = is_ecn_capable ? port::Ecn::kCapable : port::Ecn::kNotCapable,
          .traffic_class = path.traffic_class,
          .hop_limit = is_on_this_host ? std::uint8_t{0} : path.hop_limit};
}

// Of the control by delay. Both ends are software: what lies in a socket until a thread looks at it
// is no queue of the network, and takes a good part of 100 us.
constexpr std::size_t kWindowStart = 64 * 1024;
constexpr std::size_t kWaiting = 32 * 1024;
constexpr Duration kQueueing = Duration::microseconds(150);
// A gap may only be packets that have changed places: those come sooner.
constexpr Duration kReorderPatience = Duration::microseconds(50);

}  // namespace

WireQp::WireQp(WireNic& nic, AddressHandles& handles, const Options& options)
    : nic_(nic),
      handles_(handles),
      options_(options),
      is_near_(options.is_on_this_host && options.settings.type == qp::QpType::kUc) {
  roce::Settings settings = options.settings;
  if (settings.type != qp::QpType::kUd) {
    peer_ = WirePeers::Key{settings.path.destination, settings.peer.slot()};
    sharers_ = &nic_.peers().join(*peer_);
    settings.in_flight = in_flight();
    nic_.connected();
  }
  nic_.want(wanted_details());
  // As hardware does (A17.9.3): slower after each notification that a packet of ours was marked.
  if (peer_ && !options.is_on_this_host) {
    congestion_ = std::make_unique<roce::Dcqcn>(roce::DcqcnOptions{.burst_bytes = kBurst});
  }
  if (settings.asks_for_agreement) {
    settings.reorder_packets = roce::kAgreedSpan;
    settings.reorder_patience = kReorderPatience;
    settings.reorder_budget = &nic_.reorder_budget();
  }
  if (settings.asks_for_agreement && congestion_) {
    when_agreed_ = std::make_unique<roce::DelayControl>(
        roce::DelayControlOptions{.packet_bytes = settings.path_mtu,
                                  .window_start = kWindowStart,
                                  .waiting = kWaiting,
                                  .queueing = kQueueing});
  }
  engine_ = roce::make_engine(settings, *this, this, congestion_.get(), when_agreed_.get());
  may_keep_ = options.is_on_this_host && settings.type == qp::QpType::kRc &&
              nic.port().limits().sends_uncopied;
}

// Datagrams show their GRH; and only networks mark packets.
port::Details WireQp::wanted_details() const {
  return {.destinations = !peer_, .marks = !peer_ || !options_.is_on_this_host};
}

WireQp::~WireQp() {
  nic_.want_no_more(wanted_details());
  close_channel();
  if (!peer_) return;
  nic_.peers().leave(*peer_);
  nic_.disconnected();
}

roce::InFlight WireQp::in_flight() const {
  const std::uint32_t sharers = std::max(sharers_->load(std::memory_order_relaxed), 1U);
  const std::uint32_t mtu = options_.settings.path_mtu;
  const port::Limits limits = nic_.port().limits();
  std::uint32_t bytes = kInFlightBytes;
  std::uint32_t packets = kInFlightPackets;
  // A peer on this host has a receive buffer like ours.
  if (options_.is_on_this_host) {
    bytes = std::clamp(limits.receive_bytes / kNearShare, bytes, kInFlightBytesNear);
    packets = std::clamp(limits.receive_packets / kNearShare, packets, kInFlightPacketsNear);
  }
  const std::size_t packet =
      wire::datagram_bytes(wire::Opcode::of(wire::Service::kRc, wire::Code::kWriteMiddle), mtu);
  const auto train = static_cast<std::uint32_t>(limits.train_bytes_max / packet);
  return {.packets = std::max(packets / sharers, kInFlightPacketsMin),
          .bytes = std::max(bytes / sharers, mtu * kInFlightPacketsMin),
          .train = std::min(train, limits.segments_max)};
}

void WireQp::share_in_flight() {
  if (!sharers_) return;
  const std::uint32_t sharers = sharers_->load(std::memory_order_relaxed);
  if (std::exchange(shared_by_, sharers) != sharers) engine_->set_in_flight(in_flight());
}

void WireQp::issue(qp::SendWindow& window, qp::Budget& budget, local::DatagramCarrier* local,
                   const Now& now) {
  share_in_flight();
  unseen_ = kBytesUnseen;
  if (!local || options_.all_by_wire) {
    engine_->issue(window, budget, now);
    if (engine_->is_holding()) nic_.expect_answers();
    return;
  }
  while (!budget.spent()) {
    const qp::Operation* const op = window.next(now);
    if (!op) return local->issue(window, budget, now);  // which then waits for nothing
    const qp::OpIndex index = op->index;
    const auto bytes = static_cast<std::size_t>(op->length);
    qp::Carrier& carrier = goes_by_wire(*op) ? static_cast<qp::Carrier&>(*engine_) : *local;
    qp::Budget one{.operations = 1};
    carrier.issue(window, one, now);
    budget.take(bytes);
    const qp::Operation* const next = window.next(now);
    if (next && next->index == index) return;  // it waits
  }
}

bool WireQp::goes_by_wire(const qp::Operation& op) {
  const auto address = handles_.find(op.address_handle);
  return address && !address->is_on_this_host;
}

const roce::Path* WireQp::path_of(const qp::Operation& op) {
  const auto address = handles_.find(op.address_handle);
  if (!address) return nullptr;
  datagram_path_ = {.source = address->source,
                    .destination = address->destination,
                    .interface = options_.interface,
                    .traffic_class = address->traffic_class,
                    .hop_limit = address->hop_limit};
  is_near_ = address->is_on_this_host;
  return &datagram_path_;
}

wire::FlowIcrc& WireQp::icrc_of(const roce::Path& path, std::uint16_t source_port) {
  const wire::Flow flow{
      .source = path.source, .destination = path.destination, .source_port = source_port};
  if (!icrc_ || flow_ != flow) {
    flow_ = flow;
    icrc_.emplace(flow);
  }
  return *icrc_;
}

std::optional<port::TrainBuilder::Place> WireQp::place(const port::Route& route, std::uint32_t size,
                                                       std::uint32_t most) {
  if (!builder_) builder_ = nic_.trains().take();
  auto place = builder_->place(route, size, most);
  if (place) return place;
  if (!make_room()) return std::nullopt;
  return builder_->place(route, size, most);
}

// Where that fails it is tried again by itself: of what is unreliable no answer comes that would
// give another turn, and the socket may have room again before this one ends.
bool WireQp::make_room() {
  if (flush_builder(clock_now())) return true;
  retry_at_ = clock_now() + kFullPause;
  return false;
}

// A train that begins here may become a long one: then it is built where it can be sent from.
std::optional<port::TrainBuilder::Place> WireQp::place_run(const port::Route& route,
                                                           std::uint32_t size, std::uint32_t most) {
  if (builder_ && !builder_->begins_train(route, size)) return place(route, size, most);
  may_keep_ = may_keep_ && open_kept(route);
  if (!may_keep_ || kept_->berth().empty()) return place(route, size, most);
  if (!builder_) builder_ = nic_.trains().take();
  auto place = builder_->place_kept(route, size, most, kept_->berth(), *pages_);
  if (place || !make_room()) return place;
  return builder_->place_kept(route, size, most, kept_->berth(), *pages_);
}

// Once: where they could not be had, or have failed, trains are copied.
bool WireQp::open_kept(const port::Route& route) {
  if (pages_) return !pages_->is_over();
  kept_ = KeptTrains::make(nic_.kept_trains());
  if (kept_) pages_ = nic_.open_pages(route);
  if (!pages_) kept_.reset();
  return pages_ != nullptr;
}

// Whether such a packet may be in a train that is kept; a train that is ends before another one.
// What is not data is acknowledged later, or never; and the ICRC covers which port sends it.
bool WireQp::end_kept_before(const wire::Head& head, std::uint16_t source_port) {
  const wire::Kind kind = wire::shape_of(head.opcode).kind;
  const bool may_be = (kind == wire::Kind::kSend || kind == wire::Kind::kWrite) &&
                      (!pages_ || pages_->source_port() == source_port);
  if (!may_be && builder_ && builder_->is_last_kept()) builder_->end_train();
  return may_be;
}

// What was sent before has another way to the peer still, and is not to change there.
bool WireQp::flush_builder(const Now& now) {
  const std::uint64_t repeated = kept_ ? engine_->sendings().repeated : 0;
  if (std::exchange(repeated_, repeated) != repeated && kept_) kept_->doubt();
  return builder_->flush(nic_.port(), now);
}

bool WireQp::may_send(SlotNumber to, std::size_t bytes) {
  if (is_stuck()) return false;
  if (!is_near_) return true;
  unseen_ += bytes;
  if (unseen_ <= kBytesUnseen) return true;
  flush(clock_now());
  if (is_stuck()) return false;
  if (nic_.has_room_at(to)) {
    unseen_ = bytes;
    blind_ = 0;
    full_since_.reset();
    return true;
  }
  // The first few need not wait until its buffer is found: it takes these in any case.
  if (!nic_.knows_room_at(to) && blind_ + bytes <= kBytesBlind) {
    blind_ += bytes;
    return true;
  }
  const Instant now = clock_now();
  if (!full_since_) full_since_ = now;
  if (now - *full_since_ > kReceiverPatience) return true;
  retry_at_ = now + kFullPause;
  return false;
}

auto WireQp::transmit(const roce::Outgoing& packet, const roce::Path& path,
                      roce::PayloadSource payload) -> Sent {
  const std::size_t size = wire::datagram_bytes(packet.head.opcode, packet.payload_bytes);
  if (!may_send(packet.head.dest_qp.slot(), size)) return Sent::kNoRoom;
  const port::Route route = route_of(packet, path, options_.is_on_this_host || is_near_);
  const std::uint16_t source_port = nic_.port().source_port(route);
  if (source_port == 0) return Sent::kSent;  // lost, for want of a socket
  const auto bytes = static_cast<std::uint32_t>(size);
  const bool is_of_many = pages_ && end_kept_before(packet.head, source_port) &&
                          packet.payload_bytes == options_.settings.path_mtu;
  const auto place = is_of_many ? place_run(route, bytes, 1) : this->place(route, bytes);
  if (!place) return Sent::kNoRoom;
  wire::DatagramBuilder datagram(place->room, packet.head, packet.payload_bytes);
  if (packet.payload_bytes != 0 && !payload(datagram.payload())) return Sent::kNoPayload;
  datagram.finish(icrc_of(path, source_port), place->ip_id);
  builder_->commit();
  if (builder_->is_last_kept()) note_kept(*place, packet.head.psn.next());
  return Sent::kSent;
}

// Without a builder of trains, whose work is half of what such a packet costs us.
auto WireQp::transmit_alone(const roce::OutgoingSend& packet, const roce::Path& path,
                            roce::PayloadSource payload, bool& is_apart) -> Sent {
  constexpr std::size_t kAloneMax = port::UdpChannel::kBytesMax;
  // What was written before leaves before it.
  if (builder_ || is_near_ || packet.payload_bytes > kAloneMax - wire::kHeadersMax)
    return transmit(packet.general(), path, payload);
  if (is_stuck()) return Sent::kNoRoom;
  std::array<std::byte, kAloneMax> room;
  wire::DatagramBuilder datagram(room, packet.head, packet.to, packet.payload_bytes);
  if (packet.payload_bytes != 0 && !payload(datagram.payload())) return Sent::kNoPayload;
  if (packet.may_overtake && has_channel(path)) [[likely]] {
    const std::size_t size = datagram.finish(*channel_icrc_, channel_->next_id());
    is_apart = channel_->send(std::span(room).first(size));
    nic_.note_driver();
    if (is_apart) [[likely]]
      return Sent::kSent;
    close_channel();
    return Sent::kNoRoom;
  }
  const port::Route route = route_alone(path);
  const std::uint16_t source_port = nic_.port().source_port(route);
  if (source_port == 0) return Sent::kSent;  // lost, for want of a socket
  const std::size_t size = datagram.finish(icrc_of(path, source_port));
  const Instant now = nic_.wants_time() ? clock_now() : Instant();
  if (!nic_.port().send_alone(route, std::span(room).first(size), now)) return Sent::kNoRoom;
  nic_.note_driver();
  return Sent::kSent;
}

port::Route WireQp::route_alone(const roce::Path& path) const {
  return route_of({.head = {.dest_qp = options_.settings.peer}, .is_ecn_capable = true}, path,
                  options_.is_on_this_host);
}

// From some packets on that left alone, with a peer that is ours, on this host. Once: where a
// channel could not be had, or ended, there is none.
bool WireQp::has_channel(const roce::Path& path) {
  constexpr unsigned kConversation = 64;
  if (channel_) return true;
  const bool may_be = options_.is_on_this_host && path.traffic_class == 0 && engine_->has_agreed();
  if (alone_ > kConversation || !may_be) return false;
  if (++alone_ <= kConversation) return false;
  const port::Route route = route_alone(path);
  channel_ = nic_.open_channel(route);
  if (!channel_) return false;
  channel_icrc_.emplace(wire::Flow{
      .source = route.from, .destination = route.to, .source_port = channel_->source_port()});
  return true;
}

void WireQp::close_channel() {
  if (!channel_) return;
  channel_.reset();
  nic_.closed_channel();
}

// What is the same for all of them is found out once, and the program's memory is asked for once.
std::uint32_t WireQp::transmit_run(const roce::Outgoing& packet, std::uint32_t most,
                                   const roce::Path& path, roce::RunSource payload) {
  const std::size_t size = wire::datagram_bytes(packet.head.opcode, packet.payload_bytes);
  if (!may_send(packet.head.dest_qp.slot(), size * most)) return 0;
  const port::Route route = route_of(packet, path, options_.is_on_this_host || is_near_);
  const std::uint16_t source_port = nic_.port().source_port(route);
  if (source_port == 0) return 0;
  const auto bytes = static_cast<std::uint32_t>(size);
  const bool is_data = end_kept_before(packet.head, source_port);
  const auto place = is_data ? place_run(route, bytes, most) : this->place(route, bytes, most);
  if (!place) return 0;
  const auto datagram_at = [&](std::size_t i) { return place->room.subspan(i * size, size); };
  std::array<CrcBlock, roce::kRunMost> crcs;
  wire::FlowIcrc& icrc = icrc_of(path, source_port);
  wire::DatagramBuilder datagram(datagram_at(0), packet.head, packet.payload_bytes);
  const Pieces payloads{.first = datagram.payload().data(),
                        .bytes = packet.payload_bytes,
                        .stride = size,
                        .count = place->packets,
                        .crcs = crcs.data()};
  for (std::uint32_t i = 0; i < place->packets; ++i) {
    if (i != 0) datagram.go_on(datagram_at(i));
    crcs[i] = datagram.begin(icrc, static_cast<std::uint16_t>(place->ip_id + i));
  }
  if (!payload(0, payloads)) return 0;
  for (std::uint32_t i = 0; i < place->packets; ++i)
    wire::DatagramBuilder::finish(datagram_at(i), crcs[i]);
  builder_->commit();
  if (builder_->is_last_kept()) note_kept(*place, packet.head.psn + place->packets);
  return place->packets;
}

// In the train that is built there, or will be.
void WireQp::note_kept(const port::TrainBuilder::Place& place, wire::Psn end) {
  const std::span<std::byte> next = kept_->berth();
  if (!next.empty() && next.data() == place.room.data()) {
    kept_->take(end, engine_->sendings().repeated);
  } else {
    kept_->extend(end);
  }
}

void WireQp::begin(const Now& now) {
  if (kept_) {
    const roce::Engine::Sendings sendings = engine_->sendings();
    kept_->release(sendings.executed, sendings.repeated);
  }
  if (!is_stuck() || retry_at_ > now) return;
  retry_at_ = Instant::never();
  flush(now);
}

void WireQp::flush(const Now& now) {
  if (!builder_) return;
  if (flush_builder(now)) {
    nic_.trains().give_back(std::move(builder_));
  } else {
    retry_at_ = clock_now() + kFullPause;
  }
  nic_.note_driver();
}

Instant WireQp::next_deadline(const Now& now) {
  const std::optional<Instant> engine = engine_->next_deadline();
  told_deadline_ = engine.value_or(Instant::never());
  if (!engine) return retry_at_;
  const Instant soonest = now + (options_.is_on_this_host ? kGrainNear : kGrainFar);
  return std::min(std::max(*engine, soonest), retry_at_);
}

bool WireQp::has_sooner_deadline() const {
  return engine_->next_deadline().value_or(Instant::never()) < told_deadline_;
}

}  // namespace verbena::nic
