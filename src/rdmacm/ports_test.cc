// SPDX-License-Identifier: MIT
// Port spaces: who may be bound to what beside whom.
#include <optional>
#include <vector>

#include "host/interfaces.h"
#include "rdmacm/test_ends.h"

namespace verbena::rdmacm {
namespace {

Address all_ipv4() { return Address::any(AF_INET, 0); }
Address all_ipv6() { return Address::any(AF_INET6, 0); }
Address all_gids() { return Address::of_service({}, 0, 0); }
Address gid() { return as_gid(loopback()); }

class Ports : public EndsTest {
 protected:
  // Binds to the port; 0: one that is free, which it then gives.
  int bind(OwnId& id, Address address, std::uint16_t& port, rdma_port_space space = RDMA_PS_TCP) {
    id = make_id(server_channel.get(), space);
    if (is_reused || is_ipv6_only) set_options(id.get());
    if (address.is_ib()) address = as_gid(address, space);
    address.set_port(port);
    if (port == 0 && address.is_ib()) address.set_service_mask(RDMA_IB_IP_PS_MASK);
    const int error = error_of(rdma_bind_addr(id.get(), raw(address)));
    if (!error) port = be16toh(rdma_get_src_port(id.get()));
    return error;
  }
  void set_options(rdma_cm_id* id) {
    int on = 1;
    if (is_reused) {
      EXPECT_EQ(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof on), 0);
    }
    if (is_ipv6_only) {
      EXPECT_EQ(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on, sizeof on), 0);
    }
  }
  bool is_reused = false;
  bool is_ipv6_only = false;
};

struct Conflict {
  Address first;
  Address second;
  int error;
};

TEST_F(Ports, AddressesAgainstEachOther) {
  const std::vector<Conflict> conflicts = {
      {loopback(), loopback(), EADDRINUSE},
      {loopback(), loopback_ipv6(), 0},
      {all_ipv4(), loopback(), EADDRINUSE},
      {loopback(), all_ipv4(), EADDRNOTAVAIL},
      {all_ipv4(), loopback_ipv6(), 0},
      {all_ipv6(), loopback_ipv6(), EADDRINUSE},
      {all_ipv6(), loopback(), EADDRINUSE},
      {loopback_ipv6(), all_ipv6(), EADDRNOTAVAIL},
      {loopback(), all_ipv6(), EADDRNOTAVAIL},
      {all_ipv4(), all_ipv6(), EADDRINUSE},
      {gid(), loopback(), EADDRINUSE},
      {loopback(), gid(), EADDRINUSE},
      {all_gids(), loopback(), EADDRINUSE},
      {all_gids(), loopback_ipv6(), EADDRINUSE},
      {loopback_ipv6(), all_gids(), EADDRNOTAVAIL},
      {all_ipv4(), all_gids(), EADDRINUSE},
      {gid(), loopback_ipv6(), 0},
  };
  for (std::size_t i = 0; i < conflicts.size(); ++i) {
    const Conflict& each = conflicts[i];
    OwnId first;
    OwnId second;
    std::uint16_t port = 0;
    ASSERT_EQ(bind(first, each.first, port), 0) << i;
    EXPECT_NE(port, 0);
    EXPECT_EQ(bind(second, each.second, port), each.error) << i;
    // And once the first one is gone there is nothing in the way.
    first.reset();
    EXPECT_EQ(bind(first, each.second, port), each.error == 0 ? EADDRINUSE : 0) << i;
  }
}

TEST_F(Ports, SpacesHaveNothingToDoWithEachOther) {
  OwnId tcp, udp, ib;
  std::uint16_t port = 0;
  ASSERT_EQ(bind(tcp, loopback(), port), 0);
  EXPECT_EQ(bind(udp, loopback(), port, RDMA_PS_UDP), 0);
  EXPECT_EQ(bind(ib, loopback(), port, RDMA_PS_IB), 0);
}

TEST_F(Ports, Ipv6AloneLeavesIpv4Alone) {
  is_ipv6_only = true;
  OwnId first, second, third;
  std::uint16_t port = 0;
  ASSERT_EQ(bind(first, all_ipv6(), port), 0);
  EXPECT_EQ(bind(second, loopback(), port), 0);
  EXPECT_EQ(bind(third, loopback_ipv6(), port), EADDRINUSE);
}

TEST_F(Ports, WhoAgreesMaySharePortsAndOneListens) {
  is_reused = true;
  OwnId first, second;
  std::uint16_t port = 0;
  ASSERT_EQ(bind(first, loopback(), port), 0);
  ASSERT_EQ(bind(second, loopback(), port), 0);
  EXPECT_EQ(error_of(rdma_listen(first.get(), 1)), 0);
  EXPECT_EQ(error_of(rdma_listen(second.get(), 1)), EADDRINUSE);
  first.reset();
  EXPECT_EQ(error_of(rdma_listen(second.get(), 1)), 0);
}

TEST_F(Ports, ServicesOutsideOfTheirSpace) {
  struct Case {
    rdma_port_space space;
    std::uint64_t service, mask;
    int error;
  };
  const std::uint64_t whole = ~std::uint64_t{0};
  const Case cases[] = {
      {RDMA_PS_TCP, RDMA_IB_IP_PS_UDP + 20'011, whole, EPROTONOSUPPORT},
      {RDMA_PS_UDP, RDMA_IB_IP_PS_TCP + 20'011, whole, EPROTONOSUPPORT},
      {RDMA_PS_TCP, 0x1000'0000'0000'0001, whole, EPROTONOSUPPORT},
      {RDMA_PS_IB, RDMA_IB_IP_PS_TCP + 20'012, whole, 0},
      {RDMA_PS_IB, RDMA_IB_IP_PS_UDP + 20'013, whole, 0},
      {RDMA_PS_IB, 0x1000'0000'0000'0000, whole, 0},
      {RDMA_PS_IB, 0x1000'0000'0000'0000, whole << 16, EPROTONOSUPPORT},
      {RDMA_PS_TCP, 0, 0, 0},
  };
  for (const Case& each : cases) {
    const OwnId id = make_id(server_channel.get(), each.space);
    Address address = Address::of_service(loopback().gid(), each.service, 0);
    address.set_service_mask(each.mask);
    EXPECT_EQ(error_of(rdma_bind_addr(id.get(), raw(address))), each.error) << each.service;
    if (each.error) continue;
    EXPECT_EQ(error_of(rdma_listen(id.get(), 1)), 0);
    const Address bound = Id::of(id.get()).source();
    EXPECT_EQ(bound.service_mask(), whole);
    if (each.service != 0) {
      EXPECT_EQ(bound.service(), each.service);
    }
  }
}

TEST_F(Ports, AddressesThatAreNotOurs) {
  const OwnId id = make_id(server_channel.get());
  const Gid other = wire::gid_of(std::array<std::uint8_t, 4>{192, 0, 2, 1});
  EXPECT_EQ(error_of(rdma_bind_addr(id.get(), raw(Address::of(other, 0, 0)))), EADDRNOTAVAIL);
  EXPECT_EQ(error_of(rdma_bind_addr(id.get(), raw(Address::of_service(other, 0, 0)))),
            EADDRNOTAVAIL);
  // Nothing has happened to the id.
  EXPECT_EQ(error_of(rdma_bind_addr(id.get(), raw(loopback()))), 0);
}

// An address of nobody, behind an interface on which neighbours are asked. Nothing: there is none.
std::optional<Address> nobody_near() {
  for (const host::Interface& each : host::device_interfaces(host::all_interfaces())) {
    for (const Gid& own : each.addresses) {
      const bool is_link_local = own.bytes[0] == 0xFE && own.bytes[1] == 0x80;
      if (each.is_loopback || !is_link_local) continue;
      Gid nobody = own;
      for (std::size_t i = 8; i < sizeof nobody.bytes; ++i)
        nobody.bytes[i] ^= 0x5A;
      return Address::of(nobody, 4242, each.index);
    }
  }
  return std::nullopt;
}

// As with the kernel's: it has the address from which it asked.
TEST_F(Ports, AreKeptWhereNobodyAnswers) {
  const auto to = nobody_near();
  if (!to) GTEST_SKIP() << "no interface with neighbours";
  const OwnId id = make_id(client_channel.get());
  ASSERT_EQ(error_of(rdma_resolve_addr(id.get(), nullptr, raw(*to), 1)), 0);
  expect(client_channel.get(), RDMA_CM_EVENT_ADDR_ERROR);
  const std::uint16_t port = rdma_get_src_port(id.get());
  EXPECT_EQ(error_of(rdma_bind_addr(id.get(), raw(loopback()))), EINVAL);
  EXPECT_EQ(rdma_get_src_port(id.get()), port);
  ASSERT_EQ(error_of(rdma_resolve_addr(id.get(), nullptr, raw(*to), 1)), 0) << "it may ask again";
  expect(client_channel.get(), RDMA_CM_EVENT_ADDR_ERROR);
}

}  // namespace
}  // namespace verbena::rdmacm
