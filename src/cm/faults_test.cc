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

// Whatever happens to two messages, both ends agree. (What happens to the second may follow from
// what happened to the first: its number is that of the run with the first fault.)
TEST(CmFaults, EveryPairOfFaults) {
  Coverage coverage;
  for (const Scenario& scenario : scenarios()) {
    unsigned messages = 0;
    play(scenario, {}, coverage, &messages);
    for (unsigned first = 0; first < messages; ++first) {
      for (const Fault& one : faults()) {
        unsigned then = 0;
        play(scenario, faulty({{first, one.arrivals}}), coverage, &then);
        for (unsigned second = first + 1; second < then; ++second) {
          for (const Fault& other : faults()) {
            SCOPED_TRACE(std::string(scenario.name) + ", message " + std::to_string(first) + " " +
                         one.name + ", message " + std::to_string(second) + " " + other.name);
            play(scenario, faulty({{first, one.arrivals}, {second, other.arrivals}}), coverage);
            ASSERT_FALSE(HasFailure());
          }
        }
      }
    }
  }
}

// Three losses in a row, wherever they begin, and every second message.
TEST(CmFaults, MoreLosses) {
  Coverage coverage;
  for (const Scenario& scenario : scenarios()) {
    for (unsigned first = 0; first < 12; ++first) {
      SCOPED_TRACE(std::string(scenario.name) + " from " + std::to_string(first));
      play(scenario, faulty({{first, {}}, {first + 1, {}}, {first + 2, {}}}), coverage);
      play(
          scenario,
          [&](const Sent& sent) {
            return sent.number % 2 == first % 2 ? std::vector<Duration>{} : std::vector{kWay};
          },
          coverage);
    }
  }
}

}  // namespace
}  // namespace verbena::cm
