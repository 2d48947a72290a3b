// SPDX-License-Identifier: MIT
// The IP and UDP heads around a RoCEv2 packet (annex A17.3.1; RFC 791, RFC 8200, RFC 768), as far
// as RoCEv2 uses them: IPv4 without options, IPv6 without extension headers, no fragments. Sockets
// hide them; the ICRC covers parts of them, captures and raw ports show them, and datagrams deliver
// them as the GRH.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "base/types.h"
#include "wire/bytes.h"
#include "wire/malformed.h"

namespace verbena::wire {

inline constexpr std::uint16_t kRocePort = 4791;  // assigned by IANA
inline constexpr std::uint8_t kUdpProtocol = 17;
inline constexpr std::size_t kIpv4Bytes = 20;
inline constexpr std::size_t kIpv6Bytes = 40;
inline constexpr std::size_t kUdpBytes = 8;
inline constexpr std::size_t kGrhBytes = 40;
inline constexpr std::uint16_t kDontFragment = 0x4000;  // in Ipv4Header::flags_and_offset

// RFC 791, 3.1.
struct Ipv4Header {
  std::uint8_t version_and_length = 0x45;  // version:4 header length in words:4
  std::uint8_t tos = 0;                    // DSCP:6 ECN:2
  be16 total_length;
  be16 id;
  be16 flags_and_offset;  // reserved:1 DF:1 MF:1 offset:13
  std::uint8_t ttl = 0;
  std::uint8_t protocol = kUdpProtocol;
  be16 checksum;
  std::array<std::uint8_t, 4> source{};
  std::array<std::uint8_t, 4> destination{};
};
static_assert(sizeof(Ipv4Header) == kIpv4Bytes);

// RFC 8200, 3. The GRH has the same form (IBTA vol 1, 8.3).
struct Ipv6Header {
  be32 version_class_label;  // version:4 traffic class:8 flow label:20
  be16 payload_length;
  std::uint8_t next_header = kUdpProtocol;
  std::uint8_t hop_limit = 0;
  std::array<std::uint8_t, 16> source{};
  std::array<std::uint8_t, 16> destination{};
};
static_assert(sizeof(Ipv6Header) == kIpv6Bytes);

// RFC 768.
struct UdpHeader {
  be16 source_port;
  be16 destination_port;
  be16 length;  // with this header
  be16 checksum;
};
static_assert(sizeof(UdpHeader) == kUdpBytes);

// Who sends to whom. IPv4 addresses are IPv4-mapped (A17.4.1), both or none.
struct Flow {
  Gid source{};
  Gid destination{};
  std::uint16_t source_port = 0;
  std::uint16_t destination_port = kRocePort;
  friend constexpr bool operator==(const Flow&, const Flow&) = default;
};

// Asked several times for each packet, and gcc 12 would look at byte after byte.
constexpr bool is_ipv4(const Gid& gid) {
  struct Words {
    std::uint64_t zeros;
    std::uint32_t prefix;
    std::uint32_t address;
  };
  constexpr auto kPrefix =
      std::bit_cast<std::uint32_t>(std::array<std::uint8_t, 4>{0, 0, 255, 255});
  const auto words = std::bit_cast<Words>(gid);
  return words.zeros == 0 && words.prefix == kPrefix;
}
constexpr bool is_ipv4(const Flow& flow) { return is_ipv4(flow.destination); }
// ff00::/8, and 224.0.0.0/4 mapped.
constexpr bool is_multicast(const Gid& gid) {
  return is_ipv4(gid) ? gid.bytes[12] >> 4 == 0xE : gid.bytes[0] == 0xFF;
}
constexpr Gid gid_of(const std::array<std::uint8_t, 4>& ipv4) {
  Gid gid;
  gid.bytes[10] = gid.bytes[11] = 0xFF;
  for (unsigned i = 0; i < 4; ++i)
    gid.bytes[12 + i] = ipv4[i];
  return gid;
}
constexpr Gid gid_of(const std::array<std::uint8_t, 16>& ipv6) {
  Gid gid;
  for (unsigned i = 0; i < 16; ++i)
    gid.bytes[i] = ipv6[i];
  return gid;
}

// The IP and UDP heads in host order. What only one of the two versions has is 0 for the other.
struct IpHead {
  Flow flow{};
  std::uint8_t traffic_class = 0;  // IPv4's TOS: DSCP:6 ECN:2
  std::uint8_t hop_limit = 64;     // IPv4's TTL
  std::uint16_t id = 0;
  std::uint16_t flags_and_offset = kDontFragment;  // IPv4
  std::uint32_t flow_label = 0;                    // IPv6
  std::uint16_t udp_checksum = 0;                  // 0: none; the ICRC does the work (A17.3.1)
  friend constexpr bool operator==(const IpHead&, const IpHead&) = default;
};

// The bytes that IP and UDP heads take.
constexpr std::size_t ip_bytes(const Flow& flow) {
  return (is_ipv4(flow) ? kIpv4Bytes : kIpv6Bytes) + kUdpBytes;
}

struct IpPacket {
  IpHead head;
  std::span<const std::byte> datagram;  // the UDP payload
};

// `bytes` begins with an IP head and may end in padding of the link. IPv4's header checksum is
// verified, UDP's is not: the ICRC covers more.
Result<IpPacket, Malformed> parse_ip(std::span<const std::byte> bytes);

// Writes the IP and UDP heads of a datagram of `datagram_bytes`; returns how many bytes they take.
// Asserts that there is room.
std::size_t encode_ip(const IpHead& head, std::size_t datagram_bytes, std::span<std::byte> room);

// What a datagram delivers in front of its payload: the IPv6 head, or 20 bytes of zeros and the
// IPv4 head with a right checksum, by which programs tell the two apart (A17.4.2).
std::array<std::byte, kGrhBytes> grh_of(const IpHead& head, std::size_t datagram_bytes);

}  // namespace verbena::wire
