// SPDX-License-Identifier: MIT
// The Ethernet address behind a GID, in a network namespace of its own with known neighbours.
#include "verbs/abi/ethernet.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/netlink.h>
#include <net/if.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "verbs/abi/entry.h"
#include "verbs/abi/netlink.h"

namespace {

using verbena::verbs::find_attribute;
using verbena::verbs::group_mac;
using verbena::verbs::resolve_ethernet;

ibv_gid gid_of(const char* text) {
  ibv_gid gid = {};
  EXPECT_EQ(inet_pton(AF_INET6, text, gid.raw), 1) << text;
  return gid;
}

// The address and, where there is one, the VLAN; or the name of the error.
std::string resolved(const char* destination, const char* interface) {
  const auto found = resolve_ethernet(gid_of(destination), if_nametoindex(interface));
  if (!found) return strerrorname_np(found.error());
  std::string text;
  for (const std::uint8_t byte : found->mac) {
    char digits[4];
    std::snprintf(digits, sizeof(digits), "%s%02x", text.empty() ? "" : ":", byte);
    text += digits;
  }
  return found->vlan == verbena::verbs::kNoVlan ? text
                                                : text + " vlan " + std::to_string(found->vlan);
}

bool write_file(const char* path, const std::string& content) {
  const int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool done =
      write(fd, content.data(), content.size()) == static_cast<ssize_t>(content.size());
  close(fd);
  return done;
}

constexpr int kNoNamespace = 77;

// Makes a namespace of which this process is root, with two interfaces, a VLAN and neighbours, none
// of which is real.
void enter_namespace() {
  const std::string map_user = "0 " + std::to_string(getuid()) + " 1";
  const std::string map_group = "0 " + std::to_string(getgid()) + " 1";
  if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0 || !write_file("/proc/self/setgroups", "deny") ||
      !write_file("/proc/self/uid_map", map_user) || !write_file("/proc/self/gid_map", map_group)) {
    std::_Exit(kNoNamespace);
  }
  const char* commands =
      "set -e; export PATH=$PATH:/usr/sbin:/sbin; ip link set lo up;"
      "ip link add left address 02:00:00:00:00:01 type veth peer name right;"
      "ip link set left up; ip link set right up;"
      "ip addr add 10.9.0.1/24 dev left; ip addr add fd00::1/64 dev left nodad;"
      "ip route add default via 10.9.0.254;"
      "ip neigh add 10.9.0.2 lladdr 02:00:00:00:00:02 nud permanent dev left;"
      "ip neigh add 10.9.0.254 lladdr 02:00:00:00:00:fe nud permanent dev left;"
      "ip neigh add fe80::5 lladdr 02:00:00:00:00:05 nud permanent dev left;"
      "ip neigh add 10.9.0.7 nud failed dev left";
  if (std::system(commands) != 0) std::_Exit(kNoNamespace + 1);
}

// Not every kernel has VLANs.
bool make_vlan() {
  const char* commands =
      "set -e; export PATH=$PATH:/usr/sbin:/sbin;"
      "ip link add link left name tagged type vlan id 42; ip link set tagged up;"
      "ip addr add 10.42.0.1/24 dev tagged;"
      "ip neigh add 10.42.0.2 lladdr 02:00:00:00:42:02 nud permanent dev tagged";
  const bool made = std::system(commands) == 0;
  if (!made) std::puts("SKIP the cases with a VLAN: this kernel has none");
  std::fflush(stdout);  // _Exit does not
  return made;
}

[[noreturn]] void resolve_in_namespace() {
  enter_namespace();
  const bool has_vlan = make_vlan();
  const struct {
    const char* destination;
    const char* interface;
    const char* wanted;
  } cases[] = {
      {"::ffff:10.9.0.2", "left", "02:00:00:00:00:02"},   // a neighbour
      {"::ffff:192.0.2.1", "left", "02:00:00:00:00:fe"},  // behind the router
      {"fe80::5", "left", "02:00:00:00:00:05"},           // the interface decides
      {"::ffff:10.42.0.2", "tagged", "02:00:00:00:42:02 vlan 42"},
      {"::ffff:10.9.0.1", "left", "02:00:00:00:00:01"},  // ourselves
      {"fd00::1", "left", "02:00:00:00:00:01"},
      {"::ffff:127.0.0.1", "lo", "00:00:00:00:00:00"},
      {"::ffff:224.129.2.3", "tagged", "01:00:5e:01:02:03 vlan 42"},
      {"fd01::1", "left", "ENETUNREACH"},           // no route
      {"::ffff:10.9.0.3", "left", "EHOSTUNREACH"},  // nobody answers
  };
  int failed = 0;
  for (const auto& [destination, interface, wanted] : cases) {
    if (!has_vlan && std::strcmp(interface, "tagged") == 0) continue;
    const std::string got = resolved(destination, interface);
    if (got == wanted) continue;
    std::fprintf(stderr, "%s over %s: %s, not %s\n", destination, interface, got.c_str(), wanted);
    ++failed;
  }
  std::_Exit(failed);
}

TEST(EthernetDeathTest, NeighboursRoutersVlansAndOurselves) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  bool no_namespace = false;
  const auto passed = [&no_namespace](int status) {
    no_namespace = WIFEXITED(status) && WEXITSTATUS(status) == kNoNamespace;
    return no_namespace || (WIFEXITED(status) && WEXITSTATUS(status) == 0);
  };
  EXPECT_EXIT(resolve_in_namespace(), passed, "");
  if (no_namespace) GTEST_SKIP() << "no user namespaces here";
}

TEST(Ethernet, GroupsHaveTheirAddressInTheIpAddress) {
  using testing::ElementsAre;
  EXPECT_THAT(group_mac(gid_of("::ffff:224.129.2.3")), ElementsAre(1, 0, 0x5e, 1, 2, 3));
  EXPECT_THAT(group_mac(gid_of("::ffff:239.255.0.1")), ElementsAre(1, 0, 0x5e, 0x7f, 0, 1));
  EXPECT_THAT(group_mac(gid_of("ff02::1:ff00:7")), ElementsAre(0x33, 0x33, 0xff, 0, 0, 7));
  EXPECT_THAT(group_mac(gid_of("::ffff:10.0.0.1")), testing::Each(0));
  EXPECT_THAT(group_mac(gid_of("fe80::1")), testing::Each(0));
}

TEST(Ethernet, TheVerbAsksForAnEthernetPortAndAGidOfOurs) {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  ibv_context* context = ibv_open_device(list[0]);
  std::uint8_t mac[ETHERNET_LL_SIZE];
  std::uint16_t vlan = 0;
  ibv_ah_attr attributes = {};
  attributes.port_num = 2;
  EXPECT_EQ(ibv_resolve_eth_l2_from_gid(context, &attributes, mac, &vlan), -EINVAL);
  attributes.port_num = 1;
  attributes.grh.sgid_index = 4;
  EXPECT_EQ(ibv_resolve_eth_l2_from_gid(context, &attributes, mac, &vlan), -ENODATA);
  attributes.grh.sgid_index = 99;
  EXPECT_EQ(ibv_resolve_eth_l2_from_gid(context, &attributes, mac, &vlan), -EINVAL);
  ibv_close_device(context);
  ibv_free_device_list(list);
}

TEST(Netlink, AnErrorThatIsNoErrnoIsABadMessage) {
  const auto refusal = [](int error) {
    std::array<std::int32_t, 9> message{sizeof message, NLMSG_ERROR, 0, 0, error};
    return verbena::verbs::netlink_payload(std::as_bytes(std::span(message))).error();
  };
  EXPECT_EQ(refusal(-ENODEV), ENODEV);
  for (const int error : {0, 1, -4096, std::numeric_limits<int>::min()})
    EXPECT_EQ(refusal(error), EBADMSG) << error;
}

TEST(Netlink, AttributesThatLieAboutTheirLengthAreNotFollowed) {
  const auto bytes = [](std::initializer_list<unsigned> values) {
    std::vector<std::byte> made;
    for (const unsigned value : values)
      made.push_back(static_cast<std::byte>(value));
    return made;
  };
  // Little-endian length and type, then the value.
  const auto good = bytes({5, 0, 1, 0, 0xaa, 0, 0, 0, 6, 0, 2, 0, 0xbb, 0xcc, 0, 0});
  ASSERT_TRUE(find_attribute(good, 2));
  EXPECT_EQ(find_attribute(good, 2)->size(), 2U);
  EXPECT_FALSE(find_attribute(good, 3));
  EXPECT_FALSE(find_attribute(bytes({9, 0, 1, 0, 0xaa, 0, 0, 0}), 1));  // longer than there is
  EXPECT_FALSE(find_attribute(bytes({3, 0, 1, 0, 0xaa, 0, 0, 0}), 1));  // shorter than its header
  EXPECT_FALSE(find_attribute(bytes({0, 0, 1, 0}), 2));                 // would go on for ever
  EXPECT_FALSE(find_attribute(bytes({4, 0, 1}), 1));
  EXPECT_FALSE(find_attribute({}, 1));
  EXPECT_EQ(find_attribute(bytes({4, 0, 1, 0}), 1)->size(), 0U);
  EXPECT_FALSE(verbena::verbs::read_attribute<std::uint32_t>(good, 1));  // one byte is no number
  EXPECT_EQ(verbena::verbs::read_attribute<std::uint16_t>(good, 2), 0xccbb);
}

}  // namespace
