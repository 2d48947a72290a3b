// SPDX-License-Identifier: MIT
#include "host/interfaces.h"

#include <fnmatch.h>
#include <linux/if_addr.h>
#include <linux/if_link.h>
#include <net/if.h>
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

#include "host/netlink.h"

namespace verbena::host {
namespace {

using Bytes = std::span<const std::byte>;

constexpr std::uint32_t kLoopbackMtu = 65536;

Gid ipv4(Bytes address) {
  Gid gid;
  gid.bytes[10] = gid.bytes[11] = 0xFF;
  std::memcpy(gid.bytes + 12, address.data(), 4);
  return gid;
}

Gid loopback_ipv4() {
  const std::byte address[] = {std::byte{127}, {}, {}, std::byte{1}};
  return ipv4(address);
}

Gid loopback_ipv6() {
  Gid gid;
  gid.bytes[15] = 1;
  return gid;
}

bool is_ipv4(const Gid& gid) {
  constexpr std::uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
  return std::memcmp(gid.bytes, kMapped, sizeof kMapped) == 0;
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

bool is_virtual_kind(std::string_view kind) {
  // Not bond, team, vlan, macvlan, ipvlan: those stand for a wire.
  constexpr std::string_view kKinds[] = {"veth", "bridge", "ifb",    "tun",  "dummy",    "sit",
                                         "gre",  "vxlan",  "geneve", "ipip", "nlmon",    "ip6tnl",
                                         "vcan", "can",    "vti",    "vrf",  "wireguard"};
  return std::ranges::find(kKinds, kind) != std::end(kKinds);
}

// Where the system does not tell the kind.
bool has_virtual_name(const std::string& name) {
  constexpr const char* kNames[] = {"veth*", "docker*", "br-*",   "virbr*", "cni*",    "flannel*",
                                    "cali*", "lxc*",    "lxdbr*", "ifb*",   "podman*", "dummy*",
                                    "tun*",  "tap*",    "vnet*",  "kube-*", "cilium*"};
  return std::ranges::any_of(kNames,
                             [&](const char* glob) { return fnmatch(glob, name.c_str(), 0) == 0; });
}

std::string text(Bytes payload) {
  const auto* begin = reinterpret_cast<const char*>(payload.data());
  return {begin, strnlen(begin, payload.size())};
}

std::optional<Interface> parse_link(Bytes message) {
  const auto head = netlink_head<ifinfomsg>(message);
  if (!head) return std::nullopt;
  Interface interface;
  std::optional<std::string> kind;
  interface.index = static_cast<std::uint32_t>(head->ifi_index);
  interface.is_up = (head->ifi_flags & IFF_UP) != 0;
  interface.is_loopback = (head->ifi_flags & IFF_LOOPBACK) != 0;
  netlink_attributes(netlink_tail<ifinfomsg>(message), [&](unsigned type, Bytes payload) {
    if (type == IFLA_IFNAME) interface.name = text(payload);
    if (type == IFLA_MTU) interface.mtu = netlink_u32(payload);
    if (type == IFLA_ADDRESS && payload.size() == sizeof interface.mac) {
      std::memcpy(interface.mac, payload.data(), sizeof interface.mac);
    }
    if (type != IFLA_LINKINFO) return;
    netlink_attributes(payload, [&](unsigned inner, Bytes value) {
      if (inner == IFLA_INFO_KIND) kind = text(value);
    });
  });
  if (interface.name.empty()) return std::nullopt;
  interface.is_virtual =
      !interface.is_loopback && (kind ? is_virtual_kind(*kind) : has_virtual_name(interface.name));
  return interface;
}

// Calls each(index, address, flags).
template <class Each>
bool for_each_address(Each each) {
  return netlink_dump(RTM_GETADDR, AF_UNSPEC, [&](std::uint16_t type, Bytes message) {
    const auto head = netlink_head<ifaddrmsg>(message);
    if (type != RTM_NEWADDR || !head) return true;
    const std::size_t size = head->ifa_family == AF_INET ? 4 : 16;
    if (head->ifa_family != AF_INET && head->ifa_family != AF_INET6) return true;
    Bytes local, address;  // on point-to-point links `address` is the other end's
    std::uint32_t flags = head->ifa_flags;
    netlink_attributes(netlink_tail<ifaddrmsg>(message), [&](unsigned attribute, Bytes payload) {
      if (attribute == IFA_LOCAL) local = payload;
      if (attribute == IFA_ADDRESS) address = payload;
      if (attribute == IFA_FLAGS) flags = netlink_u32(payload);
    });
    const Bytes ours = local.empty() ? address : local;
    if (ours.size() != size) return true;
    Gid gid;
    if (size == 4) {
      gid = ipv4(ours);
    } else {
      std::memcpy(gid.bytes, ours.data(), sizeof gid.bytes);
    }
    each(head->ifa_index, gid, flags);
    return true;
  });
}

// Calls each(index, metric) for every default route.
template <class Each>
void for_each_default_route(std::uint8_t family, Each each) {
  netlink_dump(RTM_GETROUTE, family, [&](std::uint16_t type, Bytes message) {
    const auto head = netlink_head<rtmsg>(message);
    const bool is_default = type == RTM_NEWROUTE && head && head->rtm_dst_len == 0 &&
                            head->rtm_type == RTN_UNICAST && head->rtm_table == RT_TABLE_MAIN &&
                            head->rtm_family == family;
    if (!is_default) return true;
    std::uint32_t metric = 0;
    std::vector<std::uint32_t> indices;
    netlink_attributes(netlink_tail<rtmsg>(message), [&](unsigned attribute, Bytes payload) {
      if (attribute == RTA_PRIORITY) metric = netlink_u32(payload);
      if (attribute == RTA_OIF) indices.push_back(netlink_u32(payload));
      if (attribute != RTA_MULTIPATH) return;
      while (const auto hop = netlink_head<rtnexthop>(payload)) {
        indices.push_back(static_cast<std::uint32_t>(hop->rtnh_ifindex));
        const std::size_t size = RTNH_ALIGN(hop->rtnh_len);
        if (size == 0 || size > payload.size()) break;
        payload = payload.subspan(size);
      }
    });
    for (const std::uint32_t index : indices)
      each(index, metric);
    return true;
  });
}

// By interface: how good its default route is, the lower the better. IPv4's go before IPv6's.
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

bool is_asked_for(const Interface& interface, std::string_view wanted) {
  while (!wanted.empty()) {
    const std::size_t comma = std::min(wanted.find(','), wanted.size());
    const std::string glob(wanted.substr(0, comma));
    if (glob == "all" || fnmatch(glob.c_str(), interface.name.c_str(), 0) == 0) return true;
    wanted.remove_prefix(std::min(comma + 1, wanted.size()));
  }
  return false;
}

bool makes_device(const Interface& interface) {
  if (const char* wanted = std::getenv("VERBENA_DEVICES")) return is_asked_for(interface, wanted);
  if (!interface.is_up || interface.addresses.empty()) return false;
  return interface.has_default_route || !interface.is_virtual;
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
  for_each_address([&](std::uint32_t, const Gid& each, std::uint32_t) { found |= each == gid; });
  return found;
}

}  // namespace

std::vector<Interface> all_interfaces() {
  std::map<std::uint32_t, Interface> found;
  netlink_dump(RTM_GETLINK, AF_UNSPEC, [&](std::uint16_t type, Bytes message) {
    if (type != RTM_NEWLINK) return true;
    if (auto interface = parse_link(message)) found[interface->index] = std::move(*interface);
    return true;
  });
  for_each_address([&](std::uint32_t index, const Gid& gid, std::uint32_t flags) {
    const auto interface = found.find(index);
    if (interface == found.end() || (flags & (IFA_F_TENTATIVE | IFA_F_DADFAILED)) != 0) return;
    interface->second.addresses.push_back(gid);
  });
  for (const auto& [index, goodness] : default_routes()) {
    if (found.contains(index)) found[index].has_default_route = true;
  }
  std::vector<Interface> all;
  for (auto& [index, interface] : found) {
    interface.addresses = by_rank(interface.addresses);
    all.push_back(std::move(interface));
  }
  if (std::ranges::none_of(all, &Interface::is_loopback)) all.push_back(assumed_loopback());
  return all;
}

std::vector<Interface> device_interfaces() {
  std::vector<Interface> all = all_interfaces();
  const auto routes = default_routes();
  std::ranges::sort(all, {}, [&](const Interface& each) {
    const auto route = routes.find(each.index);
    const std::uint64_t goodness = route == routes.end() ? UINT64_MAX : route->second;
    return std::tuple(each.is_loopback, goodness, each.index);
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
