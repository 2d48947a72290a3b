// SPDX-License-Identifier: MIT
// Ways in which a connection can go, to be run under faults, and what has to hold in all of them:
// both ends agree in the end, and nothing is left. For tests only.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cm/test_world.h"

namespace verbena::cm {

struct Scenario {
  const char* name;
  std::function<void(World&)> begin;  // side 0 asks, side 1 listens already
  std::function<void(World&)> end;    // much later
  bool may_vanish = false;            // when a message is lost
};

inline CommId first_standing(Side& side) {
  for (const auto& [id, story] : side.stories) {
    if (story.stands()) return id;
  }
  return {};
}

namespace scenario {

using Does = Habits::Does;
using Part = std::function<void(World&)>;

inline void nothing(World& /*world*/) {}
inline void connect(World& world) { world[0].connect(world[1]); }
// The programs' habits first.
inline Part with(const std::function<void(Habits&, Habits&)>& change) {
  return [change](World& world) {
    change(world[0].habits, world[1].habits);
    connect(world);
  };
}
inline Part disconnect_by(unsigned who) {
  return [who](World& world) { world[who].disconnect(first_standing(world[who])); };
}
inline void disconnect_both(World& world) {
  const CommId a = first_standing(world[0]);
  const CommId b = first_standing(world[1]);
  world[0].disconnect(a);
  world[1].disconnect(b);
}
inline Part release_by(unsigned who, Duration when, Duration thinking = {}) {
  return [=](World& world) {
    world[1].habits.request_time = thinking;
    connect(world);
    world.clock.after(when, [&world, who] { world[who].release_all(); });
  };
}
inline void ask_nobody(World& world) {
  wire::Req req = request_for(world[0].gid, world[1].gid, world.new_qp());
  req.service_id = 1;
  world[0].connect(world[1], req);
}
inline Part resolve(Does does, Duration thinking = {}) {
  return [=](World& world) {
    world[1].habits.on_resolve = does;
    world[1].habits.resolve_time = thinking;
    world[0].resolve(world[1]);
  };
}

}  // namespace scenario

// NOLINTBEGIN(clang-analyzer-cplusplus.NewDeleteLeaks): it loses sight of what a function owns.
inline std::vector<Scenario> scenarios() {
  using namespace scenario;  // NOLINT(google-build-using-namespace): the words of the list below
  const Duration s3 = Duration::seconds(3);
  const auto us = Duration::microseconds;
  return {
      {"the active side disconnects", connect, disconnect_by(0)},
      {"the passive side disconnects", connect, disconnect_by(1)},
      {"both disconnect at once", connect, disconnect_both},
      {"a program goes without a word", connect, [](World& world) { world[1].release_all(); }},
      {"the passive side rejects", with([](auto&, auto& b) { b.on_request = Does::kReject; }),
       nothing},
      {"the active side rejects", with([](auto& a, auto&) { a.on_reply = Does::kReject; }),
       nothing},
      {"the passive side takes time", with([=](auto&, auto& b) { b.request_time = s3; }),
       disconnect_by(0)},
      {"the active side takes time", with([=](auto& a, auto&) { a.reply_time = s3; }),
       disconnect_by(1)},
      {"the request is withdrawn on its way", release_by(0, us(10)), nothing, true},
      {"the request is withdrawn later", release_by(0, Duration::seconds(1), s3), nothing},
      {"the passive side releases the request",
       with([](auto&, auto& b) { b.on_request = Does::kRelease; }), nothing},
      {"the active side releases the reply",
       with([](auto& a, auto&) { a.on_reply = Does::kRelease; }), nothing},
      {"the passive side goes while its reply is on its way", release_by(1, us(75)), nothing, true},
      {"nobody listens", ask_nobody, nothing},
      {"a service is resolved", resolve(Does::kAccept), nothing},
      {"a service is resolved slowly", resolve(Does::kAccept, s3), nothing},
      {"a service is not resolved", resolve(Does::kRelease), nothing},
  };
}
// NOLINTEND(clang-analyzer-cplusplus.NewDeleteLeaks)

// What is wrong between the two sides; empty when they agree.
inline std::string disagreement(World& world) {
  std::map<QpNum, int> standing;
  for (unsigned i = 0; i < world.size(); ++i) {
    for (const auto& [id, story] : world[i].stories)
      standing[story.active_qp] += story.stands() ? 1 : 0;
  }
  for (const auto& [qp, ends] : standing) {
    if (ends != 0 && ends != 2) {
      return "connection of " + std::to_string(qp.value) + " has ends: " + std::to_string(ends);
    }
  }
  return {};
}

// What the programs were told. Not how it ended: that may depend on who came first.
inline std::string text_of(World& world) {
  std::string text;
  for (unsigned i = 0; i < world.size(); ++i) {
    for (const auto& [id, story] : world[i].stories)
      text += std::to_string(i) + ": " + text_of(story) + "\n";
  }
  return text;
}

inline void count_coverage(World& world, Coverage& coverage) {
  for (unsigned i = 0; i < world.size(); ++i)
    coverage.add(world[i].engine.coverage());
}

// Runs it under a fate. Gives what both sides were told.
inline std::string play(const Scenario& scenario, const Fate& fate, Coverage& coverage,
                        unsigned* messages = nullptr) {
  World world;
  world[1].listen();
  world.fate = fate;
  scenario.begin(world);
  const auto is_agreed = [&](const char* when) {
    EXPECT_EQ(disagreement(world), "") << when << "\n" << text_of(world) << world.sent();
  };
  world.run(Duration::seconds(200));
  is_agreed("after connecting");
  scenario.end(world);
  world.run(Duration::seconds(200));
  is_agreed("after disconnecting");
  const std::string text = text_of(world);
  if (messages != nullptr) *messages = static_cast<unsigned>(world.log.size());
  for (unsigned i = 0; i < world.size(); ++i)
    world[i].release_all();
  world.run(Duration::seconds(400));
  for (unsigned i = 0; i < world.size(); ++i) {
    world[i].release_all();  // what came from messages that were late
    world.run(Duration::seconds(100));
    EXPECT_EQ(world[i].engine.connections(), 0u) << "left over\n" << text << world.sent();
    EXPECT_EQ(world[i].engine.next_deadline(), Instant::never());
  }
  count_coverage(world, coverage);
  return text;
}

// What can happen to one message.
struct Fault {
  const char* name;
  std::vector<Duration> arrivals;
  bool changes_nothing;  // for the programs
};

inline std::vector<Fault> faults() {
  std::vector<Fault> all = {{"lost", {}, true}, {"twice", {kWay, kWay}, true}};
  // Within time wait; past that, the early resend, the retry timer, several of them, all retries;
  // in the next part of the scenario, and in the one after it.
  for (const int ms : {1, 60, 300, 1'300, 6'000, 30'000, 190'000, 350'000}) {
    const Duration late = Duration::milliseconds(ms);
    all.push_back({"late", {late}, false});
    all.push_back({"again later", {kWay, late}, ms <= 60});
  }
  return all;
}

inline Fate faulty(std::vector<std::pair<unsigned, std::vector<Duration>>> which) {
  return [which = std::move(which)](const Sent& sent) {
    for (const auto& [number, arrivals] : which) {
      if (number == sent.number) return arrivals;
    }
    return std::vector{kWay};
  };
}

// Every scenario with every message under every fault.
inline void play_all_single_faults(Coverage& coverage) {
  for (const Scenario& scenario : scenarios()) {
    unsigned messages = 0;
    const std::string plain = play(scenario, {}, coverage, &messages);
    for (unsigned number = 0; number < messages; ++number) {
      for (const Fault& fault : faults()) {
        SCOPED_TRACE(std::string(scenario.name) + ", message " + std::to_string(number) + " " +
                     fault.name);
        const std::string text = play(scenario, faulty({{number, fault.arrivals}}), coverage);
        const bool is_gone = fault.arrivals.empty() && scenario.may_vanish;
        if (fault.changes_nothing && !is_gone) {
          EXPECT_EQ(text, plain);
        }
      }
    }
  }
}

}  // namespace verbena::cm
