// SPDX-License-Identifier: MIT
#include "queues/receive_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <set>
#include <thread>
#include <vector>

#include "base/far_fence.h"
#include "base/random.h"
#include "base/test_seed.h"

namespace verbena::queues {
namespace {

Sge room_at(std::uint64_t address, std::uint32_t length) {
  return {.address = address, .length = length, .key = {1}};
}

struct CountedLimits final : ReceiveQueueEvents {
  void limit_reached() override { ++reached; }
  std::atomic<int> reached{0};
};

TEST(ReceiveQueue, GivesThemInOrderWithTheirSges) {
  ReceiveQueue queue(3, 2);
  const Sge list[] = {room_at(10, 1), room_at(20, 0xffffffff)};
  EXPECT_EQ(queue.post(1, list), std::nullopt);
  EXPECT_EQ(queue.post(2, {}), std::nullopt);
  EXPECT_EQ(queue.waiting(), 2u);
  Receive receive;
  ASSERT_TRUE(queue.take(receive));
  EXPECT_EQ(receive.wr_id, 1u);
  ASSERT_EQ(receive.list().size(), 2u);
  EXPECT_EQ(receive.list()[1].address, 20u);
  EXPECT_EQ(receive.room(), 0x100000000u) << "the sum does not wrap at 32 bits";
  ASSERT_TRUE(queue.take(receive));
  EXPECT_EQ(receive.wr_id, 2u);
  EXPECT_EQ(receive.room(), 0u);
  EXPECT_FALSE(queue.take(receive));
}

TEST(ReceiveQueue, RefusesWhatDoesNotFit) {
  ReceiveQueue queue(1, 1);
  const Sge two[2] = {};
  EXPECT_EQ(queue.post(1, two), ReceiveQueue::PostError::kTooManySges);
  EXPECT_EQ(queue.post(2, {two, 1}), std::nullopt);
  EXPECT_EQ(queue.post(3, {two, 1}), ReceiveQueue::PostError::kFull);
  EXPECT_EQ(ReceiveQueue(0, 1).post(4, {}), ReceiveQueue::PostError::kFull);
  EXPECT_EQ(queue.waiting(), 1u);
}

TEST(ReceiveQueue, RaisesItsLimitOnceAnArming) {
  CountedLimits events;
  ReceiveQueue queue(8, 1, &events);
  Receive receive;
  for (std::uint64_t i = 0; i < 5; ++i)
    EXPECT_EQ(queue.post(i, {}), std::nullopt);
  EXPECT_FALSE(queue.set_limit(9));
  EXPECT_TRUE(queue.set_limit(3));
  EXPECT_EQ(queue.limit(), 3u);
  EXPECT_TRUE(queue.take(receive));
  EXPECT_TRUE(queue.take(receive));
  EXPECT_EQ(events.reached, 0) << "three are left";
  EXPECT_TRUE(queue.take(receive));
  EXPECT_EQ(events.reached, 1);
  EXPECT_EQ(queue.limit(), 0u);
  EXPECT_TRUE(queue.take(receive));
  EXPECT_EQ(events.reached, 1);
  EXPECT_TRUE(queue.set_limit(3));
  EXPECT_TRUE(queue.set_limit(0));
  EXPECT_TRUE(queue.take(receive));
  EXPECT_EQ(events.reached, 1) << "disarmed";
}

TEST(ReceiveQueue, ArmingBeforeTheFirstPostIsNoEventAndTooLateIsNotLost) {
  CountedLimits events;
  ReceiveQueue queue(8, 1, &events);
  Receive receive;
  EXPECT_TRUE(queue.set_limit(2));
  for (std::uint64_t i = 0; i < 3; ++i)
    EXPECT_EQ(queue.post(i, {}), std::nullopt);
  EXPECT_EQ(events.reached, 0);
  EXPECT_TRUE(queue.take(receive));
  EXPECT_EQ(events.reached, 0);
  EXPECT_TRUE(queue.take(receive));
  EXPECT_EQ(events.reached, 1);
  EXPECT_TRUE(queue.take(receive));
  EXPECT_TRUE(queue.set_limit(1));
  EXPECT_EQ(events.reached, 1);
  EXPECT_FALSE(queue.take(receive)) << "a message finds none";
  EXPECT_EQ(events.reached, 2);
}

TEST(ReceiveQueue, RefusesToShrinkBelowWhatWaitsOrTheLimit) {
  ReceiveQueue queue(4, 1);
  for (std::uint64_t i = 0; i < 3; ++i)
    EXPECT_EQ(queue.post(i, {}), std::nullopt);
  EXPECT_FALSE(queue.resize(2));
  EXPECT_TRUE(queue.set_limit(4));
  EXPECT_FALSE(queue.resize(3));
  EXPECT_EQ(queue.depth(), 4u);
  EXPECT_TRUE(queue.set_limit(0));
  EXPECT_TRUE(queue.resize(3));
  EXPECT_EQ(queue.depth(), 3u);
}

TEST(ReceiveQueue, ResizeOverTheWrap) {
  ReceiveQueue queue(3, 1);
  Receive receive;
  const Sge one = room_at(77, 7);
  for (std::uint64_t i = 0; i < 3; ++i)
    EXPECT_EQ(queue.post(i, {&one, 1}), std::nullopt);
  EXPECT_TRUE(queue.take(receive));
  EXPECT_EQ(queue.post(3, {}), std::nullopt);
  EXPECT_TRUE(queue.resize(10));
  EXPECT_EQ(queue.depth(), 10u);
  for (std::uint64_t i = 4; i < 11; ++i)
    EXPECT_EQ(queue.post(i, {&one, 1}), std::nullopt);
  EXPECT_EQ(queue.post(11, {}), ReceiveQueue::PostError::kFull);
  for (std::uint64_t i = 1; i < 11; ++i) {
    ASSERT_TRUE(queue.take(receive));
    EXPECT_EQ(receive.wr_id, i);
    EXPECT_EQ(receive.room(), i == 3 ? 0u : 7u);
  }
}

TEST(ReceiveQueue, ResetForgets) {
  CountedLimits events;
  ReceiveQueue queue(3, 1, &events);
  Receive receive;
  EXPECT_EQ(queue.post(1, {}), std::nullopt);
  EXPECT_TRUE(queue.set_limit(1));
  queue.reset();
  EXPECT_FALSE(queue.take(receive));
  EXPECT_EQ(events.reached, 0);
  EXPECT_EQ(queue.post(2, {}), std::nullopt);
  EXPECT_TRUE(queue.take(receive));
  EXPECT_EQ(receive.wr_id, 2u);
}

// A receive queue beside what a list would do; each step is one call on both.
struct ReceiveModel {
  explicit ReceiveModel(SeededRandom& source)
      : random(source), depth(small(7)), sge_max(small(5)), queue(depth, sge_max, &events) {}

  std::uint32_t small(std::uint32_t bound) {
    return static_cast<std::uint32_t>(random.below(bound));
  }

  void resize() {
    const std::uint32_t wanted = small(9);
    const bool fits = list.size() <= wanted && limit <= wanted;
    ASSERT_EQ(queue.resize(wanted), fits);
    if (fits) depth = wanted;
  }

  void set_limit() {
    const std::uint32_t wanted = small(8);
    ASSERT_EQ(queue.set_limit(wanted), wanted <= depth);
    if (wanted <= depth) limit = wanted;
  }

  void take() {
    Receive receive;
    ASSERT_EQ(queue.take(receive), !list.empty());
    if (!list.empty()) {
      ASSERT_EQ(receive.wr_id, list.front().first);
      ASSERT_EQ(receive.sge_count, list.front().second.size());
      for (std::uint32_t i = 0; i < receive.sge_count; ++i) {
        ASSERT_EQ(receive.sges[i].address, list.front().second[i].address);
      }
      list.pop_front();
    }
    if (list.size() < limit) {
      ++expected;
      limit = 0;
    }
  }

  void post() {
    std::vector<Sge> sges(small(6));
    for (Sge& s : sges)
      s.address = random.next();
    const std::uint64_t id = random.next();
    const auto error = queue.post(id, sges);
    if (sges.size() > sge_max) {
      ASSERT_EQ(error, ReceiveQueue::PostError::kTooManySges);
    } else if (list.size() == depth) {
      ASSERT_EQ(error, ReceiveQueue::PostError::kFull);
    } else {
      ASSERT_EQ(error, std::nullopt);
      list.emplace_back(id, sges);
    }
  }

  void step() {
    const std::uint32_t what = small(12);
    if (what == 0) return resize();
    if (what == 1) return set_limit();
    return what < 7 ? take() : post();
  }

  SeededRandom& random;
  CountedLimits events;
  std::uint32_t depth;
  std::uint32_t sge_max;
  ReceiveQueue queue;
  std::deque<std::pair<std::uint64_t, std::vector<Sge>>> list;
  std::uint32_t limit = 0;
  int expected = 0;
};

TEST(ReceiveQueue, AgreesWithAModel) {
  SeededRandom random(test_seed());
  for (int round = 0; round < 200; ++round) {
    ReceiveModel model(random);
    for (int step = 0; step < 300; ++step) {
      model.step();
      if (HasFatalFailure()) return;
      ASSERT_EQ(model.queue.waiting(), model.list.size());
      ASSERT_EQ(model.queue.limit(), model.limit);
      ASSERT_EQ(model.events.reached, model.expected);
    }
  }
}

TEST(ReceiveQueue, ManyTakersShareEachReceiveOnce) {
  constexpr std::uint64_t kTotal = 60'000;
  CountedLimits events;
  ReceiveQueue queue(128, 2, &events);
  std::atomic<std::uint64_t> taken{0};
  std::vector<std::vector<std::uint64_t>> ids(3);
  std::vector<std::thread> threads;
  for (auto& mine : ids) {
    threads.emplace_back([&] {
      Receive receive;
      while (taken < kTotal) {
        if (!queue.take(receive)) {
          std::this_thread::yield();
          continue;
        }
        ++taken;
        ASSERT_EQ(receive.sges[1].address, ~receive.wr_id);
        mine.push_back(receive.wr_id);
      }
    });
  }
  for (std::uint64_t i = 0; i < kTotal;) {
    const Sge list[] = {room_at(i, 1), room_at(~i, 1)};
    if (queue.post(i, list)) {
      std::this_thread::yield();
    } else {
      ++i;
    }
  }
  for (std::thread& thread : threads)
    thread.join();
  std::set<std::uint64_t> all;
  for (const auto& mine : ids) {
    EXPECT_TRUE(std::is_sorted(mine.begin(), mine.end())) << "first in, first out for each taker";
    all.insert(mine.begin(), mine.end());
  }
  EXPECT_EQ(all.size(), kTotal);
  EXPECT_EQ(queue.waiting(), 0u);
}

// Without a lock for the taker.
TEST(ReceiveQueue, OneTakerGetsWhatManyThreadsPost) {
  constexpr std::uint64_t kEach = 20'000;
  constexpr std::uint64_t kPosters = 3;
  ReceiveQueue queue(100, 2, nullptr, Takers::kOneAtATime);
  std::vector<std::thread> threads;
  for (std::uint64_t poster = 0; poster < kPosters; ++poster) {
    threads.emplace_back([&queue, poster] {
      for (std::uint64_t i = 1; i <= kEach;) {
        const Sge list[] = {room_at(poster, 1), room_at(~i, 1)};
        if (queue.post(i, list)) {
          std::this_thread::yield();
        } else {
          ++i;
        }
      }
    });
  }
  std::uint64_t last[kPosters] = {};
  Receive receive;
  for (std::uint64_t taken = 0; taken < kEach * kPosters;) {
    ASSERT_LE(queue.waiting(), 100u);
    if (!queue.take(receive)) {
      std::this_thread::yield();
      continue;
    }
    ++taken;
    ASSERT_EQ(receive.sges[1].address, ~receive.wr_id);
    ASSERT_EQ(receive.wr_id, ++last[receive.sges[0].address]);
  }
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(queue.waiting(), 0u);
}

TEST(ReceiveQueue, SeveralAreLookedAtBeforeTheyAreTaken) {
  ReceiveQueue queue(4, 2, nullptr, Takers::kOneAtATime);
  EXPECT_EQ(queue.waiting_alone(), 0u);
  const Sge list[] = {room_at(10, 1), room_at(20, 2)};
  for (std::uint64_t i = 0; i < 3; ++i)
    EXPECT_EQ(queue.post(i, {list, i == 1 ? 2u : 1u}), std::nullopt);
  ASSERT_EQ(queue.waiting_alone(), 3u);
  EXPECT_EQ(queue.simple_at(0).wr_id(), 0u);
  EXPECT_FALSE(queue.simple_at(1)) << "two SGEs";
  ASSERT_TRUE(queue.simple_at(2));
  EXPECT_EQ(queue.simple_at(2).wr_id(), 2u);
  EXPECT_EQ(queue.simple_at(2).sge().address, 10u);
  queue.drop_oldest(2);
  EXPECT_EQ(queue.waiting_alone(), 1u);
  EXPECT_EQ(queue.oldest_simple().wr_id(), 2u);
  queue.drop_oldest();
  EXPECT_FALSE(queue.oldest_simple());

  ReceiveQueue shared(4, 1);
  EXPECT_EQ(shared.post(1, {list, 1}), std::nullopt);
  EXPECT_EQ(shared.waiting_alone(), 0u) << "others may take it at any time";
}

// Whoever has posted for a while by itself posts by the short way.
TEST(ReceiveQueue, OneOfTheThreadThatPostsThemAll) {
  join_near_fences();  // without them no lock has an owner
  ReceiveQueue queue(4, 1, nullptr, Takers::kOneAtATime);
  const Sge sge = room_at(10, 1);
  bool may = true;
  const auto post_one = [&](std::uint64_t wr_id) {
    ReceiveQueue::PostsAlone posts(queue, [&] { return may; });
    return posts.post(wr_id, sge);
  };
  std::uint64_t next = 0;
  const auto take_all = [&] {
    for (; queue.waiting_alone() != 0; queue.drop_oldest())
      EXPECT_EQ(queue.oldest_simple().wr_id(), next++);
  };
  std::uint64_t posted = 0;
  for (; posted < 1000 && !post_one(posted); ++posted) {
    ASSERT_EQ(queue.post(posted, {&sge, 1}), std::nullopt);
    take_all();
  }
  if (posted == 1000) GTEST_SKIP() << "no near fences here, or thread sanitizer";
  ++posted;
  std::thread([&] { EXPECT_FALSE(post_one(posted)) << "not the owner"; }).join();
  may = false;
  EXPECT_FALSE(post_one(posted));
  may = true;
  while (queue.waiting() < queue.depth())
    ASSERT_TRUE(post_one(posted++));
  EXPECT_FALSE(post_one(posted)) << "full";
  take_all();
  EXPECT_EQ(next, posted);
  {
    ReceiveQueue::PostsAlone posts(queue, [] { return true; });
    for (int i = 0; i < 4; ++i)
      EXPECT_TRUE(posts.post(posted++, sge));
    EXPECT_FALSE(posts.post(posted, sge)) << "full";
    EXPECT_EQ(queue.waiting(), 0u) << "not yet";
  }
  EXPECT_EQ(queue.waiting(), 4u);
  take_all();
  EXPECT_TRUE(post_one(posted++));
  take_all();
}

}  // namespace
}  // namespace verbena::queues
