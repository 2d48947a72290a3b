// SPDX-License-Identifier: MIT
#include "rdmacm/address.h"

#include <endian.h>

#include <cerrno>
#include <cstring>

#include "host/netlink.h"
#include "wire/ip.h"

namespace verbena::rdmacm {
namespace {

const sockaddr_in& v4(const sockaddr_storage& storage) {
  return reinterpret_cast<const sockaddr_in&>(storage);
}
const sockaddr_in6& v6(const sockaddr_storage& storage) {
  return reinterpret_cast<const sockaddr_in6&>(storage);
}
const sockaddr_ib& ib(const sockaddr_storage& storage) {
  return reinterpret_cast<const sockaddr_ib&>(storage);
}

constexpr std::uint16_t kDefaultPkey = 0xFFFF;
constexpr std::uint64_t kPortMask = 0xFFFF;

}  // namespace

std::optional<Address> Address::from(const sockaddr* address) {
  Address made;
  if (!address) return std::nullopt;
  if (address->sa_family == AF_INET) {
    std::memcpy(&made.storage_, address, sizeof(sockaddr_in));
  } else if (address->sa_family == AF_INET6) {
    std::memcpy(&made.storage_, address, sizeof(sockaddr_in6));
  } else if (address->sa_family == AF_IB) {
    std::memcpy(&made.storage_, address, sizeof(sockaddr_ib));
  } else {
    return std::nullopt;
  }
  return made;
}

Address Address::of(const Gid& gid, std::uint16_t port, std::uint32_t scope) {
  Address made;
  if (wire::is_ipv4(gid)) {
    auto& ipv4 = reinterpret_cast<sockaddr_in&>(made.storage_);
    ipv4.sin_family = AF_INET;
    std::memcpy(&ipv4.sin_addr, gid.bytes + 12, sizeof ipv4.sin_addr);
  } else {
    auto& ipv6 = reinterpret_cast<sockaddr_in6&>(made.storage_);
    ipv6.sin6_family = AF_INET6;
    std::memcpy(&ipv6.sin6_addr, gid.bytes, sizeof ipv6.sin6_addr);
    if (IN6_IS_ADDR_LINKLOCAL(&ipv6.sin6_addr)) ipv6.sin6_scope_id = scope;
  }
  made.set_port(port);
  return made;
}

Address Address::of_service(const Gid& gid, std::uint64_t service, std::uint32_t scope) {
  Address made;
  auto& named = reinterpret_cast<sockaddr_ib&>(made.storage_);
  named.sib_family = AF_IB;
  named.sib_pkey = htobe16(kDefaultPkey);
  std::memcpy(&named.sib_addr, gid.bytes, sizeof named.sib_addr);
  named.sib_sid = htobe64(service);
  named.sib_sid_mask = service != 0 ? ~__be64{0} : 0;
  if (gid.bytes[0] == 0xFE && (gid.bytes[1] & 0xC0) == 0x80) named.sib_scope_id = scope;
  return made;
}

Address Address::any(sa_family_t family, std::uint16_t port) {
  Address made;
  made.storage_.ss_family = family;
  made.set_port(port);
  return made;
}

socklen_t Address::size() const {
  if (is_ib()) return sizeof(sockaddr_ib);
  return family() == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}

std::uint64_t Address::service() const { return be64toh(ib(storage_).sib_sid); }
std::uint64_t Address::service_mask() const { return be64toh(ib(storage_).sib_sid_mask); }
void Address::set_service_mask(std::uint64_t mask) {
  reinterpret_cast<sockaddr_ib&>(storage_).sib_sid_mask = htobe64(mask);
}

// At the same place in IPv4 and IPv6.
std::uint16_t Address::port() const {
  if (is_ib()) return static_cast<std::uint16_t>(service() & kPortMask);
  return be16toh(v4(storage_).sin_port);
}

bool Address::is_port_open() const {
  return is_ib() ? (service_mask() & kPortMask) == 0 : port() == 0;
}

void Address::set_port(std::uint16_t port) {
  if (is_ib()) {
    auto& named = reinterpret_cast<sockaddr_ib&>(storage_);
    named.sib_sid = htobe64((service() & ~kPortMask) | port);
    named.sib_sid_mask = ~__be64{0};
    return;
  }
  reinterpret_cast<sockaddr_in&>(storage_).sin_port = htobe16(port);
}

bool Address::is_any() const {
  if (is_ib()) return gid() == Gid{};
  if (family() == AF_INET) return v4(storage_).sin_addr.s_addr == htobe32(INADDR_ANY);
  return IN6_IS_ADDR_UNSPECIFIED(&v6(storage_).sin6_addr);
}

bool Address::is_loopback() const {
  const Gid gid = this->gid();
  if (wire::is_ipv4(gid)) return gid.bytes[12] == 127;
  Gid loopback;
  loopback.bytes[15] = 1;
  return gid == loopback;
}

bool Address::is_multicast() const {
  const Gid gid = this->gid();
  if (wire::is_ipv4(gid)) return (gid.bytes[12] & 0xF0) == 0xE0;
  return gid.bytes[0] == 0xFF;
}

Gid Address::gid() const {
  Gid gid;
  if (family() == AF_INET6) {
    std::memcpy(gid.bytes, &v6(storage_).sin6_addr, sizeof gid.bytes);
  } else if (family() == AF_INET) {
    gid.bytes[10] = gid.bytes[11] = 0xFF;
    std::memcpy(gid.bytes + 12, &v4(storage_).sin_addr, 4);
  } else if (is_ib()) {
    std::memcpy(gid.bytes, &ib(storage_).sib_addr, sizeof gid.bytes);
  }
  return gid;
}

std::uint32_t Address::scope() const {
  if (is_ib()) return static_cast<std::uint32_t>(ib(storage_).sib_scope_id);
  return family() == AF_INET6 ? v6(storage_).sin6_scope_id : 0;
}

// Connecting a datagram socket asks the routing tables, with all their rules, and sends nothing.
Result<Address, int> source_towards(const Address& destination) {
  Address to = destination.ip();
  if (to.port() == 0) to.set_port(9);  // some systems refuse 0
  const UniqueFd socket = host::socket_for_a_moment(to.family(), SOCK_DGRAM, 0);
  if (!socket) return refuse(int{errno});
  sockaddr_storage source{};
  socklen_t size = sizeof source;
  if (connect(socket.get(), to.get(), to.size()) != 0 ||
      getsockname(socket.get(), reinterpret_cast<sockaddr*>(&source), &size) != 0) {
    return refuse(int{errno});
  }
  auto found = Address::from(reinterpret_cast<const sockaddr*>(&source));
  if (!found) return refuse(int{EAFNOSUPPORT});
  found->set_port(0);
  return *found;
}

}  // namespace verbena::rdmacm
