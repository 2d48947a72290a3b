// SPDX-License-Identifier: MIT
// Which cells of the table of states the simulator gets to: coverage.txt says it, with the reason
// for each hole. A hole that is filled, or a cell that nothing gets to any more, fails the test.
#include <gtest/gtest.h>

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

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

std::vector<std::string> parts_of(const std::string& line, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(line);
  for (std::string part; std::getline(stream, part, separator);) {
    part.erase(0, part.find_first_not_of(' '));
    part.erase(part.find_last_not_of(' ') + 1);
    parts.push_back(part);
  }
  return parts;
}

// What the file says: "why | letter | reason" and "hole | state | inputs, ... | letter".
std::set<Cell> holes_of(const std::string& path) {
  std::set<std::string> reasons;
  std::set<Cell> holes;
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  for (std::string line; std::getline(file, line);) {
    const auto parts = parts_of(line, '|');
    if (line.starts_with("why | ") && parts.size() == 3) reasons.insert(parts[1]);
    if (!line.starts_with("hole | ")) continue;
    EXPECT_EQ(parts.size(), 4u) << line;
    EXPECT_TRUE(reasons.contains(parts.back())) << "no reason: " << line;
    for (const std::string& input : parts_of(parts.at(2), ',')) {
      EXPECT_TRUE(holes.emplace(parts[1], input).second) << "twice: " << line;
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
  for (const auto& [state, input] : holes)
    ADD_FAILURE() << "no such cell: " << state << " | " << input;
}

}  // namespace
}  // namespace verbena::cm
