// SPDX-License-Identifier: MIT
#include "port/connected_ids.h"

#include <linux/net_tstamp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstring>

#include "host/raw_calls.h"
#include "port/udp_socket.h"
#include "wire/ip.h"

namespace verbena::port {
namespace {

namespace raw = host::raw;

constexpr std::size_t kEthernetHead = 14;  // what the loopback interface has, too

bool ask_for_times(int fd, int which) {
  return syscall(SYS_setsockopt, fd, SOL_SOCKET, SO_TIMESTAMPING, &which, sizeof which) == 0;
}

// The identification of a packet that we send to ourselves now.
std::optional<std::uint16_t> id_of_a_packet(int fd, const sockaddr_in& self) {
  std::array<std::byte, 8> content{};
  const iovec piece{content.data(), content.size()};
  if (raw::send_to(fd, piece, MSG_DONTWAIT | MSG_NOSIGNAL, &self, sizeof self) < 0)
    return std::nullopt;
  std::array<std::byte, 128> bytes;
  alignas(cmsghdr) std::array<std::byte, 256> control;
  iovec room{bytes.data(), bytes.size()};
  msghdr message{};
  message.msg_iov = &room;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t size = raw::recvmsg(fd, message, MSG_ERRQUEUE | MSG_DONTWAIT);
  wire::Ipv4Header head;
  if (size < static_cast<ssize_t>(kEthernetHead + sizeof head)) return std::nullopt;
  std::memcpy(&head, bytes.data() + kEthernetHead, sizeof head);
  constexpr wire::Ipv4Header kUsual;
  const bool is_ours = head.version_and_length == kUsual.version_and_length &&
                       head.protocol == kUsual.protocol &&
                       std::memcmp(&head.source, &self.sin_addr, sizeof self.sin_addr) == 0;
  if (!is_ours) return std::nullopt;
  return head.id.value();
}

}  // namespace

// Two, for the count has to be known, and that it is one.
std::optional<std::uint16_t> learn_next_id(int fd, const Gid& self, std::uint16_t port) {
  const sockaddr_in name = ipv4_address(self, port);
  if (!ask_for_times(fd, SOF_TIMESTAMPING_TX_SOFTWARE)) return std::nullopt;
  const auto first = id_of_a_packet(fd, name);
  const auto second = id_of_a_packet(fd, name);
  if (!ask_for_times(fd, 0) || !first || !second) return std::nullopt;
  if (static_cast<std::uint16_t>(*first + 1) != *second) return std::nullopt;
  return static_cast<std::uint16_t>(*second + 1);
}

}  // namespace verbena::port
