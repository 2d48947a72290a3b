// SPDX-License-Identifier: MIT
// A packet that came to the wrong process of its host, on its way to the right one. That happens
// where the kernel merged packets for two slots into one batch (both from one source port), or
// while the steering program is being changed. No process can put it into another's socket, so the
// port gives it to a callback, and nic carries it over as the bytes below.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "port/port.h"

namespace verbena::port {

// Called on the thread that receives, for each packet of another slot; takes it by copying. False:
// its owner cannot be reached, and the packet is lost.
class HandOver {
 public:
  virtual bool hand_over(SlotNumber owner, const Received& packet) = 0;

 protected:
  ~HandOver() = default;
};

inline constexpr std::size_t kHandOverHead = 48;

// The packet and where it came from as one message, into `into`. 0: it does not fit.
std::size_t pack(const Received& packet, std::span<std::byte> into);

enum class HandOverError : std::uint8_t { kTruncated, kVersion, kLength, kContent };
// What pack() made, by a process that is not trusted. The payload borrows from `message`.
Result<Received, HandOverError> unpack(std::span<const std::byte> message);

}  // namespace verbena::port
