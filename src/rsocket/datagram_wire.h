// SPDX-License-Identifier: MIT
// What datagram rsockets tell each other: the headers of upstream's design guide (librdmacm,
// docs/rsocket), before a program's data by UDP and by queue pair.
#pragma once

#include <endian.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace verbena::rsocket {

// An address and port of UDP; IPv4 in its IPv6-mapped form.
struct EndPoint {
  std::array<std::uint8_t, 16> address{};
  std::uint16_t port = 0;
  std::uint32_t scope = 0;

  static std::optional<EndPoint> from(const sockaddr* address, socklen_t size);
  bool is_ipv4() const;
  bool is_any() const;
  // As a socket of that family wants it.
  socklen_t store(int family, sockaddr_storage& to) const;

  friend auto operator<=>(const EndPoint&, const EndPoint&) = default;
};

enum class UdpOp : std::uint8_t { kData = 0, kControl = 7 };

// By UDP (struct ds_udp_header).
struct UdpHeader {
  UdpOp op = UdpOp::kData;
  std::uint32_t queue_pair = 0;  // of the sender
  // The sender's, without port. Of an IPv6 address the last four bytes are not there: upstream's
  // header is that much shorter than what it has.
  EndPoint from;
};
constexpr std::size_t kUdpHeaderMax = 28;
std::size_t write_header(const UdpHeader& header, std::span<std::byte, kUdpHeaderMax> to);
// None: nothing of ours. Shortens `data` to what follows.
std::optional<UdpHeader> read_udp_header(std::span<const std::byte>& data);

// By queue pair (struct ds_header): who sends.
constexpr std::size_t kPairHeaderMax = 24;
std::size_t write_header(const EndPoint& from, std::span<std::byte, kPairHeaderMax> to);
std::optional<EndPoint> read_pair_header(std::span<const std::byte>& data);

struct Datagram {
  EndPoint from;
  std::vector<std::byte> data;
};

}  // namespace verbena::rsocket
