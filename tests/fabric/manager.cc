// SPDX-License-Identifier: MIT
#include "manager.h"

#include <algorithm>
#include <utility>

#include "node.h"
#include "wire/datagram.h"
#include "world.h"

namespace verbena::fabric {
namespace {

// What an MRA of the engine's own asks for: 2 ms. With the usual minute a peer would wait for so
// long whenever what follows it is lost.
constexpr std::uint8_t kServiceTimeout = 9;

}  // namespace

Manager::Manager(World& world, Node& home)
    : world_(world),
      home_(home),
      engine({.slot = {static_cast<std::uint16_t>(home.number() + 1)},
              .connections_max = world.plan.connection_room,
              .outgoing_max = world.plan.connection_room,
              .service_timeout = kServiceTimeout},
             world.random) {
  const auto listening = engine.listen({.service_id = kServiceId});
  world_.failures.check(listening.has_value(), "a listener was refused");
}

cm::Route Manager::route_to(unsigned node) const {
  return {.local = Node::gid_of(home_.number(), world_.plan.ipv6),
          .remote = Node::gid_of(node, world_.plan.ipv6)};
}

void Manager::receive(const wire::Packet& packet, unsigned from) {
  const auto datagram = wire::Opcode::of(wire::Service::kUd, wire::Code::kSendOnly);
  const bool is_mad = packet.opcode == datagram && packet.qkey == wire::kGsiQkey &&
                      packet.payload.size() == wire::kMadBytes;
  world_.failures.check(is_mad, "what came to queue pair 1 is no MAD");
  if (!is_mad) return;
  engine.receive(route_to(from), packet.payload, world_.clock.now());
  // Others of the batch may come first.
  world_.clock.after(Duration::nanoseconds(50), [this] { pump(); });
}

void Manager::pump() {
  if (home_.is_dead() || home_.is_paused()) return;
  if (engine.next_deadline() <= world_.clock.now()) engine.advance(world_.clock.now());
  cm::Mad mad;
  cm::Event event;
  for (bool is_busy = true; is_busy;) {
    while (engine.next_mad(mad))
      send(mad);
    is_busy = engine.next_event(event);
    if (is_busy) world_.managed(home_, event);
  }
  schedule();
}

void Manager::send(const cm::Mad& mad) {
  const auto to = Node::number_of(mad.route.remote);
  world_.failures.check(to && *to < world_.plan.nodes, "a MAD for nobody");
  wire::Head head{};
  head.opcode = wire::Opcode::of(wire::Service::kUd, wire::Code::kSendOnly);
  head.dest_qp = head.source_qp = kManagementQp;
  head.psn = wire::Psn(next_psn_++ & 0xFFFFFF);
  head.qkey = wire::kGsiQkey;
  Frame frame{.from = home_.number(), .to = to.value_or(0)};
  frame.bytes = world_.network.spare();
  frame.bytes.assign(wire::datagram_bytes(head.opcode, mad.bytes.size()), std::byte{0});
  wire::DatagramBuilder builder(frame.bytes, head, mad.bytes.size());
  std::ranges::copy(mad.bytes, builder.payload().begin());
  wire::FlowIcrc icrc({.source = mad.route.local, .destination = mad.route.remote});
  builder.finish(icrc);
  world_.network.send(std::move(frame), world_.clock.now());
  world_.pump();
}

void Manager::schedule() {
  const Instant when = engine.next_deadline();
  if (when == Instant::never() || (wake_ && *wake_ <= when)) return;
  wake_ = when;
  world_.clock.at(when, [this, when] {
    if (wake_ != when) return;
    wake_.reset();
    pump();
  });
}

}  // namespace verbena::fabric
