// SPDX-License-Identifier: MIT
#include "verbs/abi/netlink.h"

#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>

namespace verbena::verbs {
namespace {

constexpr int kErrnoMax = 4095;  // of the kernel

}  // namespace

std::optional<std::span<const std::byte>> find_attribute(std::span<const std::byte> attributes,
                                                         std::uint16_t type) {
  while (attributes.size() >= NLA_HDRLEN) {
    nlattr header;
    std::memcpy(&header, attributes.data(), sizeof(header));
    if (header.nla_len < NLA_HDRLEN || header.nla_len > attributes.size()) break;
    if ((header.nla_type & NLA_TYPE_MASK) == type) {
      return attributes.subspan(NLA_HDRLEN, header.nla_len - NLA_HDRLEN);
    }
    const std::size_t step = NLA_ALIGN(header.nla_len);
    if (step >= attributes.size()) break;
    attributes = attributes.subspan(step);
  }
  return std::nullopt;
}

Result<std::span<const std::byte>, int> netlink_payload(std::span<const std::byte> answer) {
  nlmsghdr header;
  if (answer.size() < NLMSG_HDRLEN) return refuse(EBADMSG);
  std::memcpy(&header, answer.data(), sizeof(header));
  if (header.nlmsg_len < NLMSG_HDRLEN || header.nlmsg_len > answer.size()) return refuse(EBADMSG);
  const auto payload = answer.subspan(NLMSG_HDRLEN, header.nlmsg_len - NLMSG_HDRLEN);
  if (header.nlmsg_type != NLMSG_ERROR) return payload;

  nlmsgerr error;
  if (payload.size() < sizeof(error)) return refuse(EBADMSG);
  std::memcpy(&error, payload.data(), sizeof(error));
  const bool is_negated = error.error < 0 && error.error >= -kErrnoMax;
  return refuse(is_negated ? -error.error : EBADMSG);
}

Result<NetlinkSocket, int> NetlinkSocket::open() {
  UniqueFd socket(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  if (!socket) return refuse(errno);
  const timeval patience = {.tv_sec = 1, .tv_usec = 0};
  if (::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) != 0) {
    return refuse(errno);
  }
  return NetlinkSocket(std::move(socket));
}

Result<std::span<const std::byte>, int> NetlinkSocket::ask(std::span<const std::byte> request) {
  if (::send(socket_.get(), request.data(), request.size(), 0) < 0) return refuse(errno);
  ssize_t received = 0;
  do {
    received = ::recv(socket_.get(), answer_.data(), answer_.size(), 0);
  } while (received < 0 && errno == EINTR);
  if (received < 0) return refuse(errno);

  return netlink_payload(
      std::span<const std::byte>(answer_).first(static_cast<std::size_t>(received)));
}

}  // namespace verbena::verbs
