// SPDX-License-Identifier: MIT
#include "rdmacm/icmp_error.h"

#include <linux/errqueue.h>
#include <netinet/icmp6.h>
#include <netinet/in.h>
#include <netinet/ip_icmp.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "rdmacm/address.h"

namespace verbena::rdmacm {
namespace {

// Nobody receives there, or somebody on the way forbids it.
bool says_closed(const sock_extended_err& error) {
  if (error.ee_origin == SO_EE_ORIGIN_ICMP) {
    constexpr std::array kCodes{ICMP_PROT_UNREACH, ICMP_PORT_UNREACH, ICMP_NET_ANO, ICMP_HOST_ANO,
                                ICMP_PKT_FILTERED};
    return error.ee_type == ICMP_DEST_UNREACH &&
           std::ranges::find(kCodes, int{error.ee_code}) != kCodes.end();
  }
  if (error.ee_origin == SO_EE_ORIGIN_ICMP6) {
    constexpr std::array kCodes{ICMP6_DST_UNREACH_ADMIN, ICMP6_DST_UNREACH_NOPORT};
    return error.ee_type == ICMP6_DST_UNREACH &&
           std::ranges::find(kCodes, int{error.ee_code}) != kCodes.end();
  }
  return false;
}

std::optional<sock_extended_err> error_in(std::span<const std::byte> control) {
  while (control.size() >= CMSG_LEN(sizeof(sock_extended_err))) {
    cmsghdr head{};
    std::memcpy(&head, control.data(), sizeof head);
    if (head.cmsg_len < sizeof head || head.cmsg_len > control.size()) break;
    const bool is_error = (head.cmsg_level == IPPROTO_IP && head.cmsg_type == IP_RECVERR) ||
                          (head.cmsg_level == IPPROTO_IPV6 && head.cmsg_type == IPV6_RECVERR);
    if (is_error && head.cmsg_len >= CMSG_LEN(sizeof(sock_extended_err))) {
      sock_extended_err error{};
      std::memcpy(&error, control.data() + CMSG_LEN(0), sizeof error);
      return error;
    }
    control = control.subspan(std::min<std::size_t>(CMSG_ALIGN(head.cmsg_len), control.size()));
  }
  return std::nullopt;
}

}  // namespace

bool says_closed(const sockaddr_storage& to, std::span<const std::byte> control, const Gid& host,
                 std::uint16_t port) {
  const auto error = error_in(control);
  const auto asked = Address::from(reinterpret_cast<const sockaddr*>(&to));
  const bool is_ours = asked && asked->gid() == host && asked->port() == port;
  return error && is_ours && says_closed(*error);
}

}  // namespace verbena::rdmacm
