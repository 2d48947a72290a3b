// SPDX-License-Identifier: MIT
#include "port/frame_head.h"

#include <cstring>

namespace verbena::port {
namespace {

constexpr std::uint16_t kTypeIpv4 = 0x0800;
constexpr std::uint16_t kTypeIpv6 = 0x86DD;

struct Ethernet {
  std::array<std::uint8_t, 6> to{};
  std::array<std::uint8_t, 6> from{};
  wire::be16 type;
};
static_assert(sizeof(Ethernet) == 14);

// Locally administered, from the last four bytes of the address.
std::array<std::uint8_t, 6> ethernet_address(const Gid& gid) {
  return {0x02, 0x56, gid.bytes[12], gid.bytes[13], gid.bytes[14], gid.bytes[15]};
}

// The one's complement sum of RFC 1071, not yet folded. Only the last part may be of odd length.
std::uint64_t sum(std::span<const std::byte> bytes) {
  std::uint64_t total = 0;
  for (std::size_t i = 0; i + 1 < bytes.size(); i += 2)
    total += std::to_integer<std::uint64_t>(bytes[i]) << 8 |
             std::to_integer<std::uint64_t>(bytes[i + 1]);
  if (bytes.size() % 2 != 0) total += std::to_integer<std::uint64_t>(bytes.back()) << 8;
  return total;
}

// With the pseudo head of RFC 8200, 8.1.
std::uint16_t udp_checksum_ipv6(const wire::Flow& flow, std::span<const std::byte> payload) {
  const std::size_t length = wire::kUdpBytes + payload.size();
  std::uint64_t total = sum(std::as_bytes(std::span(flow.source.bytes))) +
                        sum(std::as_bytes(std::span(flow.destination.bytes))) + 2 * length +
                        wire::kUdpProtocol + flow.source_port + flow.destination_port +
                        sum(payload);
  while (total >> 16 != 0)
    total = (total & 0xFFFF) + (total >> 16);
  const auto checksum = static_cast<std::uint16_t>(~total);
  return checksum == 0 ? 0xFFFF : checksum;
}

}  // namespace

FrameHead::FrameHead(wire::IpHead head, std::span<const std::byte> payload) {
  const bool ipv4 = wire::is_ipv4(head.flow);
  const Ethernet ethernet{.to = ethernet_address(head.flow.destination),
                          .from = ethernet_address(head.flow.source),
                          .type = wire::be16(ipv4 ? kTypeIpv4 : kTypeIpv6)};
  std::memcpy(bytes_.data(), &ethernet, sizeof ethernet);
  if (!ipv4) head.udp_checksum = udp_checksum_ipv6(head.flow, payload);
  size_ = kEthernetBytes +
          wire::encode_ip(head, payload.size(), std::span(bytes_).subspan(kEthernetBytes));
}

}  // namespace verbena::port
