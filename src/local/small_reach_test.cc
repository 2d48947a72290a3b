// SPDX-License-Identifier: MIT
// Small WRITEs by the peer's memory as a file: what takes them back, and what a hostile owner
// may make of the length that it shares with us.
#include "local/small_reach.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "base/ticks.h"
#include "local/test_initiator.h"
#include "memory/fault_guard.h"

namespace verbena::local {
namespace {

using Outcome = Direct::Outcome;

constexpr std::array<std::byte, 8> kBytes{std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4},
                                          std::byte{5}, std::byte{6}, std::byte{7}, std::byte{8}};

class RevocablePieceTest : public testing::Test {
 protected:
  RevocablePieceTest() : file(open("/proc/self/mem", O_RDWR | O_CLOEXEC)) {
    if (file < 0) skip = true;
  }
  ~RevocablePieceTest() override { close(file); }
  void SetUp() override {
    if (skip) GTEST_SKIP() << "there is no such file";
  }
  long write(const iovec* of) {
    return pwritev(file, of, 1, static_cast<off_t>(reinterpret_cast<std::uintptr_t>(&target)));
  }

  SharedConduit conduit = make_conduit(1);  // the owner's, and ours
  std::atomic<std::uint64_t>& length = conduit.first.header().small_length;
  RevocablePiece piece{conduit.second.header()};
  std::array<std::byte, 4096> target{};
  int file;
  bool skip = false;
};

TEST_F(RevocablePieceTest, HasTheLengthOfTheConduit) {
  ASSERT_TRUE(static_cast<bool>(piece));
  const iovec* const filled = piece.fill(kBytes.data(), 5);
  conduit.second.header().small_length = 5;
  EXPECT_EQ(write(filled), 5);
  EXPECT_TRUE(std::equal(target.begin(), target.begin() + 5, kBytes.begin()));
  EXPECT_EQ(target[5], std::byte{0});
}

TEST_F(RevocablePieceTest, MovesNothingWhenItIsEmptied) {
  const iovec* const filled = piece.fill(kBytes.data(), 8);
  conduit.second.header().small_length = 8;
  RingResponder owner(qp::QpType::kRc);
  owner.offer(std::move(conduit.first));
  owner.stop_reaching();
  EXPECT_EQ(write(filled), 0);
  EXPECT_EQ(target[0], std::byte{0});
}

// Not one byte: nothing lies behind ours.
TEST_F(RevocablePieceTest, MovesNothingWhenItIsMadeLonger) {
  for (const std::uint64_t more : {std::uint64_t{9}, std::uint64_t{4096}, std::uint64_t{1} << 40}) {
    const iovec* const filled = piece.fill(kBytes.data(), 8);
    length = more;
    EXPECT_EQ(write(filled), -1);
    EXPECT_EQ(errno, EFAULT);
    EXPECT_EQ(target[0], std::byte{0});
  }
}

TEST_F(RevocablePieceTest, BytesThatCannotBeReadAreNotThere) {
  memory::install_fault_guard();
  void* const gone = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_EQ(piece.fill(static_cast<std::byte*>(gone), 8), nullptr);
  munmap(gone, 4096);
}

TEST_F(RevocablePieceTest, SoManyAtATime) {
  std::vector<RevocablePiece> pieces;
  while (pieces.size() < 2 * RevocablePiece::kPieces) {
    RevocablePiece next(conduit.second.header());
    if (!next) break;
    pieces.push_back(std::move(next));
  }
  EXPECT_EQ(pieces.size(), RevocablePiece::kPieces - 1);
  pieces.pop_back();
  EXPECT_TRUE(static_cast<bool>(RevocablePiece(conduit.second.header())));
}

class SmallReachTest : public testing::Test {
 protected:
  void SetUp() override {
    if (ticks() == 0) GTEST_SKIP() << "there is no count of time";
    if (!host::MemoryFile::is_sound_here()) GTEST_SKIP() << "the kernel does not copy in order";
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < host::MemoryFile::kNumbers) GTEST_SKIP() << "too few descriptors";
    initiator.grant();
    initiator.fill(4);
    auto region = target.region();
    region.mapped = {};
    target.published.show(Target::kKey, region);
  }
  static std::uint64_t address_of(const void* at) { return reinterpret_cast<std::uint64_t>(at); }
  // By the file, if it has been got ready before.
  bool write(std::uint64_t length) {
    reach.show(length);
    const bool done = reach.write(kBytes.data(), length, target.address());
    reach.prepare();
    return done;
  }
  // A busy machine may take the processor away for a moment.
  template <class Call>
  static bool soon(const Call& call) {
    for (int i = 0; i < 1000; ++i) {
      if (call()) return true;
    }
    return false;
  }

  const std::uint64_t nonce = 0x123456789abcdef0;
  Target target;
  Initiator initiator{target, {getpid(), address_of(&nonce), nonce}};
  SharedConduit conduit = make_conduit(2);
  SmallReach reach;
};

TEST_F(SmallReachTest, GetsReadyForWhatComesSoon) {
  reach.attach(initiator.memory, conduit.second.header());
  EXPECT_FALSE(write(8)) << "nobody has looked";
  EXPECT_EQ(target.memory[0], std::byte{0});
  ASSERT_TRUE(soon([&] { return write(8); }));
  EXPECT_EQ(std::memcmp(target.memory, kBytes.data(), 8), 0);
  ASSERT_TRUE(soon([&] { return write(1); }));
}

TEST_F(SmallReachTest, WhatComesSeldomGoesAnotherWay) {
  reach.attach(initiator.memory, conduit.second.header());
  for (int i = 0; i < 20; ++i) {
    usleep(1000);
    EXPECT_FALSE(write(8));
  }
}

TEST(RetryPauseTest, IsTwiceAsLongAfterEachFailure) {
  RetryPause pause;
  const auto goes_another_way = [&] {
    std::uint32_t count = 0;
    while (!pause.is_over())
      ++count;
    return count;
  };
  EXPECT_EQ(goes_another_way(), 0u);
  for (std::uint32_t expected = 1; expected < RetryPause::kMost; expected *= 2) {
    pause.failed();
    EXPECT_EQ(goes_another_way(), expected);
    EXPECT_EQ(goes_another_way(), 0u);
  }
  for (int i = 0; i < 2; ++i) {
    pause.failed();
    EXPECT_EQ(goes_another_way(), RetryPause::kMost);
  }
  pause.worked();
  EXPECT_EQ(goes_another_way(), 0u);
  pause.failed();
  EXPECT_EQ(goes_another_way(), 1u);
}

// Where it always fails, most WRITEs do not try it: the file stays as it was seen.
TEST_F(SmallReachTest, AfterFailuresItPauses) {
  reach.attach(initiator.memory, conduit.second.header());
  ASSERT_TRUE(soon([&] { return write(8); }));
  void* const gone = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  munmap(gone, 4096);
  host::MemoryFile& file = initiator.memory.file();
  constexpr int kWrites = 2000;
  int untouched = 0;
  for (int i = 0; i < kWrites; ++i) {
    file.look();
    reach.show(8);
    EXPECT_FALSE(reach.write(kBytes.data(), 8, address_of(gone)));
    untouched += file.may_use(ticks());
    reach.prepare();
  }
  EXPECT_GT(untouched, kWrites / 2);
}

TEST_F(SmallReachTest, LargeOnesGoAnotherWay) {
  reach.attach(initiator.memory, conduit.second.header());
  ASSERT_TRUE(soon([&] { return write(8); }));
  EXPECT_FALSE(soon([&] { return write(9); }));
}

TEST_F(SmallReachTest, NoWayAroundTheRights) {
  const auto write_now = [&](std::uint64_t length) {
    const std::lock_guard section(initiator.lock());
    return initiator.direct.write_reachable(Target::kKey, target.address(), initiator.buffer.data(),
                                            length);
  };
  for (int i = 0; i < 1000; ++i)
    ASSERT_TRUE(write_now(8));
  EXPECT_TRUE(initiator.memory.file().is_open());
  EXPECT_EQ(target.memory[7], std::byte{4});
  initiator.grant(memory::kRemoteRead);
  target.memory[7] = {};
  EXPECT_FALSE(soon([&] { return write_now(8); }));
  EXPECT_EQ(target.memory[7], std::byte{0});
  initiator.revoke();
  std::array<std::byte, 8> into{};
  EXPECT_FALSE(soon([&] {
    const std::lock_guard section(initiator.lock());
    return initiator.direct.read_reachable(Target::kKey, target.address(), into.data(), 8);
  }));
}

// The owner writes lengths all the time: then some WRITEs are not done by the file, and that is
// all. Nothing of ours but the eight bytes ever reaches it.
TEST_F(SmallReachTest, AnOwnerThatMakesThemLongerGetsNoMore) {
  reach.attach(initiator.memory, conduit.second.header());
  std::memset(target.memory, 0xee, Target::kSize);
  std::atomic<bool> stop{false};
  std::thread owner([&] {
    std::atomic<std::uint64_t>& length = conduit.first.header().small_length;
    for (std::uint64_t i = 0; !stop.load(std::memory_order_relaxed); ++i)
      length.store(i % 3 == 0 ? 8 : 8 << i % 20, std::memory_order_relaxed);
  });
  int done = 0;
  for (int i = 0; i < 200'000 && done < 20'000; ++i)
    done += write(8);
  stop = true;
  owner.join();
  EXPECT_GT(done, 0);
  EXPECT_TRUE(std::all_of(target.memory + 8, target.memory + Target::kSize,
                          [](std::byte b) { return b == std::byte{0xee}; }));
}

}  // namespace
}  // namespace verbena::local
