// SPDX-License-Identifier: MIT
// Makes a failing run smaller: each number of its plan is made plain, or brought half the way
// there, as long as it still fails in the same words.
#pragma once

#include <cstdint>
#include <string>

#include "plan.h"

namespace verbena::fabric {

struct Shrunk {
  std::uint64_t seed = 0;
  Plan plan;
  std::string failure;
};

// A run that fails, which that seed with that plan does.
Shrunk shrink(std::uint64_t seed, const Plan& plan);

}  // namespace verbena::fabric
