// SPDX-License-Identifier: MIT
// Builds one datagram in the buffer of a port, in one pass: head, payload, pad, ICRC. The payload
// is copied in by the caller, in any way (registered memory may fault), and the ICRC is computed
// over the copy while it is still in the cache.
//
//   DatagramBuilder builder(room, head, payload_bytes);
//   copy to builder.payload();
//   length = builder.finish(flow_icrc, id);
//
// Or the caller folds the ICRC as it copies, packets of one length and no pad behind each other:
//
//   DatagramBuilder builder(first room, head, payload_bytes);
//   crcs[i] = builder.begin(flow_icrc, id + i), builder.payload(); builder.go_on(next room);
//   copy all payloads, and fold them into their crcs
//   DatagramBuilder::finish(room i, crcs[i]);
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "wire/icrc.h"
#include "wire/packet.h"

namespace verbena::wire {

class DatagramBuilder {
 public:
  // Asserts that the datagram fits `room`: datagram_bytes(head.opcode, payload_bytes). head.pad is
  // not looked at.
  DatagramBuilder(std::span<std::byte> room, const Head& head, std::size_t payload_bytes);
  DatagramBuilder(std::span<std::byte> room, const WholeSendHead& head, QpNum to,
                  std::size_t payload_bytes);

  // Where the payload goes.
  std::span<std::byte> payload() const { return datagram_.subspan(header_bytes_, payload_bytes_); }

  // Closes with the ICRC. `id` is what IPv4's identification will be: 0 from an unconnected socket,
  // and the index of the segment in a GSO batch.
  std::size_t finish(FlowIcrc& icrc, std::uint16_t id = 0);

  // The CRC of what stands before the payload.
  CrcBlock begin(FlowIcrc& icrc, std::uint16_t id) const;
  // Goes on to another datagram, which differs in its PSN, the next one, and its payload. Asserts
  // that it fits, and is not a short one (kHeadersMax).
  void go_on(std::span<std::byte> room);
  // Closes a datagram whose CRC has come to the end of its payload, which has no pad.
  static void finish(std::span<std::byte> datagram, const CrcBlock& crc);

 private:
  void write_pad(std::uint8_t pad);

  std::span<std::byte> datagram_;
  std::size_t header_bytes_;
  std::size_t payload_bytes_;
};

}  // namespace verbena::wire
