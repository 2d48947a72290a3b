// SPDX-License-Identifier: MIT
#include "qp/operation.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "qp/opcode.h"
#include "qp/reason.h"

namespace verbena::qp {

TEST(OpIndex, CountsAcrossItsEnd) {
  const OpIndex last(0xFFFFFFFF);
  EXPECT_EQ(last.next(), OpIndex(0));
  EXPECT_EQ(last.next() - last, 1);
  EXPECT_EQ(last - last.next(), -1);
}

TEST(OpKind, TwoAreAtomics) {
  std::set<OpKind> atomics;
  for (auto kind = OpKind{}; kind <= OpKind::kBindWindow;
       kind = static_cast<OpKind>(static_cast<int>(kind) + 1))
    if (is_atomic(kind)) atomics.insert(kind);
  EXPECT_EQ(atomics, (std::set{OpKind::kCompareSwap, OpKind::kFetchAdd}));
}

TEST(RnrTimer, HasTheDurationsOfTheSpecification) {
  EXPECT_EQ(rnr_delay(0), Duration::microseconds(655'360));
  EXPECT_EQ(rnr_delay(1), Duration::microseconds(10));
  EXPECT_EQ(rnr_delay(4), Duration::microseconds(40));
  EXPECT_EQ(rnr_delay(5), Duration::microseconds(60));
  EXPECT_EQ(rnr_delay(12), Duration::microseconds(640));
  EXPECT_EQ(rnr_delay(20), Duration::microseconds(10'240));
  EXPECT_EQ(rnr_delay(31), Duration::microseconds(491'520));
  // From 2 on every second code doubles.
  for (std::uint8_t code = 4; code < 32; ++code)
    EXPECT_EQ(rnr_delay(code), rnr_delay(code - 2) * 2) << unsigned{code};
}

TEST(AckTimeout, DoublesFromFourMicrosecondsAndZeroIsNever) {
  EXPECT_EQ(ack_timeout(0), Duration());
  EXPECT_EQ(ack_timeout(1), Duration::nanoseconds(8'192));
  EXPECT_EQ(ack_timeout(14), Duration::nanoseconds(67'108'864));
  EXPECT_EQ(ack_timeout(31), Duration::nanoseconds(std::int64_t{4096} << 31));
}

TEST(Answer, SaysWhatTheResponderRefused) {
  EXPECT_EQ(answer_of(Refusal::kNotReady), Answer::kNotReady);
  EXPECT_EQ(answer_of(Refusal::kInvalidRequest), Answer::kInvalidRequest);
  EXPECT_EQ(answer_of(Refusal::kAccess), Answer::kAccess);
  EXPECT_EQ(answer_of(Refusal::kOperation), Answer::kOperation);
}

TEST(Opcode, BelongsToTheTypesOfTheSpecification) {
  using queues::SendOpcode;
  const auto types = [](SendOpcode opcode) {
    const OpcodeShape* shape = shape_of(static_cast<std::uint8_t>(opcode));
    std::string text;
    if (shape->is_on(QpType::kRc)) text += "RC ";
    if (shape->is_on(QpType::kUc)) text += "UC ";
    if (shape->is_on(QpType::kUd)) text += "UD ";
    if (shape->is_on(QpType::kRawPacket)) text += "raw ";
    return text;
  };
  EXPECT_EQ(types(SendOpcode::kSend), "RC UC UD raw ");
  EXPECT_EQ(types(SendOpcode::kSendWithImmediate), "RC UC UD ");
  EXPECT_EQ(types(SendOpcode::kSendWithInvalidate), "RC ");
  EXPECT_EQ(types(SendOpcode::kWrite), "RC UC ");
  EXPECT_EQ(types(SendOpcode::kWriteWithImmediate), "RC UC ");
  EXPECT_EQ(types(SendOpcode::kRead), "RC ");
  EXPECT_EQ(types(SendOpcode::kCompareSwap), "RC ");
  EXPECT_EQ(types(SendOpcode::kFetchAdd), "RC ");
  EXPECT_EQ(types(SendOpcode::kLocalInvalidate), "RC UC ");
  EXPECT_EQ(types(SendOpcode::kBindWindow), "RC UC ");
  EXPECT_EQ(types(SendOpcode::kFlush), "RC ");
  EXPECT_EQ(types(SendOpcode::kAtomicWrite), "RC ");
  EXPECT_EQ(shape_of(12), nullptr);
  EXPECT_EQ(shape_of(255), nullptr);
}

TEST(Reason, HasATextOfItsOwn) {
  std::set<std::string_view> texts;
  for (std::uint32_t number = 0; number < 256; ++number) {
    const std::string_view text = reason_text(static_cast<Reason>(number));
    if (text == "unknown reason") continue;
    EXPECT_TRUE(texts.insert(text).second) << text;
  }
  EXPECT_NE(reason_text(Reason::kRemoteFault), "unknown reason");
  EXPECT_NE(reason_text(Reason::kCompletionQueueFull), "unknown reason");
}

}  // namespace verbena::qp
