// SPDX-License-Identifier: MIT
// Any bytes of a peer or of the kernel: nothing is read beyond them, and what is accepted keeps its
// promises.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "base/assert.h"
#include "host/greeting.h"
#include "host/netlink.h"

using namespace verbena::host;  // NOLINT(google-build-using-namespace): a fuzzer is one function

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  if (const auto frame = parse_frame(bytes)) {
    VERBENA_ASSERT(frame->body.size() + sizeof(FrameHead) == size && size <= kFrameMax);
    if (const auto greeting = parse_greeting(*frame)) {
      VERBENA_ASSERT(greeting->wanted_slot < verbena::kSlotCount && !greeting->slots.empty());
    }
    if (const auto slots = parse_slots(*frame)) VERBENA_ASSERT(!slots->empty());
  }
  std::size_t seen = 0;
  netlink_attributes(bytes,
                     [&](unsigned, std::span<const std::byte> payload) { seen += payload.size(); });
  VERBENA_ASSERT(seen <= size);
  return 0;
}
