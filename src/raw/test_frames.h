// SPDX-License-Identifier: MIT
// For tests: Ethernet frames, layer by layer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "raw/key.h"
#include "wire/ip.h"

namespace verbena::raw {

using Bytes = std::vector<std::byte>;

inline constexpr Mac kHere = {0x02, 0, 0, 0, 0, 0x01};
inline constexpr Mac kThere = {0x02, 0, 0, 0, 0, 0x02};
inline constexpr Mac kGroup = {0x01, 0x50, 0x56, 0x19, 0x20, 0xA7};

template <class Header>
void append(Bytes& to, const Header& header) {
  const auto* const from = reinterpret_cast<const std::byte*>(&header);
  to.insert(to.end(), from, from + sizeof header);
}

inline Bytes ethernet(std::uint16_t type, const Mac& to = kHere, const Mac& from = kThere) {
  Bytes frame;
  append(frame, to);
  append(frame, from);
  append(frame, wire::be16(type));
  return frame;
}

// Of a frame that has an EtherType last.
inline void append_tag(Bytes& frame, std::uint16_t tag, std::uint16_t type) {
  frame.resize(frame.size() - 2);
  append(frame, wire::be16(kEtherVlan));
  append(frame, wire::be16(tag));
  append(frame, wire::be16(type));
}

struct Ipv4 {
  std::array<std::uint8_t, 4> source = {1, 1, 1, 1};
  std::array<std::uint8_t, 4> destination = {2, 2, 2, 2};
  std::uint8_t protocol = 17;
  std::uint16_t flags = wire::kDontFragment;
  std::uint8_t options = 0;  // words
};
inline void append_ipv4(Bytes& frame, const Ipv4& ip, std::size_t payload) {
  wire::Ipv4Header header;
  header.version_and_length = static_cast<std::uint8_t>(0x45 + ip.options);
  header.tos = 0x28;
  header.ttl = 64;
  header.total_length = wire::be16(static_cast<std::uint16_t>(20 + ip.options * 4 + payload));
  header.flags_and_offset = wire::be16(ip.flags);
  header.protocol = ip.protocol;
  header.source = ip.source;
  header.destination = ip.destination;
  append(frame, header);
  frame.resize(frame.size() + std::size_t{ip.options} * 4, std::byte{1});
}

inline void append_ipv6(Bytes& frame, std::uint8_t next, std::size_t payload,
                        const std::array<std::uint8_t, 16>& source = {0xA0, 0xA1},
                        const std::array<std::uint8_t, 16>& destination = {0xB0, 0xB1}) {
  wire::Ipv6Header header;
  header.version_class_label = wire::be32(0x6 << 28 | 0x12 << 20 | 0xABCDE);
  header.payload_length = wire::be16(static_cast<std::uint16_t>(payload));
  header.next_header = next;
  header.hop_limit = 33;
  header.source = source;
  header.destination = destination;
  append(frame, header);
}

inline void append_ports(Bytes& frame, std::uint16_t source, std::uint16_t destination) {
  append(frame, wire::be16(source));
  append(frame, wire::be16(destination));
}

// A datagram with a payload of this many letters.
inline Bytes udp4(std::uint16_t source, std::uint16_t destination, std::size_t payload = 16,
                  const Ipv4& ip = {}, const Mac& to = kHere) {
  Bytes frame = ethernet(kEtherIpv4, to);
  append_ipv4(frame, ip, 8 + payload);
  append_ports(frame, source, destination);
  append(frame, wire::be16(static_cast<std::uint16_t>(8 + payload)));
  append(frame, wire::be16());
  frame.resize(frame.size() + payload, std::byte{'a'});
  return frame;
}

}  // namespace verbena::raw
