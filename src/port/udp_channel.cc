// SPDX-License-Identifier: MIT
#include "port/udp_channel.h"

#include <linux/filter.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "host/raw_calls.h"
#include "port/connected_ids.h"
#include "port/udp_socket.h"
#include "wire/ip.h"

namespace verbena::port {
namespace {

namespace raw = host::raw;

// Programs close descriptors that they do not know: after so many packets we look.
constexpr unsigned kPacketsBetweenChecks = 256;

template <class T>
bool set_on_channel(int fd, int level, int name, const T& value) {
  return syscall(SYS_setsockopt, fd, level, name, &value, sizeof value) == 0;
}

bool bind_and_connect(int fd, const Route& route, std::uint16_t port) {
  sockaddr_storage from{};
  sockaddr_storage to{};
  const socklen_t size = to_address_of_family(route.from, route.interface, 0, from);
  to_address_of_family(route.to, route.interface, port, to);
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

bool UdpChannel::learn_id(const Route& route) {
  const auto next = learn_next_id(fd_, route.from, source_port_);
  next_id_ = next.value_or(0);
  return next.has_value();
}

bool UdpChannel::send(std::span<const std::byte> packet) {
  if (++sent_ % kPacketsBetweenChecks == 0) is_over_ |= file_of(fd_) != file_;
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
