// SPDX-License-Identifier: MIT
#include "host/interfaces.h"

#include <fnmatch.h>
#include <linux/if_addr.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include "host/interface_messages.h"
#include "host/netlink.h"

namespace verbena::host {
namespace {

using Bytes = std::span<const std::byte>;

constexpr std::uint32_t kLoopbackMtu = 65536;

Gid loopback_ipv4() {
  Gid gid;
  gid.bytes[10] = gid.bytes[11] = 0xFF;
  gid.bytes[12] = 127;
  gid.bytes[15] = 1;
  return gid;
}

Gid loopback_ipv6() {
  Gid gid;
  gid.bytes[15] = 1;
  return gid;
}

bool is_link_local(const Gid& gid) { return gid.bytes[0] == 0xFE && (gid.bytes[1] & 0xC0) == 0x80; }

// Place among an interface's GIDs. The first is the link-local one, as RoCE devices have it.
int rank(const Gid& gid) { return is_link_local(gid) ? 0 : is_ipv4(gid) ? 1 : 2; }

std::vector<Gid> by_rank(const std::vector<Gid>& gids) {
  std::vector<Gid> sorted;
  for (const int wanted : {0, 1, 2}) {
    std::ranges::copy_if(gids, std::back_inserter(sorted),
                         [&](const Gid& gid) { return rank(gid) == wanted; });
  }
  return sorted;
}

// Calls each(address).
template <class Each>
bool for_each_address(Each each) {
  return netlink_dump(RTM_GETADDR, AF_UNSPEC, [&](std::uint16_t type, Bytes message) {
    if (type != RTM_NEWADDR) return true;
    if (const auto address = parse_address(message)) each(*address);
    return true;
  });
}

// Calls each(index, metric) for every default route.
template <class Each>
void for_each_default_route(std::uint8_t family, Each each) {
  netlink_dump(RTM_GETROUTE, family, [&](std::uint16_t type, Bytes message) {
    if (type != RTM_NEWROUTE) return true;
    const auto route = parse_default_route(family, message);
    if (!route) return true;
    for (const std::uint32_t index : route->interfaces)
      each(index, route->metric);
    return true;
  });
}

// Interface::route_rank, by interface.
std::map<std::uint32_t, std::uint64_t> default_routes() {
  std::map<std::uint32_t, std::uint64_t> best;
  for (const std::uint8_t family : {std::uint8_t{AF_INET}, std::uint8_t{AF_INET6}}) {
    const std::uint64_t base = family == AF_INET ? 0 : std::uint64_t{1} << 32;
    for_each_default_route(family, [&](std::uint32_t index, std::uint32_t metric) {
      const auto [place, is_new] = best.try_emplace(index, base + metric);
      if (!is_new) place->second = std::min(place->second, base + metric);
    });
  }
  return best;
}

bool makes_device(const Interface& interface) {
  if (const char* wanted = std::getenv("VERBENA_DEVICES"))
    return is_asked_for(interface.name, wanted);
  if (!interface.is_up || interface.addresses.empty()) return false;
  return interface.route_rank || !interface.is_virtual;
}

void complete_loopback(Interface& lo) {
  lo.is_loopback = true;
  if (lo.is_up && !lo.addresses.empty()) return;
  lo.is_up = true;
  for (const Gid& gid : {loopback_ipv4(), loopback_ipv6()}) {
    if (std::ranges::find(lo.addresses, gid) == lo.addresses.end()) lo.addresses.push_back(gid);
  }
}

Interface assumed_loopback() {
  return {.name = "lo",
          .index = 1,
          .mac = {},
          .mtu = kLoopbackMtu,
          .is_up = true,
          .is_loopback = true,
          .addresses = {loopback_ipv4(), loopback_ipv6()}};
}

bool is_loopback_address(const Gid& gid) {
  return is_ipv4(gid) ? gid.bytes[12] == 127 : gid == loopback_ipv6();
}

bool is_among_addresses(const Gid& gid) {
  bool found = false;
  for_each_address([&](const InterfaceAddress& each) { found |= each.gid == gid; });
  return found;
}

}  // namespace

bool is_ipv4(const Gid& gid) {
  constexpr std::uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
  return std::memcmp(gid.bytes, kMapped, sizeof kMapped) == 0;
}

bool is_asked_for(const std::string& name, std::string_view wanted) {
  while (!wanted.empty()) {
    const std::size_t comma = std::min(wanted.find(','), wanted.size());
    const std::string glob(wanted.substr(0, comma));
    if (glob == "all" || fnmatch(glob.c_str(), name.c_str(), 0) == 0) return true;
    wanted.remove_prefix(std::min(comma + 1, wanted.size()));
  }
  return false;
}

std::optional<std::vector<Interface>> find_interfaces() {
  std::map<std::uint32_t, Interface> found;
  const bool knows_links =
      netlink_dump(RTM_GETLINK, AF_UNSPEC, [&](std::uint16_t type, Bytes message) {
        if (type != RTM_NEWLINK) return true;
        if (auto interface = parse_link(message)) found[interface->index] = std::move(*interface);
        return true;
      });
  const bool knows_addresses =
      knows_links && for_each_address([&](const InterfaceAddress& each) {
        const auto interface = found.find(each.interface);
        if (interface == found.end() || (each.flags & (IFA_F_TENTATIVE | IFA_F_DADFAILED)) != 0)
          return;
        std::vector<Gid>& known = interface->second.addresses;
        if (std::ranges::find(known, each.gid) == known.end()) known.push_back(each.gid);
      });
  if (!knows_addresses) return std::nullopt;
  for (const auto& [index, rank] : default_routes()) {
    if (found.contains(index)) found[index].route_rank = rank;
  }
  std::vector<Interface> all;
  for (auto& [index, interface] : found) {
    interface.addresses = by_rank(interface.addresses);
    all.push_back(std::move(interface));
  }
  if (std::ranges::none_of(all, &Interface::is_loopback)) all.push_back(assumed_loopback());
  return all;
}

std::vector<Interface> all_interfaces() {
  auto found = find_interfaces();
  return found ? std::move(*found) : std::vector{assumed_loopback()};
}

std::vector<Interface> device_interfaces(std::vector<Interface> all) {
  std::ranges::sort(all, {}, [](const Interface& each) {
    return std::tuple(each.is_loopback, each.route_rank.value_or(UINT64_MAX), each.index);
  });
  std::erase_if(all,
                [](const Interface& each) { return !each.is_loopback && !makes_device(each); });
  for (Interface& each : all) {
    if (each.is_loopback) complete_loopback(each);
  }
  return all;
}

bool is_local_address(const Gid& gid) {
  if (is_loopback_address(gid)) return true;
  const bool is_none = is_ipv4(gid) ? gid.bytes[12] == 0 || gid.bytes[12] >= 224
                                    : gid == Gid{} || gid.bytes[0] == 0xFF;
  if (is_none) return false;
  // A link-local address says nothing to the kernel without its interface.
  if (is_link_local(gid)) return is_among_addresses(gid);
  const std::span bytes(gid.bytes);
  const auto route = is_ipv4(gid) ? netlink_route_type(AF_INET, bytes.subspan(12))
                                  : netlink_route_type(AF_INET6, bytes);
  // An interface that is down has addresses without routes; on one host they serve none the less.
  return route == RTN_LOCAL || is_among_addresses(gid);
}

}  // namespace verbena::host
