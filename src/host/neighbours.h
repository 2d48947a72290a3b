// SPDX-License-Identifier: MIT
// Whether the next machine on the way to an address answers (ARP, neighbour discovery), as the
// kernel's rdma_cm asks before it connects. It needs no privilege.
#pragma once

#include <cstdint>

#include "base/types.h"

namespace verbena::host {

enum class Neighbour : std::uint8_t {
  kThere,    // or there is nothing to ask: a tunnel, or a system that does not say
  kUnknown,  // nobody has asked, or there is no answer yet
  kFailed,   // it does not answer
};

// `scope`: the interface of a link-local address, or 0.
Neighbour neighbour_towards(const Gid& destination, std::uint32_t scope);
// Makes the kernel ask, by an empty datagram to the discard port (RFC 863). Never waits.
void ask_neighbour_towards(const Gid& destination, std::uint32_t scope);

}  // namespace verbena::host
