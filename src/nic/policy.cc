// SPDX-License-Identifier: MIT
#include "nic/policy.h"

#include <sys/resource.h>

#include <array>
#include <cstdlib>
#include <span>
#include <string_view>

#include "base/log.h"

namespace verbena::nic {
namespace {

// The place of the variable's value among `values`; the first where it is not set.
std::size_t choice(const char* variable, std::span<const char* const> values) {
  const char* const value = secure_getenv(variable);
  if (!value || !*value) return 0;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (std::string_view(value) == values[i]) return i;
  LOG_ERROR("%s=%s: not known; %s is taken", variable, value, values[0]);
  return 0;
}

Path path_from_environment() {
  constexpr std::array kNames{"auto", "ring", "wire"};
  constexpr std::array kPaths{Path::kAuto, Path::kRing, Path::kWire};
  return kPaths[choice("VERBENA_PATH", kNames)];
}

// Adoption holds up to ten descriptors all the time, in a table where each peer needs one.
bool has_descriptors_for_adoption() {
  constexpr rlim_t kEnough = 64;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_max >= kEnough) return true;
  LOG_INFO("too few descriptors to adopt memory");
  return false;
}

}  // namespace

Policy Policy::from_environment() {
  constexpr std::array kAdopt{"auto", "never"};
  constexpr std::array kAgree{"auto", "never"};
  return {.path = path_from_environment(),
          .adopts = choice("VERBENA_ADOPT", kAdopt) == 0 && has_descriptors_for_adoption(),
          .agrees = choice("VERBENA_AGREE", kAgree) == 0,
          .line = LineOptions::from_environment()};
}

}  // namespace verbena::nic
