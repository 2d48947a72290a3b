// SPDX-License-Identifier: MIT
#include "capture.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace verbena::wire {
namespace {

constexpr std::uint32_t kMagic = 0xA1B2C3D4;  // microseconds, in the order of the machine
constexpr std::size_t kFileHead = 24;
constexpr std::size_t kRecordHead = 16;
constexpr std::size_t kEthernetHead = 14;

std::uint32_t number_at(const std::vector<char>& bytes, std::size_t offset) {
  std::uint32_t number = 0;
  if (offset + sizeof number <= bytes.size()) {
    std::memcpy(&number, bytes.data() + offset, sizeof number);
  }
  return number;
}

Capture read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  Capture capture{.name = path.filename().string(), .ip_packets = {}};
  EXPECT_EQ(number_at(bytes, 0), kMagic) << path;
  EXPECT_EQ(number_at(bytes, 20), 1u) << path << " is not of Ethernet";
  std::size_t at = kFileHead;
  while (at + kRecordHead <= bytes.size()) {
    const std::size_t length = number_at(bytes, at + 8);
    EXPECT_EQ(length, number_at(bytes, at + 12)) << path << " has a frame that was cut";
    at += kRecordHead;
    if (length < kEthernetHead || length > bytes.size() - at) break;
    std::vector<std::byte> packet(length - kEthernetHead);
    std::memcpy(packet.data(), bytes.data() + at + kEthernetHead, packet.size());
    capture.ip_packets.push_back(std::move(packet));
    at += length;
  }
  EXPECT_EQ(at, bytes.size()) << path << " ends inside a frame";
  return capture;
}

}  // namespace

const std::vector<Capture>& captures() {
  static const std::vector<Capture> all = [] {
    std::vector<Capture> found;
    for (const auto& entry : std::filesystem::directory_iterator(VERBENA_CAPTURES)) {
      if (entry.path().extension() == ".pcap") found.push_back(read(entry.path()));
    }
    std::sort(found.begin(), found.end(),
              [](const Capture& a, const Capture& b) { return a.name < b.name; });
    return found;
  }();
  return all;
}

std::uint32_t plain_icrc(std::span<const std::byte> ip_packet) {
  std::vector<std::uint8_t> bytes(8, 0xFF);
  for (const std::byte byte : ip_packet)
    bytes.push_back(static_cast<std::uint8_t>(byte));
  std::uint8_t* const ip = bytes.data() + 8;
  std::uint8_t* udp = ip + 20;
  if (ip[0] >> 4 == 4) {
    ip[1] = ip[8] = ip[10] = ip[11] = 0xFF;
  } else {
    udp = ip + 40;
    ip[0] |= 0x0F;
    ip[1] = ip[2] = ip[3] = ip[7] = 0xFF;
  }
  udp[6] = udp[7] = 0xFF;
  udp[8 + 4] = 0xFF;  // of the BTH
  return static_cast<std::uint32_t>(
      ::crc32(0, bytes.data(), static_cast<unsigned>(bytes.size() - 4)));
}

}  // namespace verbena::wire
