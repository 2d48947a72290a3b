// SPDX-License-Identifier: MIT
#include "raw/key.h"

#include <cstring>
#include <optional>

#include "wire/ip.h"

namespace verbena::raw {
namespace {

using wire::be16;

struct EthernetHeader {
  Mac destination;
  Mac source;
  be16 type;
};
static_assert(sizeof(EthernetHeader) == kEthernetBytes);

struct VlanTag {
  be16 tag;
  be16 type;
};
static_assert(sizeof(VlanTag) == kVlanBytes);

struct Ports {
  be16 source;
  be16 destination;
};

// Those that may stand before the payload (RFC 8200, 4.1).
enum ExtensionHeader : std::uint8_t {
  kHopByHop = 0,
  kRouting = 43,
  kFragment = 44,
  kDestinationOptions = 60,
};
struct Extension {
  std::uint8_t next_header;
  std::uint8_t length;  // in 8 bytes, without the first 8
  be16 fragment;        // of a fragment header: offset:13 reserved:2 M:1
  std::uint8_t rest[4];
};
static_assert(sizeof(Extension) == 8);
// More of them than this are somebody's attack.
constexpr unsigned kExtensionsMax = 8;
constexpr unsigned kTagsMax = 2;

bool is_tag(std::uint16_t type) { return type == kEtherVlan || type == kEtherServiceVlan; }

void read_ports(wire::View& rest, Key& key) {
  const bool has_ports = key.protocol == static_cast<std::uint8_t>(Transport::kTcp) ||
                         key.protocol == static_cast<std::uint8_t>(Transport::kUdp);
  const Ports* const ports = has_ports ? rest.take<Ports>() : nullptr;
  if (!ports) return;
  key.transport = static_cast<Transport>(key.protocol);
  key.source_port = ports->source;
  key.destination_port = ports->destination;
}

void read_ipv4(wire::View& rest, Key& key) {
  constexpr std::uint16_t kMore = 0x2000;
  constexpr std::uint16_t kOffset = 0x1FFF;
  const auto* const ip = rest.take<wire::Ipv4Header>();
  if (!ip || ip->version_and_length >> 4 != 4) return;
  const std::size_t header = std::size_t{ip->version_and_length & 15u} * 4;
  if (header < wire::kIpv4Bytes) return;
  key.network = Network::kIpv4;
  key.protocol = ip->protocol;
  key.traffic_class = ip->tos;
  key.hop_limit = ip->ttl;
  std::memcpy(key.source_ip.data(), ip->source.data(), ip->source.size());
  std::memcpy(key.destination_ip.data(), ip->destination.data(), ip->destination.size());
  const std::uint16_t flags = ip->flags_and_offset.value();
  key.ip_flags = static_cast<std::uint8_t>((flags & wire::kDontFragment ? kDontFragment : 0) |
                                           (flags & kMore ? kMoreFragments : 0));
  const std::size_t options = header - wire::kIpv4Bytes;
  if (flags & (kMore | kOffset) || rest.rest().size() < options) return;
  wire::View payload(rest.rest().subspan(options));
  read_ports(payload, key);
}

// What stands behind the extension headers, and true where that is no piece of a fragmented packet.
bool skip_extensions(wire::View& rest, std::uint8_t& next) {
  for (unsigned i = 0; i < kExtensionsMax; ++i) {
    const bool is_one =
        next == kHopByHop || next == kRouting || next == kFragment || next == kDestinationOptions;
    if (!is_one) return true;
    const Extension* const extension = rest.take<Extension>();
    if (!extension) return false;
    const bool is_fragment = next == kFragment;
    next = extension->next_header;
    if (is_fragment) {
      constexpr std::uint16_t kWhole = 6;  // all but these bits is 0: an atomic fragment (RFC 6946)
      if ((extension->fragment.value() & ~kWhole) != 0) return false;
      continue;
    }
    const std::size_t more = std::size_t{extension->length} * 8;
    if (rest.rest().size() < more) return false;
    rest = wire::View(rest.rest().subspan(more));
  }
  return false;
}

void read_ipv6(wire::View& rest, Key& key) {
  const auto* const ip = rest.take<wire::Ipv6Header>();
  if (!ip) return;
  const std::uint32_t first = ip->version_class_label.value();
  if (first >> 28 != 6) return;
  key.network = Network::kIpv6;
  key.traffic_class = static_cast<std::uint8_t>(first >> 20);
  key.flow_label = wire::be32(first & 0xFFFFF);
  key.hop_limit = ip->hop_limit;
  key.source_ip = ip->source;
  key.destination_ip = ip->destination;
  key.protocol = ip->next_header;
  if (skip_extensions(rest, key.protocol)) read_ports(rest, key);
}

}  // namespace

Key key_of(std::span<const std::byte> frame) {
  Key key;
  wire::View rest(frame);
  const auto* const ethernet = rest.take<EthernetHeader>();
  if (!ethernet) return key;
  key.destination_mac = ethernet->destination;
  key.source_mac = ethernet->source;
  key.ether_type = ethernet->type;
  for (unsigned i = 0; i < kTagsMax && is_tag(key.ether_type.value()); ++i) {
    const VlanTag* const tag = rest.take<VlanTag>();
    if (!tag) return key;
    if (!key.has_vlan) key.vlan_tag = tag->tag;
    key.has_vlan = 1;
    key.ether_type = tag->type;
  }
  if (key.ether_type.value() == kEtherIpv4) read_ipv4(rest, key);
  if (key.ether_type.value() == kEtherIpv6) read_ipv6(rest, key);
  return key;
}

bool matches(const Key& key, const Key& value, const Key& mask) {
  constexpr std::size_t kWords = sizeof(Key) / sizeof(std::uint64_t);
  std::array<std::uint64_t, kWords> k;
  std::array<std::uint64_t, kWords> v;
  std::array<std::uint64_t, kWords> m;
  std::memcpy(k.data(), &key, sizeof key);
  std::memcpy(v.data(), &value, sizeof value);
  std::memcpy(m.data(), &mask, sizeof mask);
  std::uint64_t difference = 0;
  for (std::size_t i = 0; i < kWords; ++i)
    difference |= (k[i] ^ v[i]) & m[i];
  return difference == 0;
}

}  // namespace verbena::raw
