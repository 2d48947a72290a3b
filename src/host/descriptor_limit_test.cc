// SPDX-License-Identifier: MIT
#include "host/descriptor_limit.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <optional>

namespace verbena::host {
namespace {

class RaisedDescriptorLimitTest : public testing::Test {
 protected:
  RaisedDescriptorLimitTest() { getrlimit(RLIMIT_NOFILE, &usual_); }
  ~RaisedDescriptorLimitTest() override { setrlimit(RLIMIT_NOFILE, &usual_); }

  static rlim_t soft() {
    rlimit limit{};
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    return limit.rlim_cur;
  }
  rlim_t hard() const { return usual_.rlim_max; }
  void set_soft(rlim_t to) const {
    const rlimit limit{to, hard()};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }

 private:
  rlimit usual_{};
};

TEST_F(RaisedDescriptorLimitTest, IsAsBeforeAtTheEnd) {
  ASSERT_GT(hard(), 100u);
  set_soft(50);
  {
    const RaisedDescriptorLimit raised;
    EXPECT_EQ(soft(), hard() - 1);
    const RaisedDescriptorLimit again;
    EXPECT_EQ(soft(), hard() - 1);
  }
  EXPECT_EQ(soft(), 50u);
}

// As servers do at their start.
TEST_F(RaisedDescriptorLimitTest, StaysWhereTheProgramHasSetIt) {
  ASSERT_GT(hard(), 100u);
  for (const rlim_t wanted : {hard(), rlim_t{70}, rlim_t{30}}) {
    set_soft(50);
    {
      const RaisedDescriptorLimit raised;
      set_soft(wanted);
    }
    EXPECT_EQ(soft(), wanted);
  }
}

TEST_F(RaisedDescriptorLimitTest, LeavesWhatIsHighEnough) {
  for (const rlim_t before : {hard(), hard() - 1}) {
    set_soft(before);
    {
      const RaisedDescriptorLimit raised;
      EXPECT_EQ(soft(), before);
    }
    EXPECT_EQ(soft(), before);
  }
}

TEST_F(RaisedDescriptorLimitTest, OfTwoAtATimeEndsInAnyOrder) {
  set_soft(50);
  std::optional<RaisedDescriptorLimit> one(std::in_place);
  std::optional<RaisedDescriptorLimit> other(std::in_place);
  one.reset();
  EXPECT_EQ(soft(), 50u);
  other.reset();
  EXPECT_EQ(soft(), 50u);
}

}  // namespace
}  // namespace verbena::host
