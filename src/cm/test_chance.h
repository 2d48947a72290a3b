// SPDX-License-Identifier: MIT
// Worlds made by chance: many connections, a bad network, programs of all moods. For tests only.
#pragma once

#include <string>
#include <vector>

#include "cm/test_scenarios.h"

namespace verbena::cm {

class Chance {
 public:
  explicit Chance(std::uint64_t seed) : random_(seed) {
    const Settings settings = settings_by_chance();
    world_ = std::make_unique<World>(2 + static_cast<unsigned>(random_.below(3)), seed, settings);
    loss_ = random_.below(21);
    doubling_ = random_.below(30);
    lateness_ = random_.below(30);
    World& world = *world_;
    if (random_.one_in(2)) world.share_host();
    for (unsigned i = 0; i < world.size(); ++i) {
      world[i].listen(4 + static_cast<std::uint32_t>(random_.below(64)));
      world[i].moods = [this] { return mood(); };
    }
    world.fate = [this](const Sent&) { return fate(); };
  }

  // A seed's whole life. Nothing is forged: all must agree.
  void live() {
    World& world = *world_;
    plan();
    world.run(Duration::seconds(4'000));
    EXPECT_EQ(disagreement(world), "") << text_of(world);
    finish();
  }

  // Messages of the right form and ids at any time, and commands, too: nothing need agree then, but
  // no program hears anything twice, and nothing is left.
  void live_among_forgers() {
    World& world = *world_;
    std::vector<Mad> seen;
    world.watch = [&](const Mad& mad) {
      if (seen.size() < 500) seen.push_back(mad);
      if (random_.one_in(20)) world_->clock.after({}, [this, mad] { answer_early(mad); });
    };
    plan();
    for (int i = 0; i < 2'000; ++i) {
      const auto when = Duration::milliseconds(static_cast<std::int64_t>(random_.below(30'000)));
      world.clock.after(when, [this, &seen] { forge(seen); });
      world.clock.after(when, [this] { blunder(); });
    }
    world.run(Duration::seconds(4'000));
    world.watch = nullptr;
    finish();
  }

  World& world() { return *world_; }

 private:
  using Does = Habits::Does;

  Settings settings_by_chance() {
    Settings settings;
    if (random_.one_in(3)) settings.early_resend = {};
    if (random_.one_in(3)) settings.service_timeout = 18;
    if (random_.one_in(4)) settings.time_wait_max = 4;
    return settings;
  }

  Duration a_while() {
    const std::int64_t most[] = {0, 1, 100, 1'000, 5'000};
    const auto bound = static_cast<std::uint64_t>(most[random_.below(5)]);
    return Duration::milliseconds(static_cast<std::int64_t>(random_.below(bound + 1)));
  }
  Does a_deed() {
    constexpr Does kDeeds[] = {Does::kAccept, Does::kAccept, Does::kAccept,  Does::kAccept,
                               Does::kAccept, Does::kReject, Does::kRelease, Does::kNothing};
    return kDeeds[random_.below(8)];
  }
  Habits mood() {
    Habits habits;
    habits.on_request = a_deed();
    habits.request_time = a_while();
    habits.on_reply = a_deed();
    habits.reply_time = a_while();
    habits.on_resolve = a_deed();
    habits.resolve_time = a_while();
    return habits;
  }
  std::vector<Duration> fate() {
    std::vector<Duration> arrivals;
    if (random_.below(100) < loss_) return arrivals;
    arrivals.push_back(random_.below(100) < lateness_ ? a_while() : kWay);
    if (random_.below(100) < doubling_) arrivals.push_back(a_while());
    return arrivals;
  }

  Side& any_side() { return (*world_)[static_cast<unsigned>(random_.below(world_->size()))]; }

  void plan() {
    const auto connections = 20 + random_.below(60);
    for (std::uint64_t i = 0; i < connections; ++i) {
      const auto when = Duration::milliseconds(static_cast<std::int64_t>(random_.below(20'000)));
      world_->clock.after(when, [this] { begin_one(); });
    }
    for (std::uint64_t i = 0; i < connections; ++i) {
      const auto when = Duration::milliseconds(static_cast<std::int64_t>(random_.below(60'000)));
      world_->clock.after(when, [this] { end_one(); });
    }
  }
  void begin_one() {
    Side& from = any_side();
    Side& to = any_side();
    if (random_.one_in(4)) {
      from.resolve(to, random_.one_in(8) ? 99 : to.datagram_service);
      return;
    }
    wire::Req req = request_for(from.gid, to.gid, world_->new_qp());
    req.service_id = random_.one_in(10) ? 1 : to.service;
    from.connect(to, req);
  }
  void end_one() {
    Side& side = any_side();
    if (side.stories.empty()) return;
    auto story = side.stories.begin();
    std::advance(story, static_cast<std::ptrdiff_t>(random_.below(side.stories.size())));
    if (story->second.is_released) return;
    if (random_.one_in(3)) return side.release(story->first);
    side.disconnect(story->first);
  }

  // One of those that were seen, with another attribute, or other bits here and there; from whom
  // it came, or from another side.
  void forge(const std::vector<Mad>& seen) {
    if (seen.empty()) return;
    Mad mad = seen[random_.below(seen.size())];
    if (random_.one_in(2)) {
      mad.bytes[17] = static_cast<std::byte>(0x10 + random_.below(11));
    }
    if (random_.one_in(4)) {
      // To whom sent it, as an answer would be.
      std::swap(mad.route.local, mad.route.remote);
      for (std::size_t i = 24; i < 28; ++i)
        std::swap(mad.bytes[i], mad.bytes[i + 4]);
    }
    if (random_.one_in(4)) {
      const auto bit = random_.below(8 * mad.bytes.size());
      mad.bytes[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    }
    if (random_.one_in(8)) mad.route.local = any_side().gid;
    world_->arrive(mad);
  }

  // A DREQ for who has only just asked, an MRA for who has not answered yet; and the passive side's
  // queue pair asks for another connection, while its reply is thought about.
  void answer_early(const Mad& mad) {
    const auto parsed = wire::parse_cm(mad.bytes);
    const Route back{.local = mad.route.remote, .remote = mad.route.local};
    if (const auto* const req = std::get_if<wire::Req>(&parsed->message)) {
      world_->arrive(forged(back, wire::Dreq{.local_comm_id = 1,
                                             .remote_comm_id = req->local_comm_id,
                                             .remote_qp = req->local_qp}));
    } else if (const auto* const mra = std::get_if<wire::Mra>(&parsed->message)) {
      world_->arrive(forged(back, wire::Mra{.local_comm_id = mra->remote_comm_id,
                                            .remote_comm_id = mra->local_comm_id,
                                            .message = wire::MraOf::kRep}));
    } else if (const auto* const rep = std::get_if<wire::Rep>(&parsed->message)) {
      const Route& route = mad.route;
      wire::Req again = request_for(route.local, route.remote, rep->local_qp);
      again.local_comm_id = 3;
      world_->clock.after(Duration::milliseconds(1),
                          [this, late = forged(route, again)] { world_->arrive(late); });
    }
  }
  static Mad forged(const Route& route, const wire::CmMessage& message) {
    return {route, wire::encode_cm({.transaction_id = 1, .message = message})};
  }

  // A command that need not fit.
  void blunder() {
    Side& side = any_side();
    if (side.stories.empty()) return;
    auto story = side.stories.begin();
    std::advance(story, static_cast<std::ptrdiff_t>(random_.below(side.stories.size())));
    const CommId id = story->first;
    const Instant now = world_->clock.now;
    Engine& engine = side.engine;
    switch (random_.below(7)) {
      case 0: story->second.is_confirmed |= engine.confirm(id, {}, now).has_value(); break;
      case 1: static_cast<void>(engine.accept(id, {.local_qp = world_->new_qp()}, now)); break;
      case 2: static_cast<void>(engine.established(id, now)); break;
      case 3: static_cast<void>(engine.answer(id, {}, now)); break;
      case 4: static_cast<void>(engine.disconnect(id, {}, now)); break;
      case 5: static_cast<void>(engine.ask_for_time(id, 18, now)); break;
      default:
        if (engine.reject(id, {}, now)) return side.release(id);
    }
    side.pump();
  }

  void finish() {
    World& world = *world_;
    const std::string text = text_of(world);
    // Late requests may come to those that have released all: they are released, too.
    for (int round = 0; round < 3; ++round) {
      for (unsigned i = 0; i < world.size(); ++i)
        world[i].release_all();
      world.run(Duration::seconds(2'000));
    }
    for (unsigned i = 0; i < world.size(); ++i)
      EXPECT_EQ(world[i].engine.connections(), 0u) << text;
  }

  SeededRandom random_;
  std::unique_ptr<World> world_;
  std::uint64_t loss_ = 0;
  std::uint64_t doubling_ = 0;
  std::uint64_t lateness_ = 0;
};

}  // namespace verbena::cm
