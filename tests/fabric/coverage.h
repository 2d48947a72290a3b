// SPDX-License-Identifier: MIT
// The names of the states and events that the watcher counts, and which pairs of them a set of runs
// has reached.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "watcher.h"

namespace verbena::fabric {

using Cell = std::pair<std::string, std::string>;  // "requester idle", "all"

// One line a cell: "cell | requester idle | all | 17".
void print(const WireCoverage& coverage);
std::set<Cell> reached(const WireCoverage& coverage);
std::set<Cell> all_cells();

struct Exceptions {
  std::set<Cell> holes;  // cannot be
  std::set<Cell> rare;   // only long runs get there
};
// What a file says: lines "why | letter | reason", "hole | state | events, ... | letter" and
// "rare | state | events, ...".
Exceptions exceptions_of(const std::string& path);

}  // namespace verbena::fabric
