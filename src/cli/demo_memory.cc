// SPDX-License-Identifier: MIT
// How much data the demo can make up without hurting anybody.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>

#include "cli/demo_parts.h"
#include "cli/system_text.h"

namespace verbena::cli {
namespace {

constexpr std::uint64_t kMebi = 1u << 20;
constexpr std::uint64_t kSlack = 128 * kMebi;  // for the programs themselves
constexpr std::uint64_t kSizeMin = kMebi;

std::uint64_t number_in_file(const std::string& path, std::uint64_t otherwise) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  return file >> number ? number : otherwise;
}

std::string text_of(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

std::uint64_t available_memory() {
  const std::uint64_t machine = kibibytes_of("MemAvailable:", text_of("/proc/meminfo")) * 1024;
  // Where the control group of this process is mounted (cgroup v2), in a container its root.
  const std::string group = "/sys/fs/cgroup" + control_group_in(text_of("/proc/self/cgroup"));
  constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t most = number_in_file(group + "/memory.max", kNoLimit);
  const std::uint64_t used = number_in_file(group + "/memory.current", 0);
  return std::min(machine, most > used ? most - used : 0);
}

std::uint64_t fitting_size(std::uint64_t wanted, std::uint64_t available) {
  while (wanted > kSizeMin && 2 * wanted + kSlack > available)
    wanted /= 2;
  return wanted;
}

}  // namespace verbena::cli
