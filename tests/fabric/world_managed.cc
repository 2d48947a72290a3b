// SPDX-License-Identifier: MIT
// Connections that are made and ended by the connection managers of their nodes, and what both
// ends must have heard of them.
#include <algorithm>
#include <variant>

#include "manager.h"
#include "world.h"

namespace verbena::fabric {
namespace {

using cm::EventKind;

// 1 ms, which is the shortest; all of them last longer than the longest silence that must be
// outlived.
constexpr std::uint8_t kResponseTimeout = 7;
constexpr std::uint8_t kRetriesMax = 15;
constexpr std::uint8_t kThinkingTimeout = 9;

std::uint8_t code_of_mtu(std::uint32_t path_mtu) {
  std::uint8_t code = 1;
  while (128u << code < path_mtu)
    ++code;
  return code;
}

}  // namespace

void World::ask_to_connect(Link& link) {
  Manager& manager = *link.ends[kNear].node->manager;
  wire::Req req;
  req.service_id = kServiceId;
  req.local_ca_guid = link.ends[kNear].node->guid();
  req.local_qp = link.mine.number;
  req.starting_psn = link.mine.receive_psn;
  req.remote_cm_response_timeout = req.local_cm_response_timeout = kResponseTimeout;
  req.max_cm_retries = kRetriesMax;
  req.path_mtu = code_of_mtu(plan.path_mtu);
  req.retry_count = static_cast<std::uint8_t>(plan.retry_count);
  req.primary.local_gid = manager.route_to(link.second).local;
  req.primary.remote_gid = manager.route_to(link.second).remote;
  req.primary.ack_timeout = 1;
  const auto id = manager.engine.connect(manager.route_to(link.second), req, link.tag, clock.now());
  link.may_be_rejected = plan.connection_room != Plan{}.connection_room;
  failures.check(id || link.may_be_rejected, "a request to connect was refused");
  link.ends[kNear].has_ended = !id;
  if (id) link.ends[kNear].id = *id;
  manager.pump();
}

// What a node's manager tells its program.
void World::managed(Node& node, const cm::Event& event) {
  if (event.kind == EventKind::kRequest) return requested(node, event);
  if (event.kind == EventKind::kTimeWaitOver) return;
  if (event.tag >= links_.size()) return failures.add("an event of no connection");
  Link& link = *links_[event.tag];
  const std::size_t side = &node == link.ends[kNear].node ? kNear : kFar;
  End& end = link.ends[side];
  failures.check(end.node == &node && end.id == event.id, "an event of another connection");
  failures.check(!end.has_ended, "an event after the end", static_cast<std::uint64_t>(event.kind));
  switch (event.kind) {
    case EventKind::kReply: return replied(link, event);
    case EventKind::kEstablished:
      failures.check(side == kFar && !end.is_established, "established a second time");
      end.is_established = true;
      return;
    case EventKind::kRejected:
      failures.check(link.may_be_rejected || was_long_silent() || is_lost(link) ||
                         link.ends[1 - side].has_ended,
                     "rejected without a reason");
      return ended(link, side);
    case EventKind::kUnreachable:
      failures.check(was_long_silent() || is_lost(link) || link.ends[1 - side].has_ended,
                     "unreachable without a reason");
      return ended(link, side);
    case EventKind::kDisconnected:
      failures.check(link.may_be_ended || was_long_silent() || is_lost(link),
                     "disconnected by nobody");
      return ended(link, side);
    case EventKind::kRequest:
    case EventKind::kTimeWaitOver:
    case EventKind::kResolveRequest:
    case EventKind::kResolved: break;
  }
  failures.add("an event that nobody asked for");
}

// The passive side: who made the request is told by its queue pair.
void World::requested(Node& node, const cm::Event& event) {
  const auto& req = std::get<wire::Req>(event.message);
  const auto found =
      std::ranges::find(links_, req.local_qp, [](const auto& link) { return link->mine.number; });
  if (found == links_.end()) return failures.add("a request of nobody");
  Link& link = **found;
  const bool is_as_sent = req.service_id == kServiceId &&
                          req.starting_psn == link.mine.receive_psn &&
                          req.path_mtu == code_of_mtu(plan.path_mtu);
  failures.check(is_as_sent, "a request that was not sent so");
  cm::Engine& engine = node.manager->engine;
  // It is over already, and who has asked does not know: the node was lost and came back, or what
  // it said was lost for longer than it remembers.
  if (const End& far = link.ends[kFar]; far.node) {
    failures.check(far.node->is_dead() || far.has_ended, "a connection requested twice");
    return static_cast<void>(engine.reject(event.id, {}, clock.now()));
  }
  link.ends[kFar] = {.node = &node, .id = event.id};
  engine.set_tag(event.id, link.tag);
  engine.taken(event.id);
  if (plan.thinking_us == 0) return accept(link);
  if (random.one_in(3))
    static_cast<void>(engine.ask_for_time(event.id, kThinkingTimeout, clock.now()));
  clock.after(microseconds_of(random.below(plan.thinking_us)), [this, &link] {
    if (!link.ends[kFar].has_ended) accept(link);
    link.ends[kFar].node->manager->pump();
  });
}

void World::accept(Link& link) {
  End& end = link.ends[kFar];
  cm::Engine& engine = end.node->manager->engine;
  if (end.node->is_dead()) return;
  if (plan.rejects && random.one_in(4)) {
    link.may_be_rejected = true;
    if (engine.reject(end.id, {}, clock.now())) ended(link, kFar);
    return;
  }
  // The queue pair first: packets come as soon as the peer knows of it.
  link.far = std::make_unique<Pair>(*this, *end.node, link.theirs);
  if (random.one_in(2)) link.far->tell_first_packet();
  end.node->add(*link.far);
  wire::Rep rep;
  rep.local_qp = link.theirs.number;
  rep.starting_psn = link.theirs.receive_psn;
  rep.local_ca_guid = end.node->guid();
  // Refused: the peer has given up meanwhile, and an event says so.
  static_cast<void>(engine.accept(end.id, rep, clock.now()));
}

// The active side.
void World::replied(Link& link, const cm::Event& event) {
  End& end = link.ends[kNear];
  const auto& rep = std::get<wire::Rep>(event.message);
  const bool is_as_sent =
      rep.local_qp == link.theirs.number && rep.starting_psn == link.theirs.receive_psn;
  failures.check(is_as_sent && link.far && !link.near, "a reply that was not sent so");
  link.near = std::make_unique<Pair>(*this, *end.node, link.mine);
  end.node->add(*link.near);
  begin(link);
  end.is_established = end.node->manager->engine.confirm(end.id, {}, clock.now()).has_value();
  verdict_.established += end.is_established;
}

// The peer's packets are as good as its RTU.
void World::heard(Pair& pair) {
  const auto found =
      std::ranges::find(links_, &pair, [](const auto& link) { return link->far.get(); });
  if (found == links_.end() || !(*found)->is_managed) return;
  End& end = (*found)->ends[kFar];
  if (end.is_established || end.has_ended) return;
  static_cast<void>(end.node->manager->engine.established(end.id, clock.now()));
  end.node->manager->pump();
}

// The program hears that its connection is no more.
void World::ended(Link& link, std::size_t side) {
  link.ends[side].has_ended = true;
  Pair* const pair = side == kNear ? link.near.get() : link.far.get();
  if (pair) pair->stop();
  // Who was not reached ends it by itself, some time.
  if (is_closing_) clock.after(kEndsByItself, [this, &link, side] { disconnect(link, 1 - side); });
}

// Ends it at one end, as a program does that has seen a failure, or has finished.
void World::disconnect(Link& link, std::size_t side) {
  End& end = link.ends[side];
  if (!end.node || end.node->is_dead() || end.has_ended) return;
  cm::Engine& engine = end.node->manager->engine;
  link.may_be_ended = true;
  if (!engine.disconnect(end.id, {}, clock.now()) && !end.is_established) {
    // Nothing stands yet: who releases it turns it down.
    engine.release(end.id, clock.now());
    link.may_be_rejected = true;
    ended(link, side);
  }
  end.node->manager->pump();
}

// All work is done: every message has arrived, and now the connections end.
void World::close() {
  for (const auto& node : nodes_)
    node->poll();
  for (const auto& link : links_) {
    if (link->there) {
      link->there->check_arrived();
      link->back->check_arrived();
    }
    if (!link->is_managed) continue;
    const std::size_t side = random.below(2);
    const End& end = link->ends[side];
    const bool can = end.node && !end.node->is_dead() && !end.has_ended;
    disconnect(*link, can ? side : 1 - side);
  }
}

// What one end believed of the connection the other did, too.
void World::check_agreement(const Link& link) {
  if (was_long_silent() || is_lost(link)) return;
  const End& near = link.ends[kNear];
  const End& far = link.ends[kFar];
  failures.check(!far.is_established || near.is_established, "established at the passive end only");
  failures.check(!near.is_established || far.node, "established with nobody");
}

bool World::is_lost(const Link& link) const {
  return was_lost_[link.first] || was_lost_[link.second];
}

// Whether both ends have heard the last of it.
bool World::is_closed(const Link& link) const {
  return !link.is_managed || std::ranges::all_of(link.ends, [](const End& end) {
    return !end.node || end.node->is_dead() || end.has_ended;
  });
}

}  // namespace verbena::fabric
