// SPDX-License-Identifier: MIT
// What carriers with packets need of a responder, and messages without a byte.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "qp/test_bench.h"

namespace verbena::qp {

namespace {

using queues::Status;
using testing::ElementsAre;

TEST(ResponderOfPackets, LearnsTheLengthOfAMessageAtItsEnd) {
  ResponderBench bench;
  bench.post({bench.memory.sge(0, 40)});
  bench.post({bench.memory.sge(0, 40)});
  const std::vector<std::byte> payload(16, std::byte{9});
  ASSERT_TRUE(bench.responder.begin_receive_of_any_length());
  ASSERT_TRUE(bench.responder.place(0, payload));
  ASSERT_TRUE(bench.responder.place(16, payload));
  bench.responder.length_known(32);
  ASSERT_TRUE(bench.responder.finish_receive({}));
  EXPECT_EQ(bench.poll().at(0).byte_length, 32u);
  EXPECT_TRUE(bench.memory.holds(0, 32, 9));

  ASSERT_TRUE(bench.responder.begin_receive_of_any_length());
  ASSERT_TRUE(bench.responder.place(0, payload));
  ASSERT_TRUE(bench.responder.place(16, payload));
  EXPECT_EQ(bench.responder.place(32, payload).error(), Refusal::kInvalidRequest);
  EXPECT_EQ(bench.poll().at(0).status, Status::kLocalLength);
  EXPECT_THAT(bench.faults, ElementsAre(ResponderFault::kReceive));
}

TEST(ResponderOfPackets, PlacesNoPiecesOutsideAMessage) {
  ResponderBench bench;
  bench.post({bench.memory.sge(0, 40)});
  const std::vector<std::byte> payload(32, std::byte{9});
  const ConstPieces pieces{.first = payload.data(), .bytes = 16, .stride = 16, .count = 2};
  EXPECT_FALSE(bench.responder.place_pieces(0, pieces));
  EXPECT_TRUE(bench.memory.holds(0, 40, 0));
  ASSERT_TRUE(bench.responder.begin_receive_of_any_length());
  EXPECT_TRUE(bench.responder.place_pieces(0, pieces));
  EXPECT_TRUE(bench.memory.holds(0, 32, 9));
  EXPECT_FALSE(bench.responder.place_pieces(9, pieces));
  const ConstPieces none{.first = payload.data(), .bytes = 0, .stride = 0, .count = 0};
  EXPECT_TRUE(bench.responder.place_pieces(40, none));
  EXPECT_FALSE(bench.responder.place_pieces(41, none));
}

TEST(ResponderOfPackets, FailsOverARequestThatIsNone) {
  ResponderBench bench;
  bench.responder.broken_request();
  EXPECT_THAT(bench.faults, ElementsAre(ResponderFault::kRequest));
  EXPECT_EQ(bench.responder.last_refusal(), Reason::kBrokenRequest);
}

TEST(Responder, ReceivesNothingIntoNothing) {
  ResponderBench bench;
  bench.post({});
  EXPECT_EQ(bench.send(0, 0), std::nullopt);
  EXPECT_EQ(bench.poll().at(0).byte_length, 0u);
}

TEST(ResponderOfPackets, FailsARawPacketThatIsTooLong) {
  ResponderBench bench({.type = QpType::kRawPacket});
  bench.post({bench.memory.sge(0, 50)});
  EXPECT_EQ(bench.send(51, 1), Refusal::kInvalidRequest);
  EXPECT_EQ(bench.poll().at(0).status, Status::kLocalLength);
  EXPECT_THAT(bench.faults, ElementsAre(ResponderFault::kReceive));
}

// IBTA vol 1, 11.6.2, local access error.
TEST(ResponderOfPackets, FailsTheReceiveOfAWriteWithImmediateWhoseMemoryIsBad) {
  for (const MemoryKey key : {MemoryKey{0x7777}, MemoryKey{}}) {
    ResponderBench bench;
    bench.post({});
    bench.post({});
    EXPECT_EQ(bench.responder.begin_write(key, bench.memory.address(0), 8, true).error(),
              Refusal::kAccess);
    const auto completions = bench.poll();
    ASSERT_EQ(completions.size(), 2u);
    EXPECT_EQ(completions[0].wr_id, 100u);
    EXPECT_EQ(completions[0].status, Status::kLocalAccess);
    EXPECT_EQ(completions[1].status, Status::kFlushed);
    EXPECT_EQ(completions[0].vendor_error, static_cast<std::uint32_t>(Reason::kRemoteKey));
    EXPECT_THAT(bench.faults, ElementsAre(ResponderFault::kAccess));
  }
}

TEST(ResponderOfPackets, FailsItAmidTheWriteToo) {
  ResponderBench bench;
  bench.post({});
  const MemoryKey key = bench.memory.add(kTestPd, kAllAccess);
  ASSERT_TRUE(bench.responder.begin_write(key, bench.memory.address(0), 16, false));
  ASSERT_TRUE(bench.memory.table.remove(key));
  const std::vector<std::byte> rest(8);
  EXPECT_EQ(bench.responder.write(key, bench.memory.address(8), rest, true).error(),
            Refusal::kAccess);
  EXPECT_EQ(bench.poll().at(0).status, Status::kLocalAccess);
}

TEST(ResponderOfPackets, TakesNoReceiveForAWriteThatMayNotBeOneWithImmediate) {
  ResponderBench reliable;
  reliable.post({});
  EXPECT_FALSE(reliable.responder.begin_write({}, reliable.memory.address(0), 8, false));
  EXPECT_EQ(reliable.poll().at(0).status, Status::kFlushed);
  ResponderBench unreliable({.type = QpType::kUc});
  unreliable.post({});
  EXPECT_FALSE(unreliable.responder.begin_write({}, unreliable.memory.address(0), 8, true));
  EXPECT_THAT(unreliable.poll(), testing::IsEmpty()) << "it is dropped";
}

// So that there is nothing to complete as aborted (11.6.2, remote aborted error).
TEST(ResponderOfPackets, LeavesTheReceiveOfASharedQueueToTheNextMessage) {
  ResponderBench bench({.type = QpType::kUc, .is_shared = true});
  bench.post({bench.memory.sge(0, 40)});
  const std::vector<std::byte> payload(16, std::byte{9});
  ASSERT_TRUE(bench.responder.begin_receive_of_any_length());
  ASSERT_TRUE(bench.responder.place(0, payload));
  EXPECT_EQ(bench.send(24, 7), std::nullopt);
  const auto completions = bench.poll();
  ASSERT_EQ(completions.size(), 1u);
  EXPECT_EQ(completions[0].wr_id, 100u);
  EXPECT_EQ(completions[0].status, Status::kSuccess);
  EXPECT_EQ(completions[0].byte_length, 24u);
}

// SEND and WRITE need no resources for READs.
TEST(ResponderOfPackets, RelaysWhatTheQueuePairTakes) {
  const auto may_relay = [](const ResponderBench& bench, OpKind kind) {
    return bench.responder.may_relay({.kind = kind});
  };
  ResponderBench without({.reads_in_max = 0});
  ResponderBench with;
  for (const OpKind kind : {OpKind::kSend, OpKind::kWrite}) {
    EXPECT_TRUE(may_relay(without, kind));
    EXPECT_TRUE(may_relay(with, kind));
  }
  for (const OpKind kind : {OpKind::kRead, OpKind::kFetchAdd, OpKind::kAtomicWrite}) {
    EXPECT_FALSE(may_relay(without, kind));
    EXPECT_TRUE(may_relay(with, kind));
  }
  ResponderBench read_only({.access = memory::kRemoteRead});
  EXPECT_TRUE(may_relay(read_only, OpKind::kRead));
  EXPECT_FALSE(may_relay(read_only, OpKind::kWrite));
  EXPECT_TRUE(with.responder.may_relay({.kind = OpKind::kWrite, .length = kMessageMax}));
  EXPECT_FALSE(with.responder.may_relay({.kind = OpKind::kWrite, .length = kMessageMax + 1}));
}

}  // namespace

}  // namespace verbena::qp
