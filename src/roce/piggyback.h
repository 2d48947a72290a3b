// SPDX-License-Identifier: MIT
// An acknowledgement that goes along with a request: behind the payload of a SEND of one packet,
// between ends that have agreed (docs/decisions/0030). It says what an ACK packet would.
//
//    byte 0   0
//         1   PSN   what is acknowledged, and all before it
//         4   AETH  a positive syndrome, and the MSN
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "wire/packet.h"

namespace verbena::roce {

inline constexpr std::size_t kPiggybackBytes = 8;

struct Piggyback {
  wire::Psn psn{};
  wire::Msn msn{};
  friend bool operator==(const Piggyback&, const Piggyback&) = default;
};

void encode(const Piggyback& along, std::span<std::byte, kPiggybackBytes> to);

// What the request took along, in the last bytes of its payload. Nothing: `packet` is not one that
// may take something along, or what it took is no ACK.
std::optional<Piggyback> piggyback_of(const wire::Packet& packet);
// The same of the payload of such a packet.
std::optional<Piggyback> piggyback_in(std::span<const std::byte> payload);

// Whoever owes the peer acknowledgements.
class Owing {
 public:
  virtual bool owes() const = 0;
  // What would be said next, where it is an ACK. Nothing changes.
  virtual std::optional<Piggyback> owed() const = 0;
  // That went along.
  virtual void went_along() = 0;

 protected:
  ~Owing() = default;
};

}  // namespace verbena::roce
