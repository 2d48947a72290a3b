// SPDX-License-Identifier: MIT
// Slots: places on this host, and the abstract unix names that stand for them.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstdint>
#include <string_view>

#include "base/types.h"

namespace verbena::host {

// A set of slots, as it also lies in frames (greeting.h).
struct SlotSet {
  std::uint64_t words[kSlotCount / 64] = {};

  bool has(SlotNumber slot) const {
    return slot.value < kSlotCount && (words[slot.value / 64] >> slot.value % 64 & 1) != 0;
  }
  void add(SlotNumber slot) {
    words[slot.value / 64 % (kSlotCount / 64)] |= std::uint64_t{1} << slot.value % 64;
  }
  bool empty() const {
    std::uint64_t any = 0;
    for (const std::uint64_t word : words)
      any |= word;
    return any == 0;
  }
};
static_assert(sizeof(SlotSet) == kSlotCount / 8);

// The abstract name of a slot: a zero byte, the prefix, the number; nothing after it.
struct SlotAddress {
  SlotAddress(std::string_view prefix, SlotNumber slot);
  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&name); }

  sockaddr_un name{};
  socklen_t size = 0;
};

}  // namespace verbena::host
