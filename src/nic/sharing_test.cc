// SPDX-License-Identifier: MIT
// What a process publishes follows what the program has: regions and grants come and go with their
// objects. What peers do meanwhile is in tests/access.
#include "nic/sharing.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <thread>
#include <utility>

#include "nic/nic.h"
#include "nic/nic_qp.h"
#include "nic/test_world.h"

namespace verbena::nic {
namespace {

using queues::SendOpcode;
using queues::Status;

class SharingTest : public testing::Test {
 protected:
  World world;

  Nic& nic() { return world.context->nic(); }
  const local::PublishedTables& tables() { return nic().sharing().published().tables(); }
  std::uint64_t identity(MemoryKey key) {
    return tables().regions[local::published_place(key)].identity.load();
  }
  std::uint64_t grant(QpNum number) { return tables().queue_pairs[number.index()].grant.load(); }
  static void join(Node& a, Node& b) {
    a.ready(b.number());
    b.ready(a.number());
  }
  // A grant comes with a turn after the connection; so there is traffic until it is there.
  bool waits_for_grant(Node& of, Node& peer) {
    const Instant limit = clock_now() + Duration::seconds(10);
    while (grant(of.number()) == 0) {
      EXPECT_TRUE(peer.post(SendOpcode::kWrite, of, 0, 64).has_value());
      EXPECT_EQ(peer.wait(1).at(0).status, Status::kSuccess);
      if (clock_now() > limit) return false;
    }
    return true;
  }
};

#define NEED_DIRECT()                                                           \
  do {                                                                          \
    if (!nic().sharing().policy().is_direct()) GTEST_SKIP() << "only the ring"; \
  } while (false)

TEST_F(SharingTest, RegionsAreShownAsLongAsTheyAreRegistered) {
  NEED_DIRECT();
  const Node node(world, qp::QpType::kRc);
  std::vector<std::uint8_t> memory(100'000);
  Mr* mr = *reg_mr(*world.pd, memory.data(), memory.size(), 0x5000, kEveryAccess);
  const MemoryKey key = mr->key;
  const auto& place = tables().regions[local::published_place(key)];
  EXPECT_EQ(static_cast<std::uint32_t>(identity(key)), key.value);
  EXPECT_EQ(place.iova, 0x5000U);
  EXPECT_EQ(place.length, memory.size());
  EXPECT_EQ(place.pd, world.pd->id.value);
  ASSERT_TRUE(dereg_mr(mr).has_value());
  EXPECT_EQ(identity(key), 0U);
}

TEST_F(SharingTest, ARegionThatChangesIsShownAsItIs) {
  NEED_DIRECT();
  const Node node(world, qp::QpType::kRc);
  std::vector<std::uint8_t> memory(100'000);
  Mr* mr = *reg_mr(*world.pd, memory.data(), memory.size(), 0x5000, kEveryAccess);
  const MemoryKey before = mr->key;
  ASSERT_TRUE(rereg_mr(*mr, {.access = memory::kLocalWrite}).has_value());
  if (mr->key != before) {
    EXPECT_EQ(identity(before), 0U);
  }
  EXPECT_EQ(static_cast<std::uint32_t>(identity(mr->key)), mr->key.value);
  EXPECT_EQ(tables().regions[local::published_place(mr->key)].access, memory::kLocalWrite);
  const MemoryKey after = mr->key;
  ASSERT_TRUE(dereg_mr(mr).has_value());
  EXPECT_EQ(identity(after), 0U);
}

TEST_F(SharingTest, ThoseRegisteredBeforeTheFirstQueuePairAreShown) {
  NEED_DIRECT();
  std::vector<std::uint8_t> memory(100'000);
  Mr* mr = *reg_mr(*world.pd, memory.data(), memory.size(), 0, kEveryAccess);
  const Node node(world, qp::QpType::kRc);
  EXPECT_EQ(static_cast<std::uint32_t>(identity(mr->key)), mr->key.value);
  ASSERT_TRUE(dereg_mr(mr).has_value());
}

TEST_F(SharingTest, AGrantGoesWithTheState) {
  NEED_DIRECT();
  for (const qp::QpState to : {qp::QpState::kError, qp::QpState::kReset}) {
    Node a(world, qp::QpType::kRc);
    Node b(world, qp::QpType::kRc);
    EXPECT_EQ(grant(a.number()), 0U);
    join(a, b);
    ASSERT_TRUE(waits_for_grant(a, b));
    EXPECT_EQ(grant(a.number()) >> 32, b.number().value);
    ASSERT_TRUE(a.move(to).has_value());
    EXPECT_EQ(grant(a.number()), 0U);
  }
}

TEST_F(SharingTest, AGrantGoesWithTheQueuePair) {
  NEED_DIRECT();
  Node a(world, qp::QpType::kRc);
  Node b(world, qp::QpType::kRc);
  join(a, b);
  ASSERT_TRUE(waits_for_grant(a, b));
  const QpNum number = a.number();
  ASSERT_TRUE(destroy_qp(std::exchange(a.qp, nullptr)).has_value());
  EXPECT_EQ(grant(number), 0U);
}

// What a peer writes by the address of one region into pages that leave with another one would be
// lost.
TEST_F(SharingTest, ARegionOverPagesThatMoveIsHiddenMeanwhile) {
  NEED_DIRECT();
  const Node node(world, qp::QpType::kRc);
  constexpr std::size_t kPart = 64 * 1024;
  auto* const memory = static_cast<std::byte*>(
      mmap(nullptr, 3 * kPart, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(memory, MAP_FAILED);
  Mr* const first = *reg_mr(*world.pd, memory, 2 * kPart, 0, kEveryAccess);
  Mr* const second = *reg_mr(*world.pd, memory + kPart, 2 * kPart, 0, kEveryAccess);
  const bool has_adopted = nic().sharing().mapped_part(first->key).has_value();
  EXPECT_FALSE(nic().sharing().mapped_part(second->key));
  const std::uint64_t before = identity(second->key);
  EXPECT_TRUE(dereg_mr(first).has_value());
  EXPECT_EQ(static_cast<std::uint32_t>(identity(second->key)), second->key.value);
  if (has_adopted) {
    EXPECT_NE(identity(second->key), before) << "it was there all the time";
  }
  EXPECT_TRUE(dereg_mr(second).has_value());
  munmap(memory, 3 * kPart);
}

// Threads that take down and register, under the traffic of others: nothing stays published.
TEST_F(SharingTest, NothingIsLeftBehind) {
  NEED_DIRECT();
  Node a(world, qp::QpType::kRc);
  Node b(world, qp::QpType::kRc);
  join(a, b);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  std::vector<MemoryKey> seen[3];
  for (auto& keys : seen) {
    threads.emplace_back([&] {
      std::vector<std::uint8_t> memory(200'000);
      while (!stop.load(std::memory_order_relaxed)) {
        Mr* mr = *reg_mr(*world.pd, memory.data(), memory.size(), 0, kEveryAccess);
        keys.push_back(mr->key);
        EXPECT_TRUE(rereg_mr(*mr, {.access = memory::kLocalWrite}).has_value());
        keys.push_back(mr->key);
        EXPECT_TRUE(dereg_mr(mr).has_value());
      }
    });
  }
  for (int i = 0; i < 300; ++i) {
    ASSERT_TRUE(a.post(SendOpcode::kWrite, b, 0, 64 * 1024).has_value());
    EXPECT_EQ(a.wait(1).at(0).status, Status::kSuccess);
  }
  stop = true;
  for (std::thread& thread : threads)
    thread.join();
  for (const auto& keys : seen) {
    for (const MemoryKey key : keys)
      EXPECT_NE(static_cast<std::uint32_t>(identity(key)), key.value);
  }
}

}  // namespace
}  // namespace verbena::nic
