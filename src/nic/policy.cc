// SPDX-License-Identifier: MIT
#include "nic/policy.h"

#include <sys/resource.h>

#include <cstdlib>
#include <string_view>

#include "base/log.h"

namespace verbena::nic {
namespace {

// True when the variable has the first value, false for the second and where it is not set.
bool is_first(const char* variable, const char* first, const char* second) {
  const char* const value = secure_getenv(variable);
  if (!value || !*value || std::string_view(value) == second) return false;
  if (std::string_view(value) == first) return true;
  LOG_ERROR("%s=%s: not known; there are %s and %s", variable, value, first, second);
  return false;
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
  return {.direct = !is_first("VERBENA_PATH", "ring", "auto"),
          .adopts = !is_first("VERBENA_ADOPT", "never", "auto") && has_descriptors_for_adoption()};
}

}  // namespace verbena::nic
