// SPDX-License-Identifier: MIT
// Connection management of the kernel: every MAD of the captures decodes, encodes to the same
// bytes, and says what was done.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "capture.h"
#include "wire/cm.h"
#include "wire/ip.h"
#include "wire/packet.h"

namespace verbena::wire {
namespace {

struct Sent {
  IpHead ip;
  Packet packet;
  CmMad mad;
};

// The MADs of a capture, in order.
std::vector<Sent> mads_of(const std::string& name) {
  std::vector<Sent> sent;
  for (const Capture& capture : captures()) {
    if (capture.name != name) continue;
    for (const auto& bytes : capture.ip_packets) {
      const auto ip = parse_ip(bytes);
      if (!ip) continue;
      const auto packet = parse(ip->datagram);
      if (!packet || packet->dest_qp != QpNum{1}) continue;
      const auto mad = parse_cm(packet->payload);
      EXPECT_TRUE(mad) << name_of(mad.error());
      if (mad) sent.push_back({ip->head, *packet, *mad});
    }
  }
  return sent;
}

std::vector<std::string> names_of(const std::vector<Sent>& sent) {
  std::vector<std::string> names;
  for (const Sent& one : sent)
    names.emplace_back(name_of(attribute_of(one.mad.message)));
  return names;
}

TEST(CmGolden, EveryMadEncodesToTheSameBytes) {
  int mads = 0;
  for (const Capture& capture : captures()) {
    for (const Sent& sent : mads_of(capture.name)) {
      EXPECT_TRUE(std::ranges::equal(encode_cm(sent.mad), sent.packet.payload)) << capture.name;
      EXPECT_EQ(sent.packet.qkey, kGsiQkey);
      EXPECT_EQ(sent.packet.source_qp, QpNum{1});
      ++mads;
    }
  }
  EXPECT_EQ(mads, 17);
}

TEST(CmGolden, AConnectionIsAskedForMadeAndReleased) {
  const std::vector<std::string> expected = {"REQ", "REP", "RTU", "DREQ", "DREP"};
  for (const char* name :
       {"rxe-cm-tour-pdata.pcap", "rxe-cm-tour-send-norecv.pcap", "rxe-rping-ipv6.pcap"}) {
    EXPECT_EQ(names_of(mads_of(name)), expected) << name;
  }
  const auto refused = mads_of("rxe-cm-reject.pcap");
  ASSERT_EQ(names_of(refused), (std::vector<std::string>{"REQ", "REJ"}));
  const auto& rej = std::get<Rej>(refused[1].mad.message);
  EXPECT_EQ(rej.reason, RejReason::kInvalidServiceId);
  EXPECT_EQ(rej.remote_comm_id, std::get<Req>(refused[0].mad.message).local_comm_id);
}

TEST(CmGolden, ARequestSaysWhoConnectsAndHow) {
  for (const char* name : {"rxe-cm-tour-pdata.pcap", "rxe-rping-ipv6.pcap"}) {
    const auto sent = mads_of(name);
    ASSERT_EQ(sent.size(), 5u);
    const auto& req = std::get<Req>(sent[0].mad.message);
    const auto& rep = std::get<Rep>(sent[1].mad.message);
    const auto& rtu = std::get<Rtu>(sent[2].mad.message);
    const auto& dreq = std::get<Dreq>(sent[3].mad.message);
    EXPECT_EQ(req.primary.local_gid, sent[0].ip.flow.source);
    EXPECT_EQ(req.primary.remote_gid, sent[0].ip.flow.destination);
    EXPECT_EQ(req.primary.local_lid, kPermissiveLid);
    EXPECT_EQ(req.alternate, (CmPath{.local_lid = 0, .remote_lid = 0}));
    EXPECT_EQ(req.transport_type, TransportType::kRc);
    EXPECT_EQ(req.path_mtu, 3) << "1024";
    EXPECT_EQ(req.primary.hop_limit, 64);
    EXPECT_EQ(req.service_id >> 16, service_id_of(6, 0) >> 16);
    const auto ip_cm = parse_ip_cm(req.private_data);
    ASSERT_TRUE(ip_cm);
    EXPECT_EQ(ip_cm->source, sent[0].ip.flow.source);
    EXPECT_EQ(ip_cm->destination, sent[0].ip.flow.destination);

    EXPECT_EQ(rep.remote_comm_id, req.local_comm_id);
    EXPECT_EQ(rtu.local_comm_id, req.local_comm_id);
    EXPECT_EQ(rtu.remote_comm_id, rep.local_comm_id);
    // Whoever releases names the queue pair of the other side.
    const bool by_server = dreq.local_comm_id == rep.local_comm_id;
    EXPECT_EQ(dreq.remote_qp, by_server ? req.local_qp : rep.local_qp);
  }
}

// The queue pairs and PSNs that were agreed on are the ones that the packets have afterwards.
TEST(CmGolden, PacketsKeepToWhatWasAgreed) {
  const auto sent = mads_of("rxe-rping-ipv6.pcap");
  ASSERT_EQ(sent.size(), 5u);
  const auto& req = std::get<Req>(sent[0].mad.message);
  const auto& rep = std::get<Rep>(sent[1].mad.message);
  std::map<std::pair<Gid, QpNum>, Psn> first;
  for (const Capture& capture : captures()) {
    if (capture.name != "rxe-rping-ipv6.pcap") continue;
    for (const auto& bytes : capture.ip_packets) {
      const auto ip = parse_ip(bytes);
      const auto packet = parse(ip->datagram);
      if (packet->opcode.service() != Service::kRc || packet->shape->is_response) continue;
      first.emplace(std::pair(ip->head.flow.destination, packet->dest_qp), packet->psn);
    }
  }
  // Whoever names a PSN receives from it on; the other side sends.
  const decltype(first) agreed = {{{req.primary.remote_gid, rep.local_qp}, Psn(rep.starting_psn)},
                                  {{req.primary.local_gid, req.local_qp}, Psn(req.starting_psn)}};
  EXPECT_EQ(first, agreed);
}

TEST(CmGolden, PrivateDataArrivesBehindTheIpHeader) {
  const auto sent = mads_of("rxe-cm-tour-pdata.pcap");
  ASSERT_EQ(sent.size(), 5u);
  const auto& req = std::get<Req>(sent[0].mad.message);
  const auto& rep = std::get<Rep>(sent[1].mad.message);
  for (std::size_t i = IpCm::kBytes; i < IpCm::kBytes + 40; ++i) {
    EXPECT_EQ(req.private_data[i], std::byte{0x43}) << i;
  }
  for (std::size_t i = 0; i < 100; ++i)
    EXPECT_EQ(rep.private_data[i], std::byte{0x53}) << i;
}

TEST(CmGolden, EveryFlippedBitIsReadOrRefused) {
  std::map<std::string, int> refused;
  for (const Sent& sent : mads_of("rxe-cm-tour-pdata.pcap")) {
    std::vector<std::byte> damaged(sent.packet.payload.begin(), sent.packet.payload.end());
    for (std::size_t bit = 0; bit < 8 * damaged.size(); ++bit) {
      const std::byte flip{static_cast<std::uint8_t>(1u << bit % 8)};
      damaged[bit / 8] ^= flip;
      const auto mad = parse_cm(damaged);
      if (mad) {
        const auto again = parse_cm(encode_cm(*mad));
        EXPECT_TRUE(again && again->message == mad->message);
      } else {
        ++refused[name_of(mad.error())];
      }
      damaged[bit / 8] ^= flip;
    }
  }
  EXPECT_EQ(refused["MAD version"], 5 * 16);
  EXPECT_EQ(refused["MAD class"], 5 * 8);
  EXPECT_EQ(refused["MAD method"], 5 * 8);
  EXPECT_GT(refused["MAD attribute"], 5 * 10);
}

}  // namespace
}  // namespace verbena::wire
