// SPDX-License-Identifier: MIT
// Packets that the kernel's rxe sent: each decodes, encodes to the same bytes, and has an ICRC that
// ours agrees with, whether the IPv4 identification is known or not.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <vector>

#include "capture.h"
#include "wire/datagram.h"
#include "wire/icrc.h"
#include "wire/ip.h"
#include "wire/packet.h"

namespace verbena::wire {
namespace {

using Counts = std::map<std::string, int>;

// What each capture holds, as another program counted it.
const std::map<std::string, Counts>& expected() {
  static const std::map<std::string, Counts> counts = {
      {"rxe-cm-reject.pcap", {{"UD SEND Only", 2}}},
      {"rxe-cm-tour-pdata.pcap",
       {{"Acknowledge", 3}, {"RNR NAK", 1}, {"RC SEND Only", 4}, {"UD SEND Only", 5}}},
      {"rxe-cm-tour-send-norecv.pcap",
       {{"Acknowledge", 2}, {"RNR NAK", 3}, {"RC SEND Only", 5}, {"UD SEND Only", 5}}},
      {"rxe-mcast.pcap", {{"UD SEND Only with Immediate", 3}, {"other", 9}}},
      {"rxe-rc-send-ipv6.pcap", {{"Acknowledge", 6}, {"RC SEND First", 6}, {"RC SEND Last", 6}}},
      {"rxe-rc-send-mtu256.pcap",
       {{"Acknowledge", 4}, {"RC SEND First", 4}, {"RC SEND Last", 4}, {"RC SEND Middle", 8}}},
      {"rxe-rc-send-mtu4096.pcap",
       {{"Acknowledge", 4}, {"RC SEND First", 4}, {"RC SEND Last", 4}, {"RC SEND Middle", 4}}},
      {"rxe-rc-tour-atomics.pcap",
       {{"RC ATOMIC Acknowledge", 3}, {"RC CmpSwap", 2}, {"RC FetchAdd", 1}}},
      {"rxe-rc-tour-nak-access-read.pcap", {{"NAK 2", 1}, {"RC RDMA READ Request", 1}}},
      {"rxe-rc-tour-nak-access-write.pcap",
       {{"NAK 2", 1},
        {"RC RDMA WRITE First", 1},
        {"RC RDMA WRITE Last", 1},
        {"RC RDMA WRITE Middle", 1}}},
      {"rxe-rc-tour-nak-invalid-req.pcap", {{"NAK 1", 1}, {"RC RDMA WRITE Only", 1}}},
      {"rxe-rc-tour-nak-remote-op.pcap",
       {{"NAK 3", 1}, {"RC SEND First", 1}, {"RC SEND Last", 1}, {"RC SEND Middle", 1}}},
      {"rxe-rc-tour-read-multi.pcap",
       {{"RC RDMA READ Request", 3},
        {"RC RDMA READ Response First", 2},
        {"RC RDMA READ Response Last", 2},
        {"RC RDMA READ Response Middle", 4},
        {"RC RDMA READ Response Only", 1}}},
      {"rxe-rc-tour-rnr.pcap", {{"Acknowledge", 1}, {"RNR NAK", 5}, {"RC SEND Only", 6}}},
      {"rxe-rc-tour-send-imm.pcap",
       {{"Acknowledge", 2},
        {"RC SEND First", 1},
        {"RC SEND Last with Immediate", 1},
        {"RC SEND Middle", 1},
        {"RC SEND Only with Immediate", 1}}},
      {"rxe-rc-tour-send-inv.pcap",
       {{"Acknowledge", 2},
        {"NAK 2", 1},
        {"RC SEND Only with Invalidate", 1},
        {"RC RDMA WRITE Only", 2}}},
      {"rxe-rc-tour-write-imm.pcap",
       {{"Acknowledge", 2},
        {"RC RDMA WRITE First", 1},
        {"RC RDMA WRITE Last with Immediate", 1},
        {"RC RDMA WRITE Middle", 1},
        {"RC RDMA WRITE Only with Immediate", 1}}},
      {"rxe-rc-tour-zero.pcap",
       {{"Acknowledge", 2},
        {"RC RDMA READ Request", 1},
        {"RC RDMA READ Response Only", 1},
        {"RC SEND Only", 1},
        {"RC RDMA WRITE Only", 1}}},
      {"rxe-rping-ipv6.pcap",
       {{"Acknowledge", 15},
        {"RC RDMA READ Request", 3},
        {"RC RDMA READ Response Only", 3},
        {"RC SEND Only", 12},
        {"RC RDMA WRITE Only", 3},
        {"UD SEND Only", 5}}},
      {"rxe-uc-send.pcap", {{"UC SEND First", 6}, {"UC SEND Last", 6}, {"UC SEND Middle", 6}}},
      {"rxe-uc-write.pcap",
       {{"UC RDMA WRITE First", 6}, {"UC RDMA WRITE Last", 6}, {"UC RDMA WRITE Middle", 6}}},
      {"rxe-ud-send.pcap", {{"UD SEND Only", 8}}},
  };
  return counts;
}

std::string kind_of(const Packet& packet) {
  if (packet.shape->kind != Kind::kAcknowledge) return name_of(packet.opcode);
  switch (packet.syndrome.kind()) {
    case AethKind::kAck: return "Acknowledge";
    case AethKind::kRnrNak: return "RNR NAK";
    case AethKind::kNak: return "NAK " + std::to_string(packet.syndrome.code());
    case AethKind::kReserved: break;
  }
  return "reserved";
}

// Calls `look` for every RoCEv2 packet of every capture.
template <class Look>
void for_each_packet(Look look) {
  for (const Capture& capture : captures()) {
    for (std::size_t i = 0; i < capture.ip_packets.size(); ++i) {
      SCOPED_TRACE(capture.name + " packet " + std::to_string(i));
      const auto ip = parse_ip(capture.ip_packets[i]);
      if (ip) look(std::span(capture.ip_packets[i]), *ip);
    }
  }
}

TEST(Golden, EveryFrameIsWhatAnotherProgramCounted) {
  std::map<std::string, Counts> counts;
  for (const Capture& capture : captures()) {
    for (const auto& bytes : capture.ip_packets) {
      const auto ip = parse_ip(bytes);
      const auto packet = ip ? parse(ip->datagram) : refuse(ip.error());
      ++counts[capture.name][packet ? kind_of(*packet) : "other"];
    }
  }
  EXPECT_EQ(counts, expected());
}

TEST(Golden, IpHeadsEncodeToTheSameBytes) {
  for_each_packet([](std::span<const std::byte> bytes, const IpPacket& ip) {
    std::vector<std::byte> again(ip_bytes(ip.head.flow));
    ASSERT_EQ(encode_ip(ip.head, ip.datagram.size(), again), again.size());
    EXPECT_TRUE(std::equal(again.begin(), again.end(), bytes.begin()));
    EXPECT_EQ(again.size() + ip.datagram.size(), bytes.size());
  });
}

TEST(Golden, PacketsEncodeToTheSameBytes) {
  for_each_packet([](std::span<const std::byte>, const IpPacket& ip) {
    const auto packet = parse(ip.datagram);
    ASSERT_TRUE(packet) << name_of(packet.error());
    std::vector<std::byte> again(kDatagramMax, std::byte{0xA5});
    DatagramBuilder builder(again, *packet, packet->payload.size());
    std::ranges::copy(packet->payload, builder.payload().begin());
    FlowIcrc icrc(ip.head.flow);
    again.resize(builder.finish(icrc, ip.head.id));
    EXPECT_TRUE(std::ranges::equal(again, ip.datagram));
  });
}

TEST(Golden, IcrcsAgreeWithThePlainestWay) {
  for_each_packet([](std::span<const std::byte> bytes, const IpPacket& ip) {
    const std::uint32_t plain = plain_icrc(bytes);
    EXPECT_EQ(plain, received_icrc(ip.datagram));
    FlowIcrc icrc(ip.head.flow);
    EXPECT_EQ(plain, icrc.compute(ip.datagram.first(ip.datagram.size() - kIcrcBytes), ip.head.id));
  });
}

TEST(Golden, IcrcsVerifyWithTheIdentificationHidden) {
  int hidden = 0;
  for_each_packet([&](std::span<const std::byte>, const IpPacket& ip) {
    FlowIcrc icrc(ip.head.flow);
    const auto with_guess = icrc.verify(ip.datagram, ip.head.id);
    ASSERT_TRUE(with_guess);
    EXPECT_TRUE(with_guess->is_guess);
    for (const std::uint16_t guess : std::array<std::uint16_t, 4>{0, 1, 0x8000, 0xFFFF}) {
      const auto solved = icrc.verify(ip.datagram, guess);
      ASSERT_TRUE(solved) << guess;
      if (!is_ipv4(ip.head.flow)) continue;
      EXPECT_EQ(solved->id, ip.head.id);
      EXPECT_EQ(solved->is_guess, guess == ip.head.id);
      hidden += solved->is_guess ? 0 : 1;
    }
  });
  EXPECT_GT(hidden, 500) << "rxe counts its identifications; hardly any was solved for";
}

// One FlowIcrc for all that goes one way, as a port has it: what it remembers never leaks into a
// packet of another length or identification.
TEST(Golden, OneFlowVerifiesAllItsPacketsInAnyOrder) {
  for (const Capture& capture : captures()) {
    std::vector<std::pair<Flow, FlowIcrc>> flows;
    for (const auto& bytes : capture.ip_packets) {
      const auto ip = parse_ip(bytes);
      if (!ip) continue;
      auto known = std::ranges::find(flows, ip->head.flow, &std::pair<Flow, FlowIcrc>::first);
      if (known == flows.end()) {
        flows.emplace_back(ip->head.flow, FlowIcrc(ip->head.flow));
        known = std::prev(flows.end());
      }
      EXPECT_TRUE(known->second.verify(ip->datagram, 0)) << capture.name;
      const auto verified = known->second.verify(ip->datagram, ip->head.id);
      ASSERT_TRUE(verified) << capture.name;
      EXPECT_TRUE(verified->is_guess);
    }
  }
}

}  // namespace
}  // namespace verbena::wire
