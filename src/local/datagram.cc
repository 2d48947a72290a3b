// SPDX-License-Identifier: MIT
#include "local/datagram.h"

#include <algorithm>
#include <array>
#include <utility>

namespace verbena::local {
namespace {

constexpr std::uint8_t kUdpProtocol = 17;
// UDP, BTH, DETH and ICRC around the payload, as the datagram would have on a wire.
constexpr std::uint32_t kHeadersAndIcrc = 8 + 12 + 8 + 4;

bool is_ipv4_mapped(const Gid& gid) {
  constexpr std::uint8_t kPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(gid.bytes, kPrefix, sizeof kPrefix) == 0;
}

std::uint8_t byte_of(std::uint32_t value, unsigned index) {
  return static_cast<std::uint8_t>(value >> (8 * index));
}

// RFC 1071, over the 20 bytes of an IPv4 header whose checksum field is zero.
std::uint16_t checksum_of(const std::uint8_t* header) {
  std::uint32_t sum = 0;
  for (unsigned i = 0; i < 20; i += 2)
    sum += std::uint32_t{header[i]} << 8 | header[i + 1];
  while (sum >> 16 != 0)
    sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<std::uint16_t>(~sum);
}

void build_ipv4(const DatagramRecord& record, std::uint8_t* header) {
  const std::uint32_t total = 20 + kHeadersAndIcrc + record.length;
  header[0] = 0x45;
  header[1] = record.traffic_class;
  header[2] = byte_of(total, 1);
  header[3] = byte_of(total, 0);
  header[6] = 0x40;  // don't fragment
  header[8] = record.hop_limit;
  header[9] = kUdpProtocol;
  std::memcpy(header + 12, record.source.bytes + 12, 4);
  std::memcpy(header + 16, record.destination.bytes + 12, 4);
  const std::uint16_t checksum = checksum_of(header);
  header[10] = byte_of(checksum, 1);
  header[11] = byte_of(checksum, 0);
}

void build_ipv6(const DatagramRecord& record, std::uint8_t* header) {
  const std::uint32_t payload = kHeadersAndIcrc + record.length;
  header[0] = static_cast<std::uint8_t>(0x60 | record.traffic_class >> 4);
  header[1] = static_cast<std::uint8_t>(record.traffic_class << 4);
  header[4] = byte_of(payload, 1);
  header[5] = byte_of(payload, 0);
  header[6] = kUdpProtocol;
  header[7] = record.hop_limit;
  std::memcpy(header + 8, record.source.bytes, 16);
  std::memcpy(header + 24, record.destination.bytes, 16);
}

}  // namespace

void build_grh(const DatagramRecord& record, std::span<std::byte, kGrhSize> out) {
  std::uint8_t grh[kGrhSize] = {};
  if (is_ipv4_mapped(record.destination)) {
    build_ipv4(record, grh + 20);
  } else {
    build_ipv6(record, grh);
  }
  std::memcpy(out.data(), grh, kGrhSize);
}

DatagramSender::DatagramSender(Conduit conduit, PeerBell bell, std::atomic<bool>& room_wanted)
    : conduit_(std::move(conduit)),
      writer_(conduit_.request_writer()),
      bell_(bell),
      room_wanted_(room_wanted) {}

// Null when there is none.
std::byte* DatagramSender::room(std::uint32_t units, const Now& now) {
  std::byte* memory = writer_.reserve(units);
  if (!memory) {
    // Said before the second look, so that room that comes after it finds it said.
    room_wanted_.store(true, std::memory_order_seq_cst);
    memory = writer_.reserve(units);
  }
  if (!memory && !is_full_) full_since_ = now;
  is_full_ = !memory;
  return memory;
}

DatagramReceiver::DatagramReceiver(Conduit conduit, PeerBell bell)
    : conduit_(std::move(conduit)), reader_(conduit_.request_reader()), bell_(bell) {}

void DatagramCarrier::issue(qp::SendWindow& window, qp::Budget& budget, const Now& now) {
  while (!budget.spent()) {
    const qp::Operation* op = window.next(now);
    if (!op) return deadline_.reset();
    const qp::OpIndex index = op->index;
    const std::uint64_t length = op->length;
    switch (send(window, *op, now)) {
      case Outcome::kLater: return;
      case Outcome::kEnded: break;
      case Outcome::kGone:
        window.issued(now);
        window.answered(index, qp::Answer::kDone, now);
        break;
    }
    deadline_.reset();
    budget.take(length);
  }
}

DatagramCarrier::Outcome DatagramCarrier::send(qp::SendWindow& window, const qp::Operation& op,
                                               const Now& now) {
  const DatagramPaths::Path path = paths_.path_of(op);
  if (path.state == DatagramPaths::Path::State::kOpening) {
    deadline_ = path.opening_since + kOpeningPatience;
    return now < *deadline_ ? Outcome::kLater : Outcome::kGone;
  }
  if (path.state == DatagramPaths::Path::State::kNone || op.length > kDatagramMax)
    return Outcome::kGone;
  const auto sent = path.sender->send(
      static_cast<std::uint32_t>(op.length), now,
      [&](DatagramRecord& record, std::span<std::byte> payload) {
        record.source_qp = self_.value;
        record.destination_qp = op.remote_qp.value;
        record.qkey = op.remote_qkey;
        record.immediate = op.immediate;
        record.traffic_class = path.traffic_class;
        record.hop_limit = path.hop_limit;
        record.source = path.source;
        record.destination = path.destination;
        record.head.flags = static_cast<std::uint8_t>((op.has_immediate ? kWithImmediate : 0) |
                                                      (op.is_solicited ? kSolicitedEvent : 0));
        return payload.empty() || window.gather(op.index, 0, payload).has_value();
      });
  switch (sent) {
    case DatagramSender::Outcome::kSent: path.sender->notify(); return Outcome::kGone;
    case DatagramSender::Outcome::kFull:
      if (!deadline_ || *deadline_ <= now) deadline_ = now + DatagramSender::kPatience;
      return Outcome::kLater;
    case DatagramSender::Outcome::kRefused: return Outcome::kEnded;
    case DatagramSender::Outcome::kLost: break;
  }
  return Outcome::kGone;
}

void deliver_datagram(const DatagramRecord& record, std::span<const std::byte> payload,
                      qp::Responder& responder) {
  if (!responder.is_receiving() || !responder.datagram_allowed(record.qkey)) return;
  std::array<std::byte, kGrhSize> grh;
  build_grh(record, grh);
  if (!responder.begin_receive(payload.size()) || !responder.place_grh(grh)) return;
  if (!payload.empty() && !responder.place(0, payload)) return;
  qp::Arrived arrived;
  arrived.has_immediate = record.head.flags & kWithImmediate;
  arrived.is_solicited = record.head.flags & kSolicitedEvent;
  arrived.immediate = record.immediate;
  arrived.source_qp = QpNum{record.source_qp};
  arrived.has_grh = true;
  // A refusal was settled by the responder; a datagram has nobody to tell.
  static_cast<void>(responder.finish_receive(arrived));
}

}  // namespace verbena::local
