// SPDX-License-Identifier: MIT
// Two engines and whatever an input makes of them: commands, MADs that come, come twice, come
// changed or do not come, and time. What types.h promises holds all the same. For tests only.
#pragma once

#include <array>
#include <cstring>
#include <map>
#include <span>
#include <vector>

#include "base/assert.h"
#include "cm/engine.h"
#include "wire/ip.h"

namespace verbena::cm {

class FuzzRun {
 public:
  explicit FuzzRun(std::span<const std::uint8_t> input) : input_(input) {
    for (Engine* const engine : {&ends_[0].engine, &ends_[1].engine}) {
      const bool listens = engine->listen({.service_id = kService, .backlog = 4}).has_value();
      VERBENA_ASSERT(listens);
    }
  }

  void run() {
    while (!input_.empty()) {
      step(take());
      settle();
    }
    for (int round = 0; round < 4; ++round) {
      for (End& end : ends_) {
        for (auto& [id, told] : end.told)
          release(end, CommId{id});
      }
      settle();
      pass(Duration::seconds(100'000));
    }
    for (End& end : ends_) {
      VERBENA_ASSERT(end.engine.connections() == 0);
      VERBENA_ASSERT(end.engine.next_deadline() == Instant::never());
    }
  }

 private:
  static constexpr std::uint64_t kService = 5;
  static constexpr std::size_t kOnTheWayMax = 16;

  struct Told {
    std::uint32_t kinds = 0;  // a bit each
    bool has_ended = false;
    bool is_released = false;
  };
  struct End {
    explicit End(std::uint16_t slot)
        : random(slot),
          engine({.slot = {slot}, .connections_max = 8, .time_wait_max = 8, .outgoing_max = 32},
                 random) {}
    SeededRandom random;
    Engine engine;
    std::map<std::uint32_t, Told> told;
  };

  std::uint8_t take() {
    if (input_.empty()) return 0;
    const std::uint8_t first = input_.front();
    input_ = input_.subspan(1);
    return first;
  }
  static Gid gid(unsigned end) {
    return wire::gid_of(std::array<std::uint8_t, 4>{10, 0, 0, static_cast<std::uint8_t>(end)});
  }

  // The lower bit says whose turn it is.
  void step(std::uint8_t what) {
    const unsigned who = what & 1;
    switch (what >> 1 & 7) {
      case 0: return begin(who);
      case 1: return deliver(false);
      case 2: return deliver(true);
      case 3: return change();
      case 4: return command(who);
      case 5: return pass(Duration::milliseconds(std::int64_t{1} << (take() & 31)));
      case 6:
        if (!on_the_way_.empty()) on_the_way_.erase(on_the_way_.begin());
        return;
      default: return invent(who);
    }
  }

  void begin(unsigned who) {
    const Route route{.local = gid(who), .remote = gid(take() & 1)};
    const std::uint8_t how = take();
    Engine& engine = ends_[who].engine;
    if ((how & 1) != 0) {
      const auto id =
          engine.resolve(route, {.service_id = kService + (how >> 7)}, {.retries_max = 2}, 0, now_);
      if (id) ends_[who].told[id->value] = {};
      return;
    }
    wire::Req req;
    req.service_id = kService + (how >> 7);
    req.local_qp = {how >> 1 & 7u};
    req.path_mtu = 3;
    req.max_cm_retries = how >> 4 & 3;
    req.remote_cm_response_timeout = take() & 31;
    req.local_cm_response_timeout = 10;
    const auto id = engine.connect(route, req, 0, now_);
    if (id) ends_[who].told[id->value] = {};
  }

  void deliver(bool stays) {
    if (on_the_way_.empty()) return;
    const std::size_t which = take() % on_the_way_.size();
    const Mad mad = on_the_way_[which];
    if (!stays) on_the_way_.erase(on_the_way_.begin() + static_cast<std::ptrdiff_t>(which));
    hear(mad);
  }
  void hear(const Mad& mad) {
    for (unsigned end = 0; end < 2; ++end) {
      if (mad.route.remote != gid(end)) continue;
      ends_[end].engine.receive({.local = mad.route.remote, .remote = mad.route.local}, mad.bytes,
                                now_);
    }
  }
  void change() {
    if (on_the_way_.empty()) return;
    Mad& mad = on_the_way_[take() % on_the_way_.size()];
    const std::uint8_t where = take();
    mad.bytes[where] ^= static_cast<std::byte>(take());
  }
  // A MAD of the input's bytes, with ids of connections that there are.
  void invent(unsigned who) {
    Mad mad{{.local = gid(1 - who), .remote = gid(who)}, {}};
    mad.bytes = wire::encode_cm({.transaction_id = 1, .message = wire::Rtu{}});
    mad.bytes[17] = static_cast<std::byte>(0x10 + take() % 11);
    put_id(mad, 24, 1 - who);
    put_id(mad, 28, who);
    const std::uint8_t count = take() & 15;
    for (std::uint8_t i = 0; i < count; ++i)
      mad.bytes[32 + i] = static_cast<std::byte>(take());
    hear(mad);
  }
  void put_id(Mad& mad, std::size_t at, unsigned whose) {
    const auto& told = ends_[whose].told;
    if (told.empty()) return;
    auto found = told.begin();
    std::advance(found, static_cast<std::ptrdiff_t>(take() % told.size()));
    const wire::be32 id(found->first);
    std::memcpy(mad.bytes.data() + at, &id, sizeof id);
  }

  void command(unsigned who) {
    End& end = ends_[who];
    if (end.told.empty()) return;
    auto found = end.told.begin();
    std::advance(found, static_cast<std::ptrdiff_t>(take() % end.told.size()));
    const CommId id{found->first};
    const std::uint8_t how = take();
    const std::array<std::byte, 150> data{};
    const auto some = std::span(data).first(how >> 3 == 31 ? 150 : how >> 3);
    Engine& engine = end.engine;
    switch (how & 7) {
      case 0: return static_cast<void>(engine.confirm(id, some, now_));
      case 1: return static_cast<void>(engine.accept(id, {.local_qp = {how >> 3 & 3u}}, now_));
      case 2: return static_cast<void>(engine.established(id, now_));
      case 3: return static_cast<void>(engine.answer(id, {}, now_));
      case 4: return static_cast<void>(engine.reject(id, {.private_data = some}, now_));
      case 5: return static_cast<void>(engine.ask_for_time(id, how >> 3, now_));
      case 6: return static_cast<void>(engine.disconnect(id, some, now_));
      default: return release(end, id);
    }
  }
  void release(End& end, CommId id) {
    end.told[id.value].is_released = true;
    end.engine.release(id, now_);
  }

  void pass(Duration time) {
    const Instant end = now_ + time;
    for (;;) {
      Instant next = Instant::never();
      for (End& each : ends_)
        next = std::min(next, each.engine.next_deadline());
      if (next > end) break;
      now_ = std::max(now_, next);
      for (End& each : ends_)
        each.engine.advance(now_);
      settle();
    }
    now_ = end;
  }

  void settle() {
    Mad mad;
    Event event;
    for (End& end : ends_) {
      while (end.engine.next_mad(mad)) {
        VERBENA_ASSERT(wire::parse_cm(mad.bytes).has_value());
        if (on_the_way_.size() < kOnTheWayMax) on_the_way_.push_back(mad);
      }
      while (end.engine.next_event(event))
        check(end, event);
    }
  }
  static void check(End& end, const Event& event) {
    Told& told = end.told[event.id.value];
    const bool is_new =
        event.kind == EventKind::kRequest || event.kind == EventKind::kResolveRequest;
    if (is_new) told = {};
    const std::uint32_t bit = 1u << static_cast<unsigned>(event.kind);
    VERBENA_ASSERT(!told.is_released);
    VERBENA_ASSERT((told.kinds & bit) == 0);
    VERBENA_ASSERT(!told.has_ended || event.kind == EventKind::kTimeWaitOver);
    told.kinds |= bit;
    told.has_ended = told.has_ended || event.kind == EventKind::kRejected ||
                     event.kind == EventKind::kUnreachable ||
                     event.kind == EventKind::kDisconnected;
  }

  std::span<const std::uint8_t> input_;
  std::array<End, 2> ends_{End(1), End(2)};
  std::vector<Mad> on_the_way_;
  Instant now_;
};

}  // namespace verbena::cm
