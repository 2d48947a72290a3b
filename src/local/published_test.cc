// SPDX-License-Identifier: MIT
#include "local/published.h"

#include <gtest/gtest.h>

#include <set>

#include "local/test_target.h"

namespace verbena::local {
namespace {

constexpr QpNum kOurs = QpNum::of(Target::kSlot, 77);
constexpr QpNum kGrantee = QpNum::of({9}, 4);

TEST(Published, HasPlacesForTheQueuePairsOfOneSlot) {
  const Target target;
  EXPECT_NE(target.published.lock_of(kOurs), nullptr);
  EXPECT_EQ(target.published.lock_of(QpNum::of({4}, 77)), nullptr);
  EXPECT_EQ(Published().lock_of(kOurs), nullptr);
}

TEST(Published, PeersSeeWhatIsGrantedUntilItIsRevoked) {
  const Target target;
  const auto& seen = target.view.at<PublishedTables>(0).queue_pairs[kOurs.index()];
  EXPECT_EQ(seen.grant.load(), 0U);
  target.published.grant(kOurs, {.pd = {8}, .to = kGrantee, .rights = 6, .connection = 0x1234});
  EXPECT_EQ(seen.grant.load() >> 32, kGrantee.value);
  EXPECT_EQ(seen.grant.load() & 0xffff'ffff, 6U | PublishedQp::kOpen);
  EXPECT_EQ(seen.pd.load(), 8U);
  EXPECT_EQ(seen.connection.load(), 0x1234U);
  target.published.revoke(kOurs);
  EXPECT_EQ(seen.grant.load(), 0U);
}

TEST(Published, AGrantIsNeverTheWordForNone) {
  const Target target;
  target.published.grant(kOurs, {.pd = {}, .to = QpNum{0}, .rights = 0, .connection = 0});
  EXPECT_NE(target.view.at<PublishedTables>(0).queue_pairs[kOurs.index()].grant.load(), 0U);
}

TEST(Published, NoTwoPublicationsOfAKeyLookAlike) {
  Target target;
  const auto& seen =
      target.view.at<PublishedTables>(0).regions[published_place(Target::kKey)].identity;
  std::set<std::uint64_t> identities;
  for (int i = 0; i < 100; ++i) {
    target.show();
    EXPECT_EQ(static_cast<std::uint32_t>(seen.load()), Target::kKey.value);
    EXPECT_TRUE(identities.insert(seen.load()).second);
    target.published.hide(Target::kKey);
    EXPECT_EQ(seen.load(), 0U);
  }
}

TEST(Published, APlaceIsNotGivenAwayTwice) {
  Target target;
  target.show();
  EXPECT_DEATH(target.show({Target::kKey.value + kPublishedRegions}), "");
}

TEST(Published, WithoutMemoryNothingHappens) {
  Published none;
  none.show(Target::kKey, {});
  none.hide(Target::kKey);
  none.grant(kOurs, {});
  none.revoke(kOurs);
  EXPECT_FALSE(none);
}

// A peer cannot make the memory writable, nor take pages away.
TEST(Published, OnlyTheOwnerWrites) {
  auto created = host::SharedMemory::create(kPublishedSize, host::Backing::kWhenTouched,
                                            host::Writers::kMaker);
  ASSERT_TRUE(created.has_value());
  const int fd = created->fd.get();
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  EXPECT_NE(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
  EXPECT_NE(ftruncate(fd, 4096), 0);
  EXPECT_LT(pwrite(fd, "x", 1, 0), 0);
}

}  // namespace
}  // namespace verbena::local
