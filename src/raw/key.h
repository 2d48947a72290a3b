// SPDX-License-Identifier: MIT
// What flow steering and receive-side scaling look at in an Ethernet frame, as 64 bytes that are
// compared as such: a criterion is a value and a mask over them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "wire/bytes.h"

namespace verbena::raw {

inline constexpr std::size_t kEthernetBytes = 14;
inline constexpr std::size_t kVlanBytes = 4;  // IEEE 802.1Q: of a tag
inline constexpr std::uint16_t kEtherIpv4 = 0x0800;
inline constexpr std::uint16_t kEtherIpv6 = 0x86DD;
inline constexpr std::uint16_t kEtherVlan = 0x8100;
inline constexpr std::uint16_t kEtherServiceVlan = 0x88A8;  // IEEE 802.1ad

using Mac = std::array<std::uint8_t, 6>;
constexpr bool is_multicast(const Mac& mac) { return (mac[0] & 1) != 0; }

enum class Network : std::uint8_t { kOther = 0, kIpv4 = 4, kIpv6 = 6 };
// Only where the ports are there to be looked at: of a fragment they are not, neither of the first
// nor of the others, so that all of them take one way. Numbered as the protocols are.
enum class Transport : std::uint8_t { kOther = 0, kTcp = 6, kUdp = 17 };

// As in verbs (ibv_flow_ipv4_ext_filter::flags).
inline constexpr std::uint8_t kDontFragment = 2;
inline constexpr std::uint8_t kMoreFragments = 4;

// Numbers in network order. What a frame does not have is 0.
struct Key {
  Mac destination_mac{};
  Mac source_mac{};
  wire::be16 ether_type;  // behind VLAN tags
  wire::be16 vlan_tag;    // of the outermost tag: priority:3 DEI:1 id:12
  std::uint8_t has_vlan = 0;
  Network network = Network::kOther;
  Transport transport = Transport::kOther;
  std::uint8_t protocol = 0;                      // IPv6: behind extension headers
  std::array<std::uint8_t, 16> source_ip{};       // IPv4: the first four
  std::array<std::uint8_t, 16> destination_ip{};  // bytes
  std::uint8_t traffic_class = 0;                 // IPv4's TOS
  std::uint8_t hop_limit = 0;                     // IPv4's TTL
  std::uint8_t ip_flags = 0;                      // kDontFragment, kMoreFragments
  std::uint8_t reserved = 0;
  wire::be32 flow_label;
  wire::be16 source_port;
  wire::be16 destination_port;
};
static_assert(sizeof(Key) == 64 && alignof(Key) == 1);

// Whatever the frame is: where it ends, or is malformed, the rest of the key is 0.
Key key_of(std::span<const std::byte> frame);

// Whether the key is the value in all bits of the mask.
bool matches(const Key& key, const Key& value, const Key& mask);

}  // namespace verbena::raw
