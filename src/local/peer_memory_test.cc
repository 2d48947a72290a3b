// SPDX-License-Identifier: MIT
#include "local/peer_memory.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>

#include "local/test_length.h"
#include "local/test_target.h"
#include "memory/guarded_copy.h"

namespace verbena::local {
namespace {

constexpr MemoryKey kKey = Target::kKey;

class PeerMemoryTest : public testing::Test {
 protected:
  PeerMemoryTest() { sections.add(lock); }

  Target target;
  SectionLock lock;
  memory::SectionList sections;
  AskedMappings requests;
  PeerMemory peer{{}, requests, sections};

  std::byte* base(MemoryKey key = kKey) {
    const std::lock_guard section(lock);
    const auto region = peer.find(key);
    return region ? region->base : nullptr;
  }
  void show_at(MemoryKey key, std::uint64_t offset, std::uint64_t length) {
    auto region = target.region();
    region.length = length;
    region.mapped.end = length;
    region.mapped.offset = offset;
    target.published.show(key, region);
  }
  static long mappings() {
    std::ifstream maps("/proc/self/maps");
    long count = 0;
    for (std::string line; std::getline(maps, line);)
      count += line.find("verbena-test") != line.npos;
    return count;
  }
};

TEST_F(PeerMemoryTest, KnowsNothingWithoutTables) {
  EXPECT_EQ(peer.tables(), nullptr);
  EXPECT_FALSE(peer.find(kKey));
  peer.map_now(kKey, target.files);
  EXPECT_TRUE(requests.asked.empty());
}

TEST_F(PeerMemoryTest, TakesTablesOnceAndOnlyOurs) {
  const auto magic = target.tables().magic;
  target.tables().magic = magic + 1;
  peer.take_tables(target.look());
  EXPECT_EQ(peer.tables(), nullptr);
  target.tables().magic = magic;
  peer.take_tables(target.look());
  const PublishedTables* const first = peer.tables();
  ASSERT_NE(first, nullptr);
  peer.take_tables(target.look());
  EXPECT_EQ(peer.tables(), first);
}

TEST_F(PeerMemoryTest, MapsOnRequestAndOnce) {
  peer.take_tables(target.look());
  target.show();
  EXPECT_EQ(base(), nullptr);
  EXPECT_EQ(requests.asked, std::vector{kKey});
  peer.map_now(kKey, target.files);
  std::byte* const mapped = base();
  ASSERT_NE(mapped, nullptr);
  mapped[5] = std::byte{9};
  EXPECT_EQ(target.memory[5], std::byte{9});
  const long before = mappings();
  peer.map_now(kKey, target.files);
  EXPECT_EQ(base(), mapped);
  EXPECT_EQ(mappings(), before);
}

TEST_F(PeerMemoryTest, KeyZeroIsNoRegion) {
  peer.take_tables(target.look());
  EXPECT_FALSE(peer.find({}));
  target.place({}).identity = std::uint64_t{1} << 32;
  EXPECT_FALSE(peer.find({}));
}

TEST_F(PeerMemoryTest, AFileThatIsNotThereIsAskedForOnce) {
  peer.take_tables(target.look());
  target.show();
  EXPECT_EQ(base(), nullptr);
  PeerFiles none;
  peer.map_now(kKey, none);
  requests.asked.clear();
  EXPECT_EQ(base(), nullptr);
  EXPECT_TRUE(requests.asked.empty());
  peer.forget_failures();
  EXPECT_EQ(base(), nullptr);
  EXPECT_EQ(requests.asked, std::vector{kKey});
  peer.map_now(kKey, target.files);
  EXPECT_NE(base(), nullptr);
}

TEST_F(PeerMemoryTest, OnlyPeersMemoryIsWritable) {
  peer.take_tables(target.look());
  constexpr FileId kToRead = FileId::of(1, false);
  target.files.take(kToRead, make_file(Target::kSize));
  auto region = target.region();
  region.mapped.file = kToRead.value;
  target.published.show(kKey, region);
  peer.map_now(kKey, target.files);
  ASSERT_NE(base(), nullptr);
  EXPECT_FALSE(peer.find(kKey)->may_write_mapping);
  const std::byte one{1};
  EXPECT_FALSE(memory::guarded_copy(base(), &one, 1));
}

// A file system of the peer's could hold us in a page fault for ever, and a device do anything.
TEST_F(PeerMemoryTest, OnlySealedMemoryIsTaken) {
  PeerFiles files;
  const auto is_taken = [&](host::PrivateFd file) {
    files.take(FileId::of(7, true), std::move(file));
    return files.find(FileId::of(7, true)) >= 0;
  };
  EXPECT_FALSE(is_taken(make_file(4096, 0)));
  EXPECT_FALSE(is_taken(make_file(4096, F_SEAL_GROW | F_SEAL_SEAL)));
  EXPECT_FALSE(is_taken(host::PrivateFd(open("/dev/zero", O_RDWR | O_CLOEXEC))));
  EXPECT_FALSE(is_taken(host::PrivateFd(open("/tmp", O_RDWR | O_TMPFILE | O_CLOEXEC, 0600))));
  EXPECT_FALSE(is_taken(host::PrivateFd()));
  EXPECT_TRUE(is_taken(make_file(4096)));
}

TEST_F(PeerMemoryTest, WhatTheFileDoesNotHoldIsNotMapped) {
  peer.take_tables(target.look());
  show_at(kKey, Target::kSize - 4096, 8192);
  peer.map_now(kKey, target.files);
  EXPECT_EQ(base(), nullptr);
  target.published.hide(kKey);
  show_at(kKey, std::uint64_t{1} << 62, 4096);
  peer.map_now(kKey, target.files);
  EXPECT_EQ(base(), nullptr);
}

// One peer does not use up our address space.
TEST_F(PeerMemoryTest, ThereIsALimitToWhatAPeerGetsMapped) {
  peer.take_tables(target.look());
  constexpr FileId kHuge = FileId::of(2, true);
  constexpr std::uint64_t kSize = std::uint64_t{1} << 42;
  target.files.take(kHuge, make_file(kSize));
  std::uint64_t mapped = 0;
  for (std::uint32_t i = 1; i <= 64; ++i) {
    auto region = target.region();
    region.length = region.mapped.end = std::uint64_t{1} << 34;
    region.mapped.file = kHuge.value;
    target.published.show({i}, region);
    peer.map_now({i}, target.files);
    if (base({i})) mapped += region.length;
  }
  EXPECT_GT(mapped, 0U);
  EXPECT_LE(mapped, std::uint64_t{1} << 36);
  requests.asked.clear();
  EXPECT_EQ(base({64}), nullptr);
  EXPECT_TRUE(requests.asked.empty()) << "asking again is of no use";
}

// More regions than may be mapped at a time: those that are gone make room.
TEST_F(PeerMemoryTest, StaleMappingsMakeRoom) {
  peer.take_tables(target.look());
  constexpr std::uint32_t kRegions = 4096;
  const auto show = [&](std::uint32_t key) { show_at({key}, 0, 4096); };
  for (std::uint32_t key = 1; key <= kRegions + 1; ++key) {
    show(key);
    peer.map_now({key}, target.files);
  }
  EXPECT_NE(base({kRegions}), nullptr);
  EXPECT_EQ(base({kRegions + 1}), nullptr);
  target.published.hide({1});
  show(kRegions + 2);
  peer.map_now({kRegions + 2}, target.files);
  EXPECT_NE(base({kRegions + 2}), nullptr);
  EXPECT_NE(base({2}), nullptr);
  requests.asked.clear();
  EXPECT_EQ(base({kRegions + 1}), nullptr);
  EXPECT_EQ(requests.asked.size(), 1U) << "there may be room now";
}

TEST_F(PeerMemoryTest, KeepsOnlyTheLastFilesOfAPeer) {
  PeerFiles files;
  for (std::uint32_t generation = 1; generation <= 100; ++generation)
    files.take(FileId::of(generation, true), make_file(4096));
  EXPECT_GE(files.find(FileId::of(100, true)), 0);
  EXPECT_EQ(files.find(FileId::of(1, true)), -1);
}

TEST_F(PeerMemoryTest, LeavesNoMappingBehind) {
  const long before = mappings();
  {
    PeerMemory other({}, requests, sections);
    other.take_tables(target.look());
    target.show();
    other.map_now(kKey, target.files);
    EXPECT_GT(mappings(), before);
  }
  EXPECT_EQ(mappings(), before);
}

// Mappings go while they are used: not before whoever looked them up has left its section.
TEST_F(PeerMemoryTest, AMappingStaysWhileASectionUsesIt) {
  peer.take_tables(target.look());
  target.show();
  std::atomic<bool> stop{false};
  std::atomic<int> faults{0};
  std::atomic<int> others{0};
  std::atomic<int> used{0};
  constexpr std::uint8_t kFirst = 0x11, kSecond = 0x22;
  std::memset(target.memory, kFirst, 4096);
  std::memset(target.memory + 4096, kSecond, 4096);
  std::thread user([&] {
    while (!stop.load(std::memory_order_relaxed)) {
      const std::lock_guard section(lock);
      const auto region = peer.find(kKey);
      if (!region || !region->base) continue;
      // Half of the time the other one goes on meanwhile.
      if (used % 2) std::this_thread::yield();
      std::byte value{};
      const std::uint64_t last = region->mapped.end - region->mapped.begin - 1;
      faults += !memory::guarded_copy(&value, region->base + last, 1);
      // What was mapped at the same address meanwhile is something else.
      others += value != std::byte{region->mapped.offset == 0 ? kFirst : kSecond};
      ++used;
    }
  });
  const auto end = std::chrono::steady_clock::now() + most_time();
  const auto goes_on = [&](int round) {
    return used < 100 || round < 20 || (round < 2000 && std::chrono::steady_clock::now() < end);
  };
  for (int round = 0; goes_on(round); ++round) {
    target.published.hide(kKey);
    show_at(kKey, round % 2 ? 4096 : 0, 4096);
    const int before = used;
    peer.map_now(kKey, target.files);
    for (int i = 0; i < 200 && used == before; ++i)
      std::this_thread::yield();
  }
  stop = true;
  user.join();
  EXPECT_EQ(faults, 0);
  EXPECT_EQ(others, 0);
}

}  // namespace
}  // namespace verbena::local
