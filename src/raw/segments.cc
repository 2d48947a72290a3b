// SPDX-License-Identifier: MIT
#include "raw/segments.h"

#include <algorithm>
#include <cstring>

#include "raw/key.h"
#include "wire/bytes.h"
#include "wire/ip.h"

namespace verbena::raw {
namespace {

using wire::be16;
using wire::be32;

// RFC 9293, 3.1.
struct TcpHeader {
  be16 source_port;
  be16 destination_port;
  be32 sequence;
  be32 acknowledgement;
  std::uint8_t offset;  // in words:4 reserved:4
  std::uint8_t flags;
  be16 window;
  be16 checksum;
  be16 urgent;
};
static_assert(sizeof(TcpHeader) == 20);
constexpr std::uint8_t kFinAndPush = 0x09;
constexpr std::uint8_t kCongestionReduced = 0x80;

template <class Header>
Header read(std::span<const std::byte> frame, std::size_t at) {
  Header header;
  std::memcpy(&header, frame.data() + at, sizeof header);
  return header;
}

template <class Header>
void write(std::span<std::byte> frame, std::size_t at, const Header& header) {
  std::memcpy(frame.data() + at, &header, sizeof header);
}

template <class Value>
std::span<const std::byte> bytes_of(const Value& value) {
  return std::as_bytes(std::span(&value, 1));
}

// Behind the tags. 0: there is no IP.
std::size_t network_of(std::span<const std::byte> frame) {
  std::size_t at = kEthernetBytes - sizeof(be16);
  while (at + sizeof(be16) <= frame.size()) {
    const std::uint16_t type = read<be16>(frame, at).value();
    at += sizeof(be16);
    if (type == kEtherIpv4 || type == kEtherIpv6) return at;
    if (type != kEtherVlan && type != kEtherServiceVlan) return 0;
    at += sizeof(be16);
  }
  return 0;
}

bool is_ipv6(std::span<const std::byte> frame, std::size_t network_at) {
  return std::to_integer<unsigned>(frame[network_at]) >> 4 == 6;
}

std::size_t transport_head(std::span<const std::byte> frame, const Undone& undone) {
  if (undone.joined == Undone::Joined::kUdp) return wire::kUdpBytes;
  if (frame.size() < undone.transport_at + sizeof(TcpHeader)) return 0;
  const unsigned words = read<TcpHeader>(frame, undone.transport_at).offset >> 4u;
  return std::size_t{words} * 4;
}

}  // namespace

void Checksum::add(std::span<const std::byte> bytes) {
  std::size_t at = 0;
  for (; at + 4 <= bytes.size(); at += 4)
    sum_ += read<be32>(bytes, at).value();
  if (at + 2 <= bytes.size()) {
    sum_ += read<be16>(bytes, at).value();
    at += 2;
  }
  if (at < bytes.size()) sum_ += std::to_integer<std::uint64_t>(bytes[at]) << 8;
}

std::uint16_t Checksum::sum() const {
  std::uint64_t sum = sum_;
  while (sum >> 16 != 0)
    sum = (sum & 0xFFFF) + (sum >> 16);
  return static_cast<std::uint16_t>(sum);
}

void finish_checksum(std::span<std::byte> frame, const Undone& undone) {
  const std::size_t field = std::size_t{undone.transport_at} + undone.checksum_at;
  if (!undone.needs_checksum || frame.size() < sizeof(be16) ||
      field > frame.size() - sizeof(be16)) {
    return;
  }
  Checksum checksum;
  checksum.add(frame.subspan(undone.transport_at));
  const auto value = static_cast<std::uint16_t>(~checksum.sum());
  // To UDP, 0 says that there is none (RFC 768); for the others both are one number.
  write(frame, field, be16(value == 0 ? 0xFFFF : value));
}

Segments::Segments(std::span<std::byte> frame, const Undone& undone)
    : frame_(frame), undone_(undone), network_at_(network_of(frame)) {
  const bool is_joined = undone.joined != Undone::Joined::kNo && undone.needs_checksum &&
                         undone.segment != 0 && network_at_ != 0 && network_at_ < frame.size();
  const std::size_t network_bytes =
      is_joined && is_ipv6(frame, network_at_) ? wire::kIpv6Bytes : wire::kIpv4Bytes;
  if (is_joined && undone.transport_at >= network_at_ + network_bytes &&
      undone.transport_at < frame.size()) {
    const std::size_t head = transport_head(frame, undone);
    const std::size_t least =
        undone.joined == Undone::Joined::kUdp ? wire::kUdpBytes : sizeof(TcpHeader);
    const std::size_t end = undone.transport_at + head;
    if (head >= least && end < frame.size()) head_ = end;
  }
  if (head_ == 0) finish_checksum(frame_, undone_);
}

std::span<const std::byte> Segments::next(std::span<std::byte> room) {
  if (head_ == 0) {
    if (done_ != 0) return {};
    done_ = frame_.size();
    return frame_;
  }
  const std::size_t left = frame_.size() - head_ - done_;
  const std::size_t payload = std::min<std::size_t>(left, undone_.segment);
  if (payload == 0 || head_ + payload > room.size()) return {};
  const std::span<std::byte> segment = room.first(head_ + payload);
  std::memcpy(segment.data(), frame_.data(), head_);
  std::memcpy(segment.data() + head_, frame_.data() + head_ + done_, payload);
  finish_network(segment);
  finish_transport(segment, payload == left);
  done_ += payload;
  ++count_;
  return segment;
}

// The network's header: its length, and what depends on that.
void Segments::finish_network(std::span<std::byte> segment) const {
  const std::size_t length = segment.size() - network_at_;
  if (is_ipv6(segment, network_at_)) {
    auto ip = read<wire::Ipv6Header>(segment, network_at_);
    ip.payload_length = be16(static_cast<std::uint16_t>(length - wire::kIpv6Bytes));
    return write(segment, network_at_, ip);
  }
  auto ip = read<wire::Ipv4Header>(segment, network_at_);
  ip.total_length = be16(static_cast<std::uint16_t>(length));
  ip.id = be16(static_cast<std::uint16_t>(ip.id.value() + count_));
  ip.checksum = be16();
  write(segment, network_at_, ip);
  Checksum checksum;
  checksum.add(segment.subspan(network_at_, undone_.transport_at - network_at_));
  ip.checksum = be16(static_cast<std::uint16_t>(~checksum.sum()));
  write(segment, network_at_, ip);
}

void Segments::finish_transport(std::span<std::byte> segment, bool is_last) const {
  const std::size_t at = undone_.transport_at;
  const std::size_t length = segment.size() - at;
  const bool is_udp = undone_.joined == Undone::Joined::kUdp;
  if (is_udp) {
    auto udp = read<wire::UdpHeader>(segment, at);
    udp.length = be16(static_cast<std::uint16_t>(length));
    udp.checksum = be16();
    write(segment, at, udp);
  } else {
    auto tcp = read<TcpHeader>(segment, at);
    tcp.sequence = be32(tcp.sequence.value() + static_cast<std::uint32_t>(done_));
    if (!is_last) tcp.flags &= static_cast<std::uint8_t>(~kFinAndPush);
    if (done_ != 0) tcp.flags &= static_cast<std::uint8_t>(~kCongestionReduced);
    tcp.checksum = be16();
    write(segment, at, tcp);
  }
  // The pseudo-header (RFC 9293, 3.1; RFC 8200, 8.1).
  Checksum checksum;
  if (is_ipv6(segment, network_at_)) {
    checksum.add(segment.subspan(network_at_ + offsetof(wire::Ipv6Header, source), 32));
  } else {
    checksum.add(segment.subspan(network_at_ + offsetof(wire::Ipv4Header, source), 8));
  }
  checksum.add(bytes_of(be32(static_cast<std::uint32_t>(length))));
  checksum.add(bytes_of(be32(is_udp ? 17 : 6)));
  checksum.add(segment.subspan(at));
  const auto value = static_cast<std::uint16_t>(~checksum.sum());
  const std::size_t field =
      at + (is_udp ? offsetof(wire::UdpHeader, checksum) : offsetof(TcpHeader, checksum));
  write(segment, field, be16(value == 0 && is_udp ? 0xFFFF : value));
}

}  // namespace verbena::raw
