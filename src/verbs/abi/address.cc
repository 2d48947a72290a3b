// SPDX-License-Identifier: MIT
// The way back to the sender of a datagram (ibv_create_ah_from_wc(3)).
//
// A UD receive puts 40 bytes before the payload. On InfiniBand and with RoCEv2 over IPv6 they are
// the GRH or IPv6 header; with RoCEv2 over IPv4 the IPv4 header lies in the last 20 of them and the
// first 20 are undefined (RoCEv2 annex A17.4.5.1), so they may even look like IPv6: only the
// checksum of the IPv4 header tells.
#include <endian.h>

#include <cerrno>
#include <cstring>
#include <optional>

#include "verbs/abi/entry.h"

namespace {

constexpr std::size_t kHeaderRoom = 40;
constexpr std::size_t kIpv4Offset = 20;
constexpr std::uint8_t kNextHeaderGrh = 0x1b;  // IBTA vol 1, 8.3.1: a BTH follows
constexpr std::uint8_t kNextHeaderUdp = 17;
constexpr std::uint32_t kFlowLabelMask = 0xfffff;
constexpr int kGidTableLimit = 256;  // ibv_global_route::sgid_index has eight bits

struct Ipv4Header {
  std::uint8_t version_length;
  std::uint8_t type_of_service;
  std::uint16_t length;
  std::uint16_t id;
  std::uint16_t fragment;
  std::uint8_t time_to_live;
  std::uint8_t protocol;
  std::uint16_t checksum;
  std::uint8_t source[4];
  std::uint8_t destination[4];
};
static_assert(sizeof(Ipv4Header) == kHeaderRoom - kIpv4Offset);
static_assert(sizeof(ibv_grh) == kHeaderRoom);

enum class Network : std::uint8_t { kIpv4, kIpv6OrGrh };

// RFC 1071: with the checksum in place the sum of all words is all ones.
bool checksum_holds(const Ipv4Header& header) {
  std::uint16_t words[sizeof(header) / 2];
  std::memcpy(words, &header, sizeof(header));
  std::uint32_t sum = 0;
  for (const std::uint16_t word : words)
    sum += word;
  sum = (sum & 0xffff) + (sum >> 16);
  sum = (sum & 0xffff) + (sum >> 16);
  return sum == 0xffff;
}

std::optional<Network> classify(std::uint8_t first_byte, const Ipv4Header& ipv4) {
  const bool may_be_ipv4 = ipv4.version_length >> 4 == 4;
  if (first_byte >> 4 != 6) {
    if (may_be_ipv4) return Network::kIpv4;
    return std::nullopt;
  }
  if (ipv4.version_length == 0x45 && checksum_holds(ipv4)) return Network::kIpv4;
  return Network::kIpv6OrGrh;
}

// RoCEv2 annex A17.4.5.2: an IPv4 address is the GID ::ffff:a.b.c.d.
ibv_gid mapped(const std::uint8_t (&address)[4]) {
  ibv_gid gid = {};
  gid.raw[10] = 0xff;
  gid.raw[11] = 0xff;
  std::memcpy(&gid.raw[12], address, sizeof(address));
  return gid;
}

// Our entry for the address that the datagram was sent to, of the kind that it came by.
std::optional<std::uint8_t> find_gid(ibv_context* context, std::uint8_t port, const ibv_gid& gid,
                                     bool is_roce_v2) {
  for (int index = 0; index < kGidTableLimit; ++index) {
    ibv_gid_entry entry = {};
    const int error =
        verbena::verbs::gid_entry(context, port, static_cast<std::uint32_t>(index), &entry);
    if (error == ENODATA) continue;
    if (error) break;
    if (std::memcmp(&entry.gid, &gid, sizeof(gid)) == 0 &&
        (entry.gid_type == IBV_GID_TYPE_ROCE_V2) == is_roce_v2) {
      return static_cast<std::uint8_t>(index);
    }
  }
  return std::nullopt;
}

int refused(int error) {
  errno = error;
  return -1;
}

int route_back_ipv4(ibv_context* context, const Ipv4Header& header, ibv_ah_attr& attributes) {
  const auto own = find_gid(context, attributes.port_num, mapped(header.destination), true);
  if (!own) return refused(EINVAL);
  attributes.grh.dgid = mapped(header.source);
  attributes.grh.sgid_index = *own;
  attributes.grh.hop_limit = header.time_to_live;
  attributes.grh.traffic_class = header.type_of_service;
  return 0;
}

int route_back_ipv6(ibv_context* context, const ibv_grh& header, ibv_ah_attr& attributes) {
  if (header.next_hdr != kNextHeaderUdp && header.next_hdr != kNextHeaderGrh) {
    return refused(EPROTONOSUPPORT);
  }
  const bool is_roce_v2 = header.next_hdr == kNextHeaderUdp;
  const auto own = find_gid(context, attributes.port_num, header.dgid, is_roce_v2);
  if (!own) return refused(EINVAL);
  const std::uint32_t first_word = be32toh(header.version_tclass_flow);
  attributes.grh.dgid = header.sgid;
  attributes.grh.flow_label = first_word & kFlowLabelMask;
  attributes.grh.sgid_index = *own;
  attributes.grh.hop_limit = header.hop_limit;
  attributes.grh.traffic_class = static_cast<std::uint8_t>(first_word >> 20);
  return 0;
}

}  // namespace

int ibv_init_ah_from_wc(ibv_context* context, std::uint8_t port, ibv_wc* wc, ibv_grh* grh,
                        ibv_ah_attr* ah_attr) {
  *ah_attr = {};
  ah_attr->dlid = wc->slid;
  ah_attr->sl = wc->sl;
  ah_attr->src_path_bits = wc->dlid_path_bits;
  ah_attr->port_num = port;
  if (!(wc->wc_flags & IBV_WC_GRH)) return 0;

  ah_attr->is_global = 1;
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(grh);
  Ipv4Header ipv4;
  std::memcpy(&ipv4, bytes + kIpv4Offset, sizeof(ipv4));
  const auto network = classify(bytes[0], ipv4);
  if (!network) return refused(EPROTONOSUPPORT);
  if (*network == Network::kIpv4) return route_back_ipv4(context, ipv4, *ah_attr);
  ibv_grh header;
  std::memcpy(&header, bytes, sizeof(header));  // it lies in the program's buffer, at any address
  return route_back_ipv6(context, header, *ah_attr);
}

ibv_ah* ibv_create_ah_from_wc(ibv_pd* pd, ibv_wc* wc, ibv_grh* grh, std::uint8_t port) {
  ibv_ah_attr attributes;
  if (ibv_init_ah_from_wc(pd->context, port, wc, grh, &attributes)) return nullptr;
  return ibv_create_ah(pd, &attributes);
}
