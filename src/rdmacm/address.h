// SPDX-License-Identifier: MIT
// Addresses of sockets, as GIDs and back, and which of our own the system would use to reach one.
#pragma once

#include <infiniband/ib.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <optional>

#include "base/result.h"
#include "base/types.h"

namespace verbena::rdmacm {

// Any address that fits: IPv4, IPv6, or a GID with a service id (struct sockaddr_ib of
// <infiniband/ib.h>), in a form that can be copied. A GID of RoCEv2 is an IP address (annex
// A17.4.1).
class Address {
 public:
  Address() = default;
  // None: a family that we do not know.
  static std::optional<Address> from(const sockaddr* address);
  static Address of(const Gid& gid, std::uint16_t port, std::uint32_t scope);
  // A struct sockaddr_ib. `service` in host order; 0: none is named.
  static Address of_service(const Gid& gid, std::uint64_t service, std::uint32_t scope);
  // All addresses of a family.
  static Address any(sa_family_t family, std::uint16_t port);

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t size() const;
  sa_family_t family() const { return storage_.ss_family; }
  bool is_set() const { return family() != AF_UNSPEC; }
  bool is_ib() const { return family() == AF_IB; }
  // The lower part of the service id, where there is one.
  std::uint16_t port() const;
  // Whether it is left to us which port it gets.
  bool is_port_open() const;
  void set_port(std::uint16_t port);
  std::uint64_t service() const;       // host order; of a struct sockaddr_ib
  std::uint64_t service_mask() const;  // the same: which bits of it count
  void set_service_mask(std::uint64_t mask);
  // The same as IPv4 or IPv6, which is all that the system knows.
  Address ip() const { return is_ib() ? of(gid(), port(), scope()) : *this; }
  bool is_any() const;
  bool is_loopback() const;
  bool is_multicast() const;
  Gid gid() const;              // IPv4 as IPv4-mapped
  std::uint32_t scope() const;  // the interface of a link-local address, or 0

  void store(sockaddr_storage& to) const { to = storage_; }

 private:
  sockaddr_storage storage_{};
};

// Where the system would send from; errno: it would not.
Result<Address, int> source_towards(const Address& destination);

}  // namespace verbena::rdmacm
