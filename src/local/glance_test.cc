// SPDX-License-Identifier: MIT
#include "local/glance.h"

#include <gtest/gtest.h>

#include <chrono>

namespace verbena::local {
namespace {

class GlanceTest : public testing::Test {
 protected:
  GlanceTest() {
    Glance::View view;
    view.request = &request;
    view.request_tag = 7;
    view.executed = &executed;
    view.farewell = &farewell;
    glance.show(view);
  }
  Glance::Word request{0}, executed{0}, farewell{0};
  Glance glance;
};

TEST_F(GlanceTest, SeesEachKindOfNews) {
  EXPECT_FALSE(glance.has_news());
  request = 7;
  EXPECT_TRUE(glance.has_news());
  request = 6;
  EXPECT_FALSE(glance.has_news());
  executed = 1;
  EXPECT_TRUE(glance.has_news());
  executed = 0;
  farewell = 1;
  EXPECT_TRUE(glance.has_news());
}

TEST_F(GlanceTest, KnowsARequestFromOtherNews) {
  farewell = 1;
  executed = 1;
  glance.fetch_request();
  EXPECT_FALSE(glance.has_request());
  request = 7;
  EXPECT_TRUE(glance.has_request());
  glance.show_request(request, 9, 3);
  EXPECT_FALSE(glance.has_request());
}

TEST_F(GlanceTest, NothingIsShownAfterAll) {
  request = 7;
  glance.show({});
  EXPECT_FALSE(glance.has_news());
}

TEST_F(GlanceTest, AcknowledgementsThatComeAlongAreNotLookedForElsewhereForAWhile) {
  executed = 2;
  glance.show_acknowledged(1);
  EXPECT_FALSE(glance.has_news());
  farewell = 1;
  EXPECT_TRUE(glance.has_news());
  farewell = 0;
  int looks = 0;
  while (!glance.has_news() && looks < 1000)
    ++looks;
  EXPECT_GT(looks, 10);
  EXPECT_LT(looks, 1000);
  glance.show_acknowledged(2);
  for (looks = 0; looks < 1000; ++looks)
    ASSERT_FALSE(glance.has_news());
}

// Longer than any test.
constexpr std::uint64_t kLong = std::uint64_t{1} << 62;

TEST_F(GlanceTest, RestsFromRequestsOnly) {
  if (ticks() == 0) GTEST_SKIP() << "this machine has no ticks: nothing rests";
  request = 7;
  glance.rest_from_requests(kLong);
  EXPECT_FALSE(glance.has_news());
  executed = 1;
  EXPECT_TRUE(glance.has_news());
}

TEST_F(GlanceTest, SeesRequestsAfterTheRest) {
  request = 7;
  glance.rest_from_requests(1000);
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  bool seen = false;
  while (!seen && std::chrono::steady_clock::now() < limit)
    seen = glance.has_news();
  EXPECT_TRUE(seen);
}

}  // namespace
}  // namespace verbena::local
