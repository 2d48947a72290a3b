// SPDX-License-Identifier: MIT
// The seed of a randomised test: `--seed=N` of the command line, else a new one. Printed, so that a
// failure can be repeated. For tests only.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "base/random.h"

namespace verbena {

inline std::uint64_t test_seed() {
  static const std::uint64_t seed = [] {
    std::ifstream command_line("/proc/self/cmdline", std::ios::binary);
    for (std::string word; std::getline(command_line, word, '\0');) {
      if (word.starts_with("--seed=")) return std::strtoull(word.c_str() + 7, nullptr, 0);
    }
    return static_cast<unsigned long long>(KernelRandom().next() & 0xffffffff);
  }();
  std::printf("--seed=%llu\n", static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  return seed;
}

}  // namespace verbena
