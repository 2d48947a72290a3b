// SPDX-License-Identifier: MIT
#include "port/fault_text.h"

#include <gtest/gtest.h>

namespace verbena::port {
namespace {

TEST(FaultText, IsForBothDirectionsOrForOne) {
  const auto both = parse_faults("drop=1%,delay=2ms,in.reorder=0.05%,out.rate=2.5Gbit,seed=7");
  ASSERT_TRUE(both.has_value());
  EXPECT_EQ(both->in.drop, 10'000u);
  EXPECT_EQ(both->out.drop, 10'000u);
  EXPECT_EQ(both->in.delay, Duration::milliseconds(2));
  EXPECT_EQ(both->out.delay, Duration::milliseconds(2));
  EXPECT_EQ(both->in.reorder, 500u);
  EXPECT_EQ(both->out.reorder, 0u);
  EXPECT_EQ(both->in.bytes_per_second, 0u);
  EXPECT_EQ(both->out.bytes_per_second, 312'500'000u);
  EXPECT_EQ(both->seed, 7u);
}

TEST(FaultText, HasAllThatALineCanDo) {
  const auto all = parse_faults(
      "duplicate=100%,corrupt=0.0001%,reorder_by=50us,jitter=1s,queue=64KiB,rate=8kbit");
  ASSERT_TRUE(all.has_value());
  EXPECT_EQ(all->in.duplicate, 1'000'000u);
  EXPECT_EQ(all->in.corrupt, 1u);
  EXPECT_EQ(all->in.reorder_by, Duration::microseconds(50));
  EXPECT_EQ(all->in.jitter, Duration::seconds(1));
  EXPECT_EQ(all->in.queue_bytes_max, 65'536u);
  EXPECT_EQ(all->in.bytes_per_second, 1'000u);
}

TEST(FaultText, OnlyWhoSendsFindsASocketFull) {
  for (const char* const text : {"full=5%", "out.full=5%"}) {
    EXPECT_EQ(parse_faults(text)->out.full, 50'000u);
    EXPECT_EQ(parse_faults(text)->in.full, 0u);
  }
}

TEST(FaultText, LaterOnesWin) {
  EXPECT_EQ(parse_faults("drop=5%,out.drop=0%")->out.drop, 0u);
  EXPECT_EQ(parse_faults("drop=5%,out.drop=0%")->in.drop, 50'000u);
}

TEST(FaultText, NothingIsTakenThatIsNotUnderstood) {
  for (const char* const wrong : {"drop",
                                  "drop=",
                                  "drop=1",
                                  "drop=101%",
                                  "drop=-1%",
                                  "drop=1%%",
                                  "drop=nan%",
                                  "drop=inf%",
                                  "drop=0.00001%",
                                  "loss=1%",
                                  "delay=2",
                                  "delay=2min",
                                  "delay=11s",
                                  "rate=1",
                                  "rate=1MB",
                                  "seed=",
                                  "seed=x",
                                  "seed=1%",
                                  "in.seed=1",
                                  "in.=1%",
                                  "in.loss=1%",
                                  "in.full=1%",
                                  "drop=1%,,delay=1ms",
                                  "drop=1%;delay=1ms",
                                  "queue=1GB",
                                  "=",
                                  " drop=1%",
                                  "drop =1%"}) {
    const auto parsed = parse_faults(wrong);
    EXPECT_FALSE(parsed.has_value()) << wrong;
  }
  EXPECT_NE(parse_faults("drop=1%,loss=2%").error().find("loss=2%"), std::string::npos);
}

TEST(FaultText, NothingIsAGoodLine) {
  const auto none = parse_faults("");
  ASSERT_TRUE(none.has_value());
  EXPECT_TRUE(none->in.is_none() && none->out.is_none());
}

}  // namespace
}  // namespace verbena::port
