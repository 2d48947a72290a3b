// SPDX-License-Identifier: MIT
#include "port/udp_message.h"

#include <linux/udp.h>

#include <cerrno>
#include <cstring>

#include "base/assert.h"
#include "host/raw_calls.h"
#include "port/udp_socket.h"
#include "wire/ip.h"

namespace verbena::port {

namespace raw = host::raw;

template <class T>
void UdpMessage::add(int level, int type, const T& value) {
  VERBENA_ASSERT(header_.msg_controllen + CMSG_SPACE(sizeof value) <= sizeof control_);
  auto* const control = reinterpret_cast<cmsghdr*>(control_ + header_.msg_controllen);
  control->cmsg_level = level;
  control->cmsg_type = type;
  control->cmsg_len = CMSG_LEN(sizeof value);
  std::memcpy(CMSG_DATA(control), &value, sizeof value);
  header_.msg_controllen += CMSG_SPACE(sizeof value);
}

void UdpMessage::add_route(const Route& route, bool is_bound) {
  const bool ipv4 = wire::is_ipv4(route.to);
  // An interface is named only where the address does not say enough: naming it otherwise would
  // keep packets to addresses of this host from taking their short way.
  const bool by_interface = wire::is_multicast(route.to) || is_link_local(route.to);
  if (!is_bound && (route.from != Gid{} || by_interface)) {
    if (has_ipv6_sockets()) {
      in6_pktinfo info{};
      std::memcpy(&info.ipi6_addr, route.from.bytes, sizeof route.from.bytes);
      if (by_interface) info.ipi6_ifindex = route.interface;
      add(IPPROTO_IPV6, IPV6_PKTINFO, info);
    } else {
      in_pktinfo info{};
      std::memcpy(&info.ipi_spec_dst, route.from.bytes + 12, 4);
      if (by_interface) info.ipi_ifindex = static_cast<int>(route.interface);
      add(IPPROTO_IP, IP_PKTINFO, info);
    }
  }
  const int traffic_class = (route.traffic_class & 0xFC) | static_cast<int>(route.ecn);
  if (traffic_class != 0) {
    if (ipv4) {
      add(IPPROTO_IP, IP_TOS, traffic_class);
    } else {
      add(IPPROTO_IPV6, IPV6_TCLASS, traffic_class);
    }
  }
  if (route.hop_limit != 0) {
    const int hops = route.hop_limit;
    if (ipv4) {
      add(IPPROTO_IP, IP_TTL, hops);
    } else {
      add(IPPROTO_IPV6, IPV6_HOPLIMIT, hops);
    }
  }
}

void UdpMessage::set(const Train& train, std::span<const std::byte> bytes, std::uint16_t port,
                     bool is_bound) {
  header_ = {};
  header_.msg_name = &to_;
  header_.msg_namelen = to_socket_address(train.route.to, train.route.interface, port, to_);
  piece_ = {const_cast<std::byte*>(bytes.data()), bytes.size()};
  header_.msg_iov = &piece_;
  header_.msg_iovlen = 1;
  header_.msg_control = control_;
  add_route(train.route, is_bound);
  if (bytes.size() > train.segment_size) {
    add(IPPROTO_UDP, UDP_SEGMENT, static_cast<std::uint16_t>(train.segment_size));
  }
}

// Where there is nothing to say but where it goes, the kernel need not read what describes the
// call, which costs it 100 ns. A filter may know the other call only.
ssize_t UdpMessage::send(int fd, int flags) const {
  if (header_.msg_controllen == 0) {
    const ssize_t sent = raw::send_to(fd, piece_, flags, header_.msg_name, header_.msg_namelen);
    if (sent >= 0 || (errno != ENOSYS && errno != EPERM)) return sent;
  }
  return raw::sendmsg(fd, header_, flags);
}

}  // namespace verbena::port
