// SPDX-License-Identifier: MIT
#include "qp/tag_matcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "qp/test_bench.h"

namespace verbena::qp {
namespace {

using queues::CompletionKind;
using queues::Status;

class TagList : public ::testing::Test {
 protected:
  std::optional<TagHandle> add(std::uint64_t tag, std::uint64_t mask = ~0ULL,
                               std::optional<std::uint32_t> seen = std::nullopt) {
    const Sge sge{.address = 1000 + tag, .length = 8, .key = {5}};
    const auto added = tags.add({.wr_id = 7, .is_signaled = true, .unexpected_seen = seen},
                                {.wr_id = tag, .tag = tag, .mask = mask, .sges = {&sge, 1}});
    if (!added) return std::nullopt;
    return *added;
  }
  queues::Completion last() {
    const auto all = poll_all(completions);
    return all.empty() ? queues::Completion{} : all.back();
  }

  queues::CompletionQueue completions{64, nullptr};
  TagMatcher tags{4, completions};
  queues::Receive found;
};

TEST_F(TagList, TheFirstThatMatchesIsTaken) {
  ASSERT_TRUE(add(1) && add(0x10, 0xf0) && add(0x11));
  EXPECT_EQ(CompletionKind::kTagAdd, last().kind);
  ASSERT_TRUE(tags.match(0x11, found));
  EXPECT_EQ(0x10U, found.wr_id);
  EXPECT_EQ(1U, found.sge_count);
  EXPECT_EQ(1016U, found.sges[0].address);
  ASSERT_TRUE(tags.match(0x11, found));
  EXPECT_EQ(0x11U, found.wr_id);
  EXPECT_FALSE(tags.match(0x11, found));
  ASSERT_TRUE(tags.match(1, found));
}

TEST_F(TagList, WhatIsPutBackIsInItsOldPlace) {
  ASSERT_TRUE(add(1) && add(1, 0xff));
  const auto first = tags.match(1, found);
  ASSERT_TRUE(first);
  tags.put_back(*first);
  EXPECT_EQ(first, tags.match(1, found));
}

TEST_F(TagList, HoldsAsManyAsItWasMadeFor) {
  for (std::uint64_t tag = 0; tag < 4; ++tag)
    ASSERT_TRUE(add(tag));
  EXPECT_FALSE(add(4));
  tags.consume(*tags.match(2, found));
  EXPECT_TRUE(add(4));
  const std::vector<Sge> many(kTagSgeMax + 1);
  const auto refused = tags.add({}, {.sges = many});
  ASSERT_FALSE(refused);
  EXPECT_EQ(TagMatcher::AddError::kTooManySges, refused.error());
}

TEST_F(TagList, WhatWasTakenCannotBeRemoved) {
  const auto entry = add(1);
  ASSERT_TRUE(entry && tags.match(1, found));
  tags.remove({.wr_id = 9}, *entry);  // not signaled: a failure is told all the same
  EXPECT_EQ(Status::kTagOperation, last().status);
  tags.consume(*entry);
  const auto other = add(1);
  ASSERT_TRUE(other);
  EXPECT_NE(*entry, *other);
  tags.remove({.wr_id = 9, .is_signaled = true}, *entry);  // an old handle of a place in use
  EXPECT_EQ(Status::kTagOperation, last().status);
  tags.remove({.wr_id = 9, .is_signaled = true}, *other);
  const auto removed = last();
  EXPECT_EQ(Status::kSuccess, removed.status);
  EXPECT_EQ(CompletionKind::kTagDelete, removed.kind);
  EXPECT_EQ(9U, removed.wr_id);
  EXPECT_FALSE(tags.match(1, found));
}

TEST_F(TagList, HandlesThatNeverWereAreRefused) {
  for (const std::uint32_t handle : {0U, 3U, 4U, 1023U, 1024U, 5000U, 0xffffffffU}) {
    tags.remove({.wr_id = handle}, {handle});
    EXPECT_EQ(Status::kTagOperation, last().status) << handle;
  }
}

TEST_F(TagList, NothingNewMatchesWhileTheProgramHasNotSeenAll) {
  EXPECT_TRUE(add(1));
  EXPECT_FALSE(tags.match(2, found));  // unexpected
  EXPECT_TRUE(add(2, ~0ULL, 0));
  EXPECT_EQ(queues::kTagSyncWanted, last().flags);
  EXPECT_FALSE(tags.match(2, found));
  EXPECT_TRUE(tags.match(1, found));  // it was there before
  tags.synchronize({.wr_id = 3, .is_signaled = true, .unexpected_seen = 1});
  EXPECT_EQ(queues::kTagSyncWanted, last().flags);  // two have come
  EXPECT_FALSE(tags.match(2, found));
  tags.synchronize({.wr_id = 3, .is_signaled = true, .unexpected_seen = 3});
  const auto done = last();
  EXPECT_EQ(CompletionKind::kTagSync, done.kind);
  EXPECT_EQ(0, done.flags);
  EXPECT_TRUE(tags.match(2, found));
}

TEST_F(TagList, WhatWasCountedInVainIsForgotten) {
  EXPECT_FALSE(tags.match(2, found));
  EXPECT_TRUE(add(2));
  EXPECT_EQ(queues::kTagSyncWanted, last().flags);
  tags.forget_unexpected();
  EXPECT_TRUE(tags.match(2, found));
}

TEST_F(TagList, WhatWaitsCanBeRemoved) {
  EXPECT_FALSE(tags.match(9, found));
  const auto first = add(1);
  const auto second = add(2);
  ASSERT_TRUE(first && second);
  tags.remove({.is_signaled = true}, *first);
  EXPECT_EQ(Status::kSuccess, last().status);
  EXPECT_FALSE(tags.match(2, found));
  tags.synchronize({.unexpected_seen = 2});
  EXPECT_FALSE(tags.match(1, found));
  tags.synchronize({.unexpected_seen = 3});
  EXPECT_TRUE(tags.match(2, found));
}

TEST_F(TagList, SixteenBitsAreCounted) {
  for (int i = 0; i < 65537; ++i)
    ASSERT_FALSE(tags.match(1, found));
  EXPECT_TRUE(add(1, ~0ULL, 1));
  EXPECT_TRUE(tags.match(1, found));
}

}  // namespace
}  // namespace verbena::qp
