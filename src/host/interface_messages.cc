// SPDX-License-Identifier: MIT
#include "host/interface_messages.h"

#include <fnmatch.h>
#include <linux/if_addr.h>
#include <linux/if_link.h>
#include <net/if.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>

#include "host/netlink.h"

namespace verbena::host {
namespace {

using Bytes = std::span<const std::byte>;

Gid ipv4(Bytes address) {
  Gid gid;
  gid.bytes[10] = gid.bytes[11] = 0xFF;
  std::memcpy(gid.bytes + 12, address.data(), 4);
  return gid;
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

}  // namespace

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

std::optional<InterfaceAddress> parse_address(Bytes message) {
  const auto head = netlink_head<ifaddrmsg>(message);
  if (!head || (head->ifa_family != AF_INET && head->ifa_family != AF_INET6)) return std::nullopt;
  const std::size_t size = head->ifa_family == AF_INET ? 4 : 16;
  Bytes local, address;  // on point-to-point links `address` is the other end's
  InterfaceAddress found{.interface = head->ifa_index, .gid = {}, .flags = head->ifa_flags};
  netlink_attributes(netlink_tail<ifaddrmsg>(message), [&](unsigned attribute, Bytes payload) {
    if (attribute == IFA_LOCAL) local = payload;
    if (attribute == IFA_ADDRESS) address = payload;
    if (attribute == IFA_FLAGS) found.flags = netlink_u32(payload);
  });
  const Bytes ours = local.empty() ? address : local;
  if (ours.size() != size) return std::nullopt;
  if (size == 4) {
    found.gid = ipv4(ours);
  } else {
    std::memcpy(found.gid.bytes, ours.data(), sizeof found.gid.bytes);
  }
  return found;
}

std::optional<DefaultRoute> parse_default_route(std::uint8_t family, Bytes message) {
  const auto head = netlink_head<rtmsg>(message);
  const bool is_default = head && head->rtm_dst_len == 0 && head->rtm_type == RTN_UNICAST &&
                          head->rtm_table == RT_TABLE_MAIN && head->rtm_family == family;
  if (!is_default) return std::nullopt;
  DefaultRoute route;
  netlink_attributes(netlink_tail<rtmsg>(message), [&](unsigned attribute, Bytes payload) {
    if (attribute == RTA_PRIORITY) route.metric = netlink_u32(payload);
    if (attribute == RTA_OIF) route.interfaces.push_back(netlink_u32(payload));
    if (attribute != RTA_MULTIPATH) return;
    while (const auto hop = netlink_head<rtnexthop>(payload)) {
      route.interfaces.push_back(static_cast<std::uint32_t>(hop->rtnh_ifindex));
      const std::size_t size = RTNH_ALIGN(hop->rtnh_len);
      if (size == 0 || size > payload.size()) break;
      payload = payload.subspan(size);
    }
  });
  return route;
}

}  // namespace verbena::host
