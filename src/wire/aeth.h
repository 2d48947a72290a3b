// SPDX-License-Identifier: MIT
// The syndrome of the ACK Extended Transport Header: acknowledged with credits, not ready, or
// refused (IBTA vol 1, 9.7.5.2 and tables there; credits: 9.7.7.2).
#pragma once

#include <array>
#include <cstdint>

namespace verbena::wire {

// Bits 6-5. 2 is reserved, and so is bit 7.
enum class AethKind : std::uint8_t { kAck = 0, kRnrNak = 1, kReserved = 2, kNak = 3 };

// Bits 4-0 of a NAK. 5 to 31 are reserved.
enum class NakCode : std::uint8_t {
  kPsnSequenceError = 0,
  kInvalidRequest = 1,
  kRemoteAccessError = 2,
  kRemoteOperationalError = 3,
  kInvalidRdRequest = 4,
};

// A credit code of 31: the responder does not count credits.
inline constexpr std::uint8_t kCreditsUnlimited = 31;

// How many messages each credit code lets through; 31 stands for no limit.
inline constexpr std::array<std::uint16_t, 31> kCredits = {
    0,   1,   2,   3,   4,    6,    8,    12,   16,   24,   32,   48,    64,    96,    128,  192,
    256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768};

// The largest code that promises no more than `messages`.
constexpr std::uint8_t credit_code(std::uint32_t messages) {
  std::uint8_t code = 0;
  while (code + 1u < kCredits.size() && kCredits[code + 1u] <= messages)
    ++code;
  return code;
}

class Syndrome {
 public:
  constexpr Syndrome() = default;
  constexpr explicit Syndrome(std::uint8_t value) : value_(value) {}
  static constexpr Syndrome ack(std::uint8_t credit_code = kCreditsUnlimited) {
    return of(AethKind::kAck, credit_code);
  }
  // The 5-bit code of ibv_qp_attr.min_rnr_timer; qp::rnr_delay has the durations.
  static constexpr Syndrome rnr_nak(std::uint8_t timer_code) {
    return of(AethKind::kRnrNak, timer_code);
  }
  static constexpr Syndrome nak(NakCode code) {
    return of(AethKind::kNak, static_cast<std::uint8_t>(code));
  }

  constexpr std::uint8_t value() const { return value_; }
  constexpr AethKind kind() const { return static_cast<AethKind>(value_ >> 5 & 3); }
  // The credits of an ACK, the timer of an RNR NAK, the NakCode of a NAK.
  constexpr std::uint8_t code() const { return value_ & 0x1F; }
  constexpr NakCode nak_code() const { return static_cast<NakCode>(code()); }
  constexpr bool is_ack() const { return kind() == AethKind::kAck; }
  // False for what the specification reserves.
  constexpr bool is_defined() const {
    if (value_ >> 7 != 0 || kind() == AethKind::kReserved) return false;
    return kind() != AethKind::kNak ||
           code() <= static_cast<std::uint8_t>(NakCode::kInvalidRdRequest);
  }
  friend constexpr bool operator==(Syndrome, Syndrome) = default;

 private:
  static constexpr Syndrome of(AethKind kind, std::uint8_t code) {
    return Syndrome(static_cast<std::uint8_t>(static_cast<unsigned>(kind) << 5 | (code & 0x1Fu)));
  }
  std::uint8_t value_ = 0;
};

}  // namespace verbena::wire
