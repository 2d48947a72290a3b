// SPDX-License-Identifier: MIT
// The small programs of `probe`, by name.
#pragma once

#include <vector>

namespace probe {

struct Scenario {
  const char* name;
  bool (*run)();
};

std::vector<Scenario> all_scenarios();
std::vector<Scenario> process_scenarios();     // fork, exec, threads, exit
std::vector<Scenario> reach_scenarios();       // descriptors and small WRITEs
std::vector<Scenario> descriptor_scenarios();  // descriptors, idleness, memory, places

}  // namespace probe
