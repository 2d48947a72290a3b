// SPDX-License-Identifier: MIT
// What the error queue of a UDP socket says (ip(7) and ipv6(7), RECVERR).
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/types.h"

namespace verbena::rdmacm {

// Whether it is that nobody receives at that port of that host, or that somebody on the way forbids
// it. `to`: where what was sent went.
bool says_closed(const sockaddr_storage& to, std::span<const std::byte> control, const Gid& host,
                 std::uint16_t port);

}  // namespace verbena::rdmacm
