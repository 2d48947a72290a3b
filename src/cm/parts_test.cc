// SPDX-License-Identifier: MIT
// The engine's parts, held against plain ones: timers, index, ring; and which listener is chosen.
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <set>

#include "base/test_seed.h"
#include "cm/index.h"
#include "cm/listeners.h"
#include "cm/ring.h"
#include "cm/timers.h"
#include "port/steering.h"
#include "wire/ip.h"

namespace verbena::cm {
namespace {

TEST(CmId, LeadsAnswersHomeAsThePortSteersThem) {
  for (const std::uint64_t random : {0ull, ~0ull, 0x12345678ull}) {
    const CommId id = CommId::of({0x2A5}, random);
    EXPECT_EQ(id.value, port::steered_id({0x2A5}, static_cast<std::uint32_t>(random)));
    EXPECT_EQ(port::slot_of_id(id.value), SlotNumber{0x2A5});
  }
}

TEST(CmTimers, TheFirstIsAlwaysTheEarliest) {
  SeededRandom random(test_seed());
  std::vector<Connection> connections(50);
  std::map<Connection*, Instant> model;
  Timers timers;
  for (int i = 0; i < 20'000; ++i) {
    Connection& c = connections[random.below(connections.size())];
    if (random.one_in(3)) {
      timers.cancel(c);
      model.erase(&c);
    } else {
      const Instant when = Instant::at(static_cast<std::int64_t>(random.below(1'000)));
      timers.set(c, when);
      model[&c] = when;
    }
    Instant first = Instant::never();
    for (const auto& [connection, when] : model)
      first = std::min(first, when);
    ASSERT_EQ(timers.next(), first);
    ASSERT_EQ(timers.empty(), model.empty());
    if (!model.empty()) {
      ASSERT_EQ(model.at(&timers.first()), first);
    }
  }
}

TEST(CmIndex, FindsWhatWasPutInAndNothingElse) {
  SeededRandom random(test_seed());
  std::map<std::uint32_t, std::uint32_t> hash_of;
  Index index;
  for (int i = 0; i < 50'000; ++i) {
    const auto number = static_cast<std::uint32_t>(random.below(300));
    const auto known = hash_of.find(number);
    if (known != hash_of.end()) {
      index.erase(known->second, number);
      hash_of.erase(known);
    } else {
      const auto hash = static_cast<std::uint32_t>(random.below(40) * 1021);  // many collide
      index.insert(hash, number);
      hash_of.emplace(number, hash);
    }
    const auto probe = static_cast<std::uint32_t>(random.below(300));
    const auto there = hash_of.find(probe);
    const std::uint32_t hash = there != hash_of.end() ? there->second : 1021;
    const auto found = index.find(hash, [&](std::uint32_t each) { return each == probe; });
    ASSERT_EQ(found, there != hash_of.end() ? static_cast<std::int64_t>(probe) : -1);
    ASSERT_EQ(index.size(), hash_of.size());
  }
}

TEST(CmRing, KeepsTheOrderAndItsMemory) {
  SeededRandom random(test_seed());
  Ring<int> ring;
  std::deque<int> model;
  for (int i = 0; i < 20'000; ++i) {
    if (model.size() < 100 && random.one_in(2)) {
      ring.push() = i;
      model.push_back(i);
    } else if (!model.empty()) {
      ASSERT_EQ(ring.front(), model.front());
      ring.pop();
      model.pop_front();
    }
    ASSERT_EQ(ring.size(), model.size());
  }
  EXPECT_LE(ring.room(), 128u);
}

Gid v4(std::uint8_t last) { return wire::gid_of(std::array<std::uint8_t, 4>{10, 0, 0, last}); }

TEST(CmListeners, TheMostPreciseOneTakesTheRequest) {
  Listeners listeners(16);
  const auto any = listeners.add({.service_id = 0x1234});
  const auto any_v4 = listeners.add({.service_id = 0x1234, .local = v4(0), .local_prefix = 96});
  const auto one = listeners.add({.service_id = 0x1234, .local = v4(1), .local_prefix = 128});
  const auto port = listeners.add({.service_id = 0x1234, .port = 3});
  const auto masked = listeners.add({.service_id = 0x1200, .service_mask = 0xFF00});
  const auto match = [&](std::uint64_t service, const Gid& local, std::uint32_t on = 1) {
    Listener* const found =
        listeners.match({.service_id = service, .route = {.port = on, .local = local}});
    return found != nullptr ? found->id : ListenerId{};
  };
  EXPECT_EQ(match(0x1234, v4(1)), *one);
  EXPECT_EQ(match(0x1234, v4(2)), *any_v4);
  EXPECT_EQ(match(0x1234, Gid{}), *any);
  EXPECT_EQ(match(0x1234, Gid{}, 3), *port);
  EXPECT_EQ(match(0x1299, v4(1)), *masked);
  EXPECT_EQ(match(0x9900, v4(1)), ListenerId{});
  listeners.remove(*one, {});
  EXPECT_EQ(match(0x1234, v4(1)), *any_v4);
  listeners.remove(*one, {});
  listeners.remove(*any_v4, {});
  listeners.remove(*any, {});
  EXPECT_EQ(match(0x1234, v4(1)), *masked);
}

TEST(CmListeners, TwoCannotListenForTheSame) {
  Listeners listeners(3);
  ASSERT_TRUE(listeners.add({.service_id = 1, .local = v4(1), .local_prefix = 128}));
  EXPECT_EQ(listeners.add({.service_id = 1, .local = v4(1), .local_prefix = 128}).error(),
            Refusal::kInUse);
  EXPECT_TRUE(listeners.add({.service_id = 1, .local = v4(2), .local_prefix = 128}));
  EXPECT_TRUE(listeners.add({.service_id = 1}));
  EXPECT_EQ(listeners.add({.service_id = 2}).error(), Refusal::kNoRoom);
  EXPECT_EQ(Listeners(3).add({.service_id = 2, .local_prefix = 129}).error(), Refusal::kInvalid);
  EXPECT_EQ(Listeners(3).add({.service_id = 2, .backlog = 0}).error(), Refusal::kInvalid);
}

TEST(CmListeners, ConnectionsAndDatagramsAreApart) {
  Listeners listeners(4);
  const auto tcp = listeners.add({.service_id = 1, .datagrams = false});
  const auto udp = listeners.add({.service_id = 1, .connections = false});
  ASSERT_TRUE(tcp && udp) << "they do not meet";
  EXPECT_EQ(listeners.match({.service_id = 1})->id, *tcp);
  EXPECT_EQ(listeners.match({.service_id = 1, .is_datagram = true})->id, *udp);
}

}  // namespace
}  // namespace verbena::cm
