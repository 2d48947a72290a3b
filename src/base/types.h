// SPDX-License-Identifier: MIT
// The numbers of the field as types that cannot be mixed (IBTA vol 1, chapters 3 and 9).
#pragma once

#include <bit>
#include <compare>
#include <cstdint>

namespace verbena {

// A slot: a process's place on this host. 10 bits; a process with many queue pairs holds several.
struct SlotNumber {
  std::uint16_t value = 0;
  friend constexpr auto operator<=>(SlotNumber, SlotNumber) = default;
};
inline constexpr std::uint16_t kSlotCount = 1024;

// A queue pair number: 24 bits, `slot:10 | random:14`. 0 and 1 are the management queue pairs,
// 0xFFFFFF is multicast.
struct QpNum {
  std::uint32_t value = 0;
  static constexpr unsigned kSlotShift = 14;
  static constexpr std::uint32_t kIndexMask = (1u << kSlotShift) - 1;
  static constexpr QpNum of(SlotNumber slot, std::uint32_t index) {
    return {std::uint32_t{slot.value} << kSlotShift | (index & kIndexMask)};
  }
  constexpr SlotNumber slot() const {
    return {static_cast<std::uint16_t>(value >> kSlotShift & (kSlotCount - 1))};
  }
  constexpr std::uint32_t index() const { return value & kIndexMask; }
  constexpr bool is_reserved() const { return value < 2 || value >= 0xFFFFFF; }
  friend constexpr auto operator<=>(QpNum, QpNum) = default;
};
inline constexpr QpNum kMulticastQp{0xFFFFFF};

// A key of a memory region or window; local and remote keys are one number here.
struct MemoryKey {
  std::uint32_t value = 0;
  friend constexpr auto operator<=>(MemoryKey, MemoryKey) = default;
};

// Which protection domain something belongs to. Unique in a process and never used twice.
struct PdId {
  std::uint32_t value = 0;
  friend constexpr auto operator<=>(PdId, PdId) = default;
};

// A GID: 16 bytes in network order, in the field an IPv6 address or an IPv4-mapped one (RoCEv2
// annex A17).
struct Gid {
  std::uint8_t bytes[16] = {};
  friend constexpr auto operator<=>(const Gid&, const Gid&) = default;
  // Asked several times for each packet, and gcc 12 would look at byte after byte.
  friend constexpr bool operator==(const Gid& a, const Gid& b) {
    struct Words {
      std::uint64_t high;
      std::uint64_t low;
    };
    const auto one = std::bit_cast<Words>(a);
    const auto other = std::bit_cast<Words>(b);
    return ((one.high ^ other.high) | (one.low ^ other.low)) == 0;
  }
};

// One piece of a program's memory in a work request (IBTA vol 1, 10.7.3). A length of 0 is 0 bytes
// here; what a program means by 0 is settled at the C border.
struct Sge {
  std::uint64_t address = 0;
  std::uint32_t length = 0;
  MemoryKey key;
};
static_assert(sizeof(Sge) == 16);

}  // namespace verbena
