// SPDX-License-Identifier: MIT
#include "nic/kept_trains.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace verbena::nic {
namespace {

using wire::Psn;

class KeptTrainsTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(trains, nullptr); }
  // One that ends before `end`.
  std::byte* build(Psn end, std::uint64_t repeated = 0) {
    const std::span<std::byte> berth = trains->berth();
    if (berth.empty()) return nullptr;
    std::ranges::fill(berth, std::byte{7});
    trains->take(end, repeated);
    return berth.data();
  }
  std::byte* fill(Psn first) {
    std::byte* at = nullptr;
    for (std::uint32_t i = 1; i <= KeptTrains::kBerths; ++i)
      at = build(first + i);
    return at;
  }
  KeptTrains::Budget budget;
  std::unique_ptr<KeptTrains> trains = KeptTrains::make(budget);
};

TEST_F(KeptTrainsTest, ABerthHoldsTheLongestTrainInSixteenPages) {
  const std::span<std::byte> berth = trains->berth();
  EXPECT_EQ(berth.size(), 65'536u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(berth.data()) % 4096, 0u);
  EXPECT_EQ(trains->berth().data(), berth.data()) << "nobody has taken it";
}

TEST_F(KeptTrainsTest, ServesInTurnAndNoneTwice) {
  std::vector<std::byte*> all;
  for (std::uint32_t i = 1; i <= KeptTrains::kBerths; ++i)
    all.push_back(build(Psn(i)));
  EXPECT_TRUE(trains->berth().empty());
  std::ranges::sort(all);
  for (std::size_t i = 1; i < all.size(); ++i)
    EXPECT_GE(all[i] - all[i - 1], 65'536);
}

TEST_F(KeptTrainsTest, IsFreeWhenAllOfItWasExecutedAndNotBefore) {
  fill(Psn(0xFFFFF0));  // past the end of the circle
  trains->release(Psn(0xFFFFF0), 0);
  EXPECT_TRUE(trains->berth().empty());
  std::byte* const first = (trains->release(Psn(0xFFFFF1), 0), build(Psn(100)));
  EXPECT_NE(first, nullptr);
  EXPECT_TRUE(trains->berth().empty());
  trains->release(Psn(0xFFFFF3), 0);
  EXPECT_EQ(build(Psn(101)), first + KeptTrains::kBerthBytes);
  EXPECT_EQ(build(Psn(102)), first + 2 * KeptTrains::kBerthBytes);
  EXPECT_TRUE(trains->berth().empty());
  trains->release(Psn(102), 0);
  for (std::size_t i = 0; i < KeptTrains::kBerths; ++i)
    EXPECT_NE(build(Psn(200)), nullptr);
}

TEST_F(KeptTrainsTest, ATrainThatGrowsIsKeptForAllOfIt) {
  build(Psn(3));
  trains->extend(Psn(9));
  trains->extend(Psn(5));  // a repetition goes along
  for (std::uint32_t i = 1; i < KeptTrains::kBerths; ++i)
    build(Psn(9 + i));
  trains->release(Psn(8), 0);
  EXPECT_TRUE(trains->berth().empty());
  trains->release(Psn(9), 0);
  EXPECT_FALSE(trains->berth().empty());
}

TEST_F(KeptTrainsTest, HasOtherPagesWhereSomethingWasSentTwice) {
  std::byte* const first = build(Psn(1), 5);
  std::byte* const second = build(Psn(2), 6);
  for (std::uint32_t i = 2; i < KeptTrains::kBerths; ++i)
    build(Psn(1 + i), 6);
  trains->release(Psn(2), 6);
  EXPECT_EQ(first[0], std::byte{0}) << "these pages may still be on their way";
  EXPECT_EQ(first[65'535], std::byte{0});
  EXPECT_EQ(second[0], std::byte{7}) << "nothing was sent again since this one";
  EXPECT_EQ(trains->berth().data(), first);
}

// A repetition that lies in one of them may be read after the peer has acknowledged the first.
TEST_F(KeptTrainsTest, HasOtherPagesWhereSomethingWasSentTwiceAtOnce) {
  std::byte* const first = build(Psn(1), 5);
  trains->doubt();
  std::byte* const second = build(Psn(2), 5);
  trains->release(Psn(2), 5);
  EXPECT_EQ(first[0], std::byte{0});
  EXPECT_NE(second[0], std::byte{0});
}

TEST_F(KeptTrainsTest, EndsWhereThereAreNoOtherPages) {
  std::byte* const first = build(Psn(1), 0);
  // The sanitizers' mlock does nothing and says that it did.
  if (syscall(SYS_mlock, first, KeptTrains::kBerthBytes) != 0) {
    GTEST_SKIP() << "no memory may be locked here (errno " << errno << ")";
  }
  trains->release(Psn(1), 1);
  EXPECT_TRUE(trains->berth().empty());
}

TEST_F(KeptTrainsTest, OnlySoManyHaveThem) {
  std::vector<std::unique_ptr<KeptTrains>> all;
  while (auto more = KeptTrains::make(budget))
    all.push_back(std::move(more));
  EXPECT_EQ(all.size() + 1, 16u);
  EXPECT_EQ(KeptTrains::make(budget), nullptr);
  all.pop_back();
  EXPECT_NE(KeptTrains::make(budget), nullptr);
}

}  // namespace
}  // namespace verbena::nic
