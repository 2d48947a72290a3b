// SPDX-License-Identifier: MIT
#include "port/udp_channel.h"

#include <linux/filter.h>
#include <linux/net_tstamp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cstring>
#include <optional>

#include "host/raw_calls.h"
#include "port/udp_socket.h"
#include "wire/bytes.h"
#include "wire/ip.h"

namespace verbena::port {
namespace {

namespace raw = host::raw;

constexpr std::size_t kEthernetHead = 14;  // what the loopback interface has, too
// Programs close descriptors that they do not know: after so many packets we look.
constexpr unsigned kBetweenChecks = 256;

template <class T>
bool set_on_channel(int fd, int level, int name, const T& value) {
  return syscall(SYS_setsockopt, fd, level, name, &value, sizeof value) == 0;
}

sockaddr_in ipv4_name(const Gid& address, std::uint16_t port) {
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = std::bit_cast<in_port_t>(wire::be16(port));
  std::memcpy(&name.sin_addr, address.bytes + 12, sizeof name.sin_addr);
  return name;
}

bool bind_and_connect(int fd, const Route& route, std::uint16_t port) {
  sockaddr_storage from{};
  sockaddr_storage to{};
  socklen_t size = sizeof(sockaddr_in);
  if (wire::is_ipv4(route.to)) {
    new (&from) sockaddr_in(ipv4_name(route.from, 0));
    new (&to) sockaddr_in(ipv4_name(route.to, port));
  } else {
    to_socket_address(route.from, route.interface, 0, from);
    size = to_socket_address(route.to, route.interface, port, to);
  }
  return raw::bind(fd, reinterpret_cast<const sockaddr*>(&from), size) == 0 &&
         raw::connect(fd, reinterpret_cast<const sockaddr*>(&to), size) == 0;
}

// As those that all share (make_sender): the same bits of the IP head, and deaf.
bool make_like_senders(int fd, bool is_ipv4) {
  sock_filter drop{BPF_RET | BPF_K, 0, 0, 0};
  set_on_channel(fd, SOL_SOCKET, SO_ATTACH_FILTER, sock_fprog{1, &drop});
  return is_ipv4 ? set_on_channel(fd, IPPROTO_IP, IP_MTU_DISCOVER, int{IP_PMTUDISC_PROBE})
                 : set_on_channel(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, int{IPV6_PMTUDISC_PROBE});
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

std::unique_ptr<UdpChannel> UdpChannel::open(const Route& route, std::uint16_t port,
                                             Counters& counters) {
  const bool is_ipv4 = wire::is_ipv4(route.to);
  if (wire::is_ipv4(route.from) != is_ipv4 || (!is_ipv4 && !has_ipv6_sockets())) return nullptr;
  constexpr int kType = SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
  const auto fd = static_cast<int>(syscall(SYS_socket, is_ipv4 ? AF_INET : AF_INET6, kType, 0));
  if (fd < 0) return nullptr;
  std::unique_ptr<UdpChannel> channel(new UdpChannel(lift_descriptor(fd), counters));
  const bool is_ready = make_like_senders(channel->fd_, is_ipv4) &&
                        bind_and_connect(channel->fd_, route, port) && channel->learn_port() &&
                        (!is_ipv4 || channel->learn_id(route));
  return is_ready ? std::move(channel) : nullptr;
}

UdpChannel::UdpChannel(int fd, Counters& counters)
    : fd_(fd), file_(file_of(fd)), counters_(counters) {}

UdpChannel::~UdpChannel() {
  if (file_of(fd_) == file_) raw::close(fd_);
}

bool UdpChannel::learn_port() {
  source_port_ = bound_port(fd_);
  return source_port_ != 0;
}

// Two, for the count has to be known, and that it is one.
bool UdpChannel::learn_id(const Route& route) {
  const sockaddr_in self = ipv4_name(route.from, source_port_);
  if (!set_on_channel(fd_, SOL_SOCKET, SO_TIMESTAMPING, int{SOF_TIMESTAMPING_TX_SOFTWARE}))
    return false;
  const auto first = id_of_a_packet(fd_, self);
  const auto second = id_of_a_packet(fd_, self);
  if (!first || !second || static_cast<std::uint16_t>(*first + 1) != *second) return false;
  next_id_ = static_cast<std::uint16_t>(*second + 1);
  return set_on_channel(fd_, SOL_SOCKET, SO_TIMESTAMPING, 0);
}

bool UdpChannel::send(std::span<const std::byte> packet) {
  if (++sent_ % kBetweenChecks == 0) is_over_ |= file_of(fd_) != file_;
  if (is_over_) return false;
  const iovec piece{const_cast<std::byte*>(packet.data()), packet.size()};
  if (raw::send_to(fd_, piece, MSG_DONTWAIT | MSG_NOSIGNAL, nullptr, 0) < 0) {
    is_over_ = true;  // the kernel may have counted it
    return false;
  }
  ++next_id_;
  counters_.add(Count::kSentPackets);
  counters_.add(Count::kSentTrains);
  counters_.add(Count::kSentBytes, packet.size());
  return true;
}

}  // namespace verbena::port
