// SPDX-License-Identifier: MIT
// What leaves by a connected socket over IPv4 has an identification that the kernel counts, from a
// number that it chose, and the ICRC covers it. So it is found out: packets to ourselves come back
// to the error queue with their heads, if the times at which they left are asked for
// (SO_TIMESTAMPING; Linux's networking/timestamping). From then on it is known for each packet, or
// train, before it is sent, as long as only one thread sends at a time and no call fails.
// docs/decisions/0031.
#pragma once

#include <cstdint>
#include <optional>

#include "base/types.h"

namespace verbena::port {

// Of what this socket sends next. `self`, `port`: what it is bound to, an IPv4 address. None: this
// kernel counts in another way, or does not tell.
std::optional<std::uint16_t> learn_next_id(int fd, const Gid& self, std::uint16_t port);

}  // namespace verbena::port
