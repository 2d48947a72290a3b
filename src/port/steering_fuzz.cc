// SPDX-License-Identifier: MIT
// Any UDP payload at a port that processes share, and any table of who holds which socket: the
// program in the kernel and the table agree whose it is. The same bytes as what members of the
// group tell each other.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "base/test_input.h"
#include "port/group_message.h"
#include "port/steering.h"
#include "port/test_interpreter.h"

using namespace verbena;        // NOLINT(google-build-using-namespace): a fuzzer is one function
using namespace verbena::port;  // NOLINT(google-build-using-namespace): a fuzzer is one function

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (const auto message = parse_group_message(std::as_bytes(std::span(data, size)))) {
    VERBENA_ASSERT(size == sizeof(GroupMessage) && message->slot < kSlotCount);
  }
  // From the end, so that recorded packets are inputs as they are.
  TestInput table(std::span(data, size).last(std::min<std::size_t>(size, 24)));
  std::array<SlotNumber, 3> slots{};
  for (SlotNumber& slot : slots)
    slot.value = table.take<std::uint16_t>() % kSlotCount;
  Steering steering;
  steering.set_positions(slots);
  static_cast<void>(steering.add_service({table.take<std::uint64_t>(), slots[table.below(3)]}));
  const std::uint16_t fallback = 1;
  const auto payload = std::as_bytes(std::span(data, size));
  const Steering::Owner owner = steering.owner(payload);
  const auto program = steering.program(fallback);
  const std::uint32_t position = Interpreter(program, payload).run();
  VERBENA_ASSERT(position < slots.size());
  if (owner.whose == Steering::Whose::kSlot) {
    VERBENA_ASSERT(steering.position(owner.slot) == position);
  }
  return 0;
}
