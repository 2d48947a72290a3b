// SPDX-License-Identifier: MIT
// Which cells of the table of states the simulator gets to: coverage.txt says it, with the reason
// for each hole. A hole that is filled, or a cell that nothing gets to any more, fails the test.
#include <gtest/gtest.h>

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "cm/test_chance.h"

namespace verbena::cm {
namespace {

constexpr std::uint64_t kSeeds = 300;

Coverage everything() {
  Coverage coverage;
  play_all_single_faults(coverage);
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Chance honest(seed);
    honest.live();
    count_coverage(honest.world(), coverage);
    Chance forged(seed);
    forged.live_among_forgers();
    count_coverage(forged.world(), coverage);
  }
  return coverage;
}

using Cell = std::pair<std::string, std::string>;  // state, input

// What the file says: "hole | state | inputs, ... | reason".
std::map<Cell, std::string> holes_of(const std::string& path) {
  std::map<Cell, std::string> holes;
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("hole | ")) continue;
    std::istringstream parts(line);
    std::string mark;
    std::string state;
    std::string inputs;
    std::string reason;
    const auto part = [&](std::string& to) {
      std::getline(parts, to, '|');
      to.erase(0, to.find_first_not_of(' '));
      to.erase(to.find_last_not_of(' ') + 1);
    };
    part(mark);
    part(state);
    part(inputs);
    part(reason);
    EXPECT_FALSE(reason.empty()) << line;
    std::istringstream each(inputs);
    for (std::string input; std::getline(each, input, ',');) {
      input.erase(0, input.find_first_not_of(' '));
      EXPECT_TRUE(holes.emplace(Cell{state, input}, reason).second) << "twice: " << line;
    }
  }
  return holes;
}

void print(const Coverage& coverage) {
  for (std::size_t s = 0; s < kStates; ++s) {
    for (std::size_t i = 0; i < kInputs; ++i) {
      const auto state = static_cast<State>(s);
      const auto input = static_cast<Input>(i);
      std::printf("%-17s %-13s %-23s %10" PRIu64 "\n", name_of(state), name_of(input),
                  name_of(action_for(state, input)), coverage(state, input));
    }
  }
}

TEST(CmCoverage, EveryCellIsReachedOrExplained) {
  const Coverage coverage = everything();
  print(coverage);
  auto holes = holes_of(VERBENA_CM_COVERAGE);
  for (std::size_t s = 0; s < kStates; ++s) {
    for (std::size_t i = 0; i < kInputs; ++i) {
      const auto state = static_cast<State>(s);
      const auto input = static_cast<Input>(i);
      const Cell cell{name_of(state), name_of(input)};
      const bool is_hole = holes.erase(cell) == 1;
      EXPECT_EQ(is_hole, coverage(state, input) == 0)
          << cell.first << " | " << cell.second << (is_hole ? ": reached after all" : ": a hole");
      if (is_hole) {
        const Action action = action_for(state, input);
        EXPECT_TRUE(action == Action::kIgnore || action == Action::kRefuse)
            << "a rule that nothing shows: " << cell.first << " | " << cell.second;
      }
    }
  }
  for (const auto& [cell, reason] : holes)
    ADD_FAILURE() << "no such cell: " << cell.first << " | " << cell.second;
}

}  // namespace
}  // namespace verbena::cm
