// SPDX-License-Identifier: MIT
// The kernel's connection management as it was captured, played against our engine in the place of
// either side: it says the same, bit by bit, but for its own ids and transactions.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "capture.h"
#include "cm/engine.h"
#include "wire/ip.h"
#include "wire/packet.h"

namespace verbena::cm {
namespace {

struct Line {
  Gid from;
  Gid to;
  wire::CmMad mad;
};

std::vector<Line> lines_of(const std::string& name) {
  std::vector<Line> lines;
  for (const wire::Capture& capture : wire::captures()) {
    if (capture.name != name) continue;
    for (const auto& bytes : capture.ip_packets) {
      const auto ip = wire::parse_ip(bytes);
      const auto packet = ip ? wire::parse(ip->datagram) : refuse(ip.error());
      if (!packet || packet->dest_qp != QpNum{1}) continue;
      const auto mad = wire::parse_cm(packet->payload);
      if (mad) lines.push_back({ip->head.flow.source, ip->head.flow.destination, *mad});
    }
  }
  return lines;
}

// One side of a captured conversation, taken by our engine.
class Understudy {
 public:
  Understudy(std::vector<Line> lines, const Gid& ours) : lines_(std::move(lines)), ours_(ours) {}

  void play(bool listens) {
    if (listens) {
      const auto service = std::get<wire::Req>(lines_.at(0).mad.message).service_id;
      ASSERT_TRUE(engine_.listen({.service_id = service, .tag = 1}));
    }
    for (const Line& line : lines_) {
      SCOPED_TRACE(wire::name_of(wire::attribute_of(line.mad.message)));
      if (line.from == ours_) {
        say(line);
      } else {
        hear(line);
      }
    }
    Mad mad;
    EXPECT_FALSE(engine_.next_mad(mad)) << "more than the kernel said";
  }
  std::vector<EventKind> told;

 private:
  // The captured id of our side is another than the engine's.
  void hear(const Line& line) {
    wire::CmMad mad = line.mad;
    std::visit(
        [this](auto& message) {
          if constexpr (requires { message.remote_comm_id; }) {
            message.remote_comm_id = id_.value;
          }
        },
        mad.message);
    engine_.receive({.local = line.to, .remote = line.from}, wire::encode_cm(mad), now_);
    for (Event event; engine_.next_event(event);) {
      told.push_back(event.kind);
      id_ = event.id;
    }
  }

  // Gives the command that the kernel was given, where it was one, and compares.
  void say(const Line& line) {
    bool is_ours_to_begin = false;  // the transaction is, too
    if (const auto* const req = std::get_if<wire::Req>(&line.mad.message)) {
      const auto id = engine_.connect({.local = line.from, .remote = line.to}, *req, 0, now_);
      ASSERT_TRUE(id);
      id_ = *id;
      is_ours_to_begin = true;
    } else if (const auto* const rep = std::get_if<wire::Rep>(&line.mad.message)) {
      EXPECT_TRUE(engine_.accept(id_, *rep, now_));
    } else if (const auto* const rtu = std::get_if<wire::Rtu>(&line.mad.message)) {
      EXPECT_TRUE(engine_.confirm(id_, rtu->private_data, now_));
    } else if (const auto* const dreq = std::get_if<wire::Dreq>(&line.mad.message)) {
      EXPECT_TRUE(engine_.disconnect(id_, dreq->private_data, now_));
      is_ours_to_begin = true;
    }
    Mad said;
    ASSERT_TRUE(engine_.next_mad(said)) << "we say nothing";
    EXPECT_EQ(said.route.remote, line.to);
    wire::CmMad expected = line.mad;
    std::visit(
        [this](auto& message) {
          if constexpr (requires { message.local_comm_id; }) {
            if (message.local_comm_id != 0) message.local_comm_id = id_.value;
          }
        },
        expected.message);
    if (is_ours_to_begin) expected.transaction_id = wire::parse_cm(said.bytes)->transaction_id;
    EXPECT_EQ(said.bytes, wire::encode_cm(expected));
  }

  std::vector<Line> lines_;
  Gid ours_;
  SeededRandom random_{1};
  Engine engine_{{.slot = {3}}, random_};
  CommId id_;
  Instant now_;
};

std::vector<EventKind> told_as(const std::string& name, bool active, bool listens = true) {
  const auto lines = lines_of(name);
  EXPECT_GE(lines.size(), 2u) << name;
  if (lines.empty()) return {};
  Understudy understudy(lines, active ? lines[0].from : lines[0].to);
  understudy.play(listens);
  return understudy.told;
}

TEST(CmReplay, OurEngineSpeaksLikeTheKernel) {
  for (const char* const name :
       {"rxe-cm-tour-pdata.pcap", "rxe-cm-tour-send-norecv.pcap", "rxe-rping-ipv6.pcap"}) {
    SCOPED_TRACE(name);
    EXPECT_EQ(told_as(name, true), (std::vector{EventKind::kReply, EventKind::kDisconnected}));
    EXPECT_EQ(told_as(name, false), (std::vector{EventKind::kRequest, EventKind::kEstablished,
                                                 EventKind::kDisconnected}));
  }
}

TEST(CmReplay, ARefusalIsTheKernelsOwn) {
  EXPECT_EQ(told_as("rxe-cm-reject.pcap", true, false), std::vector{EventKind::kRejected});
  EXPECT_EQ(told_as("rxe-cm-reject.pcap", false, false), std::vector<EventKind>{});
}

}  // namespace
}  // namespace verbena::cm
