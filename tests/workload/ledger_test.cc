// SPDX-License-Identifier: MIT
#include "ledger.h"

#include <gtest/gtest.h>

namespace verbena::workload {
namespace {

TEST(SendLedger, EndsWhatIsUnsignaledByALaterSuccess) {
  SendLedger ledger;
  ledger.posted(1, false);
  ledger.posted(2, true);
  const auto ended = ledger.completed(2, true);
  EXPECT_EQ(nullptr, ended.wrong);
  EXPECT_EQ(2u, ended.count);
  EXPECT_EQ(0u, ledger.open());
}

TEST(SendLedger, FindsASignaledRequestThatWasPassedOver) {
  SendLedger ledger;
  ledger.posted(1, true);
  ledger.posted(2, true);
  EXPECT_NE(nullptr, ledger.completed(2, true).wrong);
}

TEST(SendLedger, FindsCompletionsThatNobodyAskedFor) {
  SendLedger ledger;
  EXPECT_NE(nullptr, ledger.completed(1, true).wrong);
  ledger.posted(2, false);
  EXPECT_NE(nullptr, ledger.completed(2, true).wrong);
}

TEST(SendLedger, FindsSuccessAfterAFailure) {
  SendLedger ledger;
  ledger.posted(1, true);
  ledger.posted(2, true);
  EXPECT_EQ(nullptr, ledger.completed(1, false).wrong);
  EXPECT_TRUE(ledger.has_failed());
  EXPECT_NE(nullptr, ledger.completed(2, true).wrong);
}

TEST(SendLedger, WantsEachRequestAfterAFailureToComplete) {
  SendLedger ledger;
  for (const std::uint64_t id : {1, 2, 3})
    ledger.posted(id, false);
  EXPECT_EQ(nullptr, ledger.completed(1, false).wrong);
  EXPECT_NE(nullptr, ledger.completed(3, false).wrong);
}

TEST(SendLedger, EndsTheRestWithItsQueueWhereNobodyWantedToKnow) {
  SendLedger ledger;
  ledger.posted(1, false);
  EXPECT_EQ(1u, ledger.closed().count);
  ledger.posted(2, true);
  EXPECT_NE(nullptr, ledger.closed().wrong);
}

}  // namespace
}  // namespace verbena::workload
