// SPDX-License-Identifier: MIT
// Every truncation, and every single-bit flip of the headers, of the packets that the kernel's rxe
// sent, on a live connection that expects the packet, and as if the ICRC had been right: each is
// refused with a reason or reaches the engine, nothing crashes, and not a byte is written outside
// of the one region that is open. (A flip in the payload is another payload.)
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "capture.h"
#include "roce/test_world.h"
#include "wire/ip.h"

namespace verbena::roce {
namespace {

constexpr std::size_t kGuard = 16 * 1024;
constexpr std::size_t kOpen = 32 * 1024;
constexpr std::byte kUntouched{0x11};
constexpr std::uint32_t kFirstPsn = 0xFFFFF0;

using Bytes = std::vector<std::byte>;

Bytes bytes_of(wire::Head head, std::span<const std::byte> payload) {
  Bytes bytes(wire::datagram_bytes(head.opcode, payload.size()));
  head.pad = wire::pad_of(payload.size());
  const std::size_t headers = wire::encode(head, bytes);
  std::ranges::copy(payload, bytes.begin() + static_cast<std::ptrdiff_t>(headers));
  return bytes;
}

// One queue pair whose peer sends what is damaged.
class Victim {
 public:
  Victim(qp::QpType type, std::uint32_t path_mtu)
      : path_mtu_(path_mtu),
        end_(0, link_,
             {.type = type,
              .path_mtu = path_mtu,
              .memory = kOpen + 2 * kGuard,
              .first_psn = kFirstPsn,
              .timeout = 0}) {
    link_.tap = [](int, const wire::Packet&) { return false; };
    std::ranges::fill(end_.memory, kUntouched);
    EXPECT_TRUE(end_.regions.remove(end_.key));
    end_.key = *end_.regions.add({.pd = PdId{1},
                                  .iova = end_.address(kGuard),
                                  .access = memory::kLocalWrite | memory::kRemoteWrite |
                                            memory::kRemoteRead | memory::kRemoteAtomic,
                                  .extents = {{end_.memory.data() + kGuard, kOpen}}});
  }

  // The packet as it would come on this connection, and next.
  Bytes adapt(const wire::Packet& packet) const {
    wire::Head head = packet.head();
    head.dest_qp = end_.self();
    const bool is_inside = !packet.shape->starts_message() && !packet.shape->is_response;
    head.psn = wire::Psn(kFirstPsn) + (is_inside ? 1 : 0);
    head.remote_key = end_.key;
    head.remote_address = end_.address(kGuard + 64);
    head.qkey = kTestQkey;
    return bytes_of(head, packet.payload);
  }
  void give(const wire::Packet& original, std::span<const std::byte> damaged) {
    prepare(original);
    const auto parsed = wire::parse(damaged);
    if (parsed) {
      ++delivered_;
      end_.give(*parsed, end_.from_peer());
    } else {
      ++refused_[parsed.error()];
      if (const auto bth = wire::parse_bth(damaged))
        end_.engine->receive_broken(*bth, parsed.error(), end_.from_peer(), end_.pair.responder());
      const bool is_alive = end_.pair.state() == qp::QpState::kReadyToSend;
      EXPECT_TRUE(is_alive || wire::deserves_nak(parsed.error())) << name_of(parsed.error());
    }
    while (end_.turn()) {
    }
  }
  bool is_whole() const {
    const auto is_untouched = [](std::byte byte) { return byte == kUntouched; };
    return std::all_of(end_.memory.begin(), end_.memory.begin() + kGuard, is_untouched) &&
           std::all_of(end_.memory.end() - kGuard, end_.memory.end(), is_untouched);
  }
  std::uint64_t delivered() const { return delivered_; }
  const std::map<wire::Malformed, std::uint64_t>& refused() const { return refused_; }

 private:
  // A new life each time, with what the packet needs: a receive, something that it answers, or the
  // beginning of its message.
  void prepare(const wire::Packet& packet) {
    end_.connect();
    end_.poll();
    end_.poll_receives();
    end_.post_receive(1, kGuard, 16 * 1024);
    link_.now = link_.now + Duration::milliseconds(1);
    const wire::OpcodeShape& shape = *packet.shape;
    if (shape.is_response) {
      const bool is_atomic = shape.atomic_ack_eth;
      const bool is_read = shape.kind == wire::Kind::kReadResponse;
      const auto opcode = is_atomic ? queues::SendOpcode::kFetchAdd
                          : is_read ? queues::SendOpcode::kRead
                                    : queues::SendOpcode::kWrite;
      end_.post({.opcode = opcode, .remote_address = 8}, kGuard, is_atomic ? 8 : 3 * path_mtu_);
      while (end_.turn()) {
      }
    } else if (!shape.starts_message()) {
      begin_message(packet);
    }
  }
  void begin_message(const wire::Packet& packet) {
    wire::Head head = packet.head();
    const bool is_send = packet.shape->kind == wire::Kind::kSend;
    head.opcode = wire::Opcode::of(packet.opcode.service(),
                                   is_send ? wire::Code::kSendFirst : wire::Code::kWriteFirst);
    head.dma_length = path_mtu_ + static_cast<std::uint32_t>(packet.payload.size());
    head.psn = wire::Psn(kFirstPsn);
    head.remote_key = end_.key;
    head.remote_address = end_.address(kGuard + 64);
    const Bytes bytes = bytes_of(head, Bytes(path_mtu_));
    const auto first = wire::parse(bytes);
    ASSERT_TRUE(first.has_value());
    end_.give(*first, end_.from_peer());
  }

  std::uint32_t path_mtu_;
  Link link_{1};
  TestEnd end_;
  std::uint64_t delivered_ = 0;
  std::map<wire::Malformed, std::uint64_t> refused_;
};

// Calls `damage` with a victim for each packet of a kind that an engine gets.
template <class Damage>
void for_each_packet(Damage damage) {
  std::map<std::pair<qp::QpType, std::uint32_t>, std::unique_ptr<Victim>> victims;
  for (const wire::Capture& capture : wire::captures()) {
    for (const auto& bytes : capture.ip_packets) {
      const auto ip = wire::parse_ip(bytes);
      const auto packet = ip ? wire::parse(ip->datagram) : refuse(ip.error());
      if (!packet) continue;
      const auto service = packet->opcode.service();
      const auto type = service == wire::Service::kRc   ? qp::QpType::kRc
                        : service == wire::Service::kUc ? qp::QpType::kUc
                                                        : qp::QpType::kUd;
      const bool is_full = packet->shape->payload == wire::Payload::kFull;
      const auto mtu = is_full ? static_cast<std::uint32_t>(packet->payload.size()) : 1024u;
      auto& victim = victims[{type, mtu}];
      if (!victim) victim = std::make_unique<Victim>(type, mtu);
      SCOPED_TRACE(capture.name + ", " + wire::name_of(packet->opcode));
      damage(*victim, *packet, victim->adapt(*packet));
      ASSERT_TRUE(victim->is_whole());
      ASSERT_FALSE(testing::Test::HasFailure());
    }
  }
  std::uint64_t delivered = 0;
  std::uint64_t refused = 0;
  for (const auto& [key, victim] : victims) {
    delivered += victim->delivered();
    for (const auto& [reason, count] : victim->refused())
      refused += count;
  }
  std::printf("%llu reached an engine, %llu were refused\n",
              static_cast<unsigned long long>(delivered), static_cast<unsigned long long>(refused));
  EXPECT_GT(delivered, 100u);
  EXPECT_GT(refused, 1000u);
}

TEST(EngineDamage, EveryTruncation) {
  for_each_packet([](Victim& victim, const wire::Packet& packet, const Bytes& bytes) {
    for (std::size_t length = 0; length <= bytes.size(); ++length)
      victim.give(packet, std::span(bytes).first(length));
  });
}

TEST(EngineDamage, EveryFlipInTheHeaders) {
  for_each_packet([](Victim& victim, const wire::Packet& packet, Bytes bytes) {
    for (std::size_t bit = 0; bit < 8u * packet.shape->header_bytes; ++bit) {
      const std::byte flip{static_cast<std::uint8_t>(1u << bit % 8)};
      bytes[bit / 8] ^= flip;
      victim.give(packet, bytes);
      bytes[bit / 8] ^= flip;
    }
  });
}

}  // namespace
}  // namespace verbena::roce
