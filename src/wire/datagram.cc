// SPDX-License-Identifier: MIT
#include "wire/datagram.h"

#include <algorithm>

#include "base/assert.h"

namespace verbena::wire {

DatagramBuilder::DatagramBuilder(std::span<std::byte> room, const Head& head,
                                 std::size_t payload_bytes)
    : payload_bytes_(payload_bytes) {
  const std::size_t bytes = datagram_bytes(head.opcode, payload_bytes);
  VERBENA_ASSERT(bytes <= room.size());
  datagram_ = room.first(bytes);
  Head padded = head;
  padded.pad = pad_of(payload_bytes);
  header_bytes_ = encode(padded, datagram_);
  // The pad is sent as zeros (9.2.3), and never as what was in the buffer before.
  const auto behind = datagram_.subspan(header_bytes_ + payload_bytes, padded.pad);
  std::fill(behind.begin(), behind.end(), std::byte{0});
}

std::size_t DatagramBuilder::finish(FlowIcrc& icrc, std::uint16_t id) {
  finish(datagram_, icrc, id);
  return datagram_.size();
}

void DatagramBuilder::finish(std::span<std::byte> datagram, FlowIcrc& icrc, std::uint16_t id) {
  const auto covered = datagram.first(datagram.size() - kIcrcBytes);
  store_icrc(icrc.compute(covered, id), datagram.last<kIcrcBytes>());
}

}  // namespace verbena::wire
