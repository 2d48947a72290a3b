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

}  // namespace

}  // namespace verbena::qp
