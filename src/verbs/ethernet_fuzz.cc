// SPDX-License-Identifier: MIT
// Any datagram as the kernel's answer about the way to a GID: what is read lies in it, and both
// readers of netlink attributes find the same.
#include "verbs/abi/ethernet_answers.h"

// After ethernet_answers.h, whose entry.h wants to be first.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/assert.h"
#include "host/netlink.h"
#include "verbs/abi/netlink.h"

using namespace verbena::verbs;  // NOLINT(google-build-using-namespace): a fuzzer is one function

namespace {

using Bytes = std::span<const std::byte>;

void expect_same_attributes(Bytes attributes) {
  for (std::uint16_t type = 0; type < 64; ++type) {
    const auto found = find_attribute(attributes, type);
    std::optional<Bytes> other;
    verbena::host::netlink_attributes(attributes, [&](unsigned each, Bytes payload) {
      if (each == type && !other) other = payload;
    });
    VERBENA_ASSERT(found.has_value() == other.has_value());
    if (found) VERBENA_ASSERT(found->data() == other->data() && found->size() == other->size());
  }
}

bool holds(Bytes bytes, Bytes part) { return !std::ranges::search(bytes, part).empty(); }

void look_at_route(Bytes payload, const IpAddress& destination) {
  const auto route = read_route(payload, destination);
  if (!route) return;
  VERBENA_ASSERT(route->next_hop.family == destination.family);
  const Bytes hop = route->next_hop.span();
  VERBENA_ASSERT(std::ranges::equal(hop, destination.span()) || holds(payload, hop));
}

void look_at(Bytes payload) {
  ibv_gid gid{};
  gid.raw[15] = 7;
  look_at_route(payload, IpAddress(gid));
  gid.raw[10] = gid.raw[11] = 0xff;
  look_at_route(payload, IpAddress(gid));
  if (const auto link = read_link(payload)) {
    VERBENA_ASSERT(link->mac == Mac{} || holds(payload, std::as_bytes(std::span(link->mac))));
  }
  if (const auto mac = read_neighbour(payload))
    VERBENA_ASSERT(holds(payload, std::as_bytes(std::span(*mac))));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Bytes bytes = std::as_bytes(std::span(data, size));
  if (const auto payload = netlink_payload(bytes)) {
    VERBENA_ASSERT(payload->size() + NLMSG_HDRLEN <= size);
    look_at(*payload);
    if (payload->size() >= 16) expect_same_attributes(payload->subspan(16));
    if (payload->size() >= 12) expect_same_attributes(payload->subspan(12));
  } else {
    VERBENA_ASSERT(payload.error() > 0);
  }
  return 0;
}
