// SPDX-License-Identifier: MIT
// Any datagram as an answer of the kernel about interfaces, addresses, routes and neighbours:
// nothing is read beyond it, and what it says can be so. The same bytes as VERBENA_DEVICES.
#include <linux/if_addr.h>
#include <linux/neighbour.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/assert.h"
#include "host/interface_messages.h"
#include "host/neighbours.h"
#include "host/netlink.h"

using namespace verbena::host;  // NOLINT(google-build-using-namespace): a fuzzer is one function

namespace {

using Bytes = std::span<const std::byte>;

bool is_part(Bytes part, Bytes whole) {
  return part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size();
}

bool is_mapped(const verbena::Gid& gid) {
  constexpr std::array<std::uint8_t, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
  return std::equal(kMapped.begin(), kMapped.end(), gid.bytes);
}

void expect_sense(const Interface& interface) {
  VERBENA_ASSERT(!interface.name.empty() && interface.name.find('\0') == std::string::npos);
  VERBENA_ASSERT(!(interface.is_loopback && interface.is_virtual));
  VERBENA_ASSERT(interface.addresses.empty() && !interface.route_rank);
}

// The same address means the same when it is written alone.
void expect_sense(const InterfaceAddress& address, Bytes message) {
  const auto head = *netlink_head<ifaddrmsg>(message);
  VERBENA_ASSERT(address.interface == head.ifa_index);
  VERBENA_ASSERT(head.ifa_family == AF_INET6 || is_mapped(address.gid));
  struct {
    ifaddrmsg head;
    rtattr flags_head;
    std::uint32_t flags;
    rtattr local_head;
    std::uint8_t local[16];
  } written{};
  written.head = head;
  written.flags_head = {sizeof(rtattr) + sizeof written.flags, IFA_FLAGS};
  written.flags = address.flags;
  const unsigned size = head.ifa_family == AF_INET ? 4 : 16;
  written.local_head = {static_cast<std::uint16_t>(sizeof(rtattr) + size), IFA_LOCAL};
  std::copy_n(address.gid.bytes + 16 - size, size, written.local);
  const Bytes all = std::as_bytes(std::span(&written, 1));
  const auto again = parse_address(all.first(all.size() - 16 + size));
  VERBENA_ASSERT(again && again->gid == address.gid && again->flags == address.flags);
}

void look_at_neighbour(Bytes message) {
  const auto head = netlink_head<ndmsg>(message);
  if (!head) return;
  Hop hop{.address = {}, .interface = static_cast<std::uint32_t>(head->ndm_ifindex)};
  netlink_attributes(netlink_tail<ndmsg>(message), [&](unsigned attribute, Bytes payload) {
    if (attribute == NDA_DST) hop.address.assign(payload.begin(), payload.end());
  });
  const auto found = neighbour_in(message, hop);
  VERBENA_ASSERT(found != Neighbour::kUnknown);
  if ((head->ndm_state & NUD_FAILED) == 0) VERBENA_ASSERT(found != Neighbour::kFailed);
  ++hop.interface;
  VERBENA_ASSERT(!neighbour_in(message, hop));
}

void look_at(Bytes message) {
  if (const auto interface = parse_link(message)) expect_sense(*interface);
  if (const auto address = parse_address(message)) expect_sense(*address, message);
  for (const std::uint8_t family : {std::uint8_t{AF_INET}, std::uint8_t{AF_INET6}}) {
    const auto route = parse_default_route(family, message);
    VERBENA_ASSERT(!route || route->interfaces.size() * sizeof(rtattr) <= message.size());
  }
  look_at_neighbour(message);
}

void look_at_answer(Bytes bytes) {
  const auto type = netlink_answered_type(bytes);
  std::size_t seen = 0;
  const bool is_route = netlink_answered_route(bytes, [&](unsigned, Bytes payload) {
    VERBENA_ASSERT(is_part(payload, bytes));
    seen += payload.size() + sizeof(rtattr);
  });
  VERBENA_ASSERT(seen <= bytes.size());
  if (is_route && bytes.size() >= sizeof(nlmsghdr) + sizeof(rtmsg))
    VERBENA_ASSERT(type.has_value());
}

void look_at_wish(const std::string& text) {
  const std::string name = text.substr(0, 15);
  const auto comma = text.find(',');
  const bool is_wanted = is_asked_for(name, text);
  if (comma != std::string::npos) {
    VERBENA_ASSERT(is_wanted == (is_asked_for(name, text.substr(0, comma)) ||
                                 is_asked_for(name, text.substr(comma + 1))));
  }
  VERBENA_ASSERT(is_asked_for(name, text + ",all") && !is_asked_for(name, ""));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Bytes bytes = std::as_bytes(std::span(data, size));
  unsigned seen = 0;
  std::size_t total = 0;
  static_cast<void>(netlink_messages(bytes, seen, [&](std::uint16_t, Bytes message) {
    VERBENA_ASSERT(is_part(message, bytes));
    total += message.size() + sizeof(nlmsghdr);
    look_at(message);
    return true;
  }));
  VERBENA_ASSERT(total <= size && seen * sizeof(nlmsghdr) <= size);
  look_at(bytes);
  look_at_answer(bytes);
  look_at_wish({reinterpret_cast<const char*>(data), std::min<std::size_t>(size, 64)});
  return 0;
}
