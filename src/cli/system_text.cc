// SPDX-License-Identifier: MIT
#include "cli/system_text.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <vector>

namespace verbena::cli {
namespace {

constexpr unsigned kCpusMax = 8192;  // what the kernel can be built for
constexpr unsigned kTcpListen = 0x0A;

}  // namespace

std::string cpu_mask(const std::string& list) {
  std::vector<std::uint32_t> words(1);
  const char* next = list.c_str();
  while (*next >= '0' && *next <= '9') {
    char* end = nullptr;
    const unsigned long first = std::strtoul(next, &end, 10);
    unsigned long last = first;
    if (*end == '-') last = std::strtoul(end + 1, &end, 10);
    for (unsigned long cpu = first; cpu <= last && cpu < kCpusMax; ++cpu) {
      if (cpu / 32 >= words.size()) words.resize(cpu / 32 + 1);
      words[cpu / 32] |= std::uint32_t{1} << cpu % 32;
    }
    next = *end == ',' ? end + 1 : end;
  }
  char word[16];
  std::snprintf(word, sizeof word, "%x", words.back());
  std::string mask = word;
  for (std::size_t i = words.size() - 1; i > 0; --i) {
    std::snprintf(word, sizeof word, ",%08x", words[i - 1]);
    mask += word;
  }
  return mask;
}

bool is_listener(const std::string& line, unsigned port) {
  unsigned local = 0;
  unsigned state = 0;
  constexpr const char* kLine = "%*d: %*32[0-9A-Fa-f]:%4x %*32[0-9A-Fa-f]:%*4x %2x";
  return std::sscanf(line.c_str(), kLine, &local, &state) == 2 && local == port &&
         state == kTcpListen;
}

std::uint64_t kibibytes_of(std::string_view name, const std::string& meminfo) {
  std::istringstream words(meminfo);
  std::string word;
  std::uint64_t number = 0;
  while (words >> word) {
    if (word == name && words >> number) return number;
  }
  return 0;
}

std::string control_group_in(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("0::")) return line.substr(3);
  }
  return {};
}

}  // namespace verbena::cli
