// SPDX-License-Identifier: MIT
// One-sided operations of an initiator, against owners that obey and owners that do not. The
// takings-away under traffic are in direct_taking_test.cc.
#include "local/direct.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <random>
#include <thread>

#include "local/test_initiator.h"

namespace verbena::local {
namespace {

using Outcome = Direct::Outcome;
using queues::SendOpcode;

class DirectTest : public testing::Test {
 protected:
  Target target;
  Initiator ours{target};

  // As memory that stays private. What was shown, for changes.
  Published::Region show_private() {
    auto region = target.region();
    region.mapped = {};
    target.published.show(Target::kKey, region);
    return region;
  }
  std::byte* at_once(std::uint64_t address, std::uint64_t length = 8,
                     MemoryKey key = Target::kKey) {
    const std::lock_guard section(ours.lock());
    return ours.direct.target_of_write(key, address, length);
  }
};

TEST_F(DirectTest, MapsWhatIsUsed) {
  target.show();
  ours.grant();
  EXPECT_EQ(ours.execute(SendOpcode::kWrite, 0, 8), Outcome::kCannot);
  ASSERT_EQ(ours.requests.asked, std::vector{Target::kKey});
  ours.memory.map_now(Target::kKey, target.files);
  EXPECT_EQ(ours.execute(SendOpcode::kWrite, 0, 8), Outcome::kDone);
  EXPECT_EQ(ours.requests.asked.size(), 1U);
}

TEST_F(DirectTest, WritesAndReads) {
  ours.map();
  ours.fill(0x5a);
  EXPECT_EQ(ours.execute(SendOpcode::kWrite, 100, 5000), Outcome::kDone);
  EXPECT_EQ(target.memory[99], std::byte{0});
  EXPECT_TRUE(std::all_of(target.memory + 100, target.memory + 5100,
                          [](std::byte b) { return b == std::byte{0x5a}; }));
  EXPECT_EQ(target.memory[5100], std::byte{0});
  target.memory[7] = std::byte{0x77};
  EXPECT_EQ(ours.execute(SendOpcode::kRead, 0, 8), Outcome::kDone);
  EXPECT_EQ(ours.buffer[7], std::byte{0x77});
}

TEST_F(DirectTest, ExecutesAtomicsOnAlignedWordsOnly) {
  ours.map();
  EXPECT_EQ(ours.execute(SendOpcode::kFetchAdd, 16, 8), Outcome::kDone);
  EXPECT_EQ(target.memory[16], std::byte{Initiator::kOperand});
  EXPECT_EQ(ours.execute(SendOpcode::kFetchAdd, 17, 8), Outcome::kCannot);
  EXPECT_EQ(target.memory[17], std::byte{0});
}

TEST_F(DirectTest, GoesOnWhereTheBudgetEnded) {
  ours.map();
  ours.fill(1);
  qp::Budget budget{.bytes = 1000};
  const qp::Operation* op = ours.begin(SendOpcode::kWrite, 0, 2500);
  EXPECT_EQ(ours.direct.execute(ours.window(), *op, budget), Outcome::kPartly);
  EXPECT_EQ(target.memory[999], std::byte{1});
  EXPECT_EQ(target.memory[1000], std::byte{0});
  budget = {.bytes = 1000};
  EXPECT_EQ(ours.direct.execute(ours.window(), *op, budget), Outcome::kPartly);
  budget = {.bytes = 1000};
  EXPECT_EQ(ours.direct.execute(ours.window(), *op, budget), Outcome::kDone);
  EXPECT_EQ(target.memory[2499], std::byte{1});
  EXPECT_EQ(target.memory[2500], std::byte{0});
}

// Taken away between two parts, and given again: the parts before may have missed.
TEST_F(DirectTest, StartsOverWhenTheRegionWasGoneBetweenParts) {
  ours.map();
  qp::Budget budget{.bytes = 1000};
  const qp::Operation* op = ours.begin(SendOpcode::kWrite, 0, 2000);
  EXPECT_EQ(ours.direct.execute(ours.window(), *op, budget), Outcome::kPartly);
  target.published.hide(Target::kKey);
  budget = {.bytes = 1000};
  EXPECT_EQ(ours.direct.execute(ours.window(), *op, budget), Outcome::kCannot);
  target.show();
  std::memset(target.memory, 0, 2000);
  ours.fill(2);
  budget = {};
  EXPECT_EQ(ours.direct.execute(ours.window(), *op, budget), Outcome::kDone);
  EXPECT_EQ(target.memory[0], std::byte{2});
}

TEST_F(DirectTest, TheSameBetweenPartsOfAnotherPublication) {
  ours.map();
  ours.fill(3);
  qp::Budget budget{.bytes = 1000};
  const qp::Operation* op = ours.begin(SendOpcode::kWrite, 0, 2000);
  EXPECT_EQ(ours.direct.execute(ours.window(), *op, budget), Outcome::kPartly);
  target.published.hide(Target::kKey);
  std::memset(target.memory, 0, 2000);
  target.show();
  for (int i = 0; i < 3; ++i) {
    budget = {.bytes = 1000};
    if (ours.direct.execute(ours.window(), *op, budget) == Outcome::kDone) break;
  }
  EXPECT_EQ(target.memory[0], std::byte{3});
}

TEST_F(DirectTest, LeavesToTheRingWhatItMayNotDo) {
  ours.map();
  const auto is_refused = [&](SendOpcode opcode = SendOpcode::kWrite) {
    target.memory[0] = std::byte{0};
    const bool refused = ours.execute(opcode, 0, 8) == Outcome::kCannot;
    return refused && target.memory[0] == std::byte{0} && !at_once(target.address());
  };
  ours.fill(9);
  ours.revoke();
  EXPECT_TRUE(is_refused()) << "no grant";
  ours.grant(Target::kRights, QpNum{Initiator::kSelf.value + 1});
  EXPECT_TRUE(is_refused()) << "another queue pair's grant";
  ours.grant(Target::kRights, Initiator::kSelf, Initiator::kConnection + 1);
  EXPECT_TRUE(is_refused()) << "another connection's";
  ours.grant(memory::kRemoteRead);
  EXPECT_TRUE(is_refused()) << "the right to read";
  ours.grant(Target::kRights, Initiator::kSelf, Initiator::kConnection, {Target::kPd.value + 1});
  EXPECT_TRUE(is_refused()) << "another domain";
  ours.grant();
  target.tables().slot = Target::kSlot.value + 1;
  EXPECT_TRUE(is_refused()) << "another slot's tables";
  target.tables().slot = Target::kSlot.value;
  target.place().access = memory::kRemoteRead;
  EXPECT_TRUE(is_refused()) << "a region to be read";
  target.place().access = Target::kRights;
  EXPECT_EQ(ours.execute(SendOpcode::kWrite, 0, 8), Outcome::kDone) << "and with everything right";
}

TEST_F(DirectTest, RefusesRangesThatWrap) {
  ours.map();
  EXPECT_EQ(ours.execute_at(SendOpcode::kWrite, target.address() + Target::kSize - 4, 8),
            Outcome::kCannot);
  EXPECT_EQ(ours.execute_at(SendOpcode::kWrite, target.address() - 4, 8), Outcome::kCannot);
  EXPECT_EQ(ours.execute_at(SendOpcode::kWrite, UINT64_MAX - 3, 8), Outcome::kCannot);
  EXPECT_NE(at_once(target.address() + Target::kSize - 8), nullptr);
  EXPECT_EQ(at_once(target.address() + Target::kSize - 7), nullptr);
  EXPECT_EQ(at_once(target.address() - 1), nullptr);
  EXPECT_EQ(at_once(target.address(), UINT64_MAX), nullptr);
  EXPECT_EQ(at_once(UINT64_MAX - 3), nullptr);
}

// Also before anything was written, when the memory of the last WRITE has no key either.
TEST_F(DirectTest, NoKeyIsNoTarget) {
  EXPECT_EQ(at_once(target.address(), 8, {}), nullptr);
  ours.map();
  EXPECT_EQ(at_once(target.address(), 8, {}), nullptr);
  EXPECT_EQ(at_once(target.address(), 8, {Target::kKey.value + kPublishedRegions}), nullptr);
  EXPECT_EQ(at_once(target.address(), 8, {}), nullptr);
}

TEST_F(DirectTest, AWriteAtOnceCountsOnlyWhileItHolds) {
  ours.map();
  ASSERT_NE(at_once(target.address()), nullptr);
  EXPECT_TRUE(ours.direct.copy_counts());
  target.published.hide(Target::kKey);
  EXPECT_FALSE(ours.direct.copy_counts());
  EXPECT_EQ(at_once(target.address()), nullptr);
  target.show();
  ASSERT_NE(at_once(target.address()), nullptr);
  ours.revoke();
  EXPECT_FALSE(ours.direct.copy_counts());
  EXPECT_EQ(at_once(target.address()), nullptr);
}

TEST_F(DirectTest, AReadAtOnceTakesItsOwnRight) {
  ours.map();
  const auto source = [&] {
    const std::lock_guard section(ours.lock());
    return ours.direct.source_of_read(Target::kKey, target.address() + 100, 8);
  };
  target.memory[100] = std::byte{0x42};
  ASSERT_NE(source(), nullptr);
  EXPECT_EQ(*source(), std::byte{0x42});
  EXPECT_NE(at_once(target.address()), nullptr) << "what was read may be written as well";
  ours.grant(memory::kRemoteRead);
  ASSERT_NE(source(), nullptr);
  EXPECT_EQ(at_once(target.address()), nullptr) << "granted to be read";
  ours.grant(memory::kRemoteWrite);
  EXPECT_EQ(source(), nullptr) << "granted to be written";
  EXPECT_NE(at_once(target.address()), nullptr);
  ours.grant();
  target.place().access = memory::kRemoteWrite;
  EXPECT_EQ(source(), nullptr) << "a region to be written";
  target.place().access = Target::kRights;
  ASSERT_NE(source(), nullptr);
  EXPECT_TRUE(ours.direct.copy_counts());
  target.published.hide(Target::kKey);
  EXPECT_FALSE(ours.direct.copy_counts());
}

// The owner keeps identity and grant, but its file changed for a moment: the mapping went, and what
// lies there now is something else.
TEST_F(DirectTest, AMappingThatWentIsNotUsedAgain) {
  ours.map();
  std::byte* const before = at_once(target.address());
  ASSERT_NE(before, nullptr);
  target.place().offset = 4096;
  target.place().end = Target::kSize - 4096;
  ours.memory.map_now(Target::kKey, target.files);
  target.place().offset = 0;
  target.place().end = Target::kSize;
  ours.requests.asked.clear();
  EXPECT_EQ(at_once(target.address()), nullptr);
  EXPECT_EQ(ours.requests.asked, std::vector{Target::kKey});
}

TEST_F(DirectTest, ReachesMemoryThatIsNotMapped) {
  Initiator reaching(target, {.pid = getpid()});
  reaching.grant();
  reaching.fill(4);
  auto region = show_private();
  EXPECT_EQ(reaching.execute(SendOpcode::kWrite, 10, 3000), Outcome::kDone);
  EXPECT_EQ(target.memory[3009], std::byte{4});
  EXPECT_EQ(target.memory[3010], std::byte{0});
  EXPECT_EQ(reaching.execute(SendOpcode::kRead, 10, 8), Outcome::kDone);
  EXPECT_EQ(reaching.execute(SendOpcode::kFetchAdd, 16, 8), Outcome::kCannot);
  region.address = nullptr;
  target.published.hide(Target::kKey);
  target.published.show(Target::kKey, region);
  EXPECT_EQ(reaching.execute(SendOpcode::kWrite, 10, 8), Outcome::kCannot) << "not in one piece";
}

TEST_F(DirectTest, ReachesAtOnceWhatCannotBeMapped) {
  Initiator reaching(target, {.pid = getpid()});
  reaching.grant();
  reaching.fill(4);
  auto region = show_private();
  const auto write = [&](std::uint64_t offset, std::uint64_t length) {
    const std::lock_guard section(reaching.lock());
    return reaching.direct.write_reachable(Target::kKey, target.address() + offset,
                                           reaching.buffer.data(), length);
  };
  const auto read = [&](std::uint64_t offset, std::uint64_t length) {
    const std::lock_guard section(reaching.lock());
    return reaching.direct.read_reachable(Target::kKey, target.address() + offset,
                                          reaching.buffer.data(), length);
  };
  errno = 77;
  EXPECT_TRUE(write(10, 3000));
  EXPECT_TRUE(std::all_of(target.memory + 10, target.memory + 3010,
                          [](std::byte b) { return b == std::byte{4}; }));
  EXPECT_EQ(target.memory[9], std::byte{0});
  EXPECT_EQ(target.memory[3010], std::byte{0});
  target.memory[50] = std::byte{0x42};
  EXPECT_TRUE(read(50, 1));
  EXPECT_EQ(reaching.buffer[0], std::byte{0x42});
  EXPECT_EQ(reaching.direct.reached(), 2U);

  EXPECT_FALSE(write(Target::kSize - 7, 8)) << "beyond its end";
  EXPECT_FALSE(write(std::uint64_t{0} - 1, 8)) << "before its begin";
  reaching.grant(memory::kRemoteRead);
  EXPECT_FALSE(write(10, 8)) << "granted to be read";
  EXPECT_TRUE(read(10, 8));
  reaching.revoke();
  EXPECT_FALSE(read(10, 8));
  reaching.grant();
  EXPECT_TRUE(write(10, 8));
  target.published.hide(Target::kKey);
  EXPECT_FALSE(write(10, 8));
  target.show();
  EXPECT_FALSE(write(10, 8)) << "it will be mapped";
  EXPECT_EQ(reaching.requests.asked.size(), 1U);
  region.address = reinterpret_cast<std::byte*>(4096);
  target.published.hide(Target::kKey);
  target.published.show(Target::kKey, region);
  EXPECT_FALSE(write(10, 8)) << "where nothing is";
  EXPECT_EQ(errno, 77) << "of the program";
  EXPECT_EQ(reaching.direct.reached(), 4U);
}

// Where there are fewer cores than threads, the other one gets its turn.
template <class Condition>
void spin_until(Condition is_met) {
  constexpr int kPatience = 10'000;
  for (int i = 0; !is_met(); ++i)
    if (i >= kPatience) std::this_thread::yield();
}

// Whoever spins on the last byte of a message may overwrite it as soon as it is there.
TEST_F(DirectTest, StoresTheLastByteOfWhatIsNotMappedOnce) {
  constexpr int kRounds = 20'000;
  constexpr std::uint32_t kLength = 64;
  constexpr std::byte kSeen{0xff};
  Initiator reaching(target, {.pid = getpid()});
  reaching.grant();
  show_private();
  ASSERT_EQ(reaching.execute(SendOpcode::kWrite, 0, kLength), Outcome::kDone);
  std::atomic_ref<std::byte> last(target.memory[kLength - 1]);
  std::atomic<int> round{0};
  std::atomic<int> seen{0};
  int again = 0;
  std::thread spinner([&] {
    for (int i = 1; i <= kRounds; ++i) {
      const std::byte expected{static_cast<unsigned char>(i % 0xff)};
      spin_until([&] { return last.load(std::memory_order_acquire) == expected; });
      last.store(kSeen, std::memory_order_release);
      spin_until([&] { return round.load(std::memory_order_acquire) == i; });
      again += last.load(std::memory_order_acquire) != kSeen;
      seen.store(i, std::memory_order_release);
    }
  });
  for (int i = 1; i <= kRounds; ++i) {
    reaching.fill(static_cast<std::uint8_t>(i % 0xff));
    const auto outcome = reaching.execute(SendOpcode::kWrite, 0, kLength);
    EXPECT_EQ(outcome, Outcome::kDone);
    if (outcome != Outcome::kDone) last.store(reaching.buffer[0]);  // or the spinner never ends
    round.store(i, std::memory_order_release);
    spin_until([&] { return seen.load(std::memory_order_acquire) == i; });
  }
  spinner.join();
  EXPECT_EQ(again, 0);
}

// The owner may say that its region lies anywhere: the system refuses, and nothing else happens.
TEST_F(DirectTest, ReachingNowhereIsForTheRing) {
  Initiator reaching(target, {.pid = getpid()});
  reaching.grant();
  auto region = target.region();
  region.mapped = {};
  region.address = reinterpret_cast<std::byte*>(4096);
  target.published.show(Target::kKey, region);
  EXPECT_EQ(reaching.execute(SendOpcode::kWrite, 0, 64), Outcome::kCannot);
  EXPECT_EQ(reaching.execute(SendOpcode::kRead, 0, 64), Outcome::kCannot);
}

// Whatever the tables say, the copies stay inside what was mapped.
TEST_F(DirectTest, WildTablesLeadNowhere) {
  ours.map();
  std::mt19937_64 random(7);
  const auto wild = [&]() -> std::uint64_t {
    constexpr std::uint64_t kSeldom[] = {
        0, 1, 4095, 4096, Target::kSize, UINT64_MAX, 1ull << 40, 1ull << 62, 1ull << 63};
    return random() % 4 ? kSeldom[random() % std::size(kSeldom)] : random() % (2 * Target::kSize);
  };
  for (int round = 0; round < 20'000; ++round) {
    PublishedRegion& place = target.place();
    place.access = random() % 8 ? Target::kRights : static_cast<std::uint32_t>(random());
    place.iova = random() % 4 ? target.address() : wild();
    place.length = random() % 4 ? Target::kSize : wild();
    place.begin = random() % 2 ? 0 : static_cast<std::uint32_t>(wild());
    place.end = random() % 2 ? Target::kSize : wild();
    place.offset = random() % 2 ? 0 : wild();
    place.file = random() % 4 ? Target::kFile.value : static_cast<std::uint32_t>(wild());
    if (random() % 4 == 0) ours.memory.map_now(Target::kKey, target.files);
    const std::uint64_t address = place.iova + wild();
    if (std::byte* to = at_once(address, 64)) {
      EXPECT_TRUE(ours.is_mapping(to, 64)) << "round " << round;
    }
    ours.execute_at(random() % 2 ? SendOpcode::kWrite : SendOpcode::kRead, address,
                    1 + static_cast<std::uint32_t>(random() % 4096));
    if (ours.end.pair.state() == qp::QpState::kError) FAIL() << "round " << round;
  }
}

// An owner that changes its tables while we look, look up, copy and map.
TEST_F(DirectTest, TablesMayChangeAllTheTime) {
  ours.map();
  std::atomic<bool> stop{false};
  std::thread owner([&] {
    std::mt19937_64 random(11);
    PublishedRegion& place = target.place();
    const std::uint64_t identity = place.identity.load();
    while (!stop.load(std::memory_order_relaxed)) {
      volatile auto* words = reinterpret_cast<volatile std::uint64_t*>(&place);
      const std::size_t which = 1 + random() % 7;
      const std::uint64_t before = words[which];
      words[which] = random() % 2 ? random() : before ^ (1ull << random() % 64);
      if (random() % 16 == 0) place.identity.store(random(), std::memory_order_relaxed);
      words[which] = before;
      place.identity.store(identity, std::memory_order_relaxed);
    }
  });
  int done = 0;
  std::thread initiator([&] {
    for (int round = 0; round < 20'000 || (done < 100 && round < 5'000'000); ++round) {
      {
        const std::lock_guard section(ours.lock());
        std::byte* const to = ours.direct.target_of_write(Target::kKey, target.address() + 64, 64);
        const bool is_written = to && memory::guarded_copy(to, ours.buffer.data(), 64);
        done += is_written && ours.direct.copy_counts();
      }
      done += ours.execute(SendOpcode::kWrite, 4096, 4096) == Outcome::kDone;
      if (ours.end.pair.state() == qp::QpState::kError) break;
    }
    stop = true;
  });
  while (!stop.load(std::memory_order_relaxed))
    ours.memory.map_now(Target::kKey, target.files);
  initiator.join();
  owner.join();
  EXPECT_EQ(ours.end.pair.state(), qp::QpState::kReadyToSend);
  EXPECT_GT(done, 0);
}

// A WRITE that took the ring, before its target was mapped, and is to be sent once more, waits for
// nothing: there is nothing of it left in the ring.
TEST_F(DirectTest, WhatIsSentOnceMoreNeedNotWaitForItself) {
  constexpr std::uint32_t kLength = 16 * 1024;
  End a(qp::QpType::kRc, Initiator::kSelf);
  End b(qp::QpType::kRc, Initiator::kOther);
  AskedMappings requests;
  PeerMemory memory({}, requests, a.sections);
  a.sections.add(a.pair.lock());
  a.ready(Initiator::kOther);
  b.ready(Initiator::kSelf);
  SharedConduit to_b = make_conduit(1);
  SharedConduit to_a = make_conduit(2);
  b.carrier.offer(std::move(to_b.first), {&a.doorbell, Initiator::kSelf.index()});
  a.carrier.offer(std::move(to_a.first), {&b.doorbell, Initiator::kOther.index()});
  a.carrier.attach(std::move(to_b.second), {&memory, Initiator::kSelf, Initiator::kOther});
  b.carrier.attach(std::move(to_a.second));
  memory.take_tables(target.look());
  target.published.grant(
      Initiator::kOther,
      {.pd = Target::kPd, .to = Initiator::kSelf, .rights = Target::kRights, .connection = 1});

  std::vector<std::byte> bytes(kLength, std::byte{7});
  const MemoryKey key = a.add(bytes.data(), bytes.size(), memory::kLocalWrite);
  const MemoryKey inbox_key = b.add(bytes.data(), bytes.size(), memory::kLocalWrite);
  const Sge sge{reinterpret_cast<std::uint64_t>(bytes.data()), kLength, key};
  Instant now = Instant::at(1'000'000'000);
  const auto turn = [&] {
    now = now + Duration::milliseconds(1);
    const std::lock_guard section(a.pair.lock());
    a.turn(now);
    b.turn(now);
  };
  qp::SendRequest request;
  request.sges = {&sge, 1};
  request.opcode = queues::SendOpcode::kSend;
  ASSERT_TRUE(a.pair.post_send(request).has_value());
  request.opcode = queues::SendOpcode::kWrite;
  request.remote_address = target.address();
  request.remote_key = Target::kKey;
  ASSERT_TRUE(a.pair.post_send(request).has_value());
  // There is no receive for the SEND, so both are refused.
  for (int i = 0; i < 10; ++i)
    turn();
  target.show();
  memory.map_now(Target::kKey, target.files);
  const Sge inbox{sge.address, kLength, inbox_key};
  ASSERT_TRUE(b.pair.post_receive(1, {&inbox, 1}).has_value());
  for (int i = 0; i < 100; ++i)
    turn();
  const auto done = a.poll();
  ASSERT_EQ(done.size(), 2U);
  EXPECT_EQ(done[1].status, queues::Status::kSuccess);
  EXPECT_EQ(target.memory[kLength - 1], std::byte{7});
  EXPECT_EQ(a.carrier.counts().mapped, 1U);
}

}  // namespace
}  // namespace verbena::local
