// SPDX-License-Identifier: MIT
// For tests: packets that name a queue pair and can be told apart, and ports on loopback.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "port/handover.h"
#include "port/port.h"
#include "port/train.h"
#include "port/udp_port.h"
#include "wire/headers.h"

namespace verbena::port {

inline Gid ipv4(std::uint8_t a, std::uint8_t b, std::uint8_t c, std::uint8_t d) {
  return wire::gid_of(std::array<std::uint8_t, 4>{a, b, c, d});
}
inline const Gid kLoopback4 = ipv4(127, 0, 0, 1);
inline const Gid kLoopback6 = {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};

// Slots: of the two ends of a line, and of receivers in one group.
inline constexpr SlotNumber kHere{1};
inline constexpr SlotNumber kThere{2};
inline constexpr SlotNumber kFive{5};
inline constexpr SlotNumber kSix{6};

inline void write_packet(std::span<std::byte> room, SlotNumber slot, std::uint32_t number) {
  // Every bit of the number changes every byte.
  const std::uint32_t mixed = number * 7 + (number >> 8) * 11 + (number >> 16) * 5;
  for (std::size_t i = 0; i < room.size(); ++i)
    room[i] = static_cast<std::byte>(mixed + i * 13 + (i >> 8));
  wire::Bth bth;
  bth.opcode = 0x04;
  bth.dest_qp = wire::be24(QpNum::of(slot, 77).value);
  bth.psn = wire::be24(number);
  std::memcpy(room.data(), &bth, std::min(room.size(), sizeof bth));
}
inline std::vector<std::byte> make_packet(SlotNumber slot, std::size_t size, std::uint32_t number) {
  std::vector<std::byte> packet(size);
  write_packet(packet, slot, number);
  return packet;
}
template <class T>
void poke(std::vector<std::byte>& packet, std::size_t offset, T value) {
  const wire::BigEndian<T> number(value);
  std::memcpy(packet.data() + offset, &number, sizeof number);
}
// A CM message (attribute) on queue pair 1, of zeros, without an ICRC.
inline std::vector<std::byte> cm_packet(std::uint16_t attribute) {
  std::vector<std::byte> packet(12 + 8 + 256);
  packet[0] = std::byte{0x64};
  packet[7] = std::byte{1};
  packet[21] = std::byte{0x07};
  poke(packet, 36, attribute);
  return packet;
}
inline std::uint32_t number_of(std::span<const std::byte> payload) {
  const auto* const bth = wire::View(payload).take<wire::Bth>();
  return bth ? bth->psn.value() : ~0u;
}

// A packet that was received, with bytes of its own.
struct Kept {
  explicit Kept(const Received& packet)
      : bytes(packet.payload.begin(), packet.payload.end()), head(packet) {
    head.payload = bytes;
  }
  Kept(Kept&& other) noexcept : bytes(std::move(other.bytes)), head(other.head) {
    head.payload = bytes;
  }
  Kept& operator=(Kept&&) = delete;
  std::uint32_t number() const { return number_of(bytes); }

  std::vector<std::byte> bytes;
  Received head;
};

// What is there now, or comes within a time that loopback never needs if `least` is asked for.
inline std::vector<Kept> drain(Port& port, std::size_t least = 0, Instant now = {}) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  std::vector<Kept> all;
  std::array<Received, 64> some;
  while (true) {
    const std::size_t came = port.receive(some, now);
    for (const Received& each : std::span(some).first(came))
      all.emplace_back(each);
    if (came > 0) continue;
    if (all.size() >= least || std::chrono::steady_clock::now() > end) return all;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

// Sends `count` packets of one size, numbered from `first`, in as few trains as can be.
inline void send_packets(Port& port, const Route& route, std::size_t count, std::uint32_t size,
                         std::uint32_t first = 0, Instant now = {}) {
  TrainBuilder builder(port.limits(), std::min<std::size_t>(count * size, 1 << 20), 256);
  for (std::uint32_t i = 0; i < count; ++i) {
    auto place = builder.place(route, size);
    if (!place) {
      ASSERT_TRUE(builder.flush(port, now));
      place = builder.place(route, size);
    }
    ASSERT_TRUE(place);
    write_packet(place->room, route.slot, first + i);
    builder.commit();
  }
  ASSERT_TRUE(builder.flush(port, now));
}

// A UDP port number that no other test uses now.
inline std::uint16_t free_port() {
  const auto sender = make_sender(0);
  EXPECT_TRUE(sender.has_value());
  close(sender->fd);
  return sender->port;
}

// Bound sockets of one group, in order.
inline std::vector<UniqueFd> make_group(std::uint16_t port, std::size_t count,
                                        const ReceiverOptions& options = {}) {
  std::vector<UniqueFd> sockets;
  for (std::size_t i = 0; i < count; ++i) {
    const auto fd = make_receiver(options);
    EXPECT_TRUE(fd.has_value());
    sockets.emplace_back(*fd);
    EXPECT_TRUE(bind_receiver(*fd, port).has_value());
  }
  return sockets;
}

// What was handed over, by slot.
class Basket final : public HandOver {
 public:
  bool hand_over(SlotNumber owner, const Received& packet) override {
    std::vector<std::byte> message(kHandOverHead + packet.payload.size());
    EXPECT_EQ(pack(packet, message), message.size());
    const auto there = unpack(message);
    EXPECT_TRUE(there.has_value());
    if (takes) packets[owner].emplace_back(*there);
    return takes;
  }
  std::map<SlotNumber, std::vector<Kept>> packets;
  bool takes = true;
};

}  // namespace verbena::port
