// SPDX-License-Identifier: MIT
// For tests: two network namespaces and a pair of virtual Ethernet interfaces between them, made
// and removed by the test. As root, or as an ordinary user where user namespaces are allowed.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/unique_fd.h"

namespace verbena::port {

constexpr int kNoNamespaces = 77;

inline bool write_file(const char* path, const std::string& text) {
  const UniqueFd fd(open(path, O_WRONLY | O_CLOEXEC));
  return fd && write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

// The calling process, alone with its threads, in a network namespace of its own.
inline bool leave_network() {
  if (unshare(CLONE_NEWNET) == 0) return true;
  const std::string user = std::to_string(getuid());
  const std::string group = std::to_string(getgid());
  return unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0 && write_file("/proc/self/setgroups", "deny") &&
         write_file("/proc/self/uid_map", "0 " + user + " 1") &&
         write_file("/proc/self/gid_map", "0 " + group + " 1");
}

// Two hosts, `va` in the first and `vb` in the second, with 10.9.0.1 and .2, fd00::1 and ::2,
// fe80::1 and ::2. One object a process.
class TwoHosts {
 public:
  explicit TwoHosts(int mtu) {
    if (!leave_network()) _exit(kNoNamespaces);
    first_ = UniqueFd(open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC));
    if (unshare(CLONE_NEWNET) != 0) _exit(kNoNamespaces);
    second_ = UniqueFd(open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC));
    const std::string there = "/proc/" + std::to_string(getpid()) + "/fd/";
    enter(0);
    run("ip link set lo up");
    run("ip link add va type veth peer name vb");
    run("ip link set vb netns " + there + std::to_string(second_.get()));
    set_up("va", "1", mtu);
    enter(1);
    run("ip link set lo up");
    set_up("vb", "2", mtu);
    enter(0);
  }

  // A setting of an interface in sysfs, which shows the network that it was mounted in.
  static bool write_setting(const std::string& interface, const std::string& name,
                            const std::string& value) {
    if (unshare(CLONE_NEWNS) != 0 ||
        mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("sysfs", "/sys", "sysfs", 0, nullptr) != 0) {
      return false;
    }
    return write_file(("/sys/class/net/" + interface + "/" + name).c_str(), value);
  }

  // Sockets are made where the calling thread is.
  void enter(int host) {
    const UniqueFd& network = host == 0 ? first_ : second_;
    if (setns(network.get(), CLONE_NEWNET) != 0) _exit(kNoNamespaces);
  }
  static void run(const std::string& command) {
    if (std::system((command + " 2>&1").c_str()) != 0) {  // NOLINT(bugprone-command-processor): ip
      std::printf("cannot: %s\n", command.c_str());
      std::fflush(stdout);
      _exit(kNoNamespaces);
    }
  }
  static bool set_offload(const char* interface, unsigned what, unsigned value) {
    const UniqueFd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ethtool_value wish{what, value};
    ifreq request{};
    std::strncpy(request.ifr_name, interface, IFNAMSIZ - 1);
    request.ifr_data = reinterpret_cast<char*>(&wish);
    return ioctl(fd.get(), SIOCETHTOOL, &request) == 0;
  }

 private:
  static void set_up(const std::string& name, const std::string& last, int mtu) {
    run("ip link set " + name + " addrgenmode none mtu " + std::to_string(mtu) + " up");
    run("ip addr add 10.9.0." + last + "/24 dev " + name);
    run("ip addr add fd00::" + last + "/64 dev " + name + " nodad");
    run("ip addr add fe80::" + last + "/64 dev " + name + " nodad");
  }
  UniqueFd first_;
  UniqueFd second_;
};

// Runs in a child, where expectations count for the test. False: there are no namespaces here.
template <class Body>
bool in_namespaces(Body body) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    body();
    std::fflush(stdout);
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNoNamespaces) return false;
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the child found failures";
  return true;
}

}  // namespace verbena::port
