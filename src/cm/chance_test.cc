// SPDX-License-Identifier: MIT
// Many connections on a bad network: `cm_test --seed=N --gtest_filter=CmChance.*` repeats a run.
#include <gtest/gtest.h>

#include "base/test_seed.h"
#include "cm/test_chance.h"

namespace verbena::cm {
namespace {

constexpr std::uint64_t kRuns = 500;

TEST(CmChance, BothEndsAlwaysAgree) {
  const std::uint64_t first = test_seed();
  for (std::uint64_t seed = first; seed < first + kRuns && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("--seed=" + std::to_string(seed));
    Chance(seed).live();
  }
}

TEST(CmChance, ForgersCauseNothingThatIsNotPromised) {
  const std::uint64_t first = test_seed();
  for (std::uint64_t seed = first; seed < first + kRuns && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("--seed=" + std::to_string(seed));
    Chance(seed).live_among_forgers();
  }
}

}  // namespace
}  // namespace verbena::cm
