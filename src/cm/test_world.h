// SPDX-License-Identifier: MIT
// Engines on a virtual clock, joined by a network on which every MAD meets a fate, and programs
// that use them. For tests only.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <string>
#include <vector>

#include "base/random.h"
#include "cm/engine.h"
#include "wire/ip.h"

namespace verbena::cm {

inline constexpr std::uint64_t kService = 0x1064A39;
inline constexpr std::uint64_t kDatagramService = 0x1114A39;
inline constexpr Duration kWay = Duration::microseconds(50);

inline Gid host_gid(unsigned number) {
  return wire::gid_of(std::array<std::uint8_t, 4>{10, 0, static_cast<std::uint8_t>(number >> 8),
                                                  static_cast<std::uint8_t>(number)});
}

// A MAD on its way.
struct Sent {
  unsigned from = 0;
  unsigned number = 0;  // of all
  wire::CmAttribute attribute = wire::CmAttribute::kReq;
  Instant at;
};
// After how long its copies arrive. None: it is lost.
using Fate = std::function<std::vector<Duration>(const Sent&)>;

// What happens when.
class Clock {
 public:
  Instant now;
  void at(Instant when, std::function<void()> what) {
    queue_.push({when, next_++, std::move(what)});
  }
  void after(Duration delay, std::function<void()> what) { at(now + delay, std::move(what)); }
  Instant next() const { return queue_.empty() ? Instant::never() : queue_.top().when; }
  void run_first() {
    const auto what = queue_.top().what;
    queue_.pop();
    what();
  }

 private:
  struct Planned {
    Instant when;
    std::uint64_t order = 0;
    std::function<void()> what;
    friend bool operator<(const Planned& a, const Planned& b) {
      return a.when != b.when ? a.when > b.when : a.order > b.order;
    }
  };
  std::priority_queue<Planned> queue_;
  std::uint64_t next_ = 0;
};

// What the programs of a side do. Times are how long they think first.
struct Habits {
  enum class Does { kAccept, kReject, kRelease, kNothing };
  Does on_request = Does::kAccept;
  Duration request_time{};
  Does on_reply = Does::kAccept;
  Duration reply_time{};
  Does on_resolve = Does::kAccept;
  Duration resolve_time{};
};

// What one connection has told its program.
struct Story {
  std::vector<EventKind> events{};
  Ending ending = Ending::kNone;
  QpNum active_qp{};  // which names the connection on both sides
  bool is_confirmed = false;
  bool is_released = false;
  wire::RejReason reason{};

  bool had(EventKind kind) const {
    return std::find(events.begin(), events.end(), kind) != events.end();
  }
  bool was_established() const { return is_confirmed || had(EventKind::kEstablished); }
  bool has_ended() const {
    return is_released || had(EventKind::kDisconnected) || had(EventKind::kRejected) ||
           had(EventKind::kUnreachable);
  }
  bool stands() const { return was_established() && !has_ended(); }
};

inline std::string text_of(const Story& story) {
  std::string text;
  for (const EventKind kind : story.events)
    text += std::string(text.empty() ? "" : ", ") + name_of(kind);
  return text;
}

class World;

class Side {
 public:
  Side(World& world, unsigned number, std::uint64_t seed, const Settings& settings)
      : number_(number),
        gid(host_gid(number + 1)),
        random_(seed),
        engine(settings, random_),
        world_(world) {}

  // Sends what is to be sent, and hears what is to be heard.
  inline void pump();
  inline CommId connect(Side& to, wire::Req req);
  inline CommId connect(Side& to);
  inline CommId resolve(Side& to, std::uint64_t wanted);
  inline CommId resolve(Side& to);
  inline void disconnect(CommId id);
  inline void release(CommId id);
  void release_all() {
    for (const auto& [id, story] : stories)
      release(id);
  }
  void listen(std::uint32_t backlog = 128) {
    EXPECT_TRUE(engine.listen({.service_id = service, .datagrams = false, .backlog = backlog}));
    EXPECT_TRUE(
        engine.listen({.service_id = datagram_service, .connections = false, .backlog = backlog}));
  }
  // One of several processes of a host, who have one address and services of their own.
  void share_host() {
    gid = host_gid(1);
    service += number_;
    datagram_service += number_;
  }
  // The only one.
  CommId only() const {
    EXPECT_EQ(stories.size(), 1u);
    return stories.empty() ? CommId{} : stories.begin()->first;
  }
  Story& story() { return stories[only()]; }

 private:
  unsigned number_;

 public:
  Gid gid;
  std::uint64_t service = kService;
  std::uint64_t datagram_service = kDatagramService;
  Habits habits;
  std::function<Habits()> moods;  // new ones for each event
  std::map<CommId, Story> stories;
  std::vector<Event> heard;

 private:
  SeededRandom random_;

 public:
  Engine engine;

 private:
  inline void hear(const Event& event);
  inline void answer(const Event& event);
  inline void do_request(CommId id);
  inline void do_reply(CommId id);
  inline void do_resolve(CommId id);
  World& world_;
};

class World {
 public:
  explicit World(unsigned sides = 2, std::uint64_t seed = 1, Settings settings = {}) {
    for (unsigned i = 0; i < sides; ++i) {
      settings.slot = {static_cast<std::uint16_t>(i + 1)};
      sides_.push_back(std::make_unique<Side>(*this, i, seed * 1000 + i, settings));
    }
  }
  Side& operator[](unsigned number) { return *sides_[number]; }
  unsigned size() const { return static_cast<unsigned>(sides_.size()); }
  QpNum new_qp() { return {next_qp_++}; }

  void carry(unsigned from, const Mad& mad) {
    const auto attribute = wire::attribute_of(wire::parse_cm(mad.bytes)->message);
    const Sent sent{from, static_cast<unsigned>(log.size()), attribute, clock.now};
    log.push_back(sent);
    if (watch) watch(mad);
    for (const Duration delay : fate ? fate(sent) : std::vector{kWay})
      clock.after(delay, [this, mad] { arrive(mad); });
  }
  void share_host() {
    shares_host_ = true;
    for (const auto& side : sides_)
      side->share_host();
  }
  void arrive(const Mad& mad) {
    for (const auto& side : sides_) {
      if (shares_host_ ? side.get() != steered(mad) : side->gid != mad.route.remote) continue;
      side->engine.receive({.local = mad.route.remote, .remote = mad.route.local}, mad.bytes,
                           clock.now);
      side->pump();
    }
  }
  // Whose a MAD is where all have one address: as port/steering.h finds it.
  const Side* steered(const Mad& mad) const {
    const auto parsed = wire::parse_cm(mad.bytes);
    if (!parsed) return sides_[0].get();
    const auto of_service = [this](std::uint64_t service) {
      for (const auto& side : sides_)
        if (side->service == service || side->datagram_service == service) return side.get();
      return sides_[0].get();
    };
    const auto of_id = [this](std::uint32_t id) -> const Side* {
      const std::uint32_t slot = id >> CommId::kSlotShift;
      return slot >= 1 && slot <= sides_.size() ? sides_[slot - 1].get() : nullptr;
    };
    return std::visit(
        [&](const auto& m) -> const Side* {
          if constexpr (requires { m.remote_comm_id; }) {
            return of_id(m.remote_comm_id);
          } else if constexpr (requires { m.status; }) {
            return of_id(m.request_id);
          } else {
            return of_service(m.service_id);
          }
        },
        parsed->message);
  }
  // Everything that happens until then.
  void run(Duration time) {
    const Instant end = clock.now + time;
    for (;;) {
      Instant next = clock.next();
      for (const auto& side : sides_)
        next = std::min(next, side->engine.next_deadline());
      if (next > end) break;
      clock.now = std::max(clock.now, next);
      if (clock.next() <= clock.now) {
        clock.run_first();
        continue;
      }
      for (const auto& side : sides_) {
        if (side->engine.next_deadline() > clock.now) continue;
        side->engine.advance(clock.now);
        side->pump();
      }
    }
    clock.now = end;
  }
  // The names of what was sent, for a test to read.
  std::string sent() const {
    std::string text;
    for (const Sent& one : log)
      text += std::string(text.empty() ? "" : " ") + name_of(one.attribute);
    return text;
  }

  Clock clock;
  Fate fate;
  std::function<void(const Mad&)> watch;
  std::vector<Sent> log;

 private:
  std::vector<std::unique_ptr<Side>> sides_;
  bool shares_host_ = false;
  std::uint32_t next_qp_ = 0x100;
};

// As rdma_cm would ask, with a second's time for an answer.
inline wire::Req request_for(const Gid& from, const Gid& to, QpNum qp) {
  wire::Req req;
  req.service_id = kService;
  req.local_ca_guid = 0x1234'5678'9ABC'DEF0;
  req.local_qp = qp;
  req.starting_psn = qp.value * 3 & 0xFFFFFF;
  req.remote_cm_response_timeout = 18;
  req.local_cm_response_timeout = 18;
  req.max_cm_retries = 15;
  req.path_mtu = 3;
  req.retry_count = 7;
  req.primary.local_gid = from;
  req.primary.remote_gid = to;
  req.primary.ack_timeout = 14;
  return req;
}

inline void Side::pump() {
  Event event;
  Mad mad;
  for (;;) {
    while (engine.next_mad(mad))
      world_.carry(number_, mad);
    if (!engine.next_event(event)) return;
    hear(event);
  }
}

inline CommId Side::connect(Side& to, wire::Req req) {
  const auto id = engine.connect({.local = gid, .remote = to.gid}, req, 7, world_.clock.now);
  EXPECT_TRUE(id);
  stories[*id] = {.active_qp = req.local_qp};
  pump();
  return *id;
}
inline CommId Side::connect(Side& to) {
  wire::Req req = request_for(gid, to.gid, world_.new_qp());
  req.service_id = to.service;
  return connect(to, req);
}
inline CommId Side::resolve(Side& to) { return resolve(to, to.datagram_service); }
inline CommId Side::resolve(Side& to, std::uint64_t wanted) {
  const auto id = engine.resolve({.local = gid, .remote = to.gid}, {.service_id = wanted},
                                 {.response_timeout = 18}, 7, world_.clock.now);
  EXPECT_TRUE(id);
  stories[*id] = {.active_qp = world_.new_qp()};
  pump();
  return *id;
}
inline void Side::disconnect(CommId id) {
  static_cast<void>(engine.disconnect(id, {}, world_.clock.now));
  pump();
}
inline void Side::release(CommId id) {
  stories[id].is_released = true;
  engine.release(id, world_.clock.now);
  pump();
}

// Holds each connection to what types.h promises.
inline void Side::hear(const Event& event) {
  heard.push_back(event);
  Story& story = stories[event.id];
  const bool is_new = event.kind == EventKind::kRequest || event.kind == EventKind::kResolveRequest;
  if (is_new && story.is_released) story = {};  // by chance the id of one that is gone
  EXPECT_FALSE(story.is_released) << "an event after release: " << name_of(event.kind);
  EXPECT_FALSE(story.had(event.kind)) << "again: " << name_of(event.kind);
  if (story.has_ended()) {
    EXPECT_EQ(event.kind, EventKind::kTimeWaitOver) << text_of(story);
  }
  if (event.kind == EventKind::kDisconnected) {
    EXPECT_TRUE(story.had(EventKind::kEstablished) || story.had(EventKind::kReply));
    EXPECT_NE(event.ending, Ending::kNone);
  }
  if (const auto* const req = std::get_if<wire::Req>(&event.message);
      req != nullptr && event.kind == EventKind::kRequest) {
    EXPECT_TRUE(story.events.empty());
    story.active_qp = req->local_qp;
  }
  if (const auto* const rej = std::get_if<wire::Rej>(&event.message);
      rej != nullptr && event.has_message && event.kind == EventKind::kRejected) {
    story.reason = rej->reason;
  }
  story.events.push_back(event.kind);
  if (event.ending != Ending::kNone) story.ending = event.ending;
  answer(event);
}

inline void Side::answer(const Event& event) {
  if (moods) habits = moods();
  const auto later = [&](Duration time, void (Side::*what)(CommId)) {
    if (time == Duration()) return (this->*what)(event.id);
    world_.clock.after(time, [this, what, id = event.id] {
      if (!stories[id].is_released) (this->*what)(id);
      pump();
    });
  };
  if (event.kind == EventKind::kRequest) later(habits.request_time, &Side::do_request);
  if (event.kind == EventKind::kReply) later(habits.reply_time, &Side::do_reply);
  if (event.kind == EventKind::kResolveRequest) later(habits.resolve_time, &Side::do_resolve);
}

inline void Side::do_request(CommId id) {
  const Instant now = world_.clock.now;
  if (habits.on_request == Habits::Does::kAccept) {
    wire::Rep rep;
    rep.local_qp = world_.new_qp();
    static_cast<void>(engine.accept(id, rep, now));
  } else if (habits.on_request == Habits::Does::kReject) {
    const std::array data{std::byte{1}, std::byte{2}};
    if (engine.reject(id, {.private_data = data}, now)) release(id);
  } else if (habits.on_request == Habits::Does::kRelease) {
    release(id);
  }
}
inline void Side::do_reply(CommId id) {
  const Instant now = world_.clock.now;
  if (habits.on_reply == Habits::Does::kAccept) {
    if (engine.confirm(id, {}, now)) stories[id].is_confirmed = true;
  } else if (habits.on_reply == Habits::Does::kReject) {
    if (engine.reject(id, {}, now)) release(id);
  } else if (habits.on_reply == Habits::Does::kRelease) {
    release(id);
  }
}
inline void Side::do_resolve(CommId id) {
  const Instant now = world_.clock.now;
  if (habits.on_resolve == Habits::Does::kAccept) {
    if (engine.answer(id, {.qp = {77}, .qkey = 0x1234}, now)) release(id);
  } else if (habits.on_resolve == Habits::Does::kRelease) {
    release(id);
  }
}

}  // namespace verbena::cm
