// SPDX-License-Identifier: MIT
// When a place of the send queue is free.
#include <gtest/gtest.h>

#include "qp/test_pair.h"

namespace verbena::qp {
namespace {

using queues::SendOpcode;

// Who posts until there is no room, and takes completions then, overruns no completion queue.
class PlacesTest : public testing::TestWithParam<std::uint32_t> {
 protected:
  PlacesTest() { pair.move_to(QpState::kReadyToSend); }
  // Sent and answered.
  bool send(std::uint8_t flags = queues::kSignaled) {
    if (!pair.send(SendOpcode::kSend, flags)) return false;
    const Operation* const op = pair.qp.window().next(Instant());
    EXPECT_NE(op, nullptr);
    const OpIndex index = op->index;
    pair.qp.window().issued(Instant());
    pair.qp.window().answered(index, Answer::kDone, Instant());
    return true;
  }
  int send_all(std::uint8_t flags = queues::kSignaled) {
    int sent = 0;
    while (sent < 100 && send(flags))
      ++sent;
    return sent;
  }
  std::size_t take(std::size_t most) {
    std::array<queues::Completion, 64> out;
    return pair.sends.poll(std::span(out).first(most));
  }
  Pair pair{{}, GetParam()};  // of 4 places
};

// How many completions the queue has had when the queue pair is made.
INSTANTIATE_TEST_SUITE_P(, PlacesTest, testing::Values(0u, 0x7ffffff8u, 0x80000001u, 0xc0000000u));

TEST_P(PlacesTest, AreFreeOnceTheirCompletionsWereTaken) {
  EXPECT_TRUE(pair.qp.window().is_caught_up());
  EXPECT_EQ(send_all(), 4);
  EXPECT_FALSE(pair.qp.window().is_caught_up());
  EXPECT_FALSE(pair.qp.window().is_open());
  EXPECT_FALSE(pair.qp.has_room(1));
  ASSERT_EQ(take(1), 1u);
  EXPECT_TRUE(pair.qp.window().is_caught_up());
  EXPECT_EQ(pair.qp.window().open_room(64), 1u);
  EXPECT_TRUE(pair.qp.has_room(1));
  EXPECT_FALSE(pair.qp.has_room(2));
  EXPECT_EQ(send_all(), 1);
  ASSERT_EQ(take(3), 3u);
  EXPECT_TRUE(pair.qp.has_room(3));
  EXPECT_FALSE(pair.qp.has_room(4));
  EXPECT_EQ(send_all(), 3);
  ASSERT_EQ(take(64), 4u);
  EXPECT_EQ(send_all(0), 100) << "nothing is told of these";
}

TEST_P(PlacesTest, AreFreeOneBehindTheOther) {
  EXPECT_TRUE(send(0));
  EXPECT_TRUE(send());
  EXPECT_TRUE(send(0));
  EXPECT_TRUE(send(0));
  EXPECT_EQ(pair.qp.window().open_room(64), 1u) << "the second one waits";
  EXPECT_TRUE(send(0));
  EXPECT_EQ(pair.qp.window().open_room(64), 0u);
  ASSERT_EQ(take(1), 1u);
  EXPECT_EQ(pair.qp.window().open_room(64), 4u);
  EXPECT_EQ(pair.qp.window().open_room(3), 3u);
}

TEST_P(PlacesTest, AreFreeWhereOthersCompletionsWait) {
  queues::Completion other{.qp = {77}};
  for (int i = 0; i < 5; ++i)
    ASSERT_TRUE(pair.sends.push(other, false));
  EXPECT_EQ(send_all(), 4);
  ASSERT_EQ(take(7), 7u);
  EXPECT_EQ(send_all(), 2);
  pair.sends.remove({77});
  ASSERT_TRUE(pair.sends.resize(32));
  EXPECT_EQ(send_all(), 0);
  ASSERT_EQ(take(2), 2u);
  EXPECT_EQ(send_all(), 2);
}

// What is left of the others moves; it waits nevertheless.
TEST_P(PlacesTest, AreNotFreeWhereAnothersCompletionsGo) {
  const queues::Completion other{.qp = {77}};
  EXPECT_TRUE(send());
  ASSERT_TRUE(pair.sends.push(other, false));
  EXPECT_TRUE(send());
  ASSERT_TRUE(pair.sends.push(other, false));
  EXPECT_EQ(send_all(), 2);
  for (int i = 0; i < 2; ++i) {
    pair.sends.remove({77});
    EXPECT_EQ(send_all(), 0);
    ASSERT_TRUE(pair.sends.push(other, false));
  }
  ASSERT_EQ(take(1), 1u);
  EXPECT_EQ(send_all(), 1);
  pair.sends.remove({77});
  EXPECT_EQ(send_all(), 0);
  ASSERT_EQ(take(3), 3u);
  EXPECT_EQ(send_all(), 3);
  ASSERT_EQ(take(64), 4u);
  EXPECT_EQ(send_all(), 4);
}

TEST_P(PlacesTest, AreTakenByWhatIsExecutedAtOnceAndByWhatIsFlushed) {
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(pair.qp.window().is_caught_up());
    pair.qp.window().done_at_once(1, queues::CompletionKind::kWrite, true);
  }
  EXPECT_FALSE(pair.qp.window().is_caught_up());
  ASSERT_EQ(take(64), 4u);
  pair.step(QpState::kError, 0);
  for (int i = 0; i < 4; ++i)
    EXPECT_TRUE(pair.send());
  EXPECT_EQ(pair.send().error(), PostError::kFull);
  ASSERT_EQ(take(1), 1u);
  EXPECT_TRUE(pair.send());
}

TEST_P(PlacesTest, AreFreeAfterAReset) {
  EXPECT_EQ(send_all(), 4);
  pair.step(QpState::kReset, 0);
  pair.move_to(QpState::kReadyToSend);
  EXPECT_EQ(send_all(), 4);
}

}  // namespace
}  // namespace verbena::qp
