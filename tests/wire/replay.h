// SPDX-License-Identifier: MIT
// A reliable connection of a capture, taken apart: what one side asked for, and what the other
// answered, in the order in which it was seen.
#pragma once

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "capture.h"
#include "roce/test_world.h"
#include "wire/ip.h"

namespace verbena::roce {

struct Exchange {
  std::string name;
  std::vector<wire::Packet> packets;  // requests of one side, answers of the other
  std::uint32_t path_mtu = 1024;
  Psn first;
};

// Every direction of every capture that has requests of a reliable connection.
inline std::vector<Exchange> exchanges() {
  std::vector<Exchange> all;
  for (const wire::Capture& capture : wire::captures()) {
    std::map<Gid, Exchange> by_requester;
    for (const auto& bytes : capture.ip_packets) {
      const auto ip = wire::parse_ip(bytes);
      const auto packet = ip ? wire::parse(ip->datagram) : refuse(ip.error());
      if (!packet || packet->opcode.service() != wire::Service::kRc) continue;
      const bool is_response = packet->shape->is_response;
      const wire::Flow& flow = ip->head.flow;
      Exchange& exchange = by_requester[is_response ? flow.destination : flow.source];
      if (exchange.packets.empty()) exchange.first = packet->psn;
      if (packet->shape->payload == wire::Payload::kFull) {
        exchange.path_mtu = static_cast<std::uint32_t>(packet->payload.size());
      }
      exchange.packets.push_back(*packet);
    }
    for (auto& [requester, exchange] : by_requester) {
      exchange.name =
          capture.name + (all.empty() || all.back().name != capture.name ? "" : " back");
      all.push_back(std::move(exchange));
    }
  }
  return all;
}

// What has to be equal, in words. Left out: what a NIC may choose (when it asks for an
// acknowledgement, MigReq, how long to wait after an RNR NAK), and what the replay makes anew
// (numbers of queue pairs).
inline std::string text_of(const wire::Packet& packet, Psn first) {
  std::array<char, 200> text{};
  std::uint32_t hash = 2'166'136'261u;
  for (const std::byte byte : packet.payload)
    hash = (hash ^ static_cast<std::uint8_t>(byte)) * 16'777'619u;
  const bool is_rnr = packet.syndrome.kind() == wire::AethKind::kRnrNak;
  const unsigned syndrome = is_rnr ? 0x20u : packet.syndrome.value();
  std::snprintf(
      text.data(), text.size(), "%s +%d%s, %zu bytes %08x, DMA %u, %02x MSN %u, %llx %08x",
      wire::name_of(packet.opcode), packet.psn - first, packet.is_solicited ? " solicited" : "",
      packet.payload.size(), hash, packet.dma_length, syndrome, packet.msn.value(),
      static_cast<unsigned long long>(packet.original), packet.immediate);
  return text.data();
}

}  // namespace verbena::roce
