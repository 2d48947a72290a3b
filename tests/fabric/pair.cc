// SPDX-License-Identifier: MIT
#include "pair.h"

#include <algorithm>
#include <utility>

#include "flow.h"
#include "roce/dcqcn.h"
#include "roce/delay_control.h"
#include "roce/send_at_once.h"
#include "scarcity.h"
#include "wire/datagram.h"
#include "world.h"

namespace verbena::fabric {
namespace {

constexpr std::uint32_t kDepth = 64;
constexpr std::uint8_t kTimeout = 8;  // 1 ms
constexpr std::uint8_t kRnrTimer = 1;
constexpr std::uint32_t kGrh = wire::kGrhBytes;
constexpr std::uint32_t kAccess =
    memory::kRemoteWrite | memory::kRemoteRead | memory::kRemoteAtomic | memory::kFlushGlobal;

std::uint8_t code_of(std::uint32_t path_mtu) {
  std::uint8_t code = 1;
  while (128u << code < path_mtu)
    ++code;
  return code;
}

}  // namespace

Pair::Pair(World& world, Node& home, const PairOptions& options)
    : world_(world),
      home_(home),
      options_(options),
      shares_(options.xrc == qp::Xrc::kTarget ||
              (world.plan.shared_receives != 0 && options.xrc == qp::Xrc::kNo)),
      path_{.source = Node::gid_of(home.number(), world.plan.ipv6),
            .destination = Node::gid_of(options.peer_node, world.plan.ipv6)},
      pair_({.type = options.type,
             .xrc = options.xrc,
             .number = options.number,
             .pd = home.pd,
             .receive_pd = home.pd,
             .signal_all = world.plan.unsignaled == 0,
             .send_depth = kDepth,
             .send_sge_max = 2,
             .inline_max = kInlineMax,
             .receive_depth = kDepth,
             .receive_sge_max = 2,
             .send_completions = &home.sends,
             .receive_completions = &home.receives,
             .shared_receives =
                 shares_ && options.xrc == qp::Xrc::kNo ? &home.shared[0].queue : nullptr,
             .shared_queues = &home,
             .regions = &home.regions,
             .events = this,
             .datagram_max = world.plan.path_mtu}) {
  if (world.plan.dcqcn)
    congestion_ = std::make_unique<roce::Dcqcn>(
        roce::DcqcnOptions{.line_bits_per_second = world.plan.megabits * 1e6});
  if (options.asks || options.agreed)
    when_agreed_ = std::make_unique<roce::DelayControl>(
        roce::DelayControlOptions{.packet_bytes = world.plan.path_mtu});
  connect();
}

void Pair::modify(qp::QpState to, std::uint32_t mask) {
  const Plan& plan = world_.plan;
  qp::QpAttributes wanted;
  wanted.state = to;
  wanted.port = 1;
  wanted.path_mtu = code_of(plan.path_mtu);
  wanted.destination = options_.peer;
  wanted.access = kAccess;
  wanted.path.has_grh = true;
  wanted.path.port = 1;
  wanted.qkey = kQkey;
  wanted.reads_in_max = wanted.reads_out_max = static_cast<std::uint8_t>(plan.reads_max);
  wanted.timeout = kTimeout;
  wanted.retry_count = static_cast<std::uint8_t>(plan.retry_count);
  wanted.rnr_retry = static_cast<std::uint8_t>(plan.rnr_retry);
  wanted.rnr_timer = kRnrTimer;
  wanted.send_psn = options_.send_psn;
  wanted.receive_psn = options_.receive_psn;
  world_.failures.check(pair_.modify(wanted, mask | qp::kState).has_value(), "a move was refused");
}

void Pair::connect() {
  const Plan& plan = world_.plan;
  const std::uint32_t connected =
      qp::kAddressVector | qp::kPathMtu | qp::kDestinationQp | qp::kReceivePsn;
  modify(qp::QpState::kInit,
         qp::kPkeyIndex | qp::kPort | (is_datagram() ? qp::kQkey : qp::kAccessFlags));
  modify(qp::QpState::kReadyToReceive, is_datagram()   ? 0
                                       : is_reliable() ? connected | qp::kReadsInMax | qp::kRnrTimer
                                                       : connected);
  engine_ = roce::make_engine(
      {.type = options_.type,
       .is_xrc = is_extended(),
       .self = options_.number,
       .peer = options_.peer,
       .pkey = pkey_of(plan),
       .path_mtu = plan.path_mtu,
       .path = path_,
       .in_flight = {.packets = plan.packets_in_flight, .bytes = plan.kib_in_flight * 1024},
       .reads_in_max = static_cast<std::uint8_t>(plan.reads_max),
       .receive_psn = options_.receive_psn,
       .reorder_packets = plan.reorder_packets,
       .reorder_patience = Duration::microseconds(plan.reorder_patience_us),
       .asks_for_agreement = options_.asks,
       .selective = options_.agreed},
      *this, this, congestion_.get(), when_agreed_.get());
  modify(
      qp::QpState::kReadyToSend,
      qp::kSendPsn |
          (is_reliable() ? qp::kTimeout | qp::kRetryCount | qp::kRnrRetry | qp::kReadsOutMax : 0));
  engine_->start(pair_.attributes());
}

bool Pair::receive_run(wire::Unverified& packet, const Gid& from) {
  if (is_stopped()) return false;
  {
    const InEngine inside;
    if (engine_->receive_run(packet, from, pair_.responder()).seen() == 0) return false;
  }
  if (std::exchange(tells_packet_, false)) world_.heard(*this);
  world_.clock.after(Duration::nanoseconds(50), [this] { drive(); });
  return true;
}

void Pair::receive(std::span<const std::byte> datagram, const wire::Packet& packet,
                   const roce::Arrival& arrival) {
  if (is_stopped()) return;
  if (std::exchange(tells_packet_, false)) world_.heard(*this);
  {
    const InEngine inside;
    const Now now = world_.clock.now();
    const bool is_at_once = !arrival.is_congested() && world_.random.one_in(2) &&
                            engine_->receive_at_once(datagram, arrival.ip.flow.source,
                                                     pair_.window(), pair_.responder(), now);
    if (!is_at_once) engine_->receive(packet, arrival, pair_.window(), pair_.responder(), now);
  }
  // Others of the batch may come first.
  world_.clock.after(Duration::nanoseconds(50), [this] { drive(); });
}

bool Pair::turn() {
  const Instant now = world_.clock.now();
  qp::Budget answers;
  qp::Budget requests;
  qp::Budget sends;
  had_no_room_ = false;
  const InEngine inside;
  engine_->collect(pair_.window(), answers, now);
  // Either may go first. A request that does takes along what is owed.
  const bool answers_first = turns_++ % 4 == 0;
  bool more = answers_first && engine_->serve(pair_.responder(), requests, now);
  engine_->issue(pair_.window(), sends, now);
  if (!answers_first) more = engine_->serve(pair_.responder(), requests, now);
  return !had_no_room_ && (more || sends.spent());
}

void Pair::drive() {
  if (is_lost_ || home_.is_paused()) return;
  while (turn()) {
  }
  schedule();
}

void Pair::schedule() {
  Instant when = engine_->next_deadline().value_or(Instant::never());
  if (had_no_room_) when = std::min(when, world_.network.room_at(home_.number()));
  when = std::max(when, world_.clock.now() + Duration::nanoseconds(20));
  if (when == Instant::never() || (wake_ && *wake_ <= when)) return;
  wake_ = when;
  world_.clock.at(when, [this, when] {
    if (wake_ != when) return;
    wake_.reset();
    drive();
  });
}

roce::Wire::Sent Pair::transmit(const roce::Outgoing& outgoing, const roce::Path& path,
                                roce::PayloadSource payload) {
  const OutOfEngine outside;
  const Instant now = world_.clock.now();
  if (world_.network.has_no_room(home_.number(), now)) {
    had_no_room_ = true;
    return Sent::kNoRoom;
  }
  Frame frame{.from = home_.number(), .is_ecn_capable = outgoing.is_ecn_capable};
  frame.bytes = world_.network.spare();
  frame.bytes.assign(wire::datagram_bytes(outgoing.head.opcode, outgoing.payload_bytes),
                     std::byte{0});
  wire::DatagramBuilder builder(frame.bytes, outgoing.head, outgoing.payload_bytes);
  if (!payload(builder.payload())) return Sent::kNoPayload;
  wire::FlowIcrc icrc({.source = path.source, .destination = path.destination});
  builder.finish(icrc);
  const auto to = Node::number_of(path.destination);
  world_.failures.check(to && *to < world_.plan.nodes, "a packet for nobody");
  frame.to = to.value_or(0);
  const auto packet = wire::parse(frame.bytes);
  world_.failures.check(packet.has_value(), "a packet that cannot be read");
  if (packet) world_.watcher.sent(*packet);
  // In the error state only what brought it there is refused.
  const bool refuses = packet && packet->shape->aeth &&
                       packet->syndrome.kind() == wire::AethKind::kNak &&
                       packet->syndrome.nak_code() != wire::NakCode::kPsnSequenceError;
  world_.failures.check(!is_stopped() || refuses, "a packet from a queue pair in the error state",
                        options_.number.value);
  world_.network.send(std::move(frame), now);
  return Sent::kSent;
}

void Pair::completed(const queues::Completion& completion) {
  const bool is_receive = completion.kind == queues::CompletionKind::kReceive ||
                          completion.kind == queues::CompletionKind::kReceiveWithImmediate;
  if (is_receive)
    incoming_->received(completion);
  else
    outgoing_->completed(completion);
}

unsigned Pair::queues() const {
  switch (options_.xrc) {
    case qp::Xrc::kNo: return 1;
    case qp::Xrc::kInitiator: return 0;
    case qp::Xrc::kTarget: return kQueues;
  }
  return 0;
}
Receives& Pair::receives_of(unsigned queue) {
  return shares_ ? home_.shared[queue].posted : own_posted_;
}

bool Pair::post_at_once(const qp::SendRequest& request) {
  if (request.sges.size() != 1) return false;
  const qp::SmallRequest small{.wr_id = request.wr_id,
                               .opcode = request.opcode,
                               .flags = request.flags,
                               .sge = request.sges.front()};
  const InEngine inside;
  if (small.sge.length == 0 || !roce::may_be_at_once(pair_, small)) return false;
  const auto* from = reinterpret_cast<const std::byte*>(small.sge.address);
  if (!(small.flags & queues::kInline)) {
    auto lease =
        home_.regions.lease(small.sge.key, home_.pd, small.sge.address, small.sge.length, 0);
    const memory::Extent extent = lease ? lease->next() : memory::Extent{};
    if (extent.length != small.sge.length) return false;
    from = extent.address;
  }
  return roce::send_at_once(*engine_, pair_, small, from, world_.clock.now());
}

std::optional<ReceiveSlot> Pair::room_for_receive(Node::Carve from) {
  // A shared one may get a datagram with its GRH.
  const std::uint32_t room = world_.plan.size_max + kGrh;
  const auto place = home_.carve(room, from);
  if (!place) return std::nullopt;
  return ReceiveSlot{*place, room};
}

void Pair::post_receive(unsigned queue, const ReceiveSlot& slot) {
  const std::uint64_t id = world_.next_id();
  const auto first = static_cast<std::uint32_t>(world_.random.below(slot.room + 1));
  const std::uint64_t address = home_.address(slot.place);
  std::array<Sge, 2> pieces{
      {{address, first, home_.key}, {address + first, slot.room - first, home_.key}}};
  std::span<const Sge> sges = pieces;
  // As most programs post it.
  if (world_.random.one_in(2)) {
    pieces[0].length = slot.room;
    sges = sges.first(1);
  }
  const bool is_posted = shares_ ? !home_.shared[queue].queue.post(id, sges)
                                 : pair_.post_receive(id, sges).has_value();
  world_.failures.check(is_posted, "a good receive was refused");
  receives_of(queue).posted(id, slot);
}

void Pair::settle_receives() {
  for (const auto& [id, slot] : own_posted_.waiting())
    home_.settle(slot.place, slot.room);
}

void Pair::stop() {
  if (!is_alive()) return;
  told_to_stop_ = true;
  modify(qp::QpState::kError, 0);
}

void Pair::qp_event(QpNum qp, qp::QpEvent event) {
  const OutOfEngine outside;
  world_.failures.check(qp == options_.number, "an event of another queue pair", qp.value);
  events_.push_back(event);
}
bool Pair::has_event(qp::QpEvent event) const { return std::ranges::count(events_, event) != 0; }

}  // namespace verbena::fabric
