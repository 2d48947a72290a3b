// SPDX-License-Identifier: MIT
#include "local/answer_pace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

namespace verbena::local {
namespace {

// A peer that answers each message, and a clock that only this moves.
class Exchange {
 public:
  // How long after our message the answer is there, by the first look at it; and whether the place
  // of our message was taken early.
  using Peer = std::function<std::uint64_t(std::uint64_t first_look, bool prepared)>;
  explicit Exchange(Peer peer) : peer_(std::move(peer)) {}

  // One message out, and the answer.
  void run() {
    const bool prepared = pace.prepares();
    pace.sent([this] { return now; });
    const std::uint64_t sent_at = now;
    const bool waits = pace.is_due() && polls_wait;
    waited += waits;
    std::uint64_t answered_at = 0;
    bool has_looked = false;
    const auto look = [&] {
      if (!has_looked) answered_at = sent_at + peer_(now - sent_at, prepared);
      has_looked = true;
      now += kLook;
      return now >= answered_at;
    };
    if (waits) {
      const auto ticks = [this] { return now += kTick; };
      fetched += pace.await(ticks, [this] { ++fetches; }, look);
    }
    while (!look()) {
    }
    pace.came(1);
  }
  void run(std::uint32_t times) {
    for (std::uint32_t i = 0; i < times; ++i)
      run();
  }

  static constexpr std::uint64_t kLook = 5;
  static constexpr std::uint64_t kTick = 3;
  AnswerPace pace;
  std::uint64_t now = 1'000'000;
  std::uint32_t waited = 0;
  std::uint32_t fetches = 0;
  std::uint32_t fetched = 0;
  bool polls_wait = true;  // they have nothing else to look at

 private:
  Peer peer_;
};

// The first message answers nothing, the one behind the streak begins to measure.
constexpr std::uint32_t kUntilTried = 2 + AnswerPace::kStreak + AnswerPace::kMeasured +
                                      2 * (AnswerPace::kSettling + AnswerPace::kMeasured);

// Looks before 500 take the line away; later ones are answered by 700.
std::uint64_t far_peer(std::uint64_t first_look, bool prepared) {
  return prepared && first_look >= 500 ? std::max<std::uint64_t>(700, first_look) : 1400;
}

TEST(AnswerPace, LooksWhenTheAnswerIsThere) {
  Exchange exchange(far_peer);
  exchange.run(kUntilTried + 500);
  EXPECT_TRUE(exchange.pace.prepares());
  EXPECT_GE(exchange.pace.rest(), 600U);
  EXPECT_LE(exchange.pace.rest(), 720U);
  const std::uint64_t before = exchange.now;
  exchange.fetched = 0;
  exchange.run(1000);
  EXPECT_LE((exchange.now - before) / 1000, 760U);
  EXPECT_GE(exchange.fetched, 990U) << "the waits found them";
}

TEST(AnswerPace, FollowsAnAnswerThatComesLaterOrSooner) {
  std::uint64_t answer = 700;
  Exchange exchange([&answer](std::uint64_t first_look, bool prepared) {
    return prepared && first_look + 200 >= answer ? std::max(answer, first_look) : 2 * answer;
  });
  exchange.run(kUntilTried + 500);
  answer = 800;
  exchange.run(500);
  EXPECT_NEAR(static_cast<double>(exchange.pace.rest()), 800, 40);
  answer = 600;
  exchange.run(1000);
  EXPECT_NEAR(static_cast<double>(exchange.pace.rest()), 600, 40);
}

TEST(AnswerPace, TakesNoLineEarlyWhereThatIsWorse) {
  Exchange exchange([](std::uint64_t first_look, bool prepared) {
    return std::max<std::uint64_t>(first_look >= 300 && !prepared ? 400 : 500, first_look);
  });
  exchange.run(kUntilTried);
  EXPECT_FALSE(exchange.pace.prepares());
  const std::uint64_t before = exchange.now;
  const std::uint32_t waited = exchange.waited;
  exchange.run(1000);
  EXPECT_EQ(exchange.waited - waited, 1000U);
  EXPECT_LE((exchange.now - before) / 1000, 450U);
}

TEST(AnswerPace, WaitsForNothingWhereThatGainsNothing) {
  Exchange exchange(
      [](std::uint64_t first_look, bool) { return std::max<std::uint64_t>(400, first_look); });
  exchange.run(kUntilTried);
  EXPECT_FALSE(exchange.pace.prepares());
  const std::uint32_t waited = exchange.waited;
  EXPECT_GT(waited, 0U);
  exchange.run(AnswerPace::kWaiting);
  EXPECT_EQ(exchange.waited, waited);
}

TEST(AnswerPace, TriesLessAndLessOftenWhereItDoesNotPay) {
  Exchange exchange(
      [](std::uint64_t first_look, bool) { return std::max<std::uint64_t>(400, first_look); });
  exchange.run(kUntilTried + AnswerPace::kWaiting * 20);
  // 1 + 1 + 2 + 4 + 8 times the first wait.
  const std::uint32_t each = 2 * (AnswerPace::kSettling + AnswerPace::kMeasured);
  EXPECT_EQ(exchange.waited, 5 * each);
}

// Long before all is measured anew anyway.
TEST(AnswerPace, NoticesSoonThatItPaysNoMore) {
  bool pays = true;
  Exchange exchange([&pays](std::uint64_t first_look, bool prepared) {
    return pays       ? far_peer(first_look, prepared)
           : prepared ? 1600
                      : std::max<std::uint64_t>(1500, first_look);
  });
  exchange.run(kUntilTried);
  ASSERT_TRUE(exchange.pace.prepares());
  pays = false;
  exchange.run((AnswerPace::kWorse + 1) * AnswerPace::kMeasured + kUntilTried);
  const std::uint32_t waited = exchange.waited;
  exchange.run(1000);
  EXPECT_EQ(exchange.waited, waited);
}

TEST(AnswerPace, MeasuresAgainAfterAWhile) {
  Exchange exchange(far_peer);
  exchange.run(kUntilTried);
  const std::uint32_t waited = exchange.waited;
  exchange.run(AnswerPace::kTimed);
  EXPECT_GE(exchange.waited - waited, AnswerPace::kTimed - 1);
  exchange.run(AnswerPace::kMeasured - 1);
  EXPECT_LE(exchange.waited - waited, AnswerPace::kTimed) << "plain ones are measured";
}

TEST(AnswerPace, AStreamIsNoExchange) {
  AnswerPace pace;
  std::uint64_t now = 0;
  unsigned asked = 0;
  const auto ticks = [&] { return ++asked, now += 100; };
  for (int i = 0; i < 10'000; ++i) {
    pace.sent(ticks);
    ASSERT_FALSE(pace.is_due());
  }
  for (int i = 0; i < 10'000; ++i) {
    pace.came(2);
    pace.sent(ticks);
    ASSERT_FALSE(pace.is_due());
  }
  EXPECT_EQ(asked, 0U) << "nobody needs the time in a stream";
}

TEST(AnswerPace, SomethingElseThanAnExchangeInterruptsTheWaiting) {
  Exchange exchange(far_peer);
  exchange.run(kUntilTried);
  ASSERT_TRUE(exchange.pace.prepares());
  const std::uint64_t rest = exchange.pace.rest();
  exchange.pace.sent([&] { return exchange.now; });
  exchange.pace.sent([&] { return exchange.now; });
  EXPECT_FALSE(exchange.pace.prepares());
  EXPECT_FALSE(exchange.pace.is_due());
  const std::uint32_t waited = exchange.waited;
  exchange.run(AnswerPace::kStreak);
  EXPECT_EQ(exchange.waited, waited);
  exchange.run(10);
  EXPECT_TRUE(exchange.pace.prepares()) << "what was learnt is not forgotten";
  EXPECT_GE(exchange.waited, waited + 9);
  EXPECT_NEAR(static_cast<double>(exchange.pace.rest()), static_cast<double>(rest), 30);
}

// As with a credit, or a request for an event, now and then.
TEST(AnswerPace, IrregularMessagesDoNotMakeItTryMoreOften) {
  Exchange exchange(
      [](std::uint64_t first_look, bool) { return std::max<std::uint64_t>(400, first_look); });
  exchange.run(kUntilTried);
  const std::uint32_t waited = exchange.waited;
  for (std::uint32_t i = 0; i < AnswerPace::kWaiting; i += 100) {
    exchange.run(100);
    exchange.pace.came(1);
  }
  EXPECT_EQ(exchange.waited, waited);
}

// With several queue pairs, say.
TEST(AnswerPace, NothingIsTakenEarlyForLongWhereNobodyWaits) {
  Exchange exchange(far_peer);
  exchange.polls_wait = false;
  std::uint32_t prepared = 0;
  for (std::uint32_t i = 0; i < AnswerPace::kWaiting; ++i) {
    exchange.run();
    prepared += exchange.pace.prepares();
  }
  EXPECT_LE(prepared, AnswerPace::kSettling);
  EXPECT_GE(prepared, 1U);
}

TEST(AnswerPace, MeasuresTogetherWithThePeer) {
  std::uint64_t now = 0;
  const auto ticks = [&now] { return now += 400; };
  AnswerPace pace;
  const auto exchange = [&](bool peer_measures) {
    pace.sent(ticks);
    pace.came(1, peer_measures);
  };
  while (!pace.is_measuring())
    exchange(false);
  while (pace.is_measuring())
    exchange(false);
  ASSERT_TRUE(pace.prepares());
  exchange(true);
  EXPECT_FALSE(pace.is_measuring()) << "it has just measured";
  // Nobody waits: it gives up.
  for (std::uint32_t i = 0; i < kUntilTried; ++i)
    exchange(false);
  ASSERT_FALSE(pace.prepares());
  ASSERT_FALSE(pace.is_measuring());
  exchange(true);
  EXPECT_TRUE(pace.is_measuring());
}

TEST(AnswerPace, MeasuresAgainWhenThePeerDoes) {
  Exchange exchange(far_peer);
  exchange.run(kUntilTried);
  ASSERT_TRUE(exchange.pace.prepares());
  exchange.pace.sent([&] { return exchange.now; });
  exchange.pace.came(1, true);
  EXPECT_TRUE(exchange.pace.is_measuring());
  EXPECT_FALSE(exchange.pace.prepares());
}

TEST(AnswerPace, AnotherConnectionBeginsAnew) {
  Exchange exchange(far_peer);
  exchange.run(kUntilTried);
  exchange.pace.sent([&] { return exchange.now; });
  ASSERT_TRUE(exchange.pace.is_due());
  exchange.pace.reset();
  EXPECT_FALSE(exchange.pace.is_due());
  EXPECT_FALSE(exchange.pace.prepares());
  exchange.run(kUntilTried);
  EXPECT_TRUE(exchange.pace.prepares());
}

TEST(AnswerPace, AClockThatJumpsBackHoldsNobody) {
  Exchange exchange(far_peer);
  exchange.run(kUntilTried);
  exchange.pace.sent([&] { return exchange.now; });
  ASSERT_TRUE(exchange.pace.is_due());
  unsigned asked = 0;
  std::uint64_t now = 1000;  // long before
  EXPECT_FALSE(
      exchange.pace.await([&] { return ++asked, now += 10; }, [] {}, [] { return false; }));
  EXPECT_LE(asked, 2 * AnswerPace::kLooks);
}

TEST(AnswerPace, AnInterruptedExchangeTellsNothing) {
  Exchange exchange(far_peer);
  for (std::uint32_t i = 0; i < kUntilTried; ++i) {
    if (i % 10 == 0) exchange.now += 1'000'000;  // our core was another's
    exchange.run();
  }
  EXPECT_TRUE(exchange.pace.prepares());
}

TEST(AnswerPace, APeerThatTakesItsTimeIsNotWaitedFor) {
  Exchange exchange([](std::uint64_t, bool) { return 2 * AnswerPace::kLongest; });
  exchange.run(kUntilTried * 3);
  EXPECT_EQ(exchange.waited, 0U);
}

TEST(AnswerPace, NothingIsWaitedForWithoutTicks) {
  AnswerPace pace;
  for (int i = 0; i < 10'000; ++i) {
    pace.came(1);
    pace.sent([] { return std::uint64_t{0}; });
    ASSERT_FALSE(pace.is_due());
    ASSERT_FALSE(pace.prepares());
  }
}

TEST(AnswerPace, AnAnswerThatDoesNotComeIsNotWaitedForLong) {
  Exchange exchange(far_peer);
  exchange.run(kUntilTried);
  exchange.pace.sent([&] { return exchange.now; });
  ASSERT_TRUE(exchange.pace.is_due());
  unsigned looks = 0;
  std::uint64_t now = exchange.now;
  const bool found =
      exchange.pace.await([&] { return now += 10; }, [] {}, [&] { return ++looks, false; });
  EXPECT_FALSE(found);
  EXPECT_EQ(looks, AnswerPace::kLooks);
  EXPECT_LE(now - exchange.now, AnswerPace::kLongest);
  EXPECT_FALSE(exchange.pace.is_due());
}

}  // namespace
}  // namespace verbena::local
