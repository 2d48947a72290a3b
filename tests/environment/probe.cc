// SPDX-License-Identifier: MIT
// Small programs over verbs, one a name, each of which does to itself what programs do: fork, close
// descriptors that it does not know, call verbs at exit ... run_environment.py runs them.
#include <cstdio>
#include <cstring>

#include "scenarios.h"

int main(int count, char** words) {
  if (count < 2) {
    for (const probe::Scenario& each : probe::all_scenarios())
      std::printf("%s\n", each.name);
    return 2;
  }
  for (const probe::Scenario& each : probe::all_scenarios()) {
    if (std::strcmp(each.name, words[1]) == 0) return each.run() ? 0 : 1;
  }
  std::fprintf(stderr, "FAIL there is no %s\n", words[1]);
  return 1;
}
