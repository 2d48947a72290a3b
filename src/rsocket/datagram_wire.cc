// SPDX-License-Identifier: MIT
#include "rsocket/datagram_wire.h"

#include <algorithm>
#include <cstring>

#include "wire/bytes.h"

namespace verbena::rsocket {
namespace {

using wire::be16;
using wire::be32;

constexpr std::array<std::uint8_t, 12> kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
constexpr std::uint32_t kTag = 0x55555555;
constexpr std::uint32_t kQueuePairs = 0xffffff;
constexpr std::uint8_t kIpv4 = 4;
constexpr std::uint8_t kIpv6 = 6;

struct UdpStart {
  be32 tag;
  std::uint8_t version;
  std::uint8_t op;
  std::uint8_t length;
  std::uint8_t reserved;
  be32 queue_pair;
};
static_assert(sizeof(UdpStart) == 12);
struct PairStart {
  std::uint8_t version;
  std::uint8_t length;
  be16 port;
};
static_assert(sizeof(PairStart) == 4);
constexpr std::size_t kFlow = 4;  // before an IPv6 address

std::size_t address_size(std::uint8_t version) { return version == kIpv4 ? 4 : 16; }

// What of an address fits into the header by UDP, whose length is 16 or 28.
std::size_t udp_address_size(std::uint8_t version) {
  return version == kIpv4 ? 4 : kUdpHeaderMax - sizeof(UdpStart) - kFlow;
}

std::size_t put_address(const EndPoint& point, std::byte* to) {
  const std::size_t size = point.is_ipv4() ? 4 : 16;
  std::memcpy(to, point.address.data() + 16 - size, size);
  return size;
}

void take_address(EndPoint& point, std::uint8_t version, const std::byte* from) {
  if (version == kIpv4) std::copy(kMapped.begin(), kMapped.end(), point.address.begin());
  const std::size_t size = address_size(version);
  std::memcpy(point.address.data() + 16 - size, from, size);
}

}  // namespace

std::optional<EndPoint> EndPoint::from(const sockaddr* address, socklen_t size) {
  EndPoint point;
  if (!address || size < sizeof(sa_family_t)) return std::nullopt;
  if (address->sa_family == AF_INET && size >= sizeof(sockaddr_in)) {
    const auto* const in = reinterpret_cast<const sockaddr_in*>(address);
    std::copy(kMapped.begin(), kMapped.end(), point.address.begin());
    std::memcpy(point.address.data() + kMapped.size(), &in->sin_addr, 4);
    point.port = be16toh(in->sin_port);
    return point;
  }
  if (address->sa_family == AF_INET6 && size >= sizeof(sockaddr_in6)) {
    const auto* const in = reinterpret_cast<const sockaddr_in6*>(address);
    std::memcpy(point.address.data(), &in->sin6_addr, 16);
    point.port = be16toh(in->sin6_port);
    if (IN6_IS_ADDR_LINKLOCAL(&in->sin6_addr)) point.scope = in->sin6_scope_id;
    return point;
  }
  return std::nullopt;
}

bool EndPoint::is_ipv4() const {
  return std::equal(kMapped.begin(), kMapped.end(), address.begin());
}

bool EndPoint::is_any() const {
  const std::size_t begin = is_ipv4() ? kMapped.size() : 0;
  return std::all_of(address.begin() + static_cast<std::ptrdiff_t>(begin), address.end(),
                     [](std::uint8_t byte) { return byte == 0; });
}

socklen_t EndPoint::store(int family, sockaddr_storage& to) const {
  to = {};
  if (family == AF_INET) {
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = htobe16(port);
    std::memcpy(&in.sin_addr, address.data() + kMapped.size(), 4);
    std::memcpy(&to, &in, sizeof in);
    return sizeof in;
  }
  sockaddr_in6 in{};
  in.sin6_family = AF_INET6;
  in.sin6_port = htobe16(port);
  in.sin6_scope_id = scope;
  std::memcpy(&in.sin6_addr, address.data(), 16);
  std::memcpy(&to, &in, sizeof in);
  return sizeof in;
}

std::size_t write_header(const UdpHeader& header, std::span<std::byte, kUdpHeaderMax> to) {
  std::fill(to.begin(), to.end(), std::byte{0});
  UdpStart start{};
  start.tag = be32(kTag);
  start.version = header.from.is_ipv4() ? kIpv4 : kIpv6;
  start.op = static_cast<std::uint8_t>(header.op);
  const std::size_t flow = start.version == kIpv4 ? 0 : kFlow;
  const std::size_t size = udp_address_size(start.version);
  start.length = static_cast<std::uint8_t>(sizeof start + flow + size);
  start.queue_pair = be32(header.queue_pair & kQueuePairs);
  std::memcpy(to.data(), &start, sizeof start);
  std::array<std::byte, 16> address;
  put_address(header.from, address.data());
  std::memcpy(to.data() + sizeof start + flow, address.data(), size);
  return start.length;
}

std::optional<UdpHeader> read_udp_header(std::span<const std::byte>& data) {
  UdpStart start;
  if (data.size() < sizeof start) return std::nullopt;
  std::memcpy(&start, data.data(), sizeof start);
  if (start.tag.value() != kTag || (start.version != kIpv4 && start.version != kIpv6)) {
    return std::nullopt;
  }
  const std::size_t flow = start.version == kIpv4 ? 0 : kFlow;
  const std::size_t size = udp_address_size(start.version);
  if (start.length != sizeof start + flow + size || data.size() < start.length) {
    return std::nullopt;
  }
  UdpHeader header;
  header.op = static_cast<UdpOp>(start.op);
  if (header.op != UdpOp::kData && header.op != UdpOp::kControl) return std::nullopt;
  header.queue_pair = start.queue_pair.value() & kQueuePairs;
  std::array<std::byte, 16> address{};
  std::memcpy(address.data(), data.data() + sizeof start + flow, size);
  take_address(header.from, start.version, address.data());
  data = data.subspan(start.length);
  return header;
}

std::size_t write_header(const EndPoint& from, std::span<std::byte, kPairHeaderMax> to) {
  std::fill(to.begin(), to.end(), std::byte{0});
  const std::size_t before = sizeof(PairStart) + (from.is_ipv4() ? 0 : kFlow);
  const std::size_t address = put_address(from, to.data() + before);
  PairStart start{};
  start.version = from.is_ipv4() ? kIpv4 : kIpv6;
  start.length = static_cast<std::uint8_t>(before + address);
  start.port = be16(from.port);
  std::memcpy(to.data(), &start, sizeof start);
  return start.length;
}

std::optional<EndPoint> read_pair_header(std::span<const std::byte>& data) {
  PairStart start;
  if (data.size() < sizeof start) return std::nullopt;
  std::memcpy(&start, data.data(), sizeof start);
  if (start.version != kIpv4 && start.version != kIpv6) return std::nullopt;
  const std::size_t before = sizeof start + (start.version == kIpv4 ? 0 : kFlow);
  if (start.length != before + address_size(start.version)) return std::nullopt;
  if (data.size() < start.length) return std::nullopt;
  EndPoint from;
  from.port = start.port.value();
  take_address(from, start.version, data.data() + before);
  data = data.subspan(start.length);
  return from;
}

}  // namespace verbena::rsocket
