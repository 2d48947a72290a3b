// SPDX-License-Identifier: MIT
// Datagrams and unreliable connections that the kernel's rxe sent, received by our engines: unicast
// and multicast, with the head of the IP packet in front as programs get it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>

#include "capture.h"
#include "roce/test_world.h"
#include "wire/ip.h"

namespace verbena::roce {
namespace {

constexpr std::size_t kGrhBytes = 40;

// Calls `look` for each packet of the service, with all of its IP packet.
template <class Look>
void for_each_packet(wire::Service service, Look look) {
  int packets = 0;
  for (const wire::Capture& capture : wire::captures()) {
    for (const auto& bytes : capture.ip_packets) {
      const auto ip = wire::parse_ip(bytes);
      const auto packet = ip ? wire::parse(ip->datagram) : refuse(ip.error());
      if (!packet || packet->opcode.service() != service) continue;
      SCOPED_TRACE(capture.name + " packet " + std::to_string(packets++));
      look(capture, std::span<const std::byte>(bytes), *ip, *packet);
    }
  }
  EXPECT_GT(packets, 10);
}

// The Global Routing Header in front of a datagram is the IPv6 head, or 20 bytes of nothing and the
// IPv4 head (annex A17.4.5.1).
TEST(ReplayDatagrams, ArriveWithTheHeadOfTheirIpPacket) {
  Link link(1);
  TestEnd end(0, link, {.type = qp::QpType::kUd, .path_mtu = 4096});
  int multicast = 0;
  for_each_packet(wire::Service::kUd, [&](const wire::Capture&, std::span<const std::byte> bytes,
                                          const wire::IpPacket& ip, wire::Packet packet) {
    multicast += packet.dest_qp.value == 0xFFFFFF ? 1 : 0;
    packet.qkey = kTestQkey;
    std::ranges::fill(end.memory, std::byte{0});
    end.post_receive(1, 0, 8192);
    end.give(packet, {.ip = ip.head, .datagram_bytes = ip.datagram.size()});
    const auto done = end.poll_receives();
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].status, queues::Status::kSuccess);
    EXPECT_EQ(done[0].byte_length, packet.payload.size() + kGrhBytes);
    EXPECT_EQ(done[0].source_qp, packet.source_qp);
    EXPECT_EQ((done[0].flags & queues::kHasImmediate) != 0, packet.shape->immediate);
    EXPECT_TRUE((done[0].flags & queues::kHasGrh) != 0);
    const std::size_t head = wire::ip_bytes(ip.head.flow) - wire::kUdpBytes;
    EXPECT_EQ(std::memcmp(&end.memory[kGrhBytes - head], bytes.data(), head), 0);
    EXPECT_TRUE(std::ranges::equal(
        packet.payload, std::span(end.memory).subspan(kGrhBytes, packet.payload.size())));
  });
  EXPECT_EQ(multicast, 3);
}

TEST(ReplayDatagrams, WithAnotherQkeyOrNoReceiveAreDropped) {
  Link link(1);
  TestEnd end(0, link, {.type = qp::QpType::kUd, .path_mtu = 4096});
  std::uint64_t dropped = 0;
  for_each_packet(wire::Service::kUd, [&](const wire::Capture&, std::span<const std::byte>,
                                          const wire::IpPacket& ip, wire::Packet packet) {
    const Arrival arrival{.ip = ip.head, .datagram_bytes = ip.datagram.size()};
    packet.qkey = kTestQkey;
    end.give(packet, arrival);
    packet.qkey = kTestQkey + 1;
    end.post_receive(1, 0, 8192);
    end.give(packet, arrival);
    EXPECT_EQ(end.engine->counters().dropped, dropped += 2);
    packet.qkey = kTestQkey;
    end.give(packet, arrival);
    EXPECT_EQ(end.poll_receives().size(), 1u);
  });
}

// Every message of an unreliable connection arrives as a whole.
TEST(ReplayUnreliable, MessagesArriveWhole) {
  std::map<std::string, std::unique_ptr<TestEnd>> ends;
  Link link(1);
  std::map<std::string, std::vector<std::byte>> messages;
  int whole = 0;
  for_each_packet(wire::Service::kUc, [&](const wire::Capture& capture, std::span<const std::byte>,
                                          const wire::IpPacket& ip, wire::Packet packet) {
    // Each direction is a connection.
    const std::string name = capture.name + std::to_string(packet.dest_qp.value) +
                             std::to_string(ip.head.flow.destination.bytes[15]);
    auto& end = ends[name];
    if (!end) {
      end = std::make_unique<TestEnd>(
          0, link, EndOptions{.type = qp::QpType::kUc, .first_psn = packet.psn.value()});
    }
    if (packet.shape->starts_message()) {
      messages[name].clear();
      if (packet.shape->kind == wire::Kind::kSend) end->post_receive(1, 0, 32 * 1024);
    }
    auto& message = messages[name];
    message.insert(message.end(), packet.payload.begin(), packet.payload.end());
    if (packet.shape->reth) {
      packet.remote_address = end->address(0);
      packet.remote_key = end->key;
    }
    end->give(packet, end->from_peer());
    EXPECT_EQ(end->engine->counters().dropped, 0u);
    if (!packet.shape->ends_message()) return;
    ++whole;
    EXPECT_TRUE(std::ranges::equal(message, std::span(end->memory).first(message.size())));
    const auto done = end->poll_receives();
    ASSERT_EQ(done.size(), packet.shape->kind == wire::Kind::kSend ? 1u : 0u);
    if (!done.empty()) {
      EXPECT_EQ(done[0].byte_length, message.size());
    }
  });
  EXPECT_EQ(whole, 12);
}

}  // namespace
}  // namespace verbena::roce
