// SPDX-License-Identifier: MIT
#include "host/doorbell.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "base/random.h"
#include "host/shared_memory.h"

namespace verbena::host {
namespace {

Instant now() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return Instant::at(t.tv_sec * 1'000'000'000 + t.tv_nsec);
}

// A process page of this process, and its doorbell.
struct Bell {
  Bell() : created(std::move(*SharedMemory::create(sizeof(ProcessPage)))) {}
  ProcessPage& page() { return created.memory.at<ProcessPage>(0); }
  SharedMemory::Created created;
  Doorbell doorbell{page()};
};

std::vector<std::uint32_t> taken(Doorbell& doorbell) {
  std::vector<std::uint32_t> indices;
  doorbell.take([&](std::uint32_t i) { indices.push_back(i); });
  return indices;
}

TEST(Doorbell, GivesWhatWasRungOnce) {
  Bell bell;
  EXPECT_FALSE(bell.doorbell.any_ready());
  for (const std::uint32_t i : {0u, 63u, 64u, 4095u, 4096u, kDoorbellBits - 1, 64u}) {
    bell.doorbell.ring(i);
  }
  EXPECT_TRUE(bell.doorbell.any_ready());
  EXPECT_EQ(taken(bell.doorbell),
            (std::vector<std::uint32_t>{0, 63, 64, 4095, 4096, kDoorbellBits - 1}));
  EXPECT_FALSE(bell.doorbell.any_ready());
  EXPECT_TRUE(taken(bell.doorbell).empty());
}

TEST(Doorbell, HasABitForEveryIndex) {
  Bell bell;
  for (std::uint32_t i = 0; i < kDoorbellBits; ++i) {
    bell.doorbell.ring(i);
    ASSERT_EQ(taken(bell.doorbell), std::vector<std::uint32_t>{i});
  }
}

TEST(Doorbell, IsBoundedWhateverAPeerWrites) {
  Bell bell;
  SeededRandom random(1);
  for (auto& word : bell.page().ready)
    word = random.next();
  for (auto& word : bell.page().summary)
    word = ~0ull;
  for (const std::uint32_t i : taken(bell.doorbell))
    ASSERT_LT(i, kDoorbellBits);
  // A state that is neither: nobody sleeps, a waker repairs it.
  bell.page().sleep_state = 0xdeadbeef;
  bell.doorbell.sleep(Duration::seconds(100));
  bell.page().sleep_state = 0xdeadbeef;
  bell.doorbell.wake_if_asleep();
  EXPECT_FALSE(bell.doorbell.is_asleep());
}

TEST(Doorbell, SleepsUntilTheTimeIsOver) {
  Bell bell;
  bell.doorbell.prepare_sleep();
  EXPECT_TRUE(bell.doorbell.is_asleep());
  const Instant before = now();
  bell.doorbell.sleep(Duration::milliseconds(20));
  EXPECT_GE(now() - before, Duration::milliseconds(15));
  EXPECT_FALSE(bell.doorbell.is_asleep());
}

TEST(Doorbell, DoesNotSleepWhenWokenBefore) {
  Bell bell;
  bell.doorbell.prepare_sleep();
  bell.doorbell.ring_and_wake(5);
  EXPECT_FALSE(bell.doorbell.is_asleep());
  const Instant before = now();
  bell.doorbell.sleep(Duration::seconds(100));
  EXPECT_LT(now() - before, Duration::seconds(50));
}

using NapKind = Doorbell::NapKind;

TEST(Doorbell, NapsWhateverIsPublished) {
  for (const NapKind kind : {NapKind::kUsual, NapKind::kOn}) {
    Bell bell;
    bell.doorbell.prepare_nap(kind);
    EXPECT_TRUE(bell.doorbell.is_napping());
    EXPECT_FALSE(bell.doorbell.is_asleep());
    bell.doorbell.ring_and_wake(5);
    bell.doorbell.notify(6);
    bell.doorbell.wake_if_asleep();
    EXPECT_TRUE(bell.doorbell.is_napping());
    const Instant before = now();
    EXPECT_FALSE(bell.doorbell.nap(kind, Duration::milliseconds(20)));
    EXPECT_GE(now() - before, Duration::milliseconds(15));
    EXPECT_FALSE(bell.doorbell.is_napping());
  }
}

TEST(Doorbell, NapEndsWhenItIsWoken) {
  for (const NapKind kind : {NapKind::kUsual, NapKind::kOn}) {
    Bell bell;
    bell.doorbell.prepare_nap(kind);
    bell.doorbell.wake();
    const Instant before = now();
    EXPECT_TRUE(bell.doorbell.nap(kind, Duration::seconds(100)));
    EXPECT_LT(now() - before, Duration::seconds(50));
  }
}

TEST(Doorbell, ANudgeEndsANapButNotOneThatGoesOn) {
  Bell bell;
  bell.doorbell.prepare_nap(NapKind::kUsual);
  bell.doorbell.nudge();
  EXPECT_TRUE(bell.doorbell.nap(NapKind::kUsual, Duration::seconds(100)));
  bell.doorbell.prepare_nap(NapKind::kOn);
  bell.doorbell.nudge();
  EXPECT_TRUE(bell.doorbell.is_napping());
  EXPECT_FALSE(bell.doorbell.nap(NapKind::kOn, Duration::milliseconds(1)));
  bell.doorbell.prepare_sleep();
  bell.doorbell.nudge();
  EXPECT_FALSE(bell.doorbell.is_asleep());
}

constexpr Duration kLost = Duration::seconds(60);

// Works until `done()`: takes rings, and sleeps when there is none. False if a sleep ended by its
// time alone.
template <class Look, class Done>
bool serve(Doorbell& doorbell, Look look, Done done) {
  while (!done()) {
    if (look()) continue;
    doorbell.prepare_sleep();
    if (look()) {
      doorbell.awake();
      continue;
    }
    const Instant before = now();
    doorbell.sleep(kLost);
    if (now() - before >= kLost) return false;
  }
  return true;
}

// Two processes send one ball back and forth. Each goes to sleep just when the other one wakes it,
// so a wake-up that can be lost is lost soon. With bits, and with messages that the owner looks for
// itself.
void ping_pong(std::uint32_t rounds, bool with_bits) {
  auto pages = SharedMemory::create(2 * sizeof(ProcessPage) + 4096);
  ASSERT_TRUE(pages);
  const int fd = pages->fd.get();
  const pid_t parent = getpid();
  const pid_t child = fork();
  auto memory = SharedMemory::adopt(PrivateFd(fd), 2 * sizeof(ProcessPage) + 4096);
  const std::size_t me = getpid() == parent ? 0 : 1;
  Doorbell mine(memory->at<ProcessPage>(me * sizeof(ProcessPage)));
  Doorbell theirs(memory->at<ProcessPage>((1 - me) * sizeof(ProcessPage)));
  auto balls = [&](std::size_t side) -> std::atomic<std::uint32_t>& {
    return memory->at<std::atomic<std::uint32_t>>(2 * sizeof(ProcessPage) + 64 * side);
  };
  auto hit = [&](std::uint32_t ball) {
    balls(1 - me).store(ball, std::memory_order_release);
    if (with_bits) {
      theirs.ring_and_wake(ball % kDoorbellBits);
    } else {
      theirs.wake_if_asleep();
    }
  };
  std::uint32_t seen = 0;
  auto look = [&] {
    if (with_bits && !mine.take([](std::uint32_t) {})) return false;
    const std::uint32_t ball = balls(me).load(std::memory_order_acquire);
    if (ball == seen) return false;
    seen = ball;
    if (seen < rounds) hit(seen + 1);
    return true;
  };
  if (me == 0) hit(1);
  const bool good = serve(mine, look, [&] { return seen + 1 >= rounds; });
  if (me == 1) _exit(good ? 0 : 1);
  EXPECT_TRUE(good) << "lost after " << seen;
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(Doorbell, LosesNoWakeUpBetweenTwoProcesses) { ping_pong(60'000, false); }
TEST(Doorbell, LosesNoRingBetweenTwoProcesses) { ping_pong(60'000, true); }

TEST(Doorbell, LosesNoRingOfManyPublishers) {
  Bell bell;
  static constexpr std::uint32_t kPublishers = 4, kMessages = 30'000;
  struct alignas(64) Count {
    std::atomic<std::uint32_t> sent{0};
    std::uint32_t seen = 0;
  };
  // Publishers share words, summary words and one conduit.
  std::vector<Count> counts(kPublishers);
  std::atomic<std::uint32_t> shared{0};
  std::vector<std::thread> publishers;
  for (std::uint32_t p = 0; p < kPublishers; ++p) {
    publishers.emplace_back([&, p] {
      for (std::uint32_t i = 0; i < kMessages; ++i) {
        counts[p].sent.fetch_add(1, std::memory_order_release);
        bell.doorbell.ring(p * 40);
        shared.fetch_add(1, std::memory_order_release);
        bell.doorbell.ring_and_wake(4000);
        if (i % 64 == 0) std::this_thread::yield();
      }
    });
  }
  std::uint32_t shared_seen = 0;
  auto look = [&] {
    return bell.doorbell.take([&](std::uint32_t i) {
      if (i == 4000) {
        shared_seen = shared.load(std::memory_order_acquire);
      } else {
        ASSERT_EQ(i % 40, 0u);
        counts[i / 40].seen = counts[i / 40].sent.load(std::memory_order_acquire);
      }
    });
  };
  auto done = [&] {
    return shared_seen == kPublishers * kMessages &&
           std::ranges::all_of(counts, [](const Count& c) { return c.seen == kMessages; });
  };
  EXPECT_TRUE(serve(bell.doorbell, look, done));
  for (std::thread& publisher : publishers)
    publisher.join();
}

// Rings, but is killed after `steps` instructions of it. True if it had finished by then.
bool ring_and_be_killed(int page_fd, int steps) {
  const pid_t victim = fork();
  if (victim == 0) {
    auto memory = SharedMemory::adopt(PrivateFd(page_fd), sizeof(ProcessPage));
    Doorbell doorbell(memory->at<ProcessPage>(0));
    ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    raise(SIGSTOP);
    doorbell.ring_and_wake(9);
    raise(SIGSTOP);
    _exit(0);
  }
  int status = 0;
  waitpid(victim, &status, 0);
  EXPECT_TRUE(WIFSTOPPED(status));
  bool finished = false;
  for (int i = 0; i < steps && !finished; ++i) {
    EXPECT_EQ(ptrace(PTRACE_SINGLESTEP, victim, nullptr, nullptr), 0);
    waitpid(victim, &status, 0);
    finished = !WIFSTOPPED(status) || WSTOPSIG(status) == SIGSTOP;
  }
  kill(victim, SIGKILL);
  waitpid(victim, &status, 0);
  return finished;
}

// A process that is killed anywhere in the middle of ringing leaves nothing behind that would keep
// the next ring from arriving: tried after each of its instructions.
TEST(Doorbell, SurvivesAPublisherKilledAnywhere) {
#ifdef VERBENA_SANITIZED
  constexpr int kStride = 97;  // thousands of instructions
#else
  constexpr int kStride = 1;
#endif
  Bell bell;
  std::atomic<int> sent{0};
  bool finished = false;
  for (int steps = 1; !finished; steps += kStride) {
    bool good = false;
    std::thread owner([&] {
      int seen = 0;
      auto look = [&] { return bell.doorbell.take([&](std::uint32_t) { seen = sent; }); };
      good = serve(bell.doorbell, look, [&] { return seen == steps; });
    });
    while (!bell.doorbell.is_asleep())
      std::this_thread::yield();
    finished = ring_and_be_killed(bell.created.fd.get(), steps);
    sent = steps;
    bell.doorbell.ring_and_wake(9);
    owner.join();
    ASSERT_TRUE(good) << "lost after a publisher was killed at instruction " << steps;
  }
}

}  // namespace
}  // namespace verbena::host
