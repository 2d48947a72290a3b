// SPDX-License-Identifier: MIT
// The counter by which a peer acknowledges, where operations that did not take the ring, any number
// of them, lie between two that do.
#include <gtest/gtest.h>

#include "local/test_small.h"

namespace verbena::local {
namespace {

class Counter : public Small {
 protected:
  // As many WRITEs as that, executed by `a` itself.
  void pass(std::uint64_t count) {
    a.pair.send_queue().post_done(static_cast<std::uint32_t>(count - 1));
    a.pair.window().done_at_once(1, queues::CompletionKind::kWrite, false);
    ASSERT_EQ(a.poll().size(), 1u);
  }
  // A SEND of `a` that `b` takes; `looks`: a turn of `a` before that.
  void exchange_one(bool looks) {
    receive(b);
    ASSERT_TRUE(send(a, 8));
    if (looks) a.turn(now);
    EXPECT_TRUE(a.poll().empty()) << "nobody has taken it yet";
    EXPECT_FALSE(a.carrier.has_answers());
    ASSERT_EQ(take(b), 1u);
    EXPECT_TRUE(a.carrier.has_answers());
    bool has_news = false;
    for (int i = 0; i < 1000 && !has_news; ++i)
      has_news = a.glance.has_news();
    EXPECT_TRUE(has_news);
    a.turn(now);
    EXPECT_EQ(a.poll().size(), 1u);
    EXPECT_EQ(b.poll().size(), 1u);
    a.turn(now);
    EXPECT_FALSE(a.carrier.has_answers());
  }
  // The same, and the acknowledgement comes along with a SEND of `b`.
  void exchange_both() {
    receive(a);
    receive(b);
    ASSERT_TRUE(send(a, 8));
    ASSERT_EQ(take(b), 1u);
    ASSERT_TRUE(send(b, 8));
    ASSERT_EQ(take(a), 1u);
    EXPECT_EQ(a.poll().size(), 2u);
    b.turn(now);
    EXPECT_EQ(b.poll().size(), 2u);
  }
};

INSTANTIATE_TEST_SUITE_P(, Counter, ::testing::Values(Ways::kTiny, Ways::kSmallOnly));

constexpr std::uint64_t kHalf = std::uint64_t{1} << 31;
constexpr std::uint64_t kGaps[] = {
    1,         1000,          kHalf - 5,     kHalf - 1, kHalf,        kHalf + 1,
    kHalf + 5, 2 * kHalf - 2, 2 * kHalf - 1, 2 * kHalf, 2 * kHalf + 1};

TEST_P(Counter, SaysWhatWasTakenHoweverMuchHasPassed) {
  for (const std::uint64_t gap : kGaps) {
    for (const bool looks : {false, true}) {
      SCOPED_TRACE(gap);
      begin();
      pass(gap);
      ASSERT_NO_FATAL_FAILURE(exchange_one(looks));
      ASSERT_NO_FATAL_FAILURE(exchange_one(!looks));
    }
  }
}

TEST_P(Counter, IsAlsoWhatComesAlongWithMessages) {
  for (const std::uint64_t gap : kGaps) {
    SCOPED_TRACE(gap);
    begin();
    pass(gap);
    ASSERT_NO_FATAL_FAILURE(exchange_both());
    pass(gap);
    ASSERT_NO_FATAL_FAILURE(exchange_both());
    ASSERT_NO_FATAL_FAILURE(exchange_one(true));
  }
}

// A message that says nothing new, while one of ours is on its way.
TEST_P(Counter, OfAnOlderMessageSaysNothing) {
  for (const std::uint64_t gap : kGaps) {
    SCOPED_TRACE(gap);
    begin();
    receive(a);
    ASSERT_TRUE(send(b, 8));
    pass(gap);
    receive(b);
    ASSERT_TRUE(send(a, 8));
    ASSERT_EQ(take(a), 1u);
    EXPECT_EQ(a.poll().size(), 1u) << "what was received";
    ASSERT_EQ(take(b), 1u);
    a.turn(now);
    EXPECT_EQ(a.poll().size(), 1u) << "what was sent";
    b.turn(now);
    EXPECT_EQ(b.poll().size(), 2u);
  }
}

}  // namespace
}  // namespace verbena::local
