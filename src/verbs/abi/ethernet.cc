// SPDX-License-Identifier: MIT
// ibv_resolve_eth_l2_from_gid: the route says the interface and the next hop, the neighbour table
// its MAC, the link its VLAN. An address of this host has the MAC of the interface that holds our
// GID.
#include "verbs/abi/ethernet.h"

#include <endian.h>
#include <linux/neighbour.h>
#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "verbs/abi/ethernet_answers.h"
#include "verbs/abi/netlink.h"

namespace verbena::verbs {
namespace {

constexpr unsigned kNeighbourTries = 20;
constexpr timespec kNeighbourPause = {.tv_sec = 0, .tv_nsec = 50'000'000};
constexpr std::uint16_t kDiscardPort = 9;  // RFC 863

std::span<const std::byte> bytes_of(const std::uint32_t& value) {
  return std::as_bytes(std::span(&value, 1));
}

Result<Route, int> find_route(NetlinkSocket& socket, const IpAddress& destination,
                              std::uint32_t interface_index) {
  rtmsg body = {};
  body.rtm_family = destination.family;
  body.rtm_dst_len = static_cast<unsigned char>(8 * destination.span().size());
  NetlinkRequest<rtmsg> request(RTM_GETROUTE, body);
  request.add(RTA_DST, destination.span());
  if (destination.is_link_local()) request.add(RTA_OIF, bytes_of(interface_index));
  const auto answer = socket.ask(request.finished());
  if (!answer) return refuse(answer.error());
  const auto route = read_route(*answer, destination);
  if (!route) return refuse(EBADMSG);
  return *route;
}

// The interface's own MAC, and its VLAN where it is one.
Result<EthernetAddress, int> describe_link(NetlinkSocket& socket, std::uint32_t interface_index) {
  ifinfomsg body = {};
  body.ifi_family = AF_UNSPEC;
  body.ifi_index = static_cast<int>(interface_index);
  const auto answer = socket.ask(NetlinkRequest<ifinfomsg>(RTM_GETLINK, body).finished());
  if (!answer) return refuse(answer.error());
  const auto link = read_link(*answer);
  if (!link) return refuse(EBADMSG);
  return *link;
}

// What the kernel knows of the neighbour now; EAGAIN while it is not known.
Result<Mac, int> look_up_neighbour(NetlinkSocket& socket, const Route& route) {
  ndmsg body = {};
  body.ndm_family = route.next_hop.family;
  body.ndm_ifindex = static_cast<int>(route.interface_index);
  NetlinkRequest<ndmsg> request(RTM_GETNEIGH, body);
  request.add(NDA_DST, route.next_hop.span());
  const auto answer = socket.ask(request.finished());
  if (!answer) return refuse(answer.error() == ENOENT ? EAGAIN : answer.error());
  if (answer->size() < sizeof(body)) return refuse(EBADMSG);
  const auto mac = read_neighbour(*answer);
  if (!mac) return refuse(EAGAIN);
  return *mac;
}

// One empty datagram to the discard port makes the kernel ask for the neighbour; that it is dropped
// there is the idea.
void prompt_neighbour(const Route& route) {
  const UniqueFd socket(::socket(route.next_hop.family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket) return;
  sockaddr_storage address = {};
  socklen_t length = sizeof(sockaddr_in);
  if (route.next_hop.family == AF_INET) {
    sockaddr_in ipv4 = {};
    ipv4.sin_family = AF_INET;
    ipv4.sin_port = htobe16(kDiscardPort);
    std::memcpy(&ipv4.sin_addr, route.next_hop.bytes.data(), sizeof(ipv4.sin_addr));
    std::memcpy(&address, &ipv4, sizeof(ipv4));
  } else {
    sockaddr_in6 ipv6 = {};
    ipv6.sin6_family = AF_INET6;
    ipv6.sin6_port = htobe16(kDiscardPort);
    ipv6.sin6_scope_id = route.next_hop.is_link_local() ? route.interface_index : 0;
    std::memcpy(&ipv6.sin6_addr, route.next_hop.bytes.data(), sizeof(ipv6.sin6_addr));
    std::memcpy(&address, &ipv6, sizeof(ipv6));
    length = sizeof(ipv6);
  }
  // What comes of it shows in the neighbour table.
  [[maybe_unused]] const ssize_t ignored =
      ::sendto(socket.get(), nullptr, 0, MSG_NOSIGNAL | MSG_DONTWAIT,
               reinterpret_cast<const sockaddr*>(&address), length);
}

Result<Mac, int> find_neighbour(NetlinkSocket& socket, const Route& route) {
  for (unsigned attempt = 0; attempt < kNeighbourTries; ++attempt) {
    const auto mac = look_up_neighbour(socket, route);
    if (mac || mac.error() != EAGAIN) return mac;
    if (attempt == 0) prompt_neighbour(route);
    ::nanosleep(&kNeighbourPause, nullptr);
  }
  return refuse(EHOSTUNREACH);
}

}  // namespace

Mac group_mac(const ibv_gid& gid) {
  const IpAddress address(gid);
  const std::uint8_t* last = gid.raw + 12;
  if (address.family == AF_INET) {
    if (last[0] >> 4 != 0xe) return {};
    return {0x01, 0x00, 0x5e, static_cast<std::uint8_t>(last[1] & 0x7f), last[2], last[3]};
  }
  if (gid.raw[0] != 0xff) return {};
  return {0x33, 0x33, last[0], last[1], last[2], last[3]};
}

Result<EthernetAddress, int> resolve_ethernet(const ibv_gid& destination,
                                              std::uint32_t interface_index) {
  auto socket = NetlinkSocket::open();
  if (!socket) return refuse(socket.error());
  if (const Mac group = group_mac(destination); group != Mac{}) {
    const auto link = describe_link(*socket, interface_index);
    if (!link) return refuse(link.error());
    return EthernetAddress{.mac = group, .vlan = link->vlan};
  }
  const auto route = find_route(*socket, IpAddress(destination), interface_index);
  if (!route) return refuse(route.error());
  const std::uint32_t interface =
      route->is_local && interface_index != 0 ? interface_index : route->interface_index;
  auto link = describe_link(*socket, interface);
  if (!link || route->is_local) return link;
  const auto mac = find_neighbour(*socket, *route);
  if (!mac) return refuse(mac.error());
  link->mac = *mac;
  return link;
}

}  // namespace verbena::verbs

// Returns 0, or a negative errno. `vid` is 0xffff where the path has no VLAN tag.
int ibv_resolve_eth_l2_from_gid(ibv_context* context, ibv_ah_attr* attr,
                                std::uint8_t eth_mac[ETHERNET_LL_SIZE], std::uint16_t* vid) {
  using namespace verbena::verbs;
  verbs_context* table = verbs_get_ctx_op(context, query_port);
  if (!table) return -EOPNOTSUPP;
  ibv_port_attr port = {};
  if (const int error = table->query_port(context, attr->port_num, &port, sizeof(port))) {
    return -error;
  }
  if (port.link_layer != IBV_LINK_LAYER_ETHERNET) return -EINVAL;
  ibv_gid_entry own = {};
  if (const int error = gid_entry(context, attr->port_num, attr->grh.sgid_index, &own)) {
    return -error;
  }

  const auto found = resolve_ethernet(attr->grh.dgid, own.ndev_ifindex);
  if (!found) return -found.error();
  std::ranges::copy(found->mac, eth_mac);
  if (vid) *vid = found->vlan;
  return 0;
}
