// SPDX-License-Identifier: MIT
// The heads that a packet has on the cable and a socket does not show, made up again: Ethernet, IP
// and UDP.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "port/port.h"
#include "wire/ip.h"

namespace verbena::port {

class FrameHead {
 public:
  // `head.udp_checksum` is computed where IPv6 wants one.
  FrameHead(wire::IpHead head, std::span<const std::byte> payload);
  std::span<const std::byte> bytes() const { return std::span(bytes_).first(size_); }

 private:
  static constexpr std::size_t kEthernetBytes = 14;

  std::array<std::byte, kEthernetBytes + wire::kIpv6Bytes + wire::kUdpBytes> bytes_{};
  std::size_t size_ = 0;
};

}  // namespace verbena::port
