// SPDX-License-Identifier: MIT
// Any bytes that a peer can send: nothing is read behind them, what is accepted keeps its promises,
// and what it means survives encoding.
#include <array>
#include <cstddef>
#include <cstdint>

#include "base/assert.h"
#include "wire/datagram.h"
#include "wire/icrc.h"
#include "wire/ip.h"
#include "wire/packet.h"

using namespace verbena::wire;  // NOLINT(google-build-using-namespace): a fuzzer is one function

namespace {

void parse_and_encode(std::span<const std::byte> datagram) {
  const auto packet = parse(datagram);
  if (!packet) return;
  const auto bth = parse_bth(datagram);
  VERBENA_ASSERT(bth && bth->psn == packet->psn && destination_of(datagram) == packet->dest_qp);
  VERBENA_ASSERT(packet->payload.size() <= kPathMtuMax);
  VERBENA_ASSERT(datagram_bytes(packet->opcode, packet->payload.size()) == datagram.size());

  std::array<std::byte, kDatagramMax> again;
  DatagramBuilder builder(again, *packet, packet->payload.size());
  std::copy(packet->payload.begin(), packet->payload.end(), builder.payload().begin());
  static FlowIcrc icrc{verbena::wire::Flow{}};
  const std::size_t length = builder.finish(icrc);
  VERBENA_ASSERT(length == datagram.size());
  VERBENA_ASSERT(icrc.verify(std::span(again).first(length), 0));
  const auto twice = parse(std::span(again).first(length));
  VERBENA_ASSERT(twice && static_cast<const Head&>(*twice) == static_cast<const Head&>(*packet));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  parse_and_encode(bytes);
  if (const auto ip = parse_ip(bytes)) {
    VERBENA_ASSERT(ip->datagram.size() + ip_bytes(ip->head.flow) <= size);
    FlowIcrc icrc(ip->head.flow);
    static_cast<void>(icrc.verify(ip->datagram, ip->head.id));
    parse_and_encode(ip->datagram);
  }
  return 0;
}
