// SPDX-License-Identifier: MIT
// The Ethernet address behind an IP address, from the kernel's routes and neighbours (rtnetlink).
// RoCEv2 through UDP sockets never needs it; programs that write Ethernet headers themselves ask
// for it.
#pragma once

#include <array>
#include <cstdint>

#include "base/result.h"
#include "verbs/abi/entry.h"

namespace verbena::verbs {

inline constexpr std::uint16_t kNoVlan = 0xffff;

using Mac = std::array<std::uint8_t, ETHERNET_LL_SIZE>;

struct EthernetAddress {
  Mac mac = {};
  std::uint16_t vlan = kNoVlan;
};

// RFC 1112, 6.4 and RFC 2464, 7: a group's Ethernet address is made of its IP address. All zeros
// for a unicast one.
Mac group_mac(const ibv_gid& gid);

// The next hop towards `destination`, seen from the interface `interface_index` (which an fe80::
// address needs). Asks the neighbour when the kernel does not know it yet, for at most a second. A
// refusal is an errno value.
Result<EthernetAddress, int> resolve_ethernet(const ibv_gid& destination,
                                              std::uint32_t interface_index);

}  // namespace verbena::verbs
