// SPDX-License-Identifier: MIT
#include "port/udp_socket.h"

#include <fcntl.h>
#include <linux/udp.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <new>

#include "host/descriptor_limit.h"
#include "host/raw_calls.h"
#include "wire/ip.h"

// Newer than the headers of the systems that we compile on.
#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif
#ifndef IPV6_MULTICAST_ALL
#define IPV6_MULTICAST_ALL 29
#endif
#ifndef SO_MEMINFO
#define SO_MEMINFO 55
#endif

namespace verbena::port {
namespace {

namespace raw = host::raw;
using wire::is_ipv4;

// What the kernel charges for a small packet, its own structures included.
constexpr std::uint32_t kSmallPacketCost = 832;
constexpr unsigned kMeminfoTaken = 0;  // SK_MEMINFO_RMEM_ALLOC
constexpr unsigned kMeminfoSize = 1;   // SK_MEMINFO_RCVBUF
constexpr unsigned kMeminfoDrops = 8;  // SK_MEMINFO_DROPS
constexpr unsigned kMeminfoVars = 9;

int make_socket(int family) {
  constexpr int kType = SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
  const auto call = [&] { return static_cast<int>(syscall(SYS_socket, family, kType, 0)); };
  const int fd = call();
  if (fd >= 0 || errno != EMFILE) return fd;
  const host::RaisedDescriptorLimit raised;
  return call();
}

template <class T>
bool set(int fd, int level, int name, const T& value) {
  return syscall(SYS_setsockopt, fd, level, name, &value, sizeof value) == 0;
}
bool set_on(int fd, int level, int name) { return set(fd, level, name, 1); }

template <class T>
bool get(int fd, int level, int name, T& value) {
  socklen_t size = sizeof value;
  return syscall(SYS_getsockopt, fd, level, name, &value, &size) == 0;
}

SocketError error_of(int number) {
  switch (number) {
    case EMFILE:
    case ENFILE: return SocketError::kNoDescriptor;
    case ENOMEM:
    case ENOBUFS: return SocketError::kNoMemory;
    case EADDRINUSE: return SocketError::kInUse;
    case EACCES:
    case EPERM: return SocketError::kDenied;
    case EBADF:
    case ENOTSOCK: return SocketError::kClosed;
    default: return SocketError::kMissing;
  }
}

// -1, and errno of what failed.
int give_up(int fd) {
  const int why = errno;
  raw::close(fd);
  errno = why;
  return -1;
}

int make_dual_socket() {
  if (!has_ipv6_sockets()) return make_socket(AF_INET);
  const int fd = make_socket(AF_INET6);
  if (fd >= 0 && !set(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0)) return give_up(fd);
  return fd;
}

Gid any_address() {
  return has_ipv6_sockets() ? Gid{} : wire::gid_of(std::array<std::uint8_t, 4>{});
}

bool bind_to(const Gid& address, int fd, std::uint16_t port) {
  sockaddr_storage name{};
  const socklen_t size = to_socket_address(address, 0, port, name);
  return raw::bind(fd, reinterpret_cast<const sockaddr*>(&name), size) == 0;
}

std::uint16_t port_of(const sockaddr_storage& name) {
  if (name.ss_family == AF_INET) {
    return std::bit_cast<wire::be16>(reinterpret_cast<const sockaddr_in&>(name).sin_port).value();
  }
  if (name.ss_family == AF_INET6) {
    return std::bit_cast<wire::be16>(reinterpret_cast<const sockaddr_in6&>(name).sin6_port).value();
  }
  return 0;
}

// -1, and errno.
int make_unbound_sender(std::uint32_t buffer, bool is_only_ipv4) {
  const int fd = is_only_ipv4 ? make_socket(AF_INET) : make_dual_socket();
  if (fd < 0) return fd;
  // Nobody answers to this port; whatever comes is dropped before it takes memory.
  sock_filter drop{BPF_RET | BPF_K, 0, 0, 0};
  set(fd, SOL_SOCKET, SO_ATTACH_FILTER, sock_fprog{1, &drop});
  bool good = set(fd, IPPROTO_IP, IP_MTU_DISCOVER, int{IP_PMTUDISC_PROBE});
  if (!is_only_ipv4 && has_ipv6_sockets()) {
    good = good && set(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, int{IPV6_PMTUDISC_PROBE});
  }
  if (buffer > 0) {
    set(fd, SOL_SOCKET, SO_SNDBUF, static_cast<int>(std::min<std::uint32_t>(buffer, 1 << 30)));
  }
  return good ? fd : give_up(fd);
}

// An ordinary socket on loopback that gets a train from itself.
bool try_a_train(const Gid& loopback) {
  const int fd = make_dual_socket();
  if (fd < 0) return true;  // nothing learnt
  bool can = true;
  sockaddr_storage name{};
  const socklen_t size = to_socket_address(loopback, 0, 0, name);
  if (raw::bind(fd, reinterpret_cast<const sockaddr*>(&name), size) == 0) {
    sockaddr_storage to{};
    to_socket_address(loopback, 0, bound_port(fd), to);
    std::array<std::byte, 32> bytes{};
    iovec piece{bytes.data(), bytes.size()};
    msghdr message{};
    message.msg_name = &to;
    message.msg_namelen = size;
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    can = set(fd, IPPROTO_UDP, UDP_SEGMENT, 16) &&
          (raw::sendmsg(fd, message, MSG_NOSIGNAL) > 0 || (errno != EIO && errno != EINVAL));
  }
  raw::close(fd);
  return can;
}

}  // namespace

std::uint16_t bound_port(int fd) {
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  if (syscall(SYS_getsockname, fd, &name, &size) != 0) return 0;
  return port_of(name);
}

const char* to_string(SocketError error) {
  switch (error) {
    case SocketError::kNoDescriptor: return "no descriptor is left";
    case SocketError::kNoMemory: return "no memory for a socket";
    case SocketError::kInUse: return "the UDP port is taken by somebody else";
    case SocketError::kDenied: return "the system refuses sockets";
    case SocketError::kMissing: return "the system has no such sockets";
    case SocketError::kClosed: return "somebody closed the socket";
  }
  return "?";
}

bool has_ipv6_sockets() {
  static const bool has = [] {
    const int fd = make_socket(AF_INET6);
    if (fd < 0) return errno != EAFNOSUPPORT && errno != EPERM && errno != EACCES;
    const bool dual = set(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    raw::close(fd);
    return dual;
  }();
  return has;
}

bool is_link_local(const Gid& gid) {
  const bool unicast = gid.bytes[0] == 0xFE && (gid.bytes[1] & 0xC0) == 0x80;
  const bool multicast = gid.bytes[0] == 0xFF && (gid.bytes[1] & 0x0F) == 0x02;
  return unicast || multicast;
}

sockaddr_in ipv4_address(const Gid& gid, std::uint16_t port) {
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = std::bit_cast<in_port_t>(wire::be16(port));
  std::memcpy(&name.sin_addr, gid.bytes + 12, sizeof name.sin_addr);
  return name;
}

socklen_t to_socket_address(const Gid& gid, std::uint32_t interface, std::uint16_t port,
                            sockaddr_storage& into) {
  if (!has_ipv6_sockets()) {
    new (&into) sockaddr_in(ipv4_address(gid, port));
    return sizeof(sockaddr_in);
  }
  auto& name = *new (&into) sockaddr_in6{};
  name.sin6_family = AF_INET6;
  name.sin6_port = std::bit_cast<in_port_t>(wire::be16(port));
  std::memcpy(&name.sin6_addr, gid.bytes, sizeof gid.bytes);
  if (is_link_local(gid)) name.sin6_scope_id = interface;
  return sizeof name;
}

socklen_t to_address_of_family(const Gid& gid, std::uint32_t interface, std::uint16_t port,
                               sockaddr_storage& into) {
  if (!is_ipv4(gid)) return to_socket_address(gid, interface, port, into);
  new (&into) sockaddr_in(ipv4_address(gid, port));
  return sizeof(sockaddr_in);
}

Result<int, SocketError> make_receiver(const ReceiverOptions& options) {
  const int fd = make_dual_socket();
  if (fd < 0) return refuse(error_of(errno));
  if (!set_on(fd, SOL_SOCKET, SO_REUSEPORT) || !tell_details(fd, {}))
    return refuse(error_of((give_up(fd), errno)));
  if (has_ipv6_sockets()) set_on(fd, IPPROTO_UDP, UDP_NO_CHECK6_RX);
  // Multicast comes to those who asked for it, not to everybody on the host.
  set(fd, IPPROTO_IP, IP_MULTICAST_ALL, 0);
  if (has_ipv6_sockets()) set(fd, IPPROTO_IPV6, IPV6_MULTICAST_ALL, 0);
  // These may be refused; what is got shows in the counters and limits.
  const auto buffer = static_cast<int>(std::min<std::uint32_t>(options.buffer, 1 << 30));
  if (buffer > 0) set(fd, SOL_SOCKET, SO_RCVBUF, buffer);
  if (options.offload) set_on(fd, IPPROTO_UDP, UDP_GRO);
  return fd;
}

bool set_merging(int fd, bool merges) { return set(fd, IPPROTO_UDP, UDP_GRO, merges ? 1 : 0); }

bool is_merging(int fd) {
  int merges = 0;
  return get(fd, IPPROTO_UDP, UDP_GRO, merges) && merges != 0;
}

bool tell_details(int fd, const Details& details) {
  const int destinations = details.destinations ? 1 : 0;
  const int marks = details.marks ? 1 : 0;
  if (!set(fd, IPPROTO_IP, IP_RECVTOS, marks)) return false;
  if (!has_ipv6_sockets()) return set(fd, IPPROTO_IP, IP_PKTINFO, destinations);
  // Destination addresses of both families come as IPV6_PKTINFO.
  return set(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, destinations) &&
         set(fd, IPPROTO_IPV6, IPV6_RECVTCLASS, marks);
}

Result<void, SocketError> bind_receiver(int fd, std::uint16_t port) {
  if (!bind_to(any_address(), fd, port)) return refuse(error_of(errno));
  return {};
}

Result<void, SocketError> connect_receiver(int fd, std::uint16_t port, const Received& packet) {
  sockaddr_storage peer{};
  sockaddr_storage ours{};
  sockaddr_storage found{};
  socklen_t size = to_socket_address(packet.from, packet.interface, packet.source_port, peer);
  to_socket_address(packet.to, packet.interface, port, ours);
  if (raw::connect(fd, reinterpret_cast<const sockaddr*>(&peer), size) != 0 ||
      syscall(SYS_getsockname, fd, &found, &size) != 0)
    return refuse(error_of(errno));
  if (std::memcmp(&found, &ours, size) != 0) return refuse(SocketError::kMissing);
  return {};
}

Result<void, SocketError> attach_steering(int fd, std::span<const sock_filter> program) {
  if (program.empty() || program.size() > BPF_MAXINSNS) return refuse(SocketError::kMissing);
  const sock_fprog whole{static_cast<unsigned short>(program.size()),
                         const_cast<sock_filter*>(program.data())};
  if (!set(fd, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, whole)) return refuse(error_of(errno));
  return {};
}

SocketFacts facts_of(int fd) {
  int family = 0, protocol = 0, reuse = 0;
  SocketFacts facts;
  facts.is_receiver = get(fd, SOL_SOCKET, SO_DOMAIN, family) &&
                      family == (has_ipv6_sockets() ? AF_INET6 : AF_INET) &&
                      get(fd, SOL_SOCKET, SO_PROTOCOL, protocol) && protocol == IPPROTO_UDP &&
                      get(fd, SOL_SOCKET, SO_REUSEPORT, reuse) && reuse != 0;
  if (!facts.is_receiver) return facts;
  facts.port = bound_port(fd);
  get(fd, SOL_SOCKET, SO_COOKIE, facts.cookie);
  get(fd, SOL_SOCKET, SO_NETNS_COOKIE, facts.network);
  return facts;
}

ino_t file_of(int fd) {
  struct stat status{};
  return raw::status(fd, status) == 0 ? status.st_ino : 0;
}

int lift_descriptor(int fd) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  // Not higher than that: the kernel's table grows to the highest number.
  const auto from = static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 4096) / 4 * 3);
  if (fd >= from) return fd;
  const int lifted = raw::duplicate(fd, from);
  if (lifted < 0) return fd;
  raw::close(fd);
  return lifted;
}

Result<Sender, SocketError> make_sender(std::uint32_t buffer, const Gid* source) {
  int fd = make_unbound_sender(buffer, false);
  if (fd < 0) return refuse(error_of(errno));
  if (!bind_to(source ? *source : any_address(), fd, 0))
    return refuse(error_of((give_up(fd), errno)));
  fd = lift_descriptor(fd);
  return Sender{.fd = fd, .port = bound_port(fd), .is_bound = source != nullptr};
}

// They share the port only for as long as that takes: the kernel would give it to other sockets
// that share theirs. Those that are like one agree among themselves for good (SO_REUSEADDR), and it
// keeps strangers away from all.
int make_sender_like(const Sender& other, const Route& route, std::uint32_t buffer) {
  const int fd = make_unbound_sender(buffer, is_ipv4(route.from));
  if (fd < 0) return -1;
  sockaddr_storage name{};
  const socklen_t size = to_address_of_family(route.from, route.interface, other.port, name);
  const bool is_bound = set_on(fd, SOL_SOCKET, SO_REUSEADDR) &&
                        set_on(fd, SOL_SOCKET, SO_REUSEPORT) &&
                        set_on(other.fd, SOL_SOCKET, SO_REUSEPORT) &&
                        raw::bind(fd, reinterpret_cast<const sockaddr*>(&name), size) == 0;
  set(other.fd, SOL_SOCKET, SO_REUSEPORT, 0);
  if (!is_bound || !set(fd, SOL_SOCKET, SO_REUSEPORT, 0)) return give_up(fd);
  return lift_descriptor(fd);
}

bool set_segment_size(int fd, std::uint32_t bytes) {
  return set(fd, IPPROTO_UDP, UDP_SEGMENT, static_cast<int>(bytes));
}

bool accept_packets(int fd) { return set(fd, SOL_SOCKET, SO_DETACH_FILTER, 0); }

bool can_send_trains() {
  const int fd = make_dual_socket();
  if (fd < 0) return false;
  const bool known = set(fd, IPPROTO_UDP, UDP_SEGMENT, 1024);
  raw::close(fd);
  return known && try_a_train(wire::gid_of(std::array<std::uint8_t, 4>{127, 0, 0, 1}));
}

Result<void, RouteError> change_membership(int fd, const Gid& group, std::uint32_t interface,
                                           bool join) {
  bool done = false;
  if (is_ipv4(group)) {
    ip_mreqn request{};
    std::memcpy(&request.imr_multiaddr, group.bytes + 12, 4);
    request.imr_ifindex = static_cast<int>(interface);
    done = set(fd, IPPROTO_IP, join ? IP_ADD_MEMBERSHIP : IP_DROP_MEMBERSHIP, request);
  } else {
    ipv6_mreq request{};
    std::memcpy(&request.ipv6mr_multiaddr, group.bytes, sizeof group.bytes);
    request.ipv6mr_interface = interface;
    done = set(fd, IPPROTO_IPV6, join ? IPV6_ADD_MEMBERSHIP : IPV6_DROP_MEMBERSHIP, request);
  }
  // Whoever joins twice is in.
  if (done || (join && errno == EADDRINUSE)) return {};
  return refuse(errno == ENODEV || errno == EADDRNOTAVAIL ? RouteError::kNoRoute
                                                          : RouteError::kNoSockets);
}

Result<std::uint32_t, RouteError> route_mtu(const Gid& from, const Gid& to,
                                            std::uint32_t interface) {
  const int fd = make_dual_socket();
  if (fd < 0) return refuse(RouteError::kNoSockets);
  const auto apply = [&](long call, const Gid& gid, std::uint16_t port) {
    sockaddr_storage name{};
    const socklen_t size = to_socket_address(gid, interface, port, name);
    return syscall(call, fd, &name, size) == 0;
  };
  Result<std::uint32_t, RouteError> result = refuse(RouteError::kNoRoute);
  int mtu = 0;
  if (!apply(SYS_bind, from, 0)) {
    result = refuse(RouteError::kNotOurs);
  } else if (apply(SYS_connect, to, kRocePort)) {
    const bool known =
        is_ipv4(to) ? get(fd, IPPROTO_IP, IP_MTU, mtu) : get(fd, IPPROTO_IPV6, IPV6_MTU, mtu);
    if (known && mtu > 0) result = static_cast<std::uint32_t>(mtu);
  }
  raw::close(fd);
  return result;
}

ReceiveBudget receive_budget(int fd) {
  int size = 0;
  if (!get(fd, SOL_SOCKET, SO_RCVBUF, size) || size <= 0) return {};
  const auto bytes = static_cast<std::uint32_t>(size);
  // Full trains leave an eighth to the kernel's own structures; measured for 1 and 4 KiB.
  return {bytes - bytes / 8, bytes / kSmallPacketCost};
}

bool has_room(int fd) {
  std::array<std::uint32_t, kMeminfoVars> values{};
  if (!get(fd, SOL_SOCKET, SO_MEMINFO, values)) return true;
  return values[kMeminfoTaken] < values[kMeminfoSize] / 2;
}

std::uint32_t overflows(int fd) {
  std::array<std::uint32_t, kMeminfoVars> values{};
  if (!get(fd, SOL_SOCKET, SO_MEMINFO, values)) return 0;
  return values[kMeminfoDrops];
}

}  // namespace verbena::port
