// SPDX-License-Identifier: MIT
// How long the tests with several threads go on: on a busy machine each wait for another thread
// takes as long as others hold the core.
#pragma once

#include <chrono>
#include <cstdlib>
#include <string_view>

namespace verbena::local {

inline bool is_long() {
  const char* const mode = std::getenv("VERBENA_TEST_MODE");
  return mode && std::string_view(mode) == "long";
}

inline std::chrono::milliseconds most_time() {
  return is_long() ? std::chrono::milliseconds(20'000) : std::chrono::milliseconds(1'000);
}

}  // namespace verbena::local
