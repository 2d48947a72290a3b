// SPDX-License-Identifier: MIT
// Questions to the kernel's routing tables by rtnetlink(7), which needs no privilege.
#pragma once

#include <linux/netlink.h>
#include <linux/rtnetlink.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <span>

#include "base/unique_fd.h"

namespace verbena::host {

// A socket for a question, also where the program has used up all its descriptors.
UniqueFd socket_for_a_moment(int family, int type, int protocol);

// Asks for a table (RTM_GETLINK, RTM_GETADDR, RTM_GETROUTE) of one address family and calls
// each(type, message) for every answer, until it returns false; from the beginning once more where
// the program closed our socket meanwhile. False: the system does not say.
bool netlink_dump(std::uint16_t request, std::uint8_t family,
                  const std::function<bool(std::uint16_t, std::span<const std::byte>)>& each);

enum class NetlinkWalk : std::uint8_t { kMore, kDone, kFailed };
// Calls each(type, message) for every answer in a datagram of a dump, as netlink_dump() does.
// `seen` counts them in all datagrams.
NetlinkWalk netlink_messages(
    std::span<const std::byte> datagram, unsigned& seen,
    const std::function<bool(std::uint16_t, std::span<const std::byte>)>& each);

// Which type of route (RTN_LOCAL, RTN_UNICAST ...) leads to an address; RTN_UNREACHABLE where none
// does. Nothing: the system does not say.
std::optional<std::uint8_t> netlink_route_type(std::uint8_t family,
                                               std::span<const std::uint8_t> destination);

// The same of the kernel's answer to that question.
std::optional<std::uint8_t> netlink_answered_type(std::span<const std::byte> answer);

// Calls each(attribute, payload) for the route that leads to an address. False: none does, or the
// system does not say.
bool netlink_route(std::uint8_t family, std::span<const std::byte> destination,
                   const std::function<void(unsigned, std::span<const std::byte>)>& each);

bool netlink_answered_route(std::span<const std::byte> answer,
                            const std::function<void(unsigned, std::span<const std::byte>)>& each);

// The fixed part of a message.
template <class T>
std::optional<T> netlink_head(std::span<const std::byte> message) {
  T head;
  if (message.size() < sizeof head) return std::nullopt;
  std::memcpy(&head, message.data(), sizeof head);
  return head;
}

// Calls each(type, payload) for every attribute in `attributes`.
void netlink_attributes(std::span<const std::byte> attributes,
                        const std::function<void(unsigned, std::span<const std::byte>)>& each);

// The attributes behind the fixed part.
template <class T>
std::span<const std::byte> netlink_tail(std::span<const std::byte> message) {
  constexpr std::size_t kSize = NLMSG_ALIGN(sizeof(T));
  return message.subspan(message.size() < kSize ? message.size() : kSize);
}

inline std::uint32_t netlink_u32(std::span<const std::byte> payload) {
  return netlink_head<std::uint32_t>(payload).value_or(0);
}

}  // namespace verbena::host
