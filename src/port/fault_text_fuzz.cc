// SPDX-License-Identifier: MIT
// Any text as a description of a bad line (`verbena run --fault`, VERBENA_FAULT): it is refused
// with words, or means something that a line can do. The same text as the name of a recording
// (VERBENA_CAPTURE).
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/assert.h"
#include "port/capture_path.h"
#include "port/fault_text.h"

namespace {

void expect_sense(const verbena::port::Impairment& one) {
  constexpr std::uint32_t kAll = 1'000'000;
  VERBENA_ASSERT(one.drop <= kAll && one.duplicate <= kAll && one.corrupt <= kAll &&
                 one.reorder <= kAll);
}

void look_at_path(std::string_view text) {
  constexpr pid_t kProcess = 4'194'304;
  const std::string path = verbena::port::capture_path(text, kProcess);
  if (text.find('%') == std::string_view::npos) VERBENA_ASSERT(path == text);
  std::string escaped;
  for (const char c : text)
    escaped += c == '%' ? "%%" : std::string(1, c);
  VERBENA_ASSERT(verbena::port::capture_path(escaped, kProcess) == text);
  VERBENA_ASSERT(verbena::port::capture_path(escaped + "%p", kProcess) ==
                 std::string(text) + std::to_string(kProcess));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  look_at_path(text);
  const auto faults = verbena::port::parse_faults(text);
  if (!faults) {
    VERBENA_ASSERT(!faults.error().empty());
    return 0;
  }
  expect_sense(faults->in);
  expect_sense(faults->out);
  return 0;
}
