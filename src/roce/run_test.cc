// SPDX-License-Identifier: MIT
// Packets of a train that are received together.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "roce/test_world.h"
#include "wire/icrc.h"

namespace verbena::roce {
namespace {

using queues::SendOpcode;
using queues::Status;

constexpr std::uint32_t kTrainMtu = 1024;
constexpr std::uint32_t kTrainPackets = 8;  // of a message: the first, six, the last
constexpr std::uint32_t kTrainLength = kTrainPackets * kTrainMtu;
constexpr std::size_t kTrainTo = 64 * 1024;

class Train : public testing::TestWithParam<SendOpcode> {
 protected:
  Train() {
    for (std::size_t i = 0; i < kTrainLength; ++i)
      world.near().memory[i] = static_cast<std::byte>(i * 7 + i / 256);
  }
  bool is_send() const { return GetParam() == SendOpcode::kSend; }
  // What leaves on account of one message.
  void post() {
    if (is_send()) {
      const std::array<Sge, 2> places{world.far().sge(kTrainTo, 2500),
                                      world.far().sge(kTrainTo + 2500, kTrainLength - 2500)};
      ASSERT_TRUE(world.far().pair.post_receive(7, places).has_value());
    }
    world.near().post({.opcode = GetParam(),
                       .remote_address = world.far().address(kTrainTo),
                       .remote_key = world.far().key},
                      0, kTrainLength);
    while (world.near().turn()) {
    }
    while (!world.link.is_empty())
      sent.push_back(world.link.take());
    ASSERT_EQ(sent.size(), kTrainPackets);
  }
  void receive(std::size_t i) { world.far().receive(sent[i]); }
  // Packets `first` to `last`, as they lie in a train.
  std::vector<std::byte> train(std::size_t first, std::size_t last) {
    std::vector<std::byte> all;
    for (std::size_t i = first; i <= last; ++i) {
      std::vector<std::byte> one = sent[i].bytes;
      const auto covered = std::span<const std::byte>(one).first(one.size() - wire::kIcrcBytes);
      const auto id = static_cast<std::uint16_t>(i - first);
      wire::store_icrc(icrc.compute(covered, id), std::span(one).last<wire::kIcrcBytes>());
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }
  Taken take(std::span<const std::byte> all, Gid from = TestEnd::gid_of(0)) {
    wire::Unverified unverified(icrc, all, bytes(), 0);
    return world.far().engine->receive_run(unverified, from, world.far().pair.responder());
  }
  std::size_t bytes() const { return kTrainMtu + wire::kBthBytes + wire::kIcrcBytes; }
  std::uint64_t received() { return world.far().rc().responder().counters().packets; }
  void expect_complete() {
    world.run(kSoon);
    const auto done = world.near().poll();
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].status, Status::kSuccess);
    EXPECT_TRUE(equal(world.near(), 0, world.far(), kTrainTo, kTrainLength));
    const auto came = world.far().poll_receives();
    ASSERT_EQ(came.size(), is_send() ? 1u : 0u);
    if (is_send()) {
      EXPECT_EQ(came[0].byte_length, kTrainLength);
    }
  }

  TestWorld world{EndOptions{.timeout = 12, .in_flight = {.packets = 64, .bytes = 1 << 20}}};
  std::vector<InTransit> sent;
  wire::FlowIcrc icrc{wire::Flow{.source = TestEnd::gid_of(0), .destination = TestEnd::gid_of(1)}};
};

INSTANTIATE_TEST_SUITE_P(Messages, Train, testing::Values(SendOpcode::kWrite, SendOpcode::kSend),
                         [](const auto& info) {
                           return info.param == SendOpcode::kSend ? "Send" : "Write";
                         });

TEST_P(Train, TakesTheMiddleOfAMessage) {
  post();
  receive(0);
  const Taken taken = take(train(1, 6));
  EXPECT_EQ(taken.packets, 6u);
  EXPECT_FALSE(taken.is_corrupt);
  EXPECT_EQ(received(), 7u);
  EXPECT_TRUE(equal(world.near(), 0, world.far(), kTrainTo, kTrainLength - kTrainMtu));
  receive(7);
  expect_complete();
}

TEST_P(Train, EndsWithWhatIsCorrupt) {
  post();
  receive(0);
  auto all = train(1, 6);
  all[2 * bytes() + 500] ^= std::byte{4};
  const Taken taken = take(all);
  EXPECT_EQ(taken.packets, 2u);
  EXPECT_TRUE(taken.is_corrupt);
  EXPECT_EQ(taken.seen(), 3u);
  EXPECT_EQ(received(), 3u) << "what is corrupt never came";
  EXPECT_EQ(take(train(4, 6)).seen(), 0u) << "it is not next";
  const auto again = train(3, 6);
  EXPECT_EQ(take(again).packets, 4u);
  receive(7);
  expect_complete();
}

TEST_P(Train, ForgetsACorruptPacketAlone) {
  post();
  receive(0);
  auto one = train(1, 1);
  one[500] ^= std::byte{4};
  const Taken taken = take(one);
  EXPECT_EQ(taken.packets, 0u);
  EXPECT_TRUE(taken.is_corrupt);
  EXPECT_EQ(received(), 1u);
  EXPECT_EQ(take(train(1, 6)).packets, 6u);
  receive(7);
  expect_complete();
}

// Each of these is received like any other packet then.
TEST_P(Train, LeavesAloneWhatIsNotSimplyNext) {
  post();
  EXPECT_EQ(take(train(1, 6)).seen(), 0u) << "before the message began";
  receive(0);
  EXPECT_EQ(take(train(2, 6)).seen(), 0u) << "ahead";
  EXPECT_EQ(take(train(1, 6), TestEnd::gid_of(5)).seen(), 0u) << "of a stranger";
  auto marked = train(1, 6);
  marked[4] = std::byte{0x80};
  EXPECT_EQ(take(marked).seen(), 0u) << "of a router's mark somebody has to be told";
  EXPECT_EQ(received(), 1u);
  auto gap = train(1, 2);
  const auto behind = train(4, 5);
  gap.insert(gap.end(), behind.begin(), behind.end());
  EXPECT_EQ(take(gap).packets, 2u) << "up to the gap";
  EXPECT_EQ(take(train(1, 2)).seen(), 0u) << "twice";
  EXPECT_EQ(take(train(3, 6)).packets, 4u);
  auto last = train(7, 7);
  EXPECT_EQ(take(last).seen(), 0u) << "the last one tells the program";
  receive(7);
  expect_complete();
}

// More than the message has room for is refused by the general way.
TEST_P(Train, NeverFillsTheMessageUp) {
  post();
  receive(0);
  // Two more in the middle, where the message ends.
  std::vector<InTransit> more(sent.begin() + 1, sent.begin() + 7);
  more.push_back(sent[6]);
  more.push_back(sent[6]);
  std::vector<std::byte> all;
  for (std::size_t i = 0; i < more.size(); ++i) {
    auto head = *wire::parse_bth(more[i].bytes);
    head.psn = wire::parse_bth(sent[1].bytes)->psn + static_cast<std::uint32_t>(i);
    wire::encode(head, more[i].bytes);
    std::span<std::byte> one = more[i].bytes;
    wire::store_icrc(
        icrc.compute(one.first(one.size() - wire::kIcrcBytes), static_cast<std::uint16_t>(i)),
        one.last<wire::kIcrcBytes>());
    all.insert(all.end(), one.begin(), one.end());
  }
  const std::byte before = world.far().memory[kTrainTo + kTrainLength];
  const Taken taken = take(all);
  EXPECT_EQ(taken.packets, is_send() ? 0u : 6u);
  EXPECT_FALSE(taken.is_corrupt);
  EXPECT_EQ(world.far().memory[kTrainTo + kTrainLength], before);
}

TEST_P(Train, LeavesARefusalToTheGeneralWay) {
  post();
  receive(0);
  ASSERT_TRUE(world.far().regions.remove(world.far().key));
  EXPECT_EQ(take(train(1, 6)).seen(), 0u);
  EXPECT_EQ(received(), 1u);
  receive(1);
  world.run(kSoon);
  const auto done = world.near().poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, is_send() ? Status::kRemoteOperation : Status::kRemoteAccess);
}

}  // namespace
}  // namespace verbena::roce
