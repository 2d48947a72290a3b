// SPDX-License-Identifier: MIT
#include "verbs/abi/ethernet_answers.h"

#include <linux/if_link.h>
#include <linux/neighbour.h>
#include <linux/rtnetlink.h>

#include <algorithm>
#include <string_view>

#include "verbs/abi/netlink.h"

namespace verbena::verbs {
namespace {

template <class Body>
std::optional<Body> fixed_part(std::span<const std::byte> payload) {
  Body body;
  if (payload.size() < sizeof body) return std::nullopt;
  std::memcpy(&body, payload.data(), sizeof body);
  return body;
}

template <class Body>
std::span<const std::byte> attributes_behind(std::span<const std::byte> payload) {
  static_assert(NLMSG_ALIGN(sizeof(Body)) == sizeof(Body));
  return payload.subspan(sizeof(Body));
}

}  // namespace

std::optional<Route> read_route(std::span<const std::byte> payload, const IpAddress& destination) {
  const auto body = fixed_part<rtmsg>(payload);
  if (!body) return std::nullopt;
  const auto attributes = attributes_behind<rtmsg>(payload);
  Route route{.next_hop = destination};
  route.is_local = body->rtm_type == RTN_LOCAL;
  route.interface_index = read_attribute<std::uint32_t>(attributes, RTA_OIF).value_or(0);
  const auto gateway = find_attribute(attributes, RTA_GATEWAY);
  if (gateway && gateway->size() == destination.span().size()) {
    std::ranges::copy(*gateway, route.next_hop.bytes.begin());
  }
  return route;
}

std::optional<EthernetAddress> read_link(std::span<const std::byte> payload) {
  if (!fixed_part<ifinfomsg>(payload)) return std::nullopt;
  const auto attributes = attributes_behind<ifinfomsg>(payload);
  EthernetAddress link;
  link.mac = read_attribute<Mac>(attributes, IFLA_ADDRESS).value_or(Mac{});
  const auto information = find_attribute(attributes, IFLA_LINKINFO);
  if (!information) return link;
  const auto kind = find_attribute(*information, IFLA_INFO_KIND);
  const auto data = find_attribute(*information, IFLA_INFO_DATA);
  constexpr std::string_view kVlan = "vlan";
  if (kind && data && kind->size() >= kVlan.size() &&
      std::memcmp(kind->data(), kVlan.data(), kVlan.size()) == 0) {
    link.vlan = read_attribute<std::uint16_t>(*data, IFLA_VLAN_ID).value_or(kNoVlan);
  }
  return link;
}

std::optional<Mac> read_neighbour(std::span<const std::byte> payload) {
  constexpr unsigned kUsable =
      NUD_REACHABLE | NUD_STALE | NUD_DELAY | NUD_PROBE | NUD_PERMANENT | NUD_NOARP;
  const auto body = fixed_part<ndmsg>(payload);
  if (!body || (body->ndm_state & kUsable) == 0) return std::nullopt;
  return read_attribute<Mac>(attributes_behind<ndmsg>(payload), NDA_LLADDR);
}

}  // namespace verbena::verbs
