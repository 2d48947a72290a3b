// SPDX-License-Identifier: MIT
#include "rdmacm/port_probe.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <span>

#include "host/netlink.h"
#include "rdmacm/address.h"
#include "rdmacm/icmp_error.h"
#include "wire/datagram.h"
#include "wire/mad.h"

namespace verbena::rdmacm {
namespace {

constexpr QpNum kGsiQp{1};
constexpr unsigned kErrorsMax = 64;  // in one look

bool set_on(int fd, int level, int name, int value = 1) {
  return setsockopt(fd, level, name, &value, sizeof value) == 0;
}

// As the port sends (port/udp_socket.h): the ICRC covers IPv4's identification, which is 0 then.
bool prepare(int fd, bool is_ipv4, const Address& source) {
  const bool hears = is_ipv4 ? set_on(fd, IPPROTO_IP, IP_RECVERR) &&
                                   set_on(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE)
                             : set_on(fd, IPPROTO_IPV6, IPV6_RECVERR) &&
                                   set_on(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_PROBE);
  return hears && bind(fd, source.get(), source.size()) == 0;
}

}  // namespace

PortProbe::PortProbe(const GsiMad& question, std::uint16_t port)
    : question_(question), port_(port) {
  const bool is_ipv4 = wire::is_ipv4(question.to);
  UniqueFd socket =
      host::socket_for_a_moment(is_ipv4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_NONBLOCK, 0);
  const Address source = Address::of(question.from, 0, question.interface);
  if (!socket || !prepare(socket.get(), is_ipv4, source)) return;
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  struct stat status{};
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&name), &size) != 0 ||
      fstat(socket.get(), &status) != 0) {
    return;
  }
  const auto bound = Address::from(reinterpret_cast<const sockaddr*>(&name));
  source_port_ = bound ? bound->port() : 0;
  inode_ = status.st_ino;
  fd_ = socket.release();
}

PortProbe::~PortProbe() {
  if (is_still_ours()) close(fd_);
}

bool PortProbe::is_still_ours() const {
  struct stat status{};
  return fd_ >= 0 && fstat(fd_, &status) == 0 && S_ISSOCK(status.st_mode) &&
         status.st_ino == inode_;
}

bool PortProbe::ask() {
  if (!is_still_ours()) return false;
  wire::Head head{};
  head.opcode = wire::Opcode::of(wire::Service::kUd, wire::Code::kSendOnly);
  head.dest_qp = kGsiQp;
  head.qkey = wire::kGsiQkey;
  head.source_qp = kGsiQp;
  std::array<std::byte, 512> room{};
  wire::DatagramBuilder datagram(room, head, question_.bytes.size());
  std::ranges::copy(question_.bytes, datagram.payload().begin());
  wire::FlowIcrc icrc(
      {.source = question_.from, .destination = question_.to, .source_port = source_port_});
  const std::size_t size = datagram.finish(icrc);
  const Address to = Address::of(question_.to, port_, question_.interface);
  // An error that waits is told once instead of sending.
  for (int tries = 0; tries < 2; ++tries) {
    if (sendto(fd_, room.data(), size, MSG_NOSIGNAL, to.get(), to.size()) >= 0) return true;
  }
  return false;
}

bool PortProbe::was_refused() {
  if (!is_still_ours()) return false;
  bool is_refused = false;
  for (unsigned i = 0; i < kErrorsMax; ++i) {
    sockaddr_storage to{};
    alignas(cmsghdr) std::array<std::byte, 256> control{};
    msghdr message{};
    message.msg_name = &to;
    message.msg_namelen = sizeof to;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    if (recvmsg(fd_, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) break;
    const auto told = std::span(control).first(message.msg_controllen);
    if (says_closed(to, told, question_.to, port_)) is_refused = true;
  }
  return is_refused;
}

}  // namespace verbena::rdmacm
