// SPDX-License-Identifier: MIT
#include "wire/ip.h"

#include <algorithm>
#include <bit>

#include "base/assert.h"

namespace verbena::wire {
namespace {

constexpr std::uint16_t kMoreFragmentsAndOffset = 0x3FFF;
constexpr std::uint32_t kFlowLabelMask = 0xFFFFF;

// The Internet checksum of an IPv4 head whose own checksum counts (RFC 1071): 0 when it is right.
std::uint16_t checksum_of(const Ipv4Header& header) {
  const auto words = std::bit_cast<std::array<be16, kIpv4Bytes / 2>>(header);
  std::uint32_t sum = 0;
  for (const be16 word : words)
    sum += word.value();
  sum = (sum & 0xFFFF) + (sum >> 16);
  sum = (sum & 0xFFFF) + (sum >> 16);
  return static_cast<std::uint16_t>(~sum);
}

std::array<std::uint8_t, 4> ipv4_of(const Gid& gid) {
  return {gid.bytes[12], gid.bytes[13], gid.bytes[14], gid.bytes[15]};
}

std::array<std::uint8_t, 16> ipv6_of(const Gid& gid) {
  std::array<std::uint8_t, 16> address;
  std::copy_n(gid.bytes, address.size(), address.data());
  return address;
}

Ipv4Header ipv4_header(const IpHead& head, std::size_t datagram_bytes) {
  Ipv4Header ip;
  ip.tos = head.traffic_class;
  ip.total_length = be16(static_cast<std::uint16_t>(kIpv4Bytes + kUdpBytes + datagram_bytes));
  ip.id = be16(head.id);
  ip.flags_and_offset = be16(head.flags_and_offset);
  ip.ttl = head.hop_limit;
  ip.source = ipv4_of(head.flow.source);
  ip.destination = ipv4_of(head.flow.destination);
  ip.checksum = be16(checksum_of(ip));
  return ip;
}

Ipv6Header ipv6_header(const IpHead& head, std::size_t datagram_bytes) {
  Ipv6Header ip;
  ip.version_class_label =
      be32(6u << 28 | std::uint32_t{head.traffic_class} << 20 | (head.flow_label & kFlowLabelMask));
  ip.payload_length = be16(static_cast<std::uint16_t>(kUdpBytes + datagram_bytes));
  ip.hop_limit = head.hop_limit;
  ip.source = ipv6_of(head.flow.source);
  ip.destination = ipv6_of(head.flow.destination);
  return ip;
}

// What is behind the IP head, without the padding of the link.
using Transport = Result<std::span<const std::byte>, Malformed>;

Transport parse_ipv4(std::span<const std::byte> bytes, IpHead& head) {
  const auto* const ip = View(bytes).take<Ipv4Header>();
  if (ip == nullptr || ip->version_and_length != 0x45) return refuse(Malformed::kIpHead);
  const std::size_t total = ip->total_length.value();
  if (total < kIpv4Bytes || total > bytes.size()) return refuse(Malformed::kIpHead);
  if (checksum_of(*ip) != 0) return refuse(Malformed::kIpHead);
  if ((ip->flags_and_offset.value() & kMoreFragmentsAndOffset) != 0) {
    return refuse(Malformed::kFragment);
  }
  if (ip->protocol != kUdpProtocol) return refuse(Malformed::kNotRoce);
  head.flow.source = gid_of(ip->source);
  head.flow.destination = gid_of(ip->destination);
  head.traffic_class = ip->tos;
  head.hop_limit = ip->ttl;
  head.id = ip->id.value();
  head.flags_and_offset = ip->flags_and_offset.value();
  return bytes.subspan(kIpv4Bytes, total - kIpv4Bytes);
}

Transport parse_ipv6(std::span<const std::byte> bytes, IpHead& head) {
  const auto* const ip = View(bytes).take<Ipv6Header>();
  if (ip == nullptr || ip->version_class_label.value() >> 28 != 6) {
    return refuse(Malformed::kIpHead);
  }
  const std::size_t length = ip->payload_length.value();
  if (length > bytes.size() - kIpv6Bytes) return refuse(Malformed::kIpHead);
  if (ip->next_header != kUdpProtocol) return refuse(Malformed::kNotRoce);
  head.flow.source = gid_of(ip->source);
  head.flow.destination = gid_of(ip->destination);
  // The two would be taken for IPv4 by everybody who looks at them later (RFC 4942, 2.2).
  if (is_ipv4(head.flow.source) || is_ipv4(head.flow.destination)) {
    return refuse(Malformed::kIpHead);
  }
  head.traffic_class = static_cast<std::uint8_t>(ip->version_class_label.value() >> 20);
  head.flow_label = ip->version_class_label.value() & kFlowLabelMask;
  head.hop_limit = ip->hop_limit;
  head.flags_and_offset = 0;
  return bytes.subspan(kIpv6Bytes, length);
}

}  // namespace

Result<IpPacket, Malformed> parse_ip(std::span<const std::byte> bytes) {
  if (bytes.empty()) return refuse(Malformed::kIpHead);
  IpPacket packet;
  const bool is_v4 = static_cast<std::uint8_t>(bytes[0]) >> 4 == 4;
  const Transport transport =
      is_v4 ? parse_ipv4(bytes, packet.head) : parse_ipv6(bytes, packet.head);
  if (!transport) return refuse(transport.error());
  View view(*transport);
  const auto* const udp = view.take<UdpHeader>();
  if (udp == nullptr || udp->length.value() != transport->size()) {
    return refuse(Malformed::kIpHead);
  }
  if (udp->destination_port.value() != kRocePort) return refuse(Malformed::kNotRoce);
  packet.head.flow.source_port = udp->source_port.value();
  packet.head.udp_checksum = udp->checksum.value();
  packet.datagram = view.rest();
  return packet;
}

std::size_t encode_ip(const IpHead& head, std::size_t datagram_bytes, std::span<std::byte> room) {
  VERBENA_ASSERT(room.size() >= ip_bytes(head.flow));
  VERBENA_ASSERT(datagram_bytes <= 0xFFFF - kIpv4Bytes - kUdpBytes);
  Put put(room.data());
  if (is_ipv4(head.flow)) {
    put(ipv4_header(head, datagram_bytes));
  } else {
    put(ipv6_header(head, datagram_bytes));
  }
  put(UdpHeader{be16(head.flow.source_port), be16(head.flow.destination_port),
                be16(static_cast<std::uint16_t>(kUdpBytes + datagram_bytes)),
                be16(head.udp_checksum)});
  return static_cast<std::size_t>(put.end() - room.data());
}

std::array<std::byte, kGrhBytes> grh_of(const IpHead& head, std::size_t datagram_bytes) {
  std::array<std::byte, kGrhBytes> grh{};
  if (is_ipv4(head.flow)) {
    Put(grh.data() + kGrhBytes - kIpv4Bytes)(ipv4_header(head, datagram_bytes));
  } else {
    Put(grh.data())(ipv6_header(head, datagram_bytes));
  }
  return grh;
}

}  // namespace verbena::wire
