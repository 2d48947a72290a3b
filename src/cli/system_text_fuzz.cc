// SPDX-License-Identifier: MIT
// Any text of /proc and /sys that the command reads: a mask has the processors of its list, and a
// line of /proc/net/tcp that listens is understood as such.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "base/assert.h"
#include "base/test_input.h"
#include "cli/system_text.h"

using namespace verbena::cli;  // NOLINT(google-build-using-namespace): a fuzzer is one function

namespace {

constexpr unsigned kCpus = 8192;

// Of all words, the last has the lowest processors.
bool has_cpu(const std::string& mask, unsigned cpu) {
  const std::size_t words = 1 + static_cast<std::size_t>(std::ranges::count(mask, ','));
  if (cpu / 32 >= words) return false;
  std::size_t at = 0;
  for (std::size_t skipped = words - 1 - cpu / 32; skipped > 0; --skipped)
    at = mask.find(',', at) + 1;
  return (std::stoul(mask.substr(at), nullptr, 16) >> cpu % 32 & 1) != 0;
}

void look_at_list(const std::string& text) {
  const std::string mask = cpu_mask(text);
  VERBENA_ASSERT(!mask.empty() && mask.size() <= kCpus / 32 * 9);
  VERBENA_ASSERT(mask.find_first_not_of("0123456789abcdef,") == std::string::npos);
}

// What the kernel would write.
void look_at_made(verbena::TestInput input) {
  const unsigned first = input.take<std::uint16_t>() % kCpus;
  const unsigned last = std::min(first + input.take(), kCpus - 1);
  const std::string list = std::to_string(first) + "-" + std::to_string(last);
  const std::string mask = cpu_mask(list);
  VERBENA_ASSERT(has_cpu(mask, first) && has_cpu(mask, last) && !has_cpu(mask, last + 1));
  VERBENA_ASSERT(first == 0 || !has_cpu(mask, first - 1));
  char line[128];
  const unsigned port = input.take<std::uint16_t>();
  const unsigned state = input.take();
  const std::uint32_t here = input.take<std::uint32_t>();
  const std::uint32_t there = input.take<std::uint32_t>();
  std::snprintf(line, sizeof line, "%4u: %08X:%04X %08X:%04X %02X 00000000:00000000", state, here,
                port, there, first, state);
  VERBENA_ASSERT(is_listener(line, port) == (state == 0x0A));
  VERBENA_ASSERT(!is_listener(line, port + 1));
}

void look_at_text(const std::string& text) {
  for (const unsigned port : {0u, 4791u, 65'535u})
    static_cast<void>(is_listener(text, port));
  VERBENA_ASSERT(kibibytes_of("MemAvailable:", "MemAvailable: 7 kB\n" + text) == 7);
  static_cast<void>(kibibytes_of("MemAvailable:", text));
  const std::string group = control_group_in(text);
  VERBENA_ASSERT(group.find('\n') == std::string::npos && group.size() <= text.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  look_at_list(text);
  look_at_text(text);
  look_at_made(verbena::TestInput(data, size));
  return 0;
}
