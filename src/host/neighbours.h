// SPDX-License-Identifier: MIT
// Whether the next machine on the way to an address answers (ARP, neighbour discovery), as the
// kernel's rdma_cm asks before it connects. It needs no privilege.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/types.h"

namespace verbena::host {

enum class Neighbour : std::uint8_t {
  kThere,    // or there is nothing to ask: a tunnel, or a system that does not say
  kUnknown,  // nobody has asked, or there is no answer yet
  kFailed,   // it does not answer
};

struct Hop {
  std::vector<std::byte> address;  // as the kernel's tables have it: four bytes, or sixteen
  std::uint32_t interface = 0;
};
// What an entry of the kernel's table (the body of RTM_NEWNEIGH) says of it; none: it is of
// somebody else.
std::optional<Neighbour> neighbour_in(std::span<const std::byte> entry, const Hop& hop);

// `scope`: the interface of a link-local address, or 0.
Neighbour neighbour_towards(const Gid& destination, std::uint32_t scope);
// Makes the kernel ask, by an empty datagram to the discard port (RFC 863). Never waits.
void ask_neighbour_towards(const Gid& destination, std::uint32_t scope);

}  // namespace verbena::host
