// SPDX-License-Identifier: MIT
// One train as the kernel wants it: name, bytes, and the control messages for what differs from one
// train to the next. Points into itself.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>

#include "port/port.h"

namespace verbena::port {

class UdpMessage {
 public:
  UdpMessage() {}  // NOLINT(modernize-use-equals-default): that would clear 300 bytes
  UdpMessage(const UdpMessage&) = delete;
  UdpMessage& operator=(const UdpMessage&) = delete;

  // `bytes`: of the train, in packets of `segment_size`. `is_bound`: the socket is, to the route's
  // source.
  void set(const Train& train, std::span<const std::byte> bytes, std::uint16_t port, bool is_bound);
  const msghdr& header() const { return header_; }
  // By a call of its own: -1 and errno when refused.
  ssize_t send(int fd, int flags) const;

 private:
  template <class T>
  void add(int level, int type, const T& value);
  void add_route(const Route& route, bool is_bound);

  // Written by set().
  msghdr header_;
  iovec piece_;
  sockaddr_storage to_;
  // Source address, segment size, traffic class, hop limit.
  alignas(
      cmsghdr) std::byte control_[CMSG_SPACE(sizeof(in6_pktinfo)) +
                                  CMSG_SPACE(sizeof(std::uint16_t)) + 2 * CMSG_SPACE(sizeof(int))];
};

}  // namespace verbena::port
