// SPDX-License-Identifier: MIT
// Messages whose payload lies in the sender's memory, taken by the short way.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "local/test_pair.h"
#include "local/test_target.h"

namespace verbena::local {
namespace {

constexpr QpNum kTaker = QpNum::of({6}, 21);
constexpr QpNum kLender = QpNum::of(Target::kSlot, 33);

// Ours takes; the peer is its ring and its memory.
class LentSmall : public ::testing::Test {
 protected:
  LentSmall() : end(qp::QpType::kRc, kTaker), memory({}, asked, end.sections) {
    end.sections.add(end.pair.lock());
    end.takes_small = false;
    key = end.add(room.data(), room.size(), memory::kLocalWrite);
    end.ready(kLender);
    memory.take_tables(lender.look());
    SharedConduit inbound = make_conduit(1);
    SharedConduit outbound = make_conduit(2);
    requests_shared = std::move(inbound.second);
    responses_shared = std::move(outbound.second);
    end.carrier.offer(std::move(inbound.first), {&end.doorbell, 5}, &memory);
    end.carrier.attach(std::move(outbound.first));
    requests = requests_shared.request_writer();
    answers = requests_shared.response_reader();
    lender.show();
    memory.map_now(Target::kKey, lender.files);
    // The first message in RTS goes the general way.
    receive();
    send(0, 8);
    turn();
    EXPECT_EQ(end.poll().size(), 1u);
  }
  void receive() {
    const Sge place{reinterpret_cast<std::uint64_t>(room.data()),
                    static_cast<std::uint32_t>(room.size()), key};
    ASSERT_TRUE(end.pair.post_receive(5, {&place, 1}).has_value());
  }
  void send(std::uint64_t offset, std::uint32_t length) {
    auto* const record = reinterpret_cast<RequestRecord*>(requests.reserve(1));
    ASSERT_TRUE(record);
    record->index = index++;
    record->epoch = epoch;
    record->total_length = record->piece_length = length;
    record->offset = 0;
    record->acknowledged = {};
    record->source = {lender.address() + offset, Target::kKey.value, 0};
    requests.publish(1, static_cast<std::uint8_t>(RequestKind::kSend),
                     kFirst | kLast | kNamesSource | kLent);
  }
  bool take(std::uint32_t most = 1) {
    const std::lock_guard section(end.pair.lock());
    return end.carrier.take_small(end.pair.responder(), end.pair.window(), most, now);
  }
  void turn() {
    const std::lock_guard section(end.pair.lock());
    end.turn(now);
  }
  // It was refused because the memory was not found, and is to be sent with its bytes.
  bool was_told_not_lent() {
    Unit unit;
    const std::byte* payload = nullptr;
    std::uint32_t units = 0;
    if (!answers.peek(unit, payload, units)) return false;
    answers.consume(units);
    answers.give_back();
    return reinterpret_cast<const RecordHead&>(unit).kind ==
           static_cast<std::uint8_t>(ResponseKind::kNotLent);
  }

  Target lender;
  AskedMappings asked;
  End end;
  PeerMemory memory;
  Conduit requests_shared, responses_shared;
  RingWriter requests;
  RingReader answers;
  alignas(64) std::array<std::byte, 2 * kLentMax> room{};
  MemoryKey key;
  std::uint32_t index = 0;
  std::uint32_t epoch = 0;
  Instant now = Instant::at(1'000'000'000);
};

TEST_F(LentSmall, AreCopiedFromWhereTheyLie) {
  for (std::size_t i = 0; i < Target::kSize; ++i)
    lender.memory[i] = static_cast<std::byte>(i * 7 >> 3);
  for (const std::uint32_t length : {1u, 16u, 1024u, 4096u, 4099u, kLentMax}) {
    receive();
    send(777, length);
    ASSERT_TRUE(take()) << length;
    const auto done = end.poll();
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].byte_length, length);
    EXPECT_EQ(done[0].status, queues::Status::kSuccess);
    EXPECT_TRUE(std::equal(room.begin(), room.begin() + length, lender.memory + 777));
    EXPECT_FALSE(was_told_not_lent());
  }
}

TEST_F(LentSmall, LongerThanARecordMaySayNothingIsTaken) {
  receive();
  send(0, kLentMax + 1);
  EXPECT_FALSE(take());
  turn();
  EXPECT_TRUE(end.poll().empty());
}

TEST_F(LentSmall, WhatIsNotLentAnyMoreIsRefused) {
  receive();
  send(0, 4096);
  lender.published.hide(Target::kKey);
  EXPECT_FALSE(take());
  EXPECT_TRUE(end.poll().empty());
  turn();
  EXPECT_TRUE(was_told_not_lent());
  EXPECT_TRUE(end.poll().empty()) << "its receive waits for the next try";
}

TEST_F(LentSmall, OutsideOfTheRegionNothingIsTaken) {
  for (const std::uint64_t offset : {Target::kSize, Target::kSize - 4095, ~std::uint64_t{0} - 7}) {
    receive();
    send(offset, 4096);
    EXPECT_FALSE(take()) << offset;
    turn();
    EXPECT_TRUE(was_told_not_lent()) << offset;
    ++epoch;
  }
  EXPECT_TRUE(end.poll().empty());
}

// Who lent the first one may have its memory back before all of them are copied: soon where few
// wait, so that it can post others while the last of them are.
TEST_F(LentSmall, ALenderIsToldBeforeManyHaveBeenCopied) {
  struct Stream {
    std::uint32_t length;
    std::vector<std::uint32_t> told;  // of so many, the last time of all
  };
  const Stream streams[] = {
      {16384, {4, 8}},        {16384, {16, 32, 36, 40}}, {65536, {1, 2}},  {65536, {2, 3}},
      {65536, {4, 8, 9, 10}}, {kLentMax, {1, 2, 3}},     {5000, {27, 40}},
  };
  for (const Stream& stream : streams) {
    const std::uint32_t count = stream.told.back();
    for (std::uint32_t i = 0; i < count; ++i) {
      receive();
      send(0, stream.length);
    }
    const std::uint32_t before = requests_shared.header().executed;
    std::vector<std::uint32_t> told;
    while (take(64))
      told.push_back(requests_shared.header().executed - before);
    EXPECT_EQ(told, stream.told) << stream.length << " bytes, " << count << " messages";
    EXPECT_EQ(end.poll().size(), std::size_t{count});
  }
}

// A lender that takes its memory back and uses it for something else, at any moment: what is
// received is what was lent.
TEST_F(LentSmall, NothingIsReceivedOfMemoryThatWasTakenBack) {
  constexpr auto kLent = std::byte{0x5a};
  constexpr auto kOther = std::byte{0xee};
  constexpr std::uint32_t kLength = 8192;
  std::memset(lender.memory, static_cast<int>(kLent), kLength);
  std::atomic<bool> is_over{false};
  std::atomic<std::uint32_t> takings{0};
  std::thread owner([&] {
    while (!is_over) {
      lender.published.hide(Target::kKey);
      std::memset(lender.memory, static_cast<int>(kOther), kLength);
      end.sections.wait_until_left();
      std::memset(lender.memory, static_cast<int>(kLent), kLength);
      lender.show();
      ++takings;
      std::this_thread::yield();
    }
  });
  int received = 0;
  int taken = 0;
  int refused = 0;
  receive();
  while (takings < 300 || received < 300) {
    send(0, kLength);
    const bool was_taken = take();
    taken += was_taken;
    if (!was_taken) turn();
    const auto done = end.poll();
    if (done.empty()) {
      ASSERT_TRUE(was_told_not_lent());
      ++epoch;
      ++refused;
      continue;
    }
    ASSERT_EQ(std::count(room.begin(), room.begin() + kLength, kLent), kLength) << received;
    ++received;
    receive();
  }
  is_over = true;
  owner.join();
  EXPECT_GT(taken, 0) << "all went the general way";
  std::printf("received %d, %d of them by the short way, refused %d, taken back %u times\n",
              received, taken, refused, takings.load());
}

}  // namespace
}  // namespace verbena::local
