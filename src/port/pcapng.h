// SPDX-License-Identifier: MIT
// The blocks of a pcapng file (draft-ietf-opsawg-pcapng), appended to a buffer. In the byte order
// of the host, as the format allows; times are nanoseconds since 1970.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace verbena::port::pcapng {

using Buffer = std::vector<std::byte>;

// Section header and the one interface: what a file begins with. Link type Ethernet.
void begin_section(Buffer& to, std::string_view interface_name, std::uint32_t snap_length);

struct Packet {
  std::uint64_t time = 0;
  std::span<const std::byte> head{};     // the frame is this,
  std::span<const std::byte> payload{};  // and this behind it
  std::uint32_t snap_length = 0;
  bool is_inbound = false;
};
void add_packet(Buffer& to, const Packet& packet);
// At most what add_packet appends.
std::size_t packet_bytes_max(const Packet& packet);

// What was seen and what was missed, up to `time`.
void add_statistics(Buffer& to, std::uint64_t time, std::uint64_t received, std::uint64_t dropped);

}  // namespace verbena::port::pcapng
