// SPDX-License-Identifier: MIT
#include "host/neighbours.h"

#include <linux/neighbour.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "host/interfaces.h"
#include "host/netlink.h"

namespace verbena::host {
namespace {

constexpr std::uint16_t kDiscardPort = 0x0900;  // 9, in network order
constexpr unsigned kAnswers =
    NUD_PERMANENT | NUD_NOARP | NUD_REACHABLE | NUD_STALE | NUD_DELAY | NUD_PROBE;

// As the kernel's tables have it: four bytes, or sixteen.
std::vector<std::byte> address_of(const Gid& gid) {
  const auto all = std::as_bytes(std::span(gid.bytes)).subspan(is_ipv4(gid) ? 12 : 0);
  return {all.begin(), all.end()};
}

// The destination itself, or the router that leads there.
std::optional<Hop> next_hop(const Gid& destination, std::uint32_t scope) {
  Hop hop{.address = address_of(destination), .interface = scope};
  if (scope != 0) return hop;
  const auto family = static_cast<std::uint8_t>(is_ipv4(destination) ? AF_INET : AF_INET6);
  const bool is_told =
      netlink_route(family, hop.address, [&](unsigned type, std::span<const std::byte> payload) {
        if (type == RTA_OIF) hop.interface = netlink_u32(payload);
        if (type == RTA_GATEWAY) hop.address.assign(payload.begin(), payload.end());
      });
  if (!is_told || hop.interface == 0) return std::nullopt;
  return hop;
}

// Of an interface on which nobody is asked.
bool asks_nobody(std::uint32_t interface) {
  ifreq request{};
  const UniqueFd socket = socket_for_a_moment(AF_INET, SOCK_DGRAM, 0);
  if (!socket || !if_indextoname(interface, request.ifr_name)) return true;
  if (ioctl(socket.get(), SIOCGIFFLAGS, &request) != 0) return true;
  return (request.ifr_flags & (IFF_LOOPBACK | IFF_NOARP | IFF_POINTOPOINT)) != 0;
}

}  // namespace

std::optional<Neighbour> neighbour_in(std::span<const std::byte> entry, const Hop& hop) {
  const auto head = netlink_head<ndmsg>(entry);
  if (!head || static_cast<std::uint32_t>(head->ndm_ifindex) != hop.interface) return std::nullopt;
  std::optional<Neighbour> found;
  netlink_attributes(netlink_tail<ndmsg>(entry),
                     [&](unsigned attribute, std::span<const std::byte> payload) {
                       if (attribute != NDA_DST || !std::ranges::equal(payload, hop.address))
                         return;
                       if (head->ndm_state & kAnswers) found = Neighbour::kThere;
                       if (head->ndm_state & NUD_FAILED) found = Neighbour::kFailed;
                     });
  return found;
}

Neighbour neighbour_towards(const Gid& destination, std::uint32_t scope) {
  const auto hop = next_hop(destination, scope);
  if (!hop || asks_nobody(hop->interface)) return Neighbour::kThere;
  Neighbour found = Neighbour::kUnknown;
  const auto look = [&](std::uint16_t type, std::span<const std::byte> entry) {
    if (type == RTM_NEWNEIGH) found = neighbour_in(entry, *hop).value_or(found);
    return true;
  };
  const auto family = static_cast<std::uint8_t>(is_ipv4(destination) ? AF_INET : AF_INET6);
  return netlink_dump(RTM_GETNEIGH, family, look) ? found : Neighbour::kThere;
}

void ask_neighbour_towards(const Gid& destination, std::uint32_t scope) {
  const bool ipv4 = is_ipv4(destination);
  const UniqueFd socket = socket_for_a_moment(ipv4 ? AF_INET : AF_INET6, SOCK_DGRAM, 0);
  if (!socket) return;
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = kDiscardPort;
  std::memcpy(&v4.sin_addr, destination.bytes + 12, sizeof v4.sin_addr);
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = kDiscardPort;
  v6.sin6_scope_id = scope;
  std::memcpy(&v6.sin6_addr, destination.bytes, sizeof v6.sin6_addr);
  const auto* const to =
      ipv4 ? reinterpret_cast<const sockaddr*>(&v4) : reinterpret_cast<const sockaddr*>(&v6);
  [[maybe_unused]] const ssize_t ignored =
      sendto(socket.get(), nullptr, 0, MSG_DONTWAIT | MSG_NOSIGNAL, to,
             ipv4 ? socklen_t{sizeof v4} : socklen_t{sizeof v6});
}

}  // namespace verbena::host
