// SPDX-License-Identifier: MIT
// The small parts that the engines are made of.
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "roce/admission.h"
#include "roce/answer_queue.h"
#include "roce/flight_line.h"
#include "roce/read_quota.h"
#include "roce/reorder_buffer.h"
#include "roce/repairs.h"

namespace verbena::roce {
namespace {

using wire::Msn;

wire::Packet packet_of(std::uint32_t psn, std::span<const std::byte> payload = {}) {
  wire::Packet packet;
  packet.psn = Psn(psn);
  packet.payload = payload;
  return packet;
}

TEST(ReorderBuffer, KeepsCopiesAndNoMoreThanItHasRoomFor) {
  ReorderBuffer buffer(6, 1024);  // eight
  std::array<std::byte, 100> payload{};
  payload.fill(std::byte{7});
  EXPECT_TRUE(buffer.keep(packet_of(0x000001, payload), 3));
  payload.fill(std::byte{8});
  EXPECT_TRUE(buffer.keep(packet_of(0x000001, payload), 3));  // the same again
  EXPECT_FALSE(buffer.keep(packet_of(0x000006), 8));
  EXPECT_EQ(buffer.count(), 1u);
  const wire::Packet* kept = buffer.find(Psn(1));
  ASSERT_NE(kept, nullptr);
  EXPECT_EQ(kept->payload.size(), 100u);
  EXPECT_EQ(kept->payload[99], std::byte{7});
  EXPECT_EQ(buffer.find(Psn(9)), nullptr);  // the same place, another packet
  buffer.release(Psn(9));
  EXPECT_EQ(buffer.count(), 1u);
  EXPECT_TRUE(buffer.keep(packet_of(9), 1));  // whoever is there is over
  EXPECT_EQ(buffer.find(Psn(1)), nullptr);
  EXPECT_EQ(buffer.count(), 1u);
  buffer.clear();
  EXPECT_TRUE(buffer.is_empty());
}

TEST(ReorderBuffer, TakesItsMemoryFromABudgetThatAllShare) {
  constexpr std::size_t kEnoughForOne = 8 * 1024 + 4096;
  ReorderBudget budget(kEnoughForOne);
  std::vector<std::byte> bytes(100);
  wire::Packet packet;
  packet.payload = bytes;
  packet.psn = Psn(5);
  ReorderBuffer one(8, 1024, &budget);
  EXPECT_EQ(budget.left(), kEnoughForOne);
  EXPECT_TRUE(one.keep(packet, 5));
  EXPECT_LT(budget.left(), 8u * 1024);
  {
    ReorderBuffer other(8, 1024, &budget);
    EXPECT_FALSE(other.keep(packet, 5));
    one.release(Psn(5));  // nothing waits, and the budget is short
    EXPECT_EQ(budget.left(), kEnoughForOne);
    EXPECT_TRUE(other.keep(packet, 5));
    EXPECT_FALSE(one.keep(packet, 5));
  }
  EXPECT_EQ(budget.left(), kEnoughForOne);
  EXPECT_TRUE(one.keep(packet, 5));
  one.clear();
  EXPECT_EQ(budget.left(), kEnoughForOne);
  EXPECT_FALSE(one.has(Psn(5)));
}

TEST(ReorderBuffer, TakesNothingLongerThanAPacket) {
  ReorderBuffer buffer(8, 256);
  const std::array<std::byte, 257> payload{};
  EXPECT_FALSE(buffer.keep(packet_of(1, payload), 1));
  ReorderBuffer none(0, 256);
  EXPECT_FALSE(none.keep(packet_of(1), 1));
}

std::vector<std::uint32_t> starts(AnswerQueue queue) {
  std::vector<std::uint32_t> all;
  for (; !queue.is_empty(); queue.pop())
    all.push_back(queue.front().psn.value());
  return all;
}

TEST(AnswerQueue, RestartsWhatIsAskedForAgain) {
  AnswerQueue queue(2);
  EXPECT_TRUE(queue.add({.psn = Psn(10), .packets = 10}));
  EXPECT_TRUE(queue.add({.psn = Psn(20), .packets = 5}));
  EXPECT_FALSE(queue.add({.psn = Psn(25), .packets = 5}));
  queue.front().done = 7;
  queue.add_again({.psn = Psn(14), .packets = 6, .is_again = true});  // the rest of it
  EXPECT_EQ(queue.front().done, 0u);
  EXPECT_EQ(starts(queue), (std::vector<std::uint32_t>{14, 20}));
  queue.add_again({.psn = Psn(15), .packets = 2, .is_again = true});  // something inside
  EXPECT_EQ(starts(queue), (std::vector<std::uint32_t>{15, 14, 20}));
  queue.add_again({.psn = Psn(3), .packets = 1, .is_again = true});
  EXPECT_EQ(queue.front().psn, Psn(3));
  EXPECT_FALSE(queue.add({.psn = Psn(25), .packets = 5})) << "14 was not answered whole";
  while (queue.front().psn != Psn(20))
    queue.pop();
  queue.add_again({.psn = Psn(3), .packets = 1, .is_again = true});
  EXPECT_TRUE(queue.add({.psn = Psn(25), .packets = 5})) << "repetitions do not count";
}

TEST(AnswerQueue, WhatWasNotAnsweredWholeIsNotAgain) {
  AnswerQueue queue(2);
  EXPECT_TRUE(queue.add({.psn = Psn(10), .packets = 10}));
  queue.front().done = 9;
  queue.add_again({.psn = Psn(10), .packets = 10, .is_again = true});
  EXPECT_FALSE(queue.front().is_again);
  queue.add_again({.psn = Psn(5), .packets = 2, .is_again = true});
  EXPECT_TRUE(queue.front().is_again);
  queue.add_again({.psn = Psn(6), .packets = 1, .is_again = true});
  EXPECT_TRUE(queue.front().is_again);
}

TEST(AnswerQueue, HasALimitForRepetitionsToo) {
  AnswerQueue queue(1);
  for (std::uint32_t i = 0; i < 1000; ++i)
    queue.add_again({.psn = Psn(i * 2), .is_again = true});
  EXPECT_LT(starts(queue).size(), 20u);
}

TEST(AtomicReplay, RemembersTheLastOnes) {
  AtomicReplay replay(2);
  replay.add(Psn(1), 11);
  replay.add(Psn(2), 12);
  replay.add(Psn(3), 13);
  EXPECT_EQ(replay.find(Psn(1)), nullptr);
  EXPECT_EQ(*replay.find(Psn(2)), 12u);
  replay.add(Psn(2), 22);  // a circle later
  EXPECT_EQ(*replay.find(Psn(2)), 22u);
}

TEST(ReadHistory, HasWhatWasAskedForAndItsParts) {
  constexpr std::uint32_t kMtu = 1024;
  ReadHistory history(2);
  EXPECT_FALSE(history.has({}, kMtu));
  const OwedAnswer read{
      .psn = Psn(0xFFFFFE), .packets = 3, .key = {7}, .address = 5000, .length = 2500};
  history.add(read);
  EXPECT_TRUE(history.has(read, kMtu));
  const OwedAnswer part{.psn = Psn(0), .packets = 1, .key = {7}, .address = 7048, .length = 452};
  EXPECT_TRUE(history.has(part, kMtu));
  for (const auto change :
       {+[](OwedAnswer& one) { one.key = {8}; }, +[](OwedAnswer& one) { one.address += 1; },
        +[](OwedAnswer& one) { one.length += 1; },
        +[](OwedAnswer& one) { one.psn = Psn(0xFFFFFF); },
        +[](OwedAnswer& one) { one.packets = 2; }}) {
    OwedAnswer other = part;
    change(other);
    EXPECT_FALSE(history.has(other, kMtu));
  }
  history.add({.psn = Psn(1), .packets = 1});
  EXPECT_TRUE(history.has(read, kMtu));
  history.add({.psn = Psn(2), .packets = 1});
  EXPECT_FALSE(history.has(read, kMtu)) << "older than all that may be asked for";
}

TEST(FlightLine, FindsTheOperationOfAPsn) {
  FlightLine line(3);
  line.push({.index = qp::OpIndex(0), .first = Psn(0xFFFFFE), .packets = 4});
  line.push({.index = qp::OpIndex(1), .first = Psn(2), .packets = 1});
  line.push({.index = qp::OpIndex(2), .first = Psn(3), .packets = 10, .part = 4});
  EXPECT_EQ(line.find(Psn(0xFFFFFD)), nullptr);
  EXPECT_EQ(line.find(Psn(0xFFFFFE))->index.value(), 0u);
  EXPECT_EQ(line.find(Psn(1))->index.value(), 0u);
  EXPECT_EQ(line.find(Psn(2))->index.value(), 1u);
  EXPECT_EQ(line.find(Psn(12))->index.value(), 2u);
  EXPECT_EQ(line.find(Psn(13)), nullptr);
  EXPECT_EQ(line.find(Psn(0x800000)), nullptr);
  EXPECT_EQ(line.newest().part_end(Psn(3)), Psn(7));
  EXPECT_EQ(line.newest().part_end(Psn(11)), Psn(13));
  EXPECT_FALSE(line.is_full());
  line.push({.index = qp::OpIndex(3), .first = Psn(13)});
  EXPECT_TRUE(line.is_full());
}

TEST(ReadQuota, CountsWhatIsNotFinished) {
  ReadQuota quota;
  quota.set_most(2);
  quota.asked_upto(Psn(5));
  quota.asked_upto(Psn(9));
  quota.finished_upto(Psn(4));
  EXPECT_FALSE(quota.has_room(Psn(9)));
  quota.finished_upto(Psn(5));
  EXPECT_TRUE(quota.has_room(Psn(9)));
  quota.asked_upto(Psn(12));
  EXPECT_FALSE(quota.has_room(Psn(12)));
}

// The one in the middle has been answered and is not asked for again: it counts all the same.
TEST(ReadQuota, CountsWhatIsAskedForAgainOnce) {
  ReadQuota quota;
  quota.set_most(3);
  for (const std::uint32_t end : {5u, 7u, 9u})
    quota.asked_upto(Psn(end));
  for (const std::uint32_t psn : {4u, 7u}) {
    EXPECT_TRUE(quota.has_room(Psn(psn)));
    quota.asked_upto(Psn(psn == 4 ? 5 : 9));
  }
  EXPECT_FALSE(quota.has_room(Psn(9)));
  quota.finished_upto(Psn(5));
  EXPECT_TRUE(quota.has_room(Psn(9)));
}

// Between two READs there may be more than half of all numbers.
TEST(ReadQuota, ForgetsWhatIsFinished) {
  ReadQuota quota;
  quota.set_most(1);
  quota.asked_upto(Psn(5));
  for (const std::uint32_t finished : {5u, 0x7ffff0u, 0x900000u})
    quota.finished_upto(Psn(finished));
  EXPECT_TRUE(quota.has_room(Psn(0x900000)));
  quota.asked_upto(Psn(0x900001));
  EXPECT_FALSE(quota.has_room(Psn(0x900001))) << "not counted: the last one seems to come";
}

TEST(Repairs, HoldsRangesOnce) {
  Repairs repairs;
  repairs.add(Psn(10), 4);
  repairs.add(Psn(12), 4);  // begins in the first
  repairs.add(Psn(20), 1);
  repairs.take(3);
  EXPECT_EQ(repairs.front().first, Psn(13));
  repairs.take(1);
  EXPECT_EQ(repairs.front().first, Psn(20));
  repairs.take(1);
  EXPECT_TRUE(repairs.is_empty());
  for (std::uint32_t i = 0; i < 1000; ++i)
    repairs.add(Psn(i * 10), 1);  // those that do not fit are dropped
  EXPECT_FALSE(repairs.is_empty());
}

static_assert(pkeys_match(0xFFFF, 0xFFFF));
static_assert(pkeys_match(0xFFFF, 0x7FFF));
static_assert(!pkeys_match(0x7FFF, 0x7FFF));
static_assert(!pkeys_match(0xFFFF, 0x8001));

}  // namespace
}  // namespace verbena::roce
