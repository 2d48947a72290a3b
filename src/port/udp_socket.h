// SPDX-License-Identifier: MIT
// The sockets of the UDP port, and what must be set on them. Reasons are measured ones:
//
// * Receiving: one dual-stack `[::]` socket a slot in one reuseport group (a socket for IPv4 alone
//   beside it would take that traffic away). GRO in; checksums of zero accepted on IPv6, as the
//   kernel's rxe sends them; no IP_RECVERR, because then an ICMP error of one peer fails the next
//   send to another.
// * Sending: never connected, so that the IPv4 id is 0 (or the place in a GSO batch); bound to the
//   source address or to none; with
//   IP_PMTUDISC_PROBE: DF set, and no learnt path MTU can fail a whole batch. They receive nothing.
//
// All by raw system calls: libraries that interpose on libc's take over what they see
// (raw_calls.h).
#pragma once

#include <linux/filter.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "base/types.h"
#include "port/port.h"

namespace verbena::port {

enum class SocketError : std::uint8_t {
  kNoDescriptor,
  kNoMemory,
  kInUse,    // the UDP port belongs to another user, the kernel's rxe, or another program
  kDenied,   // a filter refuses
  kMissing,  // the system has no such thing
  kClosed,   // somebody closed our descriptor
};
const char* to_string(SocketError error);

struct ReceiverOptions {
  std::uint32_t buffer = 8 << 20;  // asked for; net.core.rmem_max caps it
  bool offload = true;             // GRO
};

// What a receiver tells of packets beside their bytes and where they come from. Each of these costs
// every packet of a conversation some 50 to 100 ns, the destination a look at the routes.
struct Details {
  bool destinations = true;  // addresses and interfaces
  bool marks = true;         // of congestion
  friend bool operator==(const Details&, const Details&) = default;
};

// Not bound yet: in no group. Non-blocking, close-on-exec; the caller owns it.
Result<int, SocketError> make_receiver(const ReceiverOptions& options);
// Of what is read from now on. False: the system refuses.
bool tell_details(int fd, const Details& details);
// Whether the system puts packets of one sender together (GRO). What it has put together before
// stays so.
bool set_merging(int fd, bool merges);
bool is_merging(int fd);
// From here on it is the last of the group.
Result<void, SocketError> bind_receiver(int fd, std::uint16_t port);
// From here on it gets only what comes like `packet`, and is in no group. kMissing: the system
// takes another address of ours for this peer.
Result<void, SocketError> connect_receiver(int fd, std::uint16_t port, const Received& packet);
// The program of the whole group. On systems that refuse, packets are spread by hash, and handed
// over by whoever gets them.
Result<void, SocketError> attach_steering(int fd, std::span<const sock_filter> program);

// What a descriptor from elsewhere is; nothing about it is believed.
struct SocketFacts {
  bool is_receiver = false;   // a UDP socket of ours to be: dual-stack or IPv4, reuseport set
  std::uint16_t port = 0;     // 0: not bound
  std::uint64_t cookie = 0;   // the same for each descriptor of one socket, and no other; 0: none
  std::uint64_t network = 0;  // of its network namespace; 0: the system does not tell
  friend bool operator==(const SocketFacts&, const SocketFacts&) = default;
};
SocketFacts facts_of(int fd);

// Moves a descriptor of ours in the program's table out of the way of the program's. The new
// number, or the same where that cannot be. It was made by a system call as such: it is closed by
// one, and libraries that keep tables of what libc opens would keep it.
int lift_descriptor(int fd);

// Of a UDP socket; 0: it has none.
std::uint16_t bound_port(int fd);

// Which socket a descriptor is of. 0: of none.
ino_t file_of(int fd);

struct Sender {
  int fd = -1;
  std::uint16_t port = 0;
  bool is_bound = false;  // to the source address
};
// For packets with this source address, or with any. kMissing: the address is not ours.
Result<Sender, SocketError> make_sender(std::uint32_t buffer, const Gid* source = nullptr);
// With the source port of another one, to be connected. Bound to the route's source address: a
// socket that is not takes the address that the system prefers for this peer. Of IPv4 alone where
// the route is, since the kernel looks up the route of each packet that another sends over IPv4.
// -1: there is none to be had.
int make_sender_like(const Sender& other, const Route& route, std::uint32_t buffer);
// What is sent by this socket from now on is divided into packets of this length.
bool set_segment_size(int fd, std::uint32_t bytes);
// A sender that drops what it gets does not, any more.
bool accept_packets(int fd);

// Whether trains can be sent (UDP_SEGMENT, since Linux 4.18): asked, and where there is a loopback
// interface tried.
bool can_send_trains();

// What SO_RCVBUF amounts to in packets of RoCEv2.
struct ReceiveBudget {
  std::uint32_t bytes = 0;
  std::uint32_t packets = 0;
};
ReceiveBudget receive_budget(int fd);
// Whether less than half of the buffer is taken. True when the system does not tell.
bool has_room(int fd);
// Datagrams that found the buffer full, since the socket was made; modulo 2^32.
std::uint32_t overflows(int fd);

// Membership in a multicast group, of the socket and with it of everybody who holds it.
Result<void, RouteError> change_membership(int fd, const Gid& group, std::uint32_t interface,
                                           bool join);

// The MTU of the first hop. Learnt path MTUs count.
Result<std::uint32_t, RouteError> route_mtu(const Gid& from, const Gid& to,
                                            std::uint32_t interface);

// Socket addresses. Where the system has no IPv6, sockets are of IPv4.
bool has_ipv6_sockets();
sockaddr_in ipv4_address(const Gid& gid, std::uint16_t port);
socklen_t to_socket_address(const Gid& gid, std::uint32_t interface, std::uint16_t port,
                            sockaddr_storage& into);
// For sockets that are of IPv4 alone where the address is.
socklen_t to_address_of_family(const Gid& gid, std::uint32_t interface, std::uint16_t port,
                               sockaddr_storage& into);
bool is_link_local(const Gid& gid);

}  // namespace verbena::port
