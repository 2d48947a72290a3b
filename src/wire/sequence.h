// SPDX-License-Identifier: MIT
// Packet and message sequence numbers: 24 bits, and they wrap (IBTA vol 1, 9.7.1 and 9.7.5.1.1).
#pragma once

#include <cstdint>

namespace verbena::wire {

// A 24-bit number on a circle. Of two numbers the later one is at most 2^23 - 1 ahead. There is no
// operator<: on a circle nothing is first, so say `a - b < 0`.
template <class Tag>
class Circular24 {
 public:
  static constexpr std::uint32_t kMask = 0xFFFFFF;

  constexpr Circular24() = default;
  constexpr explicit Circular24(std::uint32_t value) : value_(value & kMask) {}
  constexpr std::uint32_t value() const { return value_; }
  constexpr Circular24 next() const { return Circular24(value_ + 1); }
  constexpr Circular24 previous() const { return Circular24(value_ - 1); }

  // Steps from `b` to `a`: negative when `a` is the earlier one.
  friend constexpr std::int32_t operator-(Circular24 a, Circular24 b) {
    return static_cast<std::int32_t>((a.value_ - b.value_) << 8) >> 8;
  }
  friend constexpr Circular24 operator+(Circular24 a, std::uint32_t steps) {
    return Circular24(a.value_ + steps);
  }
  friend constexpr Circular24 operator-(Circular24 a, std::uint32_t steps) {
    return Circular24(a.value_ - steps);
  }
  friend constexpr bool operator==(Circular24, Circular24) = default;

 private:
  std::uint32_t value_ = 0;
};

// A packet sequence number.
using Psn = Circular24<struct PsnTag>;
constexpr Psn later(Psn a, Psn b) { return a - b > 0 ? a : b; }
constexpr Psn earlier(Psn a, Psn b) { return a - b < 0 ? a : b; }
// A message sequence number: how many messages the responder has completed.
using Msn = Circular24<struct MsnTag>;

// The PSNs before the expected one that are duplicates; the other half of the circle is ahead
// (9.7.1).
inline constexpr std::uint32_t kPsnRegion = 1u << 23;

// Packets that a message of `length` bytes takes, and PSNs that the answer to a READ of it takes: 0
// bytes are one packet.
constexpr std::uint32_t packets_of(std::uint64_t length, std::uint32_t path_mtu) {
  return length == 0 ? 1 : static_cast<std::uint32_t>((length + path_mtu - 1) / path_mtu);
}

static_assert(Psn(0) - Psn(0xFFFFFF) == 1);
static_assert(Psn(0xFFFFFF) - Psn(0) == -1);
static_assert(Psn(0xFFFFFF).next() == Psn(0));
static_assert(Psn(0x800000) - Psn(0) == -0x800000);

}  // namespace verbena::wire
