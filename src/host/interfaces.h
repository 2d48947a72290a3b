// SPDX-License-Identifier: MIT
// The network interfaces of this network namespace, as far as an ordinary user may see them, and
// which of them make devices (architecture section 1).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace verbena::host {

struct Interface {
  std::string name;
  std::uint32_t index = 0;
  std::uint8_t mac[6] = {};  // zero where there is none
  std::uint32_t mtu = 0;
  bool is_up = false;
  bool is_loopback = false;
  // Made for containers or by tools: veth, bridge, ifb, tun, dummy ...
  bool is_virtual = false;
  // Of its default route, where it has one: the lower the better. IPv4's go before IPv6's.
  std::optional<std::uint64_t> route_rank = std::nullopt;
  // IPv6 link-local first, then IPv4 (mapped), then other IPv6. Not those that are not usable yet.
  std::vector<Gid> addresses;
};

// All of them, by index. None: the system does not say, for want of a descriptor, or ever.
std::optional<std::vector<Interface>> find_interfaces();
// The same; where the system does not say: `lo` alone.
std::vector<Interface> all_interfaces();

// Those that make devices, in the order in which programs see them: the default route's first, `lo`
// last. Left out are those that are down or have no address, and virtual ones without the default
// route (in a container, that one is usually a veth). Where VERBENA_DEVICES is set, it alone
// decides: a comma-separated list of names or globs, or "all". `lo` is always there; where it is
// down or has no address, it is as if it were up with 127.0.0.1 and ::1, because on one host no
// packet is sent.
std::vector<Interface> device_interfaces(std::vector<Interface> all);

// Whether a value of VERBENA_DEVICES names the interface.
bool is_asked_for(const std::string& name, std::string_view wanted);

// An IPv4-mapped address.
bool is_ipv4(const Gid& gid);
// Whether the GID is an address of this network namespace, now: it keeps what is sent there, or
// some interface has it. Some ten to thirty microseconds.
bool is_local_address(const Gid& gid);

}  // namespace verbena::host
