// SPDX-License-Identifier: MIT
#include "coverage.h"

#include <gtest/gtest.h>

#include <array>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

namespace verbena::fabric {
namespace {

constexpr std::array<std::string_view, 5> kAsking{"idle", "waiting", "repeating", "held back",
                                                  "refused"};
constexpr std::array<std::string_view, 11> kAnswered{
    "all",    "some",    "nothing new",  "READ next", "READ ahead", "READ again",
    "atomic", "RNR NAK", "sequence NAK", "refusal",   "CNP"};
constexpr std::array<std::string_view, 6> kServing{"idle", "in SEND",   "in WRITE",
                                                   "gap",  "not ready", "refused"};
constexpr std::array<std::string_view, 13> kAsked{
    "SEND",       "more of SEND", "WRITE",      "more of WRITE", "READ",        "atomic", "FLUSH",
    "SEND again", "WRITE again",  "READ again", "atomic again",  "FLUSH again", "ahead"};
static_assert(kAsking.size() == static_cast<std::size_t>(Asking::kCount));
static_assert(kAnswered.size() == static_cast<std::size_t>(Answered::kCount));
static_assert(kServing.size() == static_cast<std::size_t>(Serving::kCount));
static_assert(kAsked.size() == static_cast<std::size_t>(Asked::kCount));

template <class Table, class States, class Events, class Visit>
void visit(const char* role, const Table& table, const States& states, const Events& events,
           Visit&& visit) {
  for (std::size_t s = 0; s < states.size(); ++s)
    for (std::size_t e = 0; e < events.size(); ++e)
      visit(Cell(std::string(role) + " " + std::string(states[s]), events[e]), table[s][e]);
}
template <class Visit>
void visit_all(const WireCoverage& coverage, Visit&& each) {
  visit("requester", coverage.requester, kAsking, kAnswered, each);
  visit("responder", coverage.responder, kServing, kAsked, each);
}

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

}  // namespace

void print(const WireCoverage& coverage) {
  visit_all(coverage, [](const Cell& cell, std::uint64_t count) {
    std::printf("cell | %-20s | %-13s | %" PRIu64 "\n", cell.first.c_str(), cell.second.c_str(),
                count);
  });
}

std::set<Cell> reached(const WireCoverage& coverage) {
  std::set<Cell> cells;
  visit_all(coverage, [&](const Cell& cell, std::uint64_t count) {
    if (count != 0) cells.insert(cell);
  });
  return cells;
}

std::set<Cell> all_cells() {
  std::set<Cell> cells;
  visit_all({}, [&](const Cell& cell, std::uint64_t) { cells.insert(cell); });
  return cells;
}

Exceptions exceptions_of(const std::string& path) {
  std::set<std::string> reasons;
  Exceptions found;
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  for (std::string line; std::getline(file, line);) {
    const auto parts = parts_of(line, '|');
    if (line.starts_with("why | ") && parts.size() == 3) reasons.insert(parts[1]);
    const bool is_hole = line.starts_with("hole | ");
    if (!is_hole && !line.starts_with("rare | ")) continue;
    EXPECT_EQ(parts.size(), is_hole ? 4u : 3u) << line;
    EXPECT_TRUE(!is_hole || reasons.contains(parts.back())) << "no reason: " << line;
    for (const std::string& event : parts_of(parts.at(2), ',')) {
      const Cell cell(parts[1], event);
      EXPECT_TRUE(all_cells().contains(cell)) << "no such cell: " << line;
      EXPECT_TRUE(!found.holes.contains(cell) && !found.rare.contains(cell)) << "twice: " << line;
      (is_hole ? found.holes : found.rare).insert(cell);
    }
  }
  return found;
}

}  // namespace verbena::fabric
