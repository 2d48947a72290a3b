// SPDX-License-Identifier: MIT
// Whether the other end is one of ours, found out in band: docs/decisions/0012. The first packets
// of a reliable connection carry a mark in bits of the BTH that are reserved, "transmitted as 0,
// ignored on receive" (IBTA vol 1, 9.2); another one for what answers, so that nobody agrees by
// sending back what came.
//
//             ┌─ a mark came ────────────────────────► kAgreed: every packet is marked
//   kAsking ──┤
//             └─ an answer without one, or enough asked ─► kStandard ─ a mark came ─► kAgreed
//
// What is known of the peer is never forgotten, so both ends come to the same: whoever has agreed
// marks everything, and whoever sees a mark agrees.
#pragma once

#include <cstdint>

#include "wire/packet.h"

namespace verbena::roce {

// Seven bits; never 0 and never all ones. Another meaning of what follows is another set.
inline constexpr std::uint8_t kRequestMark = 0x35;
inline constexpr std::uint8_t kResponseMark = 0x4A;
// Of a request that takes an acknowledgement along (piggyback.h).
inline constexpr std::uint8_t kPiggybackMark = 0x39;
// Of a NAK, sequence error, that names a gap: it acknowledges nothing, and its MSN is the number of
// packets that are missing.
inline constexpr std::uint8_t kGapMark = 0x4D;

// Who marks keeps what comes so far ahead of a gap, and sends no further.
inline constexpr std::uint32_t kAgreedSpan = 256;

class Agreement {
 public:
  // kOff: neither asks nor answers, like any other NIC.
  enum class State : std::uint8_t { kOff, kAsking, kStandard, kAgreed };

  explicit Agreement(State state) : state_(state) {}

  bool is_agreed() const { return state_ == State::kAgreed; }
  State state() const { return state_; }

  std::uint8_t mark(bool is_response) const {
    if (state_ != State::kAsking && state_ != State::kAgreed) return 0;
    return is_response ? kResponseMark : kRequestMark;
  }
  // A packet has left.
  void sent() {
    if (state_ == State::kAsking && ++questions_ == kQuestions) state_ = State::kStandard;
  }
  // A packet of the peer that belongs to the connection. True: the ends have just agreed.
  bool arrived(const wire::Packet& packet) {
    if (state_ == State::kOff || state_ == State::kAgreed) return false;
    if (is_marked(packet)) {
      state_ = State::kAgreed;
      return true;
    }
    // A request may have left before its sender heard of us.
    if (packet.shape->is_response && state_ == State::kAsking) state_ = State::kStandard;
    return false;
  }

 private:
  // Of packets, for an end that hears nothing but requests without a mark, or nothing at all.
  static constexpr unsigned kQuestions = 4;

  static bool is_marked(const wire::Packet& packet) {
    if (!packet.shape->is_response)
      return packet.mark == kRequestMark || packet.mark == kPiggybackMark;
    return packet.mark == kResponseMark || packet.mark == kGapMark;
  }

  State state_;
  unsigned questions_ = 0;
};

}  // namespace verbena::roce
