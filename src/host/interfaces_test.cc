// SPDX-License-Identifier: MIT
#include "host/interfaces.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/rtnetlink.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

#include "base/open_file.h"
#include "base/unique_fd.h"
#include "host/netlink.h"

namespace verbena::host {
namespace {

Gid gid(const std::string& text) {
  Gid result;
  EXPECT_EQ(inet_pton(AF_INET6, text.c_str(), result.bytes), 1) << text;
  return result;
}

std::string names_of(const std::vector<Interface>& interfaces) {
  std::string names;
  for (const Interface& each : interfaces)
    names += (names.empty() ? "" : " ") + each.name;
  return names;
}

const Interface& named(const std::vector<Interface>& all, const std::string& name) {
  const auto found = std::ranges::find(all, name, &Interface::name);
  EXPECT_NE(found, all.end()) << name;
  return *found;
}

void ip(const std::string& command) {
  EXPECT_EQ(std::system(("ip " + command).c_str()), 0) << command;
}

// A veth pair `first` and `second`, up; what the kernel cannot do is no fault of ours.
void need_pair() {
  const bool made = std::system("ip link add first type veth peer name second 2>/dev/null") == 0 &&
                    std::system("ip link add link first probe type macvlan 2>/dev/null") == 0;
  if (!made) _exit(78);
  ip("link del probe");
  ip("link set lo up");
  for (const char* name : {"first", "second"}) {
    // Addresses of our own choice, usable at once.
    ip(std::string("link set ") + name + " addrgenmode none");
    ip(std::string("link set ") + name + " up");
  }
}

bool enter_empty_namespace() {
  if (unshare(CLONE_NEWNET) == 0) return true;
  const auto uid = getuid();
  if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return false;
  std::ofstream("/proc/self/setgroups") << "deny";
  std::ofstream("/proc/self/uid_map") << "0 " << uid << " 1";
  return unshare(CLONE_NEWNET) == 0;
}

// Runs `body` in a child with a network namespace of its own.
template <class Body>
void in_empty_namespace(Body body) {
  if (std::system("ip -V > /dev/null 2>&1") != 0) GTEST_SKIP() << "needs the command ip";
  const pid_t child = fork();
  if (child == 0) {
    unsetenv("VERBENA_DEVICES");
    if (!enter_empty_namespace()) _exit(77);
    body();
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "needs a network namespace";
  if (WEXITSTATUS(status) == 78) GTEST_SKIP() << "needs a kernel with veth and macvlan";
  EXPECT_EQ(status, 0);
}

TEST(Interfaces, HaveALoopbackEvenWhereItIsDown) {
  in_empty_namespace([] {
    EXPECT_EQ(names_of(device_interfaces(all_interfaces())), "lo");
    const Interface lo = device_interfaces(all_interfaces())[0];
    EXPECT_TRUE(lo.is_loopback);
    EXPECT_TRUE(lo.is_up);
    EXPECT_GE(lo.mtu, 65535u);
    EXPECT_EQ(lo.addresses, (std::vector<Gid>{gid("::ffff:127.0.0.1"), gid("::1")}));
    EXPECT_TRUE(is_local_address(gid("::ffff:127.0.0.1")));
    EXPECT_TRUE(is_local_address(gid("::1")));
    EXPECT_FALSE(is_local_address(gid("::ffff:10.1.1.1")));
    ip("link set lo up");
    EXPECT_EQ(device_interfaces(all_interfaces())[0].addresses, lo.addresses);
  });
}

TEST(Interfaces, ComeInTheOrderOfPrograms) {
  in_empty_namespace([] {
    need_pair();
    // A macvlan stands for a wire; a bridge and a veth do not.
    for (const char* name : {"wire1", "wire2", "wire3"}) {
      ip(std::string("link add link second ") + name + " type macvlan");
      ip(std::string("link set ") + name + " addrgenmode none");
    }
    ip("link add tool type bridge");
    ip("link add here type veth peer name there");
    int host = 1;
    for (const char* name : {"first", "wire1", "wire2", "tool", "here", "there"}) {
      ip(std::string("link set ") + name + " up");
      ip("addr add 10.9." + std::to_string(host++) + ".1/24 dev " + name);
    }
    EXPECT_EQ(names_of(device_interfaces(all_interfaces())), "wire1 wire2 lo");
    ip("route add default via 10.9.3.2 dev wire2 metric 100");
    EXPECT_EQ(names_of(device_interfaces(all_interfaces())), "wire2 wire1 lo");
    ip("route add default via 10.9.2.2 dev wire1 metric 50");
    EXPECT_EQ(names_of(device_interfaces(all_interfaces())), "wire1 wire2 lo");
    // As in a container: the way out is a veth.
    ip("route add default via 10.9.5.2 dev here metric 10");
    EXPECT_EQ(names_of(device_interfaces(all_interfaces())), "here wire1 wire2 lo");
    ip("link set wire2 down");
    EXPECT_EQ(names_of(device_interfaces(all_interfaces())), "here wire1 lo");

    setenv("VERBENA_DEVICES", "tool,wire*", 1);
    EXPECT_EQ(names_of(device_interfaces(all_interfaces())), "wire1 wire2 wire3 tool lo");
    setenv("VERBENA_DEVICES", "lo", 1);
    EXPECT_EQ(names_of(device_interfaces(all_interfaces())), "lo");
    setenv("VERBENA_DEVICES", "", 1);
    EXPECT_EQ(names_of(device_interfaces(all_interfaces())), "lo");
    setenv("VERBENA_DEVICES", ",,nothing,", 1);
    EXPECT_EQ(names_of(device_interfaces(all_interfaces())), "lo");
    setenv("VERBENA_DEVICES", "all", 1);
    EXPECT_EQ(device_interfaces(all_interfaces()).size(), all_interfaces().size());
    EXPECT_EQ(device_interfaces(all_interfaces()).back().name, "lo");
  });
}

TEST(Interfaces, KnowAllAboutThem) {
  in_empty_namespace([] {
    need_pair();
    ip("link set first address 02:11:22:33:44:55 mtu 4200");
    ip("addr add 2001:db8::5/64 dev first nodad");
    ip("addr add 10.9.1.1/24 dev first");
    ip("addr add 10.9.1.2/24 dev first");
    ip("addr add fe80::11:22ff:fe33:4455/64 dev first nodad");
    ip("route add default dev first");
    std::ofstream("/proc/sys/net/ipv6/conf/second/dad_transmits") << 100;
    ip("addr add 2001:db8::6/64 dev second");  // not usable until nobody objects
    const auto all = all_interfaces();
    const Interface& one = named(all, "first");
    EXPECT_TRUE(named(all, "second").addresses.empty());
    EXPECT_TRUE(one.is_up);
    EXPECT_TRUE(one.is_virtual);
    EXPECT_FALSE(one.is_loopback);
    EXPECT_TRUE(one.route_rank);
    EXPECT_EQ(one.mtu, 4200u);
    const std::uint8_t mac[] = {2, 0x11, 0x22, 0x33, 0x44, 0x55};
    EXPECT_TRUE(std::ranges::equal(one.mac, mac));
    // Link-local, IPv4, other IPv6.
    ASSERT_EQ(one.addresses.size(), 4u);
    EXPECT_EQ(one.addresses[0], gid("fe80::11:22ff:fe33:4455"));
    EXPECT_EQ(one.addresses[1], gid("::ffff:10.9.1.1"));
    EXPECT_EQ(one.addresses[2], gid("::ffff:10.9.1.2"));
    EXPECT_EQ(one.addresses[3], gid("2001:db8::5"));
    EXPECT_FALSE(named(all, "lo").route_rank);
  });
}

TEST(LocalAddress, IsToldByTheKernelAsItIsNow) {
  in_empty_namespace([] {
    need_pair();
    ip("addr add 10.9.1.1/24 dev first");
    ip("addr add 2001:db8::5/64 dev first nodad");
    ip("addr add fe80::11:22ff:fe33:4455/64 dev first nodad");
    ip("route add default dev first");
    for (const char* ours : {"::ffff:10.9.1.1", "2001:db8::5", "fe80::11:22ff:fe33:4455",
                             "::ffff:127.0.0.1", "::ffff:127.3.4.5", "::1"}) {
      EXPECT_TRUE(is_local_address(gid(ours))) << ours;
    }
    for (const char* others :
         {"::ffff:10.9.1.2", "::ffff:10.9.1.255", "::ffff:10.9.1.0", "::ffff:8.8.8.8",
          "2001:db8::6", "fe80::1", "::", "::2", "::ffff:0.0.0.0", "::ffff:224.0.0.1",
          "::ffff:255.255.255.255", "ff02::1", "::10.9.1.1"}) {
      EXPECT_FALSE(is_local_address(gid(others))) << others;
    }
    ip("addr add 10.9.1.2/24 dev first");
    EXPECT_TRUE(is_local_address(gid("::ffff:10.9.1.2")));
    ip("addr del 10.9.1.2/24 dev first");
    EXPECT_FALSE(is_local_address(gid("::ffff:10.9.1.2")));
    ip("link set first down");
    EXPECT_TRUE(is_local_address(gid("::ffff:10.9.1.1")));
  });
}

// A program closes what it does not know, and opens files of its own, just while we ask.
TEST(Netlink, AsksAgainWhereTheProgramTookTheSocketsPlace) {
  const int place = open("/dev/null", O_RDONLY | O_CLOEXEC);  // the socket's number, soon
  ASSERT_GE(place, 0);
  close(place);
  UniqueFd file;
  std::size_t answers = 0;
  const bool is_told = netlink_dump(RTM_GETLINK, AF_UNSPEC, [&](std::uint16_t, auto) {
    ++answers;
    if (file) return true;
    struct stat status{};
    EXPECT_EQ(fstat(place, &status), 0);
    EXPECT_TRUE(S_ISSOCK(status.st_mode));
    file = UniqueFd(open("/dev/zero", O_RDONLY | O_CLOEXEC));
    EXPECT_EQ(dup2(file.get(), place), place);
    return true;
  });
  EXPECT_TRUE(is_told);
  std::size_t once = 0;
  EXPECT_TRUE(
      netlink_dump(RTM_GETLINK, AF_UNSPEC, [&](std::uint16_t, auto) { return ++once != 0; }));
  EXPECT_GT(answers, once);  // some of them twice
  EXPECT_TRUE(OpenFile(file.get()).is_behind(place)) << "the program's file was closed";
  close(place);
}

TEST(LocalAddress, IsToldWithoutADescriptorToSpare) {
  in_empty_namespace([] {
    ip("link set lo up");
    ip("addr add 10.9.1.1/32 dev lo");
    rlimit limit{};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = 3;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    while (dup(0) >= 0) {
    }
    EXPECT_TRUE(is_local_address(gid("::ffff:10.9.1.1")));
    EXPECT_GE(all_interfaces()[0].addresses.size(), 2u);
    // And where none is to be had at all, there is `lo`.
    limit.rlim_max = 3;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    EXPECT_EQ(names_of(device_interfaces(all_interfaces())), "lo");
    EXPECT_TRUE(is_local_address(gid("::1")));
    EXPECT_FALSE(is_local_address(gid("::ffff:10.9.1.1")));
  });
}

// Who takes that for an empty host tells programs that their devices are gone.
TEST(Interfaces, AreNotGoneWhereTheSystemDoesNotSay) {
  ASSERT_TRUE(find_interfaces().has_value());
  const pid_t child = fork();
  if (child == 0) {
    const rlimit none{3, 3};
    if (setrlimit(RLIMIT_NOFILE, &none) != 0) _exit(2);
    const bool is_unknown = !find_interfaces().has_value();
    const std::vector<Interface> assumed = all_interfaces();
    _exit(is_unknown && assumed.size() == 1 && assumed[0].is_loopback ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Netlink, ParsesNothingBeyondTheEnd) {
  // Lengths that lie, in a buffer that a sanitizer watches.
  std::vector<std::byte> bytes(8);
  const rtattr lies[] = {{0, 1}, {3, 1}, {9, 1}, {65535, 1}};
  for (const rtattr& lie : lies) {
    std::memcpy(bytes.data(), &lie, sizeof lie);
    unsigned calls = 0;
    netlink_attributes(bytes, [&](unsigned, std::span<const std::byte>) { ++calls; });
    EXPECT_EQ(calls, 0u);
  }
  const rtattr truth{5, 7};
  std::memcpy(bytes.data(), &truth, sizeof truth);
  netlink_attributes(bytes, [](unsigned type, std::span<const std::byte> payload) {
    EXPECT_EQ(type, 7u);
    EXPECT_EQ(payload.size(), 1u);
  });
  EXPECT_FALSE(netlink_head<rtmsg>(std::span(bytes).first(3)));
  EXPECT_TRUE(netlink_tail<rtmsg>(std::span(bytes).first(3)).empty());
}

}  // namespace
}  // namespace verbena::host
