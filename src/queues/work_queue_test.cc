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

}  // namespace
}  // namespace verbena::queues
