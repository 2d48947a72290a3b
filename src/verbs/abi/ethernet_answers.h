// SPDX-License-Identifier: MIT
// What the kernel answers of the way to a GID, read from netlink's payloads (fixed part and
// attributes).
#pragma once

#include "verbs/abi/entry.h"

// After entry.h, which wants to be first.
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "verbs/abi/ethernet.h"

namespace verbena::verbs {

// A GID as an IP address: v4-mapped ones are IPv4 (RoCEv2 annex A17.4.5.2).
struct IpAddress {
  std::uint8_t family = AF_INET6;
  std::array<std::byte, 16> bytes = {};

  explicit IpAddress(const ibv_gid& gid) {
    constexpr std::uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    if (std::memcmp(gid.raw, kMapped, sizeof(kMapped)) == 0) {
      family = AF_INET;
      std::memcpy(bytes.data(), gid.raw + 12, 4);
    } else {
      std::memcpy(bytes.data(), gid.raw, 16);
    }
  }
  std::span<const std::byte> span() const {
    return std::span(bytes).first(family == AF_INET ? 4 : 16);
  }
  bool is_link_local() const {
    return family == AF_INET6 && bytes[0] == std::byte{0xfe} &&
           (bytes[1] & std::byte{0xc0}) == std::byte{0x80};
  }
};

struct Route {
  bool is_local = false;
  std::uint32_t interface_index = 0;
  IpAddress next_hop;
};

// An answer to RTM_GETROUTE. Nothing: it is none.
std::optional<Route> read_route(std::span<const std::byte> payload, const IpAddress& destination);
// To RTM_GETLINK: the interface's own MAC, and its VLAN where it is one. Nothing: it is none.
std::optional<EthernetAddress> read_link(std::span<const std::byte> payload);
// To RTM_GETNEIGH. Nothing: the kernel does not know it now.
std::optional<Mac> read_neighbour(std::span<const std::byte> payload);

}  // namespace verbena::verbs
