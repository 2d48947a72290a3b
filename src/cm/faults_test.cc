// SPDX-License-Identifier: MIT
// One fault, and two, at every place where they can be.
#include <gtest/gtest.h>

#include "cm/test_scenarios.h"

namespace verbena::cm {
namespace {

TEST(CmFaults, EveryMessageUnderEveryFault) {
  Coverage coverage;
  play_all_single_faults(coverage);
}

TEST(CmFaults, EveryPairOfLosses) {
  Coverage coverage;
  for (const Scenario& scenario : scenarios()) {
    unsigned messages = 0;
    const std::string plain = play(scenario, {}, coverage, &messages);
    for (unsigned first = 0; first < messages; ++first) {
      unsigned then = 0;
      play(scenario, faulty({{first, {}}}), coverage, &then);
      for (unsigned second = first + 1; second < then; ++second) {
        SCOPED_TRACE(std::string(scenario.name) + ", lost " + std::to_string(first) + " and " +
                     std::to_string(second));
        play(scenario, faulty({{first, {}}, {second, {}}}), coverage);
      }
    }
  }
}

}  // namespace
}  // namespace verbena::cm
