// SPDX-License-Identifier: MIT
// The network interfaces of this network namespace, as far as an ordinary user may see them, and
// which of them make devices (architecture section 1).
#pragma once

#include <cstdint>
#include <string>
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
  bool is_virtual =
      false;  // veth, bridge, docker, ifb, tun, dummy ...: made for containers or tools
  bool has_default_route = false;
  std::vector<Gid> addresses;  // IPv6 link-local first, then IPv4 (mapped), then other IPv6
};

// Those that make devices, in the order in which programs see them: the default route's first, `lo`
// last, container-like, down and address-less ones only when VERBENA_DEVICES asks (a
// comma-separated list of names or globs, or "all"). `lo` is always there, as if it had 127.0.0.1
// and ::1.
std::vector<Interface> device_interfaces();

// Whether the GID is an address of this network namespace. Cheap enough for every connection.
bool is_local_address(const Gid& gid);

}  // namespace verbena::host
