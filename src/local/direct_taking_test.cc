// SPDX-License-Identifier: MIT
// Taking access away from an initiator that goes on all the time: not one byte is written
// afterwards, and no atomic is executed twice. The owner does what nic::Sharing does.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>

#include "base/fence.h"
#include "local/test_initiator.h"
#include "local/test_length.h"
#include "memory/access_sections.h"

namespace verbena::local {
namespace {

using queues::SendOpcode;

class TakingTest : public testing::Test {
 protected:
  static constexpr int kRounds = 3000;
  static constexpr std::size_t kUsed = 4096;

  Target target;

  static void wait_until_left(const SectionLock& lock) {
    full_fence();
    memory::wait_until_over(SectionLock::Watch(lock));
  }

  // Takes away and gives again while `operate` runs; what lies there meanwhile must stay.
  void expect_silence(Initiator& ours, const std::function<void()>& operate,
                      const std::function<void()>& take, const std::function<void()>& give) {
    std::atomic<bool> stop{false};
    std::atomic<std::uint64_t> operations{0};
    std::thread initiator([&] {
      while (!stop.load(std::memory_order_relaxed)) {
        operate();
        operations.fetch_add(1, std::memory_order_relaxed);
      }
    });
    int violations = 0;
    int writes = 0;
    int rounds = 0;
    const auto end = std::chrono::steady_clock::now() + most_time();
    // The other thread needs a core as well: where it hardly gets one, longer.
    const auto latest = end + 10 * most_time();
    const auto is_enough = [&] {
      const auto now = std::chrono::steady_clock::now();
      const bool had_traffic = writes > rounds / 10;
      return rounds >= 20 && now >= end && (had_traffic || now >= latest);
    };
    for (; rounds < kRounds && !is_enough(); ++rounds) {
      take();
      wait_until_left(ours.lock());
      writes += target.memory[0] == std::byte{0x11};
      std::memset(target.memory, 0xee, kUsed);
      const std::uint64_t before = operations;
      for (int i = 0; i < 200 && operations == before; ++i)
        sched_yield();
      violations += !std::all_of(target.memory, target.memory + kUsed,
                                 [](std::byte b) { return b == std::byte{0xee}; });
      give();
      for (int i = 0; i < 200 && target.memory[0] != std::byte{0x11}; ++i)
        sched_yield();
    }
    stop = true;
    initiator.join();
    EXPECT_EQ(violations, 0);
    EXPECT_GT(writes, rounds / 10) << "there was too little traffic";
  }

  void write_at_once(Initiator& ours) {
    const std::lock_guard section(ours.lock());
    std::byte* const to = ours.direct.target_of_write(Target::kKey, target.address(), kUsed);
    if (to) memory::guarded_copy(to, ours.buffer.data(), kUsed);
  }
  std::function<void()> hide() {
    return [this] { target.published.hide(Target::kKey); };
  }
  std::function<void()> show() {
    return [this] { target.show(); };
  }
};

TEST_F(TakingTest, ARegionFromWritesAtOnce) {
  Initiator ours(target);
  ours.map();
  ours.fill(0x11);
  expect_silence(ours, [&] { write_at_once(ours); }, hide(), show());
}

TEST_F(TakingTest, AGrantFromWritesAtOnce) {
  Initiator ours(target);
  ours.map();
  ours.fill(0x11);
  expect_silence(ours, [&] { write_at_once(ours); }, [&] { ours.revoke(); }, [&] { ours.grant(); });
}

TEST_F(TakingTest, ARegionFromOperations) {
  Initiator ours(target);
  ours.map();
  ours.fill(0x11);
  expect_silence(ours, [&] { ours.execute(SendOpcode::kWrite, 0, kUsed); }, hide(), show());
}

TEST_F(TakingTest, ARegionFromSystemCalls) {
  Initiator ours(target, {.pid = getpid()});
  ours.fill(0x11);
  ours.grant();
  const auto show_address = [&] {
    auto region = target.region();
    region.mapped = {};
    target.published.show(Target::kKey, region);
  };
  show_address();
  expect_silence(ours, [&] { ours.execute(SendOpcode::kWrite, 0, kUsed); }, hide(), show_address);
}

TEST_F(TakingTest, AGrantFromSystemCallsAtOnce) {
  Initiator ours(target, {.pid = getpid()});
  ours.fill(0x11);
  ours.grant();
  auto region = target.region();
  region.mapped = {};
  target.published.show(Target::kKey, region);
  const auto write = [&] {
    const std::lock_guard section(ours.lock());
    ours.direct.write_reachable(Target::kKey, target.address(), ours.buffer.data(), kUsed);
  };
  expect_silence(ours, write, [&] { ours.revoke(); }, [&] { ours.grant(); });
}

// Small ones go by the peer's memory as a file.
TEST_F(TakingTest, AGrantFromSmallWrites) {
  const std::uint64_t nonce = 0x123456789abcdef0;
  Initiator ours(target, {getpid(), reinterpret_cast<std::uint64_t>(&nonce), nonce});
  ours.fill(0x11);
  ours.grant();
  auto region = target.region();
  region.mapped = {};
  target.published.show(Target::kKey, region);
  const auto write = [&] {
    const std::lock_guard section(ours.lock());
    ours.direct.write_reachable(Target::kKey, target.address(), ours.buffer.data(), 8);
  };
  expect_silence(ours, write, [&] { ours.revoke(); }, [&] { ours.grant(); });
  EXPECT_EQ(ours.memory.file().is_open(), host::MemoryFile::is_sound_here());
}

// Rights that change while an atomic runs must not make it run again in the ring.
TEST_F(TakingTest, AtomicsCountOnceWhileRightsChange) {
  Initiator ours(target);
  ours.map();
  std::atomic<bool> stop{false};
  std::thread owner([&] {
    for (std::uint32_t i = 0; !stop.load(std::memory_order_relaxed); ++i) {
      ours.grant(i % 2 ? Target::kRights : Target::kRights & ~memory::kRemoteRead);
      wait_until_left(ours.lock());
    }
  });
  constexpr std::uint64_t kOperations = 30'000;
  std::uint64_t direct = 0;
  const auto end = std::chrono::steady_clock::now() + most_time();
  // Where the owner hardly gets a core, its rights may be away all that time.
  const auto latest = end + 10 * most_time();
  const auto is_enough = [&](std::uint64_t made) {
    const auto now = std::chrono::steady_clock::now();
    return direct > 0 ? made >= kOperations || now >= end : now >= latest;
  };
  for (std::uint64_t i = 0; !is_enough(i); ++i)
    direct += ours.execute(SendOpcode::kFetchAdd, 0, 8) == Direct::Outcome::kDone;
  stop = true;
  owner.join();
  std::uint64_t sum = 0;
  std::memcpy(&sum, target.memory, sizeof sum);
  EXPECT_EQ(sum, direct * Initiator::kOperand);
  EXPECT_GT(direct, 0U);
}

// Who is stopped between its look at the grant and the system call finds nothing to move: the
// kernel reads what was emptied meanwhile.
TEST_F(TakingTest, EmptiedIovecsMoveNothing) {
  Conduit theirs;
  Conduit shared;
  {
    SharedConduit made = make_conduit(1);
    theirs = std::move(made.first);
    shared = std::move(made.second);
  }
  std::array<std::byte, 64> from;
  from.fill(std::byte{0x11});
  iovec ours{from.data(), from.size()};
  ConduitHeader::Reach* const reach = shared.header().reach;
  reach[0].address = target.address();
  reach[0].length = from.size();
  RingResponder responder(qp::QpType::kRc);
  responder.offer(std::move(theirs));
  responder.stop_reaching();
  EXPECT_LE(syscall(SYS_process_vm_writev, getpid(), &ours, 1UL, reach, 2UL, 0UL), 0);
  EXPECT_EQ(target.memory[0], std::byte{0});
}

}  // namespace
}  // namespace verbena::local
