// SPDX-License-Identifier: MIT
// The environment variables that Verbena reads: the one table behind `verbena config`, the options
// of `verbena run` and the manual. A test holds it against the sources.
#pragma once

#include <span>

namespace verbena::cli {

struct Setting {
  const char* variable;
  const char* fallback;  // what holds when the variable is not set, in words
  const char* help;
  const char* option;  // of `verbena run`; null where it has none
  const char* value;   // what the option takes, in the help
  bool is_internal;    // set by `verbena run`, not by people
};

std::span<const Setting> settings();

}  // namespace verbena::cli
