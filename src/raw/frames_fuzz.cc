// SPDX-License-Identifier: MIT
// Any Ethernet frame, and anything that the kernel may say was left undone of it: what flow
// steering sees of it, what it is cut into, and its checksum.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/assert.h"
#include "base/test_input.h"
#include "raw/filter.h"
#include "raw/flow_table.h"
#include "raw/segments.h"

using namespace verbena;       // NOLINT(google-build-using-namespace): a fuzzer is one function
using namespace verbena::raw;  // NOLINT(google-build-using-namespace): a fuzzer is one function

namespace {

Undone take_undone(TestInput& input) {
  Undone undone;
  const std::uint8_t flags = input.take();
  undone.needs_checksum = (flags & 1) != 0;
  undone.joined = static_cast<Undone::Joined>((flags >> 1) % 3);
  const bool is_wild = (flags & 0x80) != 0;
  undone.transport_at = is_wild ? input.take<std::uint32_t>() : input.take();
  undone.checksum_at = is_wild ? input.take<std::uint32_t>() : input.take();
  undone.segment = is_wild ? input.take<std::uint32_t>() : input.take();
  return undone;
}

// A frame that is looked for is found.
void steer(const Key& key, TestInput& input) {
  FlowTable table(4);
  Flow flow{.to = {1}, .value = key};
  for (std::byte& each : std::as_writable_bytes(std::span(&flow.mask, 1)))
    each = static_cast<std::byte>(input.take());
  VERBENA_ASSERT(table.add(flow).has_value());
  std::vector<QpNum> to;
  table.find({.key = key, .heading = Heading::kIn, .length = 0}, to);
  VERBENA_ASSERT(to.size() == 1);
  VERBENA_ASSERT(!filter_for(table.flows()).empty());
}

void cut(std::vector<std::byte> frame, const Undone& undone) {
  const std::size_t size = frame.size();
  std::vector<std::byte> room(size);  // a segment is no longer than the frame
  Segments segments(frame, undone);
  std::size_t count = 0;
  for (;;) {
    const auto segment = segments.next(room);
    if (segment.empty()) break;
    VERBENA_ASSERT(segment.size() <= size);
    VERBENA_ASSERT(++count <= size);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  TestInput input(data, size);
  const Undone undone = take_undone(input);
  const std::size_t masked = input.below(8) * 8;
  TestInput mask(input.take_bytes(masked));
  const auto rest = std::as_bytes(input.take_bytes(size));
  std::vector<std::byte> frame(rest.begin(), rest.end());
  steer(key_of(frame), mask);
  cut(frame, undone);
  finish_checksum(frame, undone);
  return 0;
}
