// SPDX-License-Identifier: MIT
#include "port/pcapng.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace verbena::port::pcapng {
namespace {

// Block types and options (sections 3.5, 4.1 to 4.6 of the draft).
constexpr std::uint32_t kSection = 0x0A0D0D0A;
constexpr std::uint32_t kInterface = 1;
constexpr std::uint32_t kStatistics = 5;
constexpr std::uint32_t kEnhancedPacket = 6;
constexpr std::uint32_t kByteOrderMagic = 0x1A2B3C4D;
constexpr std::uint16_t kLinkTypeEthernet = 1;
constexpr std::uint16_t kEndOfOptions = 0;
constexpr std::uint16_t kUserApplication = 4;  // of the section
constexpr std::uint16_t kName = 2;             // of the interface
constexpr std::uint16_t kTimeResolution = 9;
constexpr std::uint16_t kPacketFlags = 2;
constexpr std::uint16_t kReceivedCount = 4;  // of the statistics
constexpr std::uint16_t kDroppedCount = 5;
constexpr std::uint8_t kNanoseconds = 9;
constexpr std::uint32_t kInbound = 1;
constexpr std::uint32_t kOutbound = 2;

// Type and both lengths; the fields of a packet block; its one option and the end of options.
constexpr std::size_t kFrameOfBlock = 12;
constexpr std::size_t kPacketFields = 20;
constexpr std::size_t kPacketOptions = 12;

template <class T>
void put(Buffer& to, const T& value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  to.insert(to.end(), bytes.begin(), bytes.end());
}

void put_bytes(Buffer& to, std::span<const std::byte> bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

void pad(Buffer& to, std::size_t begin) {
  while ((to.size() - begin) % 4 != 0)
    to.push_back(std::byte{0});
}

void put_option(Buffer& to, std::uint16_t code, std::span<const std::byte> value) {
  const std::size_t begin = to.size();
  put(to, code);
  put(to, static_cast<std::uint16_t>(value.size()));
  put_bytes(to, value);
  pad(to, begin);
}
template <class T>
void put_option(Buffer& to, std::uint16_t code, const T& value) {
  put_option(to, code, std::as_bytes(std::span(&value, 1)));
}
void put_option(Buffer& to, std::uint16_t code, std::string_view text) {
  put_option(to, code, std::as_bytes(std::span(text.data(), text.size())));
}
void end_options(Buffer& to) { put_option(to, kEndOfOptions, std::span<const std::byte>()); }

// `body` appends what is between the two lengths of the block.
template <class Body>
void put_block(Buffer& to, std::uint32_t type, Body body) {
  const std::size_t begin = to.size();
  put(to, type);
  put(to, std::uint32_t{0});
  body();
  const auto length = static_cast<std::uint32_t>(to.size() - begin + sizeof(std::uint32_t));
  put(to, length);
  std::memcpy(to.data() + begin + sizeof type, &length, sizeof length);
}

void put_time(Buffer& to, std::uint64_t time) {
  put(to, static_cast<std::uint32_t>(time >> 32));
  put(to, static_cast<std::uint32_t>(time));
}

}  // namespace

void begin_section(Buffer& to, std::string_view interface_name, std::uint32_t snap_length) {
  put_block(to, kSection, [&] {
    put(to, kByteOrderMagic);
    put(to, std::uint16_t{1});  // version 1.0
    put(to, std::uint16_t{0});
    put(to, std::int64_t{-1});  // the length of the section is not told
    put_option(to, kUserApplication, std::string_view("Verbena"));
    end_options(to);
  });
  put_block(to, kInterface, [&] {
    put(to, kLinkTypeEthernet);
    put(to, std::uint16_t{0});
    put(to, snap_length);
    put_option(to, kName, interface_name);
    put_option(to, kTimeResolution, kNanoseconds);
    end_options(to);
  });
}

std::size_t packet_bytes_max(const Packet& packet) {
  const std::size_t frame =
      std::min<std::size_t>(packet.head.size() + packet.payload.size(), packet.snap_length);
  return kFrameOfBlock + kPacketFields + frame + 3 + kPacketOptions;
}

void add_packet(Buffer& to, const Packet& packet) {
  const std::size_t whole = packet.head.size() + packet.payload.size();
  const std::size_t kept = std::min<std::size_t>(whole, packet.snap_length);
  const auto head = packet.head.first(std::min(kept, packet.head.size()));
  put_block(to, kEnhancedPacket, [&] {
    put(to, std::uint32_t{0});  // the interface
    put_time(to, packet.time);
    put(to, static_cast<std::uint32_t>(kept));
    put(to, static_cast<std::uint32_t>(whole));
    const std::size_t begin = to.size();
    put_bytes(to, head);
    put_bytes(to, packet.payload.first(kept - head.size()));
    pad(to, begin);
    put_option(to, kPacketFlags, packet.is_inbound ? kInbound : kOutbound);
    end_options(to);
  });
}

void add_statistics(Buffer& to, std::uint64_t time, std::uint64_t received, std::uint64_t dropped) {
  put_block(to, kStatistics, [&] {
    put(to, std::uint32_t{0});
    put_time(to, time);
    put_option(to, kReceivedCount, received);
    put_option(to, kDroppedCount, dropped);
    end_options(to);
  });
}

}  // namespace verbena::port::pcapng
