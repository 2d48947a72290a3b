// SPDX-License-Identifier: MIT
#include "rspreload/descriptors.h"

#include <gtest/gtest.h>

#include <thread>

namespace verbena::rspreload {
namespace {

TEST(Descriptors, AreNothingAtFirst) {
  for (const int fd : {-1, 0, 5, 1 << 20, 1 << 30}) {
    EXPECT_EQ(rsocket_of(fd), -1);
    EXPECT_EQ(late_of(fd), Late::kNone);
    EXPECT_FALSE(is_ours(fd));
    EXPECT_EQ(forget(fd), -1);
  }
  EXPECT_EQ(next_rsocket(0), -1);
}

TEST(Descriptors, OfOneRsocketGiveItBackWithTheLast) {
  set_rsocket(7, 7);
  set_rsocket(5000, 7);
  EXPECT_EQ(rsocket_of(5000), 7);
  EXPECT_EQ(next_rsocket(0), 7);
  EXPECT_EQ(next_rsocket(8), 5000);
  EXPECT_EQ(forget(7), -1);
  EXPECT_EQ(rsocket_of(7), -1);
  EXPECT_EQ(next_rsocket(0), 5000);
  EXPECT_EQ(forget(5000), 7);
  EXPECT_EQ(forget(5000), -1);
  EXPECT_EQ(next_rsocket(0), -1);
}

TEST(Descriptors, OnTheirWayHaveNoRsocketYet) {
  set_late(9, Late::kAccepted);
  EXPECT_TRUE(is_ours(9));
  EXPECT_EQ(rsocket_of(9), -1);
  EXPECT_EQ(late_of(9), Late::kAccepted);
  EXPECT_EQ(next_rsocket(0), -1);
  set_rsocket(9, 20);
  EXPECT_EQ(rsocket_of(9), 20);
  EXPECT_EQ(late_of(9), Late::kNone);
  EXPECT_EQ(forget(9), 20);
  set_late(9, Late::kFresh);
  EXPECT_EQ(forget(9), -1);
  EXPECT_FALSE(is_ours(9));
}

TEST(Descriptors, AreReplacedByOneThreadAndKeptForAll) {
  {
    const Replacing replacing(11);
    EXPECT_TRUE(is_kept(11) && is_replaced_here(11));
    EXPECT_FALSE(is_replaced_here(12) || is_replaced_here(-1));
    std::thread([] { EXPECT_TRUE(is_kept(11) && !is_replaced_here(11)); }).join();
    EXPECT_EQ(drop_kept(11), 0);
    EXPECT_FALSE(is_kept(11));
  }
  EXPECT_FALSE(is_replaced_here(11) || is_replaced_here(-1));
}

}  // namespace
}  // namespace verbena::rspreload
