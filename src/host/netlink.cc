// SPDX-License-Identifier: MIT
#include "host/netlink.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/unique_fd.h"
#include "host/descriptor_limit.h"

namespace verbena::host {
namespace {

// A router may hold a million routes; what we look for comes first.
constexpr unsigned kMessagesMax = 16384;

bool send_to_kernel(const UniqueFd& socket, const void* message, std::size_t size) {
  sockaddr_nl kernel{};
  kernel.nl_family = AF_NETLINK;
  return socket.is_ours() && sendto(socket.get(), message, size, MSG_NOSIGNAL,
                                    reinterpret_cast<const sockaddr*>(&kernel),
                                    sizeof kernel) == static_cast<ssize_t>(size);
}

// Not from what the program has in our place.
ssize_t receive(const UniqueFd& socket, std::span<std::byte> buffer) {
  ssize_t size = 0;
  do {
    size = socket.is_ours() ? recv(socket.get(), buffer.data(), buffer.size(), 0) : 0;
  } while (size < 0 && errno == EINTR);
  return size;
}

bool ask_for_dump(const UniqueFd& socket, std::uint16_t request, std::uint8_t family) {
  struct {
    nlmsghdr head;
    rtgenmsg body;
    std::uint8_t padding[32];  // kernels that look for a longer fixed part find zeros
  } message{};
  message.head.nlmsg_len = sizeof message;
  message.head.nlmsg_type = request;
  message.head.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  message.head.nlmsg_seq = 1;
  message.body.rtgen_family = family;
  return send_to_kernel(socket, &message, sizeof message);
}

}  // namespace

UniqueFd socket_for_a_moment(int family, int type, int protocol) {
  UniqueFd fd(socket(family, type | SOCK_CLOEXEC, protocol));
  if (fd || errno != EMFILE) return fd;
  const RaisedDescriptorLimit raised;
  return UniqueFd(socket(family, type | SOCK_CLOEXEC, protocol));
}

// One datagram holds several messages.
NetlinkWalk netlink_messages(
    std::span<const std::byte> datagram, unsigned& seen,
    const std::function<bool(std::uint16_t, std::span<const std::byte>)>& each) {
  while (const auto head = netlink_head<nlmsghdr>(datagram)) {
    const std::uint32_t length = head->nlmsg_len;
    if (length < sizeof *head || length > datagram.size()) return NetlinkWalk::kFailed;
    if (head->nlmsg_type == NLMSG_DONE) return NetlinkWalk::kDone;
    if (head->nlmsg_type == NLMSG_ERROR) return NetlinkWalk::kFailed;
    const auto body = datagram.first(length).subspan(NLMSG_HDRLEN);
    if (++seen > kMessagesMax || !each(head->nlmsg_type, body)) return NetlinkWalk::kDone;
    datagram = datagram.subspan(std::min<std::size_t>(NLMSG_ALIGN(length), datagram.size()));
  }
  return NetlinkWalk::kMore;
}

namespace {

using EachMessage = std::function<bool(std::uint16_t, std::span<const std::byte>)>;

constexpr int kTriesMax = 4;

// Once more where the program closed our socket meanwhile.
template <class Question>
auto ask_kernel(const Question& question) {
  for (int tries = 1;; ++tries) {
    const UniqueFd socket = socket_for_a_moment(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
    const auto answer = question(socket);
    if (answer || !socket || socket.is_ours() || tries == kTriesMax) return answer;
  }
}

bool dump_by(const UniqueFd& socket, std::uint16_t request, std::uint8_t family,
             const EachMessage& each) {
  if (!ask_for_dump(socket, request, family)) return false;
  // The kernel fills at most what was offered, 32 KiB at most (netlink_dump in the kernel).
  alignas(nlmsghdr) std::array<std::byte, 32768> buffer;
  unsigned seen = 0;
  while (true) {
    const ssize_t size = receive(socket, buffer);
    if (size <= 0) return false;
    const auto datagram = std::span(buffer).first(static_cast<std::size_t>(size));
    switch (netlink_messages(datagram, seen, each)) {
      case NetlinkWalk::kMore: break;
      case NetlinkWalk::kDone: return true;
      case NetlinkWalk::kFailed: return false;
    }
  }
}

// The kernel's answer to RTM_GETROUTE. Nothing: it does not say.
std::optional<std::span<const std::byte>> ask_for_route(std::uint8_t family,
                                                        std::span<const std::byte> destination,
                                                        std::span<std::byte> room) {
  using Answer = std::optional<std::span<const std::byte>>;
  struct {
    nlmsghdr head;
    rtmsg body;
    rtattr attribute;
    std::byte address[16];
  } message{};
  if (destination.size() > sizeof message.address) return std::nullopt;
  const auto unused = static_cast<std::uint32_t>(sizeof message.address - destination.size());
  message.head.nlmsg_len = sizeof message - unused;
  message.head.nlmsg_type = RTM_GETROUTE;
  message.head.nlmsg_flags = NLM_F_REQUEST;
  message.head.nlmsg_seq = 1;
  message.body.rtm_family = family;
  message.body.rtm_dst_len = static_cast<std::uint8_t>(destination.size() * 8);
  message.attribute.rta_type = RTA_DST;
  message.attribute.rta_len = static_cast<std::uint16_t>(RTA_LENGTH(destination.size()));
  std::ranges::copy(destination, message.address);

  return ask_kernel([&](const UniqueFd& socket) -> Answer {
    if (!send_to_kernel(socket, &message, message.head.nlmsg_len)) return std::nullopt;
    const ssize_t size = receive(socket, room);
    if (size <= 0) return std::nullopt;
    return room.first(static_cast<std::size_t>(size));
  });
}

}  // namespace

bool netlink_dump(std::uint16_t request, std::uint8_t family, const EachMessage& each) {
  return ask_kernel([&](const UniqueFd& socket) { return dump_by(socket, request, family, each); });
}

std::optional<std::uint8_t> netlink_route_type(std::uint8_t family,
                                               std::span<const std::uint8_t> destination) {
  alignas(nlmsghdr) std::array<std::byte, 4096> buffer;
  const auto answer = ask_for_route(family, std::as_bytes(destination), buffer);
  return answer ? netlink_answered_type(*answer) : std::nullopt;
}

std::optional<std::uint8_t> netlink_answered_type(std::span<const std::byte> answer) {
  const auto head = netlink_head<nlmsghdr>(answer);
  if (!head) return std::nullopt;
  if (head->nlmsg_type == NLMSG_ERROR) return std::uint8_t{RTN_UNREACHABLE};
  const auto route = netlink_head<rtmsg>(netlink_tail<nlmsghdr>(answer));
  if (head->nlmsg_type != RTM_NEWROUTE || !route) return std::nullopt;
  return route->rtm_type;
}

bool netlink_route(std::uint8_t family, std::span<const std::byte> destination,
                   const std::function<void(unsigned, std::span<const std::byte>)>& each) {
  alignas(nlmsghdr) std::array<std::byte, 4096> buffer;
  const auto answer = ask_for_route(family, destination, buffer);
  return answer && netlink_answered_route(*answer, each);
}

bool netlink_answered_route(std::span<const std::byte> answer,
                            const std::function<void(unsigned, std::span<const std::byte>)>& each) {
  const auto head = netlink_head<nlmsghdr>(answer);
  if (!head || head->nlmsg_type != RTM_NEWROUTE) return false;
  netlink_attributes(netlink_tail<rtmsg>(netlink_tail<nlmsghdr>(answer)), each);
  return true;
}

void netlink_attributes(std::span<const std::byte> attributes,
                        const std::function<void(unsigned, std::span<const std::byte>)>& each) {
  while (const auto head = netlink_head<rtattr>(attributes)) {
    if (head->rta_len < sizeof *head || head->rta_len > attributes.size()) return;
    each(head->rta_type & NLA_TYPE_MASK, attributes.first(head->rta_len).subspan(RTA_LENGTH(0)));
    attributes =
        attributes.subspan(std::min<std::size_t>(RTA_ALIGN(head->rta_len), attributes.size()));
  }
}

}  // namespace verbena::host
