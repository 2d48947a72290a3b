// SPDX-License-Identifier: MIT
#include "wire/datagram.h"

#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "wire/headers.h"

namespace verbena::wire {

DatagramBuilder::DatagramBuilder(std::span<std::byte> room, const Head& head,
                                 std::size_t payload_bytes)
    : payload_bytes_(payload_bytes) {
  const std::size_t bytes = datagram_bytes(head.opcode, payload_bytes);
  VERBENA_ASSERT(bytes <= room.size());
  datagram_ = room.first(bytes);
  header_bytes_ = encode(head, datagram_);
  const std::uint8_t pad = pad_of(payload_bytes);
  std::byte& flags = datagram_[offsetof(Bth, flags)];
  flags = (flags & ~(std::byte{3} << Bth::kPadShift)) | (std::byte{pad} << Bth::kPadShift);
  write_pad(pad);
}

DatagramBuilder::DatagramBuilder(std::span<std::byte> room, const WholeSendHead& head, QpNum to,
                                 std::size_t payload_bytes)
    : header_bytes_(kBthBytes), payload_bytes_(payload_bytes) {
  const std::uint8_t pad = pad_of(payload_bytes);
  const std::size_t bytes = kBthBytes + payload_bytes + pad + kIcrcBytes;
  VERBENA_ASSERT(bytes <= room.size());
  datagram_ = room.first(bytes);
  encode_whole_send(head, to, pad, datagram_.first<kBthBytes>());
  write_pad(pad);
}

// The pad is sent as zeros (9.2.3), and never as what was in the buffer before.
void DatagramBuilder::write_pad(std::uint8_t pad) {
  const auto behind = datagram_.subspan(header_bytes_ + payload_bytes_, pad);
  std::fill(behind.begin(), behind.end(), std::byte{0});
}

std::size_t DatagramBuilder::finish(FlowIcrc& icrc, std::uint16_t id) {
  const auto covered = datagram_.first(datagram_.size() - kIcrcBytes);
  store_icrc(icrc.compute(covered, id), datagram_.last<kIcrcBytes>());
  return datagram_.size();
}

CrcBlock DatagramBuilder::begin(FlowIcrc& icrc, std::uint16_t id) const {
  const CrcBlock bth = icrc.begin(datagram_.first<kBthBytes>(), datagram_.size(), id);
  return crc_fold(bth, datagram_.first(header_bytes_).subspan(kBthBytes));
}

void DatagramBuilder::go_on(std::span<std::byte> room) {
  VERBENA_ASSERT(datagram_.size() <= room.size() && room.size() >= kHeadersMax);
  // Of a fixed size, for that is fast; behind the headers comes the payload anyway.
  std::memcpy(room.data(), datagram_.data(), kHeadersMax);
  datagram_ = room.first(datagram_.size());
  Bth bth;
  std::memcpy(&bth, room.data(), sizeof bth);
  bth.psn = be24(Psn(bth.psn.value()).next().value());
  std::memcpy(room.data(), &bth, sizeof bth);
}

void DatagramBuilder::finish(std::span<std::byte> datagram, const CrcBlock& crc) {
  store_icrc(crc_end(crc), datagram.last<kIcrcBytes>());
}

}  // namespace verbena::wire
