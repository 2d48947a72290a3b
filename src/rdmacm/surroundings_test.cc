// SPDX-License-Identifier: MIT
// Interfaces that change, and hosts that say that they have no RoCE.

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "base/unique_fd.h"
#include "rdmacm/closed_hosts.h"
#include "rdmacm/interface_changes.h"
#include "rdmacm/port_probe.h"
#include "rdmacm/test_ends.h"
#include "wire/cm.h"
#include "wire/mad.h"
#include "wire/packet.h"

namespace verbena::rdmacm {
namespace {

class Interfaces : public EndsTest {
 protected:
  void SetUp() override {
    EndsTest::SetUp();
    id = make_id(client_channel.get());
    ASSERT_EQ(error_of(rdma_bind_addr(id.get(), raw(loopback()))), 0);
    const Id& bound = Id::of(id.get());
    interface = {.name = "eth", .index = bound.port->interface, .addresses = {loopback().gid()}};
    changes.begin({{interface}});
    changes.add(Id::of(id.get()));
  }
  void look(const std::vector<host::Interface>& present) { changes.look(present); }
  bool is_quiet() const { return !Id::of(id.get()).events().has_waiting(); }

  OwnId id;
  host::Interface interface;
  InterfaceChanges changes;
};

TEST_F(Interfaces, ThatAreAsTheyWereSayNothing) {
  look({interface});
  interface.mtu = 9000;
  interface.is_up = true;
  interface.addresses.push_back(loopback_ipv6().gid());
  look({interface});
  EXPECT_TRUE(is_quiet());
}

TEST_F(Interfaces, AnAddressThatLeavesIsToldOnce) {
  interface.addresses.clear();
  look({interface});
  look({interface});
  expect(client_channel.get(), RDMA_CM_EVENT_ADDR_CHANGE);
  EXPECT_TRUE(is_quiet());
  interface.addresses = {loopback().gid()};
  look({interface});
  EXPECT_TRUE(is_quiet());
  interface.addresses.clear();
  look({interface});
  expect(client_channel.get(), RDMA_CM_EVENT_ADDR_CHANGE);
}

TEST_F(Interfaces, AnAddressThatMovesIsTold) {
  host::Interface other = interface;
  other.index += 1000;
  interface.addresses.clear();
  look({interface, other});
  expect(client_channel.get(), RDMA_CM_EVENT_ADDR_CHANGE);
}

TEST_F(Interfaces, HardwareAddressesCount) {
  interface.mac[5] = 7;
  look({interface});
  expect(client_channel.get(), RDMA_CM_EVENT_ADDR_CHANGE);
  look({interface});
  EXPECT_TRUE(is_quiet());
}

TEST_F(Interfaces, AnInterfaceThatGoesIsToldOnce) {
  look({});
  look({});
  expect(client_channel.get(), RDMA_CM_EVENT_DEVICE_REMOVAL);
  EXPECT_TRUE(is_quiet());
}

TEST_F(Interfaces, NobodyIsToldOfWhatItLeft) {
  changes.remove(Id::of(id.get()));
  look({});
  EXPECT_TRUE(is_quiet());
}

TEST_F(Interfaces, OfAnIdThatIsNotAcceptedNothingIsTold) {
  Id::of(id.get()).awaits_accept = true;
  interface.addresses.clear();
  interface.mac[5] = 7;
  look({interface});
  look({});
  EXPECT_TRUE(is_quiet());
  Id::of(id.get()).awaits_accept = false;
  look({});
  expect(client_channel.get(), RDMA_CM_EVENT_DEVICE_REMOVAL);
}

TEST_F(Interfaces, LoopbackAddressesAreAlwaysThere) {
  interface.is_loopback = true;
  interface.addresses.clear();
  look({interface});
  EXPECT_TRUE(is_quiet());
}

// ---------------------------------------------------------------------------------- closed ports

// A UDP socket on the loopback interface, and its port.
struct Listener {
  Listener() : fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    const Address any = loopback();
    EXPECT_EQ(bind(fd.get(), any.get(), any.size()), 0);
    sockaddr_storage name{};
    socklen_t size = sizeof name;
    EXPECT_EQ(getsockname(fd.get(), reinterpret_cast<sockaddr*>(&name), &size), 0);
    port = Address::from(reinterpret_cast<const sockaddr*>(&name))->port();
  }
  UniqueFd fd;
  std::uint16_t port = 0;
};

GsiMad question() {
  return {.from = loopback().gid(),
          .to = loopback().gid(),
          .interface = 1,
          .bytes = wire::encode_cm(
              {.transaction_id = 1, .message = wire::Req{.local_comm_id = 7, .service_id = 9}})};
}

TEST(PortProbe, AnOpenPortGetsAGoodPacket) {
  const Listener listener;
  PortProbe probe(question(), listener.port);
  ASSERT_TRUE(probe.ask());
  std::array<std::byte, 1024> room{};
  const ssize_t size = recv(listener.fd.get(), room.data(), room.size(), 0);
  ASSERT_GT(size, 0);
  const auto packet = wire::parse(std::span(room).first(static_cast<std::size_t>(size)));
  ASSERT_TRUE(packet);
  EXPECT_EQ(packet->dest_qp, QpNum{1});
  EXPECT_EQ(packet->qkey, wire::kGsiQkey);
  EXPECT_TRUE(std::ranges::equal(packet->payload, question().bytes));
  EXPECT_FALSE(probe.was_refused());
}

TEST(PortProbe, AClosedPortIsHeardOf) {
  std::uint16_t closed = 0;
  {
    const Listener listener;
    closed = listener.port;
  }
  PortProbe probe(question(), closed);
  EXPECT_FALSE(probe.was_refused());
  // On one host the answer is there when the call returns; it comes each time.
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(probe.ask());
    EXPECT_TRUE(probe.was_refused());
    EXPECT_FALSE(probe.was_refused());
  }
}

// Ours is not the only code in the process that closes descriptors.
TEST(PortProbe, DescriptorsOfOthersAreLeftAlone) {
  const int next = dup(0);
  ASSERT_GE(next, 0);
  close(next);
  PortProbe probe(question(), 9);
  close(next);
  const Listener other;
  ASSERT_EQ(other.fd.get(), next) << "in its place";
  EXPECT_FALSE(probe.ask());
  EXPECT_FALSE(probe.was_refused());
}

TEST(ClosedHosts, OurselvesAreAskedOtherwise) {
  ClosedHosts hosts(9);
  hosts.watch(question(), {1}, Instant::at(0));
  EXPECT_EQ(hosts.next_deadline(), Instant::never());
}

// From the loopback interface no packet leaves the host, whomever it is for (TEST-NET-1, RFC 5737).
TEST(ClosedHosts, SilenceIsNoRefusal) {
  ClosedHosts hosts(9);
  GsiMad far = question();
  far.to = wire::gid_of(std::array<std::uint8_t, 4>{192, 0, 2, 1});
  Instant now = Instant::at(0);
  hosts.watch(far, {1}, now);
  unsigned looks = 0;
  for (; hosts.next_deadline() != Instant::never() && looks < 100; ++looks) {
    now = hosts.next_deadline();
    EXPECT_TRUE(hosts.look(now, [](cm::CommId) { return true; }).empty());
  }
  EXPECT_GT(looks, 2u);
  EXPECT_LT(looks, 100u) << "it ends";
}

TEST(ClosedHosts, WhoWaitsNoMoreIsForgotten) {
  ClosedHosts hosts(9);
  GsiMad far = question();
  far.to = wire::gid_of(std::array<std::uint8_t, 4>{192, 0, 2, 1});
  hosts.watch(far, {1}, Instant::at(0));
  EXPECT_TRUE(hosts.look(hosts.next_deadline(), [](cm::CommId) { return false; }).empty());
  EXPECT_EQ(hosts.next_deadline(), Instant::never());
}

}  // namespace
}  // namespace verbena::rdmacm
