// SPDX-License-Identifier: MIT
#include "queues/completion_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <fstream>
#include <thread>
#include <vector>

#include "base/random.h"
#include "base/test_seed.h"

namespace verbena::queues {
namespace {

struct CountedEvents final : CompletionEvents {
  void completion_event(CompletionQueue& queue) override {
    ++completions;
    // Called without the lock, so the queue may be used from here.
    waiting = queue.empty() ? 0 : 1;
  }
  void overrun_event(CompletionQueue& queue) override {
    ++overruns;
    queue.arm(Arm::kNo);
  }
  std::atomic<int> completions{0};
  std::atomic<int> overruns{0};
  std::atomic<int> waiting{0};
};

Completion numbered(std::uint64_t number, std::uint32_t qp = 2) {
  return {.wr_id = number, .qp = {qp}};
}

Completion failed(std::uint64_t number) {
  return {.wr_id = number, .status = Status::kFlushed, .qp = {2}};
}

std::vector<std::uint64_t> drain(CompletionQueue& queue, std::size_t at_once = 3) {
  std::vector<std::uint64_t> numbers;
  std::vector<Completion> out(at_once);
  while (const std::size_t got = queue.poll(out)) {
    for (std::size_t i = 0; i < got; ++i)
      numbers.push_back(out[i].wr_id);
  }
  return numbers;
}

TEST(CompletionQueue, GivesWholeCompletionsInOrder) {
  CompletionQueue queue(4, nullptr);
  const Completion sent{.wr_id = 7,
                        .status = Status::kRemoteAccess,
                        .kind = CompletionKind::kReceiveWithImmediate,
                        .flags = kHasImmediate | kHasGrh,
                        .service_level = 3,
                        .vendor_error = 0x81,
                        .byte_length = 4096,
                        .immediate = 0xdeadbeef,
                        .qp = {0x4001},
                        .source_qp = {0x8002},
                        .source_lid = 9,
                        .pkey_index = 1,
                        .timestamp = 1234567};
  ASSERT_TRUE(queue.push(sent, false));
  ASSERT_TRUE(queue.push(numbered(8), false));
  Completion got[4];
  ASSERT_EQ(queue.poll(got), 2u);
  EXPECT_EQ(got[0].wr_id, 7u);
  EXPECT_EQ(got[0].status, Status::kRemoteAccess);
  EXPECT_EQ(got[0].kind, CompletionKind::kReceiveWithImmediate);
  EXPECT_EQ(got[0].flags, kHasImmediate | kHasGrh);
  EXPECT_EQ(got[0].service_level, 3);
  EXPECT_EQ(got[0].vendor_error, 0x81u);
  EXPECT_EQ(got[0].byte_length, 4096u);
  EXPECT_EQ(got[0].immediate, 0xdeadbeefu);
  EXPECT_EQ(got[0].qp, QpNum{0x4001});
  EXPECT_EQ(got[0].source_qp, QpNum{0x8002});
  EXPECT_EQ(got[0].source_lid, 9);
  EXPECT_EQ(got[0].pkey_index, 1);
  EXPECT_EQ(got[0].timestamp, 1234567u);
  EXPECT_EQ(got[1].wr_id, 8u);
  EXPECT_EQ(queue.poll(got), 0u);
}

TEST(CompletionQueue, PollsNothingIntoNoRoom) {
  CompletionQueue queue(1, nullptr);
  ASSERT_TRUE(queue.push(numbered(1), false));
  EXPECT_EQ(queue.poll({}), 0u);
  EXPECT_FALSE(queue.empty());
}

TEST(CompletionQueue, FullLosesTheCompletionAndIsInErrorForGood) {
  CountedEvents events;
  CompletionQueue queue(2, &events);
  EXPECT_TRUE(queue.push(numbered(1), false));
  EXPECT_TRUE(queue.push(numbered(2), false));
  EXPECT_FALSE(queue.is_overrun());
  EXPECT_FALSE(queue.push(numbered(3), false));
  EXPECT_FALSE(queue.push(numbered(4), false));
  EXPECT_TRUE(queue.is_overrun());
  EXPECT_EQ(events.overruns, 1);
  EXPECT_EQ(drain(queue), (std::vector<std::uint64_t>{1, 2}));
  EXPECT_FALSE(queue.push(numbered(5), false));
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(events.overruns, 1);
}

TEST(CompletionQueue, TellsOnceAnArming) {
  CountedEvents events;
  CompletionQueue queue(16, &events);
  EXPECT_TRUE(queue.push(numbered(1), true));
  EXPECT_EQ(events.completions, 0) << "not armed";
  queue.arm(Arm::kNext);
  EXPECT_EQ(events.completions, 0) << "what came before the arming does not count";
  EXPECT_TRUE(queue.push(numbered(2), false));
  EXPECT_EQ(events.completions, 1);
  EXPECT_EQ(events.waiting, 1) << "the completion is there when the event comes";
  EXPECT_TRUE(queue.push(numbered(3), true));
  EXPECT_EQ(events.completions, 1);
}

TEST(CompletionQueue, SolicitedArmingWaitsForASolicitedOrFailedOne) {
  CountedEvents events;
  CompletionQueue queue(16, &events);
  queue.arm(Arm::kSolicited);
  EXPECT_TRUE(queue.push(numbered(1), false));
  EXPECT_EQ(events.completions, 0);
  EXPECT_TRUE(queue.push(numbered(2), true));
  EXPECT_EQ(events.completions, 1);
  queue.arm(Arm::kSolicited);
  EXPECT_TRUE(queue.push(failed(3), false));
  EXPECT_EQ(events.completions, 2);
}

TEST(CompletionQueue, NextOverridesSolicitedAndNotTheReverse) {
  CountedEvents events;
  CompletionQueue queue(16, &events);
  queue.arm(Arm::kSolicited);
  queue.arm(Arm::kNext);
  EXPECT_TRUE(queue.push(numbered(1), false));
  EXPECT_EQ(events.completions, 1);
  queue.arm(Arm::kNext);
  queue.arm(Arm::kSolicited);
  EXPECT_TRUE(queue.push(numbered(2), false));
  EXPECT_EQ(events.completions, 2);
  queue.arm(Arm::kNext);
  queue.arm(Arm::kNo);
  EXPECT_TRUE(queue.push(numbered(3), true));
  EXPECT_EQ(events.completions, 2);
}

TEST(CompletionQueue, ForgetsAQueuePairAndKeepsTheOrderOfTheOthers) {
  CompletionQueue queue(5, nullptr);
  // Not at the first place, so that the removal runs over the wrap.
  for (std::uint64_t i = 0; i < 3; ++i)
    EXPECT_TRUE(queue.push(numbered(100 + i), false));
  Completion one;
  EXPECT_EQ(queue.poll({&one, 1}), 1u);
  EXPECT_EQ(queue.poll({&one, 1}), 1u);
  for (std::uint64_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(queue.push(numbered(i, i % 2 ? 7 : 8), false));
  }
  queue.remove({7});
  EXPECT_TRUE(queue.push(numbered(50), false));
  EXPECT_EQ(drain(queue), (std::vector<std::uint64_t>{102, 0, 2, 50}));
  EXPECT_FALSE(queue.is_overrun());
}

TEST(CompletionQueue, ResizeKeepsWhatWaitsAndRefusesTooSmall) {
  CompletionQueue queue(3, nullptr);
  Completion one;
  for (std::uint64_t i = 0; i < 3; ++i)
    EXPECT_TRUE(queue.push(numbered(i), false));
  EXPECT_EQ(queue.poll({&one, 1}), 1u);
  EXPECT_TRUE(queue.push(numbered(3), false));
  EXPECT_FALSE(queue.resize(2));
  EXPECT_FALSE(queue.resize(0));
  EXPECT_EQ(queue.capacity(), 3u);
  EXPECT_TRUE(queue.resize(5));
  EXPECT_EQ(queue.capacity(), 5u);
  EXPECT_TRUE(queue.push(numbered(4), false));
  EXPECT_TRUE(queue.push(numbered(5), false));
  EXPECT_FALSE(queue.push(numbered(6), false));
  EXPECT_EQ(drain(queue), (std::vector<std::uint64_t>{1, 2, 3, 4, 5}));
}

std::size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t size = 0;
  std::size_t resident = 0;
  statm >> size >> resident;
  return resident * 4096;
}

TEST(CompletionQueue, TouchesOnlyTheMemoryItUses) {
#ifdef VERBENA_SANITIZED
  GTEST_SKIP() << "a sanitizer touches memory of its own for every allocation";
#endif
  const std::size_t before = resident_bytes();
  CompletionQueue queue(1u << 22, nullptr);  // 192 MiB
  for (std::uint64_t i = 0; i < 100'000; ++i) {
    ASSERT_TRUE(queue.push(numbered(i), false));
    ASSERT_EQ(drain(queue).size(), 1u);
  }
  EXPECT_LT(resident_bytes(), before + (16u << 20));
}

// A completion queue beside what a list would do; each step is one call on both.
struct CompletionModel {
  explicit CompletionModel(SeededRandom& source)
      : random(source),
        capacity(small(9) + 1),
        // Often about to wrap.
        queue(capacity, &events, Pushers::kAny, {.first = small(4) * 0x40000000u - small(300)}) {}

  std::uint32_t small(std::uint32_t bound) {
    return static_cast<std::uint32_t>(random.below(bound));
  }

  void arm() {
    const auto what = static_cast<Arm>(small(3));
    queue.arm(what);
    if (!(what == Arm::kSolicited && armed == Arm::kNext)) armed = what;
  }

  void remove() {
    const QpNum qp{small(3)};
    queue.remove(qp);
    std::erase_if(list, [&](const Waiting& each) { return each.completion.qp == qp; });
  }

  void resize() {
    const std::uint32_t wanted = small(12);
    const bool fits = wanted > 0 && list.size() <= wanted;
    ASSERT_EQ(queue.resize(wanted), fits);
    if (fits) capacity = wanted;
  }

  void poll() {
    std::vector<Completion> out(small(5));
    const std::size_t got = queue.poll(out);
    ASSERT_EQ(got, std::min(out.size(), list.size()));
    for (std::size_t i = 0; i < got; ++i) {
      ASSERT_EQ(out[i].wr_id, list.front().completion.wr_id);
      taken_from.push_back(list.front().place);
      list.pop_front();
    }
  }

  void push() {
    // Rarely into a full queue, since that ends the game.
    if (list.size() == capacity && !random.one_in(20)) return;
    Completion completion = numbered(random.next(), small(3));
    if (random.one_in(4)) completion.status = Status::kRetryExceeded;
    const bool solicited = random.one_in(3);
    const bool fits = list.size() < capacity && !overrun;
    std::uint32_t place = 0;
    ASSERT_EQ(queue.push(completion, solicited, &place), fits);
    if (!fits) {
      if (!overrun) armed = Arm::kNo;  // as CountedEvents does
      overrun = true;
      return;
    }
    list.push_back({completion, place});
    const bool is_solicited = solicited || completion.status != Status::kSuccess;
    if (armed == Arm::kNext || (armed == Arm::kSolicited && is_solicited)) {
      ++expected_events;
      armed = Arm::kNo;
    }
  }

  void step() {
    const std::uint32_t what = small(16);
    if (what == 0) return arm();
    if (what == 1) return remove();
    if (what == 2) return resize();
    return what < 8 ? poll() : push();
  }

  SeededRandom& random;
  CountedEvents events;
  std::uint32_t capacity;
  CompletionQueue queue;
  struct Waiting {
    Completion completion;
    std::uint32_t place;
  };
  std::deque<Waiting> list;
  std::vector<std::uint32_t> taken_from;
  Arm armed = Arm::kNo;
  int expected_events = 0;
  bool overrun = false;
};

TEST(CompletionQueue, AgreesWithAModel) {
  SeededRandom random(test_seed());
  for (int round = 0; round < 200; ++round) {
    CompletionModel model(random);
    for (int step = 0; step < 300; ++step) {
      model.step();
      if (HasFatalFailure()) return;
      ASSERT_EQ(model.queue.empty(), model.list.empty());
      ASSERT_EQ(model.events.completions, model.expected_events);
      ASSERT_EQ(model.events.overruns, model.overrun ? 1 : 0);
      for (const auto& [_, place] : model.list)
        ASSERT_EQ(model.queue.is_waiting_at(place), place != 0) << place;
      for (const std::uint32_t place : model.taken_from)
        ASSERT_FALSE(model.queue.is_waiting_at(place));
    }
  }
}

TEST(CompletionQueue, ManyPushersAndPollersLoseNothingAndKeepEachPushersOrder) {
  constexpr std::uint64_t kEach = 20'000;
  constexpr int kPushers = 3;
  CountedEvents events;
  CompletionQueue queue(64, &events);
  std::atomic<std::uint64_t> polled{0};
  std::atomic<int> disorder{0};
  std::vector<std::thread> threads;
  std::atomic<int> in_flight{0};
  for (std::uint32_t pusher = 0; pusher < kPushers; ++pusher) {
    threads.emplace_back([&, pusher] {
      for (std::uint64_t i = 1; i <= kEach; ++i) {
        // As a program does that sizes its queues: no more outstanding than fit.
        while (in_flight.fetch_add(1) >= 60) {
          in_flight.fetch_sub(1);
          std::this_thread::yield();
        }
        ASSERT_TRUE(queue.push(numbered(i, pusher + 1), i % 64 == 0));
      }
    });
  }
  threads.emplace_back([&] {
    while (polled < kEach * kPushers)
      queue.arm(Arm::kSolicited);
  });
  std::uint64_t last[kPushers] = {};
  Completion out[16];
  while (polled < kEach * kPushers) {
    const std::size_t got = queue.poll(out);
    for (std::size_t i = 0; i < got; ++i) {
      if (out[i].wr_id != ++last[out[i].qp.value - 1]) ++disorder;
    }
    in_flight.fetch_sub(static_cast<int>(got));
    polled += got;
    if (got == 0) std::this_thread::yield();
  }
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(disorder, 0);
  EXPECT_TRUE(queue.empty());
  EXPECT_LE(events.completions, static_cast<int>(kPushers * (kEach / 64)));
}

// Completions that wait while the ring takes up more places, at each possible start.
TEST(CompletionQueue, GrowsAroundWhatWaits) {
  for (std::uint64_t start = 0; start < 130; ++start) {
    CompletionQueue queue(1000, nullptr);
    for (std::uint64_t i = 0; i < start; ++i) {
      ASSERT_TRUE(queue.push(numbered(i), false));
      ASSERT_EQ(drain(queue).size(), 1u);
    }
    for (std::uint64_t i = 0; i < 1000; ++i)
      ASSERT_TRUE(queue.push(numbered(start + i), false));
    EXPECT_FALSE(queue.push(numbered(0), false));
    const auto all = drain(queue);
    ASSERT_EQ(all.size(), 1000u);
    for (std::uint64_t i = 0; i < 1000; ++i)
      ASSERT_EQ(all[i], start + i);
  }
}

// One pusher without a lock, then several; removing and resizing meanwhile.
TEST(CompletionQueue, OnePusherAtATimeNeedsNoLockUntilThereAreMore) {
  constexpr std::uint64_t kEach = 30'000;
  constexpr std::uint32_t kPushers = 3;
  CompletionQueue queue(300, nullptr, Pushers::kOneAtATime);
  queue.arm(Arm::kNext);  // for nobody
  std::atomic<std::uint64_t> waiting{0};
  const auto push_all = [&](std::uint32_t pusher) {
    for (std::uint64_t i = 1; i <= kEach; ++i) {
      while (waiting.fetch_add(1) >= 200) {
        waiting.fetch_sub(1);
        std::this_thread::yield();
      }
      ASSERT_TRUE(queue.push(numbered(i, pusher), false));
    }
  };
  std::atomic<std::uint64_t> taken{0};
  std::atomic<int> disorder{0};
  std::thread taker([&] {
    std::uint64_t last[kPushers + 1] = {};
    while (taken < kEach * (kPushers + 1)) {
      const std::size_t got = queue.take(16, [&](const Completion& c) {
        if (c.wr_id != ++last[c.qp.value]) ++disorder;
      });
      taken += got;
      waiting -= got;
      if (got == 0) std::this_thread::yield();
    }
  });
  push_all(0);
  queue.expect_many_pushers();
  std::vector<std::thread> threads;
  for (std::uint32_t pusher = 1; pusher <= kPushers; ++pusher)
    threads.emplace_back(push_all, pusher);
  while (taken < kEach * (kPushers + 1)) {
    queue.remove(QpNum{77});
    EXPECT_TRUE(queue.resize(taken % 2 == 0 ? 300 : 500));
    std::this_thread::yield();
  }
  for (std::thread& thread : threads)
    thread.join();
  taker.join();
  EXPECT_EQ(disorder, 0);
  EXPECT_TRUE(queue.empty());
}

TEST(CompletionQueue, SeveralAreWrittenAndThenPushed) {
  CompletionQueue queue(8, nullptr, Pushers::kOneAtATime);
  // The first one makes room for itself.
  EXPECT_TRUE(queue.push(numbered(0), false));
  while (queue.room_alone() < 3)
    ASSERT_TRUE(queue.push(numbered(0), false));
  drain(queue);
  const std::uint32_t room = queue.room_alone();
  EXPECT_LE(room, 8u);
  for (std::uint32_t i = 0; i < 3; ++i)
    queue.write_down(i, [&] { return numbered(10 + i); });
  EXPECT_TRUE(queue.empty()) << "not pushed yet";
  queue.push_written(2);
  EXPECT_EQ(queue.room_alone(), room - 2);
  EXPECT_EQ(drain(queue), (std::vector<std::uint64_t>{10, 11}));
  queue.expect_many_pushers();
  EXPECT_EQ(queue.room_alone(), 0u);
}

}  // namespace
}  // namespace verbena::queues
