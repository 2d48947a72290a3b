// SPDX-License-Identifier: MIT
#include "queues/work_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <set>
#include <thread>
#include <vector>

#include "base/random.h"
#include "base/test_seed.h"

namespace verbena::queues {
namespace {

Sge sge(std::uint64_t address, std::uint32_t length) {
  return {.address = address, .length = length, .key = {1}};
}

TEST(SendQueue, StrideOfASmallRequestIsOneCacheLine) {
  EXPECT_EQ(SendQueue(8, 1, 0).stride(), 64u);
  EXPECT_EQ(SendQueue(8, 1, 16).stride(), 64u);
  EXPECT_EQ(SendQueue(8, 0, 0).stride(), 64u);
  EXPECT_EQ(SendQueue(8, 2, 0).stride(), 128u);
  EXPECT_EQ(SendQueue(8, 1, 17).stride(), 128u);
  EXPECT_EQ(SendQueue(8, 1, 220).stride(), 320u);
}

TEST(SendQueue, RoundsItsDepthUpAndTakesNothingWhenItHasNone) {
  EXPECT_EQ(SendQueue(1, 1, 0).depth(), 1u);
  EXPECT_EQ(SendQueue(100, 1, 0).depth(), 128u);
  SendQueue none(0, 1, 0);
  EXPECT_EQ(none.depth(), 0u);
  EXPECT_EQ(none.room(), nullptr);
}

TEST(SendQueue, EachStrideIsAlignedAndKeepsWhatWasPosted) {
  SendQueue queue(4, 3, 40);
  for (std::uint64_t i = 0; i < 4; ++i) {
    SendWqe* wqe = queue.room();
    ASSERT_NE(wqe, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(wqe) % kWqeAlign, 0u);
    *wqe = {};
    wqe->wr_id = i;
    wqe->sge_count = 3;
    for (std::uint32_t j = 0; j < 3; ++j)
      SendQueue::sge_room(*wqe)[j] = sge(i * 10 + j, j);
    queue.post();
  }
  EXPECT_EQ(queue.room(), nullptr) << "full";
  for (std::uint32_t i = 0; i < 4; ++i) {
    const SendWqe& wqe = queue.at(i);
    EXPECT_EQ(wqe.wr_id, i);
    ASSERT_EQ(SendQueue::sges(wqe).size(), 3u);
    EXPECT_EQ(SendQueue::sges(wqe)[2].address, i * 10 + 2);
    EXPECT_TRUE(SendQueue::inline_payload(wqe).empty());
  }
  queue.free_upto(2);
  EXPECT_EQ(queue.used(), 2u);
  EXPECT_NE(queue.room(), nullptr);
}

TEST(SendQueue, IndicesWrap) {
  SendQueue queue(4, 1, 0);
  queue.reset(0xfffffffe);
  for (std::uint64_t i = 0; i < 4; ++i) {
    SendWqe* wqe = queue.room();
    ASSERT_NE(wqe, nullptr);
    wqe->wr_id = i;
    queue.post();
  }
  EXPECT_EQ(queue.room(), nullptr);
  EXPECT_EQ(queue.posted(), 2u);
  EXPECT_EQ(queue.at(0xffffffff).wr_id, 1u);
  EXPECT_EQ(queue.at(0).wr_id, 2u);
  queue.free_upto(1);
  EXPECT_EQ(queue.used(), 1u);
  EXPECT_EQ(queue.at(1).wr_id, 3u);
}

TEST(SendQueue, SnapshotHoldsStillWhileTheOriginalChanges) {
  SendQueue queue(2, 4, 64);
  SendWqe* wqe = queue.room();
  *wqe = {};
  wqe->wr_id = 5;
  wqe->sge_count = 2;
  SendQueue::sge_room(*wqe)[0] = sge(100, 1);
  SendQueue::sge_room(*wqe)[1] = sge(200, 2);
  queue.post();
  alignas(64) std::byte copy[128];
  ASSERT_TRUE(queue.snapshot(0, copy));
  SendQueue::sge_room(*wqe)[1] = sge(999, 9);
  wqe->sge_count = 60000;
  const auto& taken = *reinterpret_cast<const SendWqe*>(copy);
  ASSERT_EQ(SendQueue::sges(taken).size(), 2u);
  EXPECT_EQ(SendQueue::sges(taken)[1].address, 200u);
  EXPECT_FALSE(queue.snapshot(0, copy)) << "more SGEs than fit";

  wqe->flags = kInline;
  wqe->inline_length = 64;
  std::memset(SendQueue::inline_room(*wqe), 'x', 64);
  ASSERT_TRUE(queue.snapshot(0, copy)) << "inline: the SGE count means nothing";
  EXPECT_EQ(SendQueue::inline_payload(taken).size(), 64u);
  EXPECT_EQ(SendQueue::inline_payload(taken)[63], std::byte{'x'});
  EXPECT_TRUE(SendQueue::sges(taken).empty());
  wqe->inline_length = 65;
  EXPECT_FALSE(queue.snapshot(0, copy));
  wqe->inline_length = 0;
  wqe->opcode = 200;
  EXPECT_FALSE(queue.snapshot(0, copy)) << "no such opcode";
}

TEST(SendQueueDeathTest, FetchingWhatWasNotPostedIsABug) {
  SendQueue queue(2, 1, 0);
  EXPECT_DEATH(static_cast<void>(queue.at(0)), "assertion failed");
  EXPECT_DEATH(queue.free_upto(1), "assertion failed");
}

struct CountedLimits final : ReceiveQueueEvents {
  void limit_reached() override { ++reached; }
  std::atomic<int> reached{0};
};

TEST(ReceiveQueue, GivesThemInOrderWithTheirSges) {
  ReceiveQueue queue(3, 2);
  const Sge list[] = {sge(10, 1), sge(20, 0xffffffff)};
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
  const Sge one = sge(77, 7);
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
    const Sge list[] = {sge(i, 1), sge(~i, 1)};
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

}  // namespace
}  // namespace verbena::queues
