// SPDX-License-Identifier: MIT
// Who waits at a listener, and when they do no longer.
#include <gtest/gtest.h>

#include <vector>

#include "cm/test_world.h"

namespace verbena::cm {
namespace {

using Does = Habits::Does;

TEST(CmBacklog, IsNeverExceeded) {
  World world;
  world[1].listen(2);
  world[1].habits.on_request = Does::kNothing;
  std::vector<CommId> asked;
  for (int i = 0; i < 5; ++i)
    asked.push_back(world[0].connect(world[1]));
  world.run(Duration::milliseconds(10));
  int refused = 0;
  for (const CommId id : asked)
    refused += world[0].stories[id].reason == wire::RejReason::kNoResources ? 1 : 0;
  EXPECT_EQ(refused, 3);
  EXPECT_EQ(world[1].stories.size(), 2u);
  world[1].release(world[1].stories.begin()->first);
  world[0].connect(world[1]);
  world.run(Duration::milliseconds(10));
  EXPECT_EQ(world[1].stories.size(), 3u) << "there is room again";
}

// One place, and a program that decides later.
struct CmBacklogOfOne : testing::Test {
  CmBacklogOfOne() {
    b.listen(1);
    b.habits.on_request = Does::kNothing;
    connect(0);
  }
  void connect(unsigned from) {
    world[from].connect(b);
    world.run(Duration::milliseconds(10));
  }
  World world{3};
  Side& b = world[2];
};

// What the program knows of waits no more, whether it has decided or not.
TEST_F(CmBacklogOfOne, WhatIsTakenLeavesIt) {
  connect(1);
  EXPECT_EQ(world[1].story().reason, wire::RejReason::kNoResources);
  b.engine.taken(b.only());
  b.engine.taken(b.only());
  world[1].release_all();
  world[1].stories.clear();
  connect(1);
  EXPECT_EQ(b.heard.size(), 2u);
  connect(1);
  EXPECT_EQ(b.heard.size(), 2u) << "taken twice is taken once";
}

// Its program may keep what it rejected for as long as it likes.
TEST_F(CmBacklogOfOne, WhatIsRejectedLeavesIt) {
  ASSERT_TRUE(b.engine.reject(b.only(), {}, world.clock.now));
  connect(1);
  EXPECT_NE(world[1].story().reason, wire::RejReason::kNoResources);
  EXPECT_EQ(b.stories.size(), 2u);
}

}  // namespace
}  // namespace verbena::cm
