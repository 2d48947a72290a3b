// SPDX-License-Identifier: MIT
// Any text as a description of a bad line (`verbena run --fault`, VERBENA_FAULT): it is refused
// with words, or means something that a line can do.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/assert.h"
#include "port/fault_text.h"

namespace {

void expect_sense(const verbena::port::Impairment& one) {
  constexpr std::uint32_t kAll = 1'000'000;
  VERBENA_ASSERT(one.drop <= kAll && one.duplicate <= kAll && one.corrupt <= kAll &&
                 one.reorder <= kAll);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto faults = verbena::port::parse_faults(text);
  if (!faults) {
    VERBENA_ASSERT(!faults.error().empty());
    return 0;
  }
  expect_sense(faults->in);
  expect_sense(faults->out);
  return 0;
}
