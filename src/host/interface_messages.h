// SPDX-License-Identifier: MIT
// What messages of rtnetlink(7) say of interfaces, addresses and routes. A message is what follows
// the netlink header; one that says nothing of that is none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/types.h"
#include "host/interfaces.h"

namespace verbena::host {

// RTM_NEWLINK. Without addresses and routes.
std::optional<Interface> parse_link(std::span<const std::byte> message);

struct InterfaceAddress {
  std::uint32_t interface = 0;
  Gid gid;
  std::uint32_t flags = 0;  // IFA_F_*
};
// RTM_NEWADDR.
std::optional<InterfaceAddress> parse_address(std::span<const std::byte> message);

struct DefaultRoute {
  std::vector<std::uint32_t> interfaces;
  std::uint32_t metric = 0;
};
// RTM_NEWROUTE.
std::optional<DefaultRoute> parse_default_route(std::uint8_t family,
                                                std::span<const std::byte> message);

}  // namespace verbena::host
