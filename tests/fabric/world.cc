// SPDX-License-Identifier: MIT
#include "world.h"

#include <algorithm>
#include <cstring>

#include "qp/operation.h"
#include "scarcity.h"

namespace verbena::fabric {
namespace {

constexpr Duration kFaultyTime = Duration::milliseconds(2);
// In virtual time: long after the last retry of the slowest run.
constexpr Duration kPatience = Duration::milliseconds(500);
// All retries of seven last longer; a silence below this must be outlived.
constexpr std::uint32_t kOutlivedUs = 4'000;

qp::QpType type_of(std::uint32_t service) {
  switch (service) {
    case kUnreliable: return qp::QpType::kUc;
    case kDatagrams: return qp::QpType::kUd;
    default: return qp::QpType::kRc;
  }
}
wire::Service on_wire(std::uint32_t service) {
  switch (service) {
    case kUnreliable: return wire::Service::kUc;
    case kDatagrams: return wire::Service::kUd;
    case kExtended: return wire::Service::kXrc;
    default: return wire::Service::kRc;
  }
}

}  // namespace

World::World(std::uint64_t seed, const Plan& wanted)
    : plan(wanted), random(seed), network(plan, random), was_lost_(plan.nodes) {
  for (unsigned i = 0; i < plan.nodes; ++i)
    nodes_.push_back(std::make_unique<Node>(*this, i));
}

bool World::was_long_silent() const {
  return plan.partition_us > kOutlivedUs || plan.pause_us > kOutlivedUs;
}

void World::note(const queues::Completion& completion) {
  const auto mix = [this](std::uint64_t value) {
    verdict_.trace = (verdict_.trace ^ value) * 0x100000001B3;
  };
  mix(completion.wr_id ^ static_cast<std::uint64_t>(completion.status) << 56);
  mix(static_cast<std::uint64_t>(clock.now().nanoseconds()));
  ++verdict_.statuses[static_cast<std::size_t>(completion.status)];
}

// -- connections --------------------------------------------------------------------------------

PairOptions World::options_of(std::uint32_t service, QpNum self, QpNum peer, unsigned peer_node) {
  const std::uint32_t psn = plan.psn_wraps ? 0xFFFFFF - static_cast<std::uint32_t>(random.below(60))
                                           : static_cast<std::uint32_t>(random.next() & 0xFFFFFF);
  const bool is_first = peer.value == self.value + 1;
  const bool asks = plan.agreeing == kBothAsk || (plan.agreeing == kOneAsks && is_first);
  const qp::QpType type = type_of(service);
  const bool is_reliable = type == qp::QpType::kRc;
  const qp::Xrc half = is_first ? qp::Xrc::kInitiator : qp::Xrc::kTarget;
  return {.type = type,
          .xrc = service == kExtended ? half : qp::Xrc::kNo,
          .number = self,
          .peer = peer,
          .peer_node = peer_node,
          .send_psn = psn,
          .receive_psn = psn,
          .asks = is_reliable && asks,
          .agreed = is_reliable && plan.agreeing == kAgreedBefore};
}

void World::connect(unsigned first, unsigned second, unsigned life) {
  auto link = std::make_unique<Link>(Link{.first = first, .second = second, .life = life});
  link->service = plan.service == kAnyService
                      ? static_cast<std::uint32_t>(random.below(kAnyService))
                      : plan.service;
  link->tag = links_.size();
  link->is_managed = plan.managed && link->service != kDatagrams;
  const QpNum near{next_number_++};
  const QpNum far{next_number_++};
  link->mine = options_of(link->service, near, far, second);
  link->theirs = options_of(link->service, far, near, first);
  std::swap(link->mine.receive_psn, link->theirs.receive_psn);
  link->ends[kNear].node = nodes_[first].get();
  links_.push_back(std::move(link));
  Link& made = *links_.back();
  if (made.is_managed) {
    ask_to_connect(made);
  } else {
    made.near = std::make_unique<Pair>(*this, *nodes_[first], made.mine);
    made.far = std::make_unique<Pair>(*this, *nodes_[second], made.theirs);
    nodes_[first]->add(*made.near);
    nodes_[second]->add(*made.far);
    begin(made);
  }
  schedule_program(made);
}

void World::begin(Link& link) {
  link.there = std::make_unique<Flow>(*this, *link.near, *link.far);
  link.back = std::make_unique<Flow>(*this, *link.far, *link.near);
  link.near->join(*link.there, *link.back);
  link.far->join(*link.back, *link.there);
  watch(link);
}

void World::watch(const Link& link) {
  for (const auto& [from, to] :
       {std::pair{link.near.get(), link.far.get()}, std::pair{link.far.get(), link.near.get()}})
    watcher.watch({.requester = from->number(),
                   .responder = to->number(),
                   .service = on_wire(link.service),
                   .first_psn = from->options().send_psn,
                   .path_mtu = plan.path_mtu,
                   .pkey = pkey_of(plan),
                   .reads_max = plan.reads_max,
                   .keeps_order = plan.reorder_packets == 0});
}

void World::schedule_program(Link& link) {
  clock.after(Duration::nanoseconds(static_cast<std::int64_t>(500 + random.below(30'000))),
              [this, &link] {
                step(link);
                if (!link.is_over) schedule_program(link);
              });
}

void World::step(Link& link) {
  if (!link.there) {
    const End& near = link.ends[kNear];
    if (near.has_ended || near.node->is_dead()) end(link);
    return;
  }
  link.there->step();
  if (!link.is_managed || link.ends[kFar].is_established) link.back->step();
  for (Pair* const pair : {link.near.get(), link.far.get()}) {
    pair->drive();
    pair->home().poll_sometimes();
  }
  pump();
  link.there->conclude();
  link.back->conclude();
  if (link.there->is_settled() && link.back->is_settled()) end(link);
}

// A program that sees its connection fail makes another one.
void World::end(Link& link) {
  link.is_over = true;
  const bool is_good = link.there && link.near->is_alive() && link.far->is_alive();
  if (is_good || link.life + 1 >= plan.lives) return;
  if (link.is_managed) disconnect(link, random.below(2));
  for (Pair* const pair : {link.near.get(), link.far.get()})
    if (pair) pair->stop();
  if (nodes_[link.first]->is_dead() || nodes_[link.second]->is_dead()) return;
  connect(link.first, link.second, link.life + 1);
}

bool World::is_settled() const {
  return network.next() == Instant::never() &&
         std::ranges::all_of(links_, [](const auto& link) { return link->is_over; }) &&
         std::ranges::none_of(nodes_, [](const auto& node) { return node->is_paused(); });
}

// -- faults ---------------------------------------------------------------------------------------

void World::plan_faults() {
  const auto somebody = [this] { return static_cast<unsigned>(random.below(plan.nodes)); };
  const auto longest = std::max(plan.partition_us, plan.pause_us);
  faults_end_ = clock.now() + kFaultyTime + microseconds_of(longest);
  clock.at(faults_end_, [this] { network.heal(); });
  // Each in a statement of its own: the order of what is drawn is the same for every compiler.
  const Instant begin = clock.now();
  const auto some_time = [&] { return begin + microseconds_of(random.below(400)); };
  if (plan.partition_us) {
    const unsigned node = somebody();
    clock.at(some_time(), [this, node] {
      network.cut(node);
      clock.after(microseconds_of(plan.partition_us), [this] { network.cut(std::nullopt); });
    });
  }
  if (plan.pause_us) {
    const unsigned node = somebody();
    clock.at(some_time(), [this, node] {
      nodes_[node]->pause_until(clock.now() + microseconds_of(plan.pause_us));
    });
  }
  if (plan.jump_us) clock.at(some_time(), [this] { clock.leap(microseconds_of(plan.jump_us)); });
  if (plan.crashes) {
    const unsigned node = somebody();
    clock.at(some_time(), [this, node] { crash(node); });
  }
  if (plan.revokes) {
    const unsigned node = somebody();
    clock.at(some_time(), [this, node] { nodes_[node]->revoke(); });
  }
  if (plan.stops) {
    clock.at(some_time(), [this] {
      Link& link = *links_[random.below(links_.size())];
      const std::size_t side = random.below(2);
      if (link.is_managed && random.one_in(2)) return disconnect(link, side);
      if (Pair* const pair = (side == kNear ? link.near : link.far).get()) pair->stop();
    });
  }
}

void World::crash(unsigned number) {
  nodes_[number]->die();
  was_lost_[number] = true;
  // Who was to end a connection may be the one that is gone.
  if (is_closing_)
    clock.after(kEndsByItself, [this] {
      for (const auto& link : links_)
        for (const std::size_t side : {kNear, kFar})
          if (link->is_managed) disconnect(*link, side);
    });
  if (!plan.restarts) return;
  clock.after(microseconds_of(random.below(300)), [this, number] {
    lost_.push_back(std::exchange(nodes_[number], std::make_unique<Node>(*this, number)));
  });
}

// -- the run --------------------------------------------------------------------------------------

void World::pump() {
  const Instant next = network.next();
  if (next == Instant::never() || (pump_at_ && *pump_at_ <= next)) return;
  pump_at_ = next;
  clock.at(next, [this, next] {
    if (pump_at_ != next) return;
    pump_at_.reset();
    while (network.next() <= clock.now()) {
      Frame frame = network.take();
      nodes_[frame.to]->arrived(std::move(frame));
    }
    pump();
  });
}

Verdict World::run() {
  for (unsigned i = 0; i < plan.connections; ++i) {
    const unsigned first = i % plan.nodes;
    const auto step = static_cast<unsigned>(1 + random.below(plan.nodes - 1));
    connect(first, (first + step) % plan.nodes, 0);
  }
  plan_faults();
  scarcity().refuses = plan.scarce_memory ? &random : nullptr;
  const Instant end = clock.now() + kPatience;
  while (!failures.any() && clock.run_one()) {
    pump();
    if (clock.now() > end) failures.add("does not come to an end");
    if (!is_settled()) continue;
    if (!std::exchange(is_closing_, true)) close();
    if (std::ranges::all_of(links_, [this](const auto& link) { return is_closed(*link); })) break;
  }
  scarcity().refuses = nullptr;
  verdict_.memory_refused = std::exchange(scarcity().refused, 0);
  for (const auto& node : nodes_)
    verdict_.overruns += node->has_overrun();
  failures.check(scarcity().demanded == 0, "memory was demanded where packets pass",
                 std::exchange(scarcity().demanded, 0));
  if (!failures.any()) finish();
  verdict_.failure = failures.first();
  verdict_.coverage = watcher.coverage();
  return verdict_;
}

void World::finish() {
  for (const auto& link : links_) {
    if (link->is_managed) check_agreement(*link);
    // Receives that nobody needed.
    for (Pair* const pair : {link->near.get(), link->far.get()})
      if (pair) pair->stop();
  }
  for (const auto& node : nodes_)
    node->poll();
  for (const auto& link : links_) {
    if (!link->there) continue;
    link->there->finish();
    link->back->finish();
  }
  for (const auto& link : links_)
    for (Pair* const pair : {link->near.get(), link->far.get()})
      if (pair && pair->home().receives.is_overrun()) pair->settle_receives();
  for (const auto& node : nodes_) {
    check_words(*node);
    check_shared_receives(*node);
    node->compare_memory();
  }
}

// Fetch-and-adds of everybody: each has seen a number of its own, and none is lost.
void World::check_words(Node& node) {
  if (node.is_dead()) return;
  std::uint64_t word = 0;
  std::memcpy(&word, node.bytes(kSharedWord, 8).data(), sizeof word);
  std::vector<std::uint64_t>& seen = node.words_seen;
  std::ranges::sort(seen);
  failures.check(std::ranges::adjacent_find(seen) == seen.end(), "two that added saw the same",
                 node.number());
  failures.check(seen.empty() || seen.back() < word, "an addition that is not there", word);
  failures.check(seen.size() <= word && word <= node.adds_posted, "additions that nobody asked for",
                 word);
  node.settle(kSharedWord, 8);
}

// Those that wait still: in as many as there are queue pairs a message may have begun.
void World::check_shared_receives(Node& node) {
  if (node.is_dead()) return;
  std::size_t begun = 0;
  for (const SharedReceives& shared : node.shared) {
    for (const auto& [id, slot] : shared.posted.waiting()) {
      if (std::ranges::equal(node.bytes(slot.place, slot.room), node.before(slot.place, slot.room)))
        continue;
      ++begun;
      node.settle(slot.place, slot.room);
    }
  }
  failures.check(begun <= 2 * links_.size() || node.receives.is_overrun(),
                 "bytes in receives of no message", begun);
}

}  // namespace verbena::fabric
