// SPDX-License-Identifier: MIT
// Reads the captures of this folder: the classic pcap format, Ethernet frames, and an ICRC computed
// in the plainest way, by zlib, to hold ours against.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace verbena::wire {

struct Capture {
  std::string name;
  std::vector<std::vector<std::byte>> ip_packets;  // the frames without their Ethernet heads
};

// All captures, in the order of their names. Fails the test when one cannot be read as a whole.
const std::vector<Capture>& captures();

// The ICRC of a whole IP packet by the letter of annex A17.3.3: mask the fields, put eight bytes of
// ones in front, run the CRC over it all.
std::uint32_t plain_icrc(std::span<const std::byte> ip_packet);

}  // namespace verbena::wire
