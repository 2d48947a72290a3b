// SPDX-License-Identifier: MIT
// What a reliable connection does about one packet that is lost, comes twice, or comes late.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <utility>

#include "roce/test_world.h"

namespace verbena::roce {
namespace {

using queues::SendOpcode;
using queues::Status;
using wire::Kind;

constexpr std::uint32_t kLong = 10'000;  // ten packets

struct RcLoss : testing::Test {
  explicit RcLoss(const InFlight& in_flight = {})
      : world(EndOptions{.timeout = 12, .in_flight = in_flight}) {}
  TestWorld world;  // times out after 16 ms: nothing here may wait for it

  qp::SendRequest remote(SendOpcode opcode, std::size_t offset = 0) {
    return {.opcode = opcode,
            .remote_address = world.far().address(offset),
            .remote_key = world.far().key};
  }
  void write(std::uint32_t length = kLong) {
    world.near().post(remote(SendOpcode::kWrite), 0, length);
  }
  // So that the round trip is known.
  void warm_up() {
    write(8);
    world.run(kSoon);
    world.near().poll();
  }
  // Loses the first `times` packets of an end that `which` says.
  template <class Which>
  void lose(int from, unsigned times, Which which) {
    world.link.tap = [from, times, which](int sender, const wire::Packet& packet) mutable {
      if (sender != from) return true;
      if (times == 0 || !which(packet)) return true;
      --times;
      return false;
    };
  }
  // How many bytes each READ request asks for, also those that are lost.
  void note_reads(std::vector<std::uint32_t>& asked) {
    world.link.tap = [before = world.link.tap, &asked](int from, const wire::Packet& p) {
      if (p.shape->kind == Kind::kReadRequest) asked.push_back(p.dma_length);
      return before(from, p);
    };
  }
  const RequesterCounters& requester() { return world.near().rc().requester().counters(); }
  const ResponderCounters& responder() { return world.far().rc().responder().counters(); }
  bool finishes(Duration within) {
    const bool done = world.run_until([&] { return !world.near().completions.empty(); }, within);
    if (!done) return false;
    for (const auto& completion : world.near().poll())
      EXPECT_EQ(completion.status, Status::kSuccess);
    return true;
  }
};

constexpr Duration kRoundTrip = Duration::microseconds(20);

TEST_F(RcLoss, ResendsFromTheGapAtOnce) {
  warm_up();
  lose(0, 1, [](const wire::Packet& p) { return p.opcode.code() == wire::Code::kWriteMiddle; });
  write();
  EXPECT_TRUE(finishes(kRoundTrip * 2 + Duration::microseconds(10)));
  EXPECT_EQ(requester().naks, 1u);
  EXPECT_EQ(requester().timeouts, 0u);
  EXPECT_EQ(responder().naks, 1u);
}

TEST_F(RcLoss, RecoversALostLastPacketWithinThreeRoundTrips) {
  warm_up();
  lose(0, 1, [](const wire::Packet& p) { return p.opcode.code() == wire::Code::kWriteLast; });
  write();
  EXPECT_TRUE(finishes(kRoundTrip * 3 + Duration::microseconds(5)));
  EXPECT_EQ(requester().probes, 1u);
  EXPECT_LE(requester().repeated, 2u);
}

TEST_F(RcLoss, RecoversALostAcknowledgementByAProbe) {
  warm_up();
  lose(1, 1, [](const wire::Packet& p) { return p.shape->kind == Kind::kAcknowledge; });
  write();
  EXPECT_TRUE(finishes(kRoundTrip * 3 + Duration::microseconds(5)));
  EXPECT_EQ(responder().duplicates, 2u);
  EXPECT_EQ(requester().repeated, 2u);
}

TEST_F(RcLoss, SurvivesALostNak) {
  warm_up();
  unsigned dropped = 0;
  lose(0, 1, [](const wire::Packet& p) { return p.opcode.code() == wire::Code::kWriteFirst; });
  const auto first = world.link.tap;
  world.link.tap = [first, &dropped](int from, const wire::Packet& p) {
    if (from == 1 && !p.syndrome.is_ack() && dropped == 0) return ++dropped, false;
    return first(from, p);
  };
  write();
  EXPECT_TRUE(finishes(kRoundTrip * 6));
  EXPECT_EQ(dropped, 1u);
}

TEST_F(RcLoss, AnAcknowledgementBehindAReadAsksForItAgain) {
  warm_up();
  std::memset(&world.far().memory[500], 7, 100);
  lose(1, 1, [](const wire::Packet& p) { return p.shape->kind == Kind::kReadResponse; });
  world.near().post(remote(SendOpcode::kRead, 500), 2000, 100);
  write(8);
  EXPECT_TRUE(finishes(kRoundTrip * 2 + Duration::microseconds(5)));
  EXPECT_EQ(world.near().memory[2099], std::byte{7});
  EXPECT_EQ(requester().probes, 0u);
}

TEST_F(RcLoss, AsksOnlyForTheMissingPartOfARead) {
  warm_up();
  lose(1, 1,
       [](const wire::Packet& p) { return p.opcode.code() == wire::Code::kReadResponseMiddle; });
  std::vector<std::uint32_t> asked;
  note_reads(asked);
  world.near().post(remote(SendOpcode::kRead), 100'000, kLong);
  EXPECT_TRUE(finishes(kSoon));
  EXPECT_THAT(asked, testing::ElementsAre(kLong, 1024));
}

struct RcLossOfLongParts : RcLoss {
  RcLossOfLongParts() : RcLoss({.packets = 256, .bytes = 1 << 20}) {}
};

// Nothing shows that the responder has seen it, and a part of it would be another request.
TEST_F(RcLossOfLongParts, AProbeAsksForTheWholeOfAReadThatNobodyAnswered) {
  constexpr std::uint32_t kRead = 40 * 1024;  // more packets than a probe has
  warm_up();
  lose(0, 1, [](const wire::Packet& p) { return p.shape->kind == Kind::kReadRequest; });
  std::vector<std::uint32_t> asked;
  note_reads(asked);
  world.near().post(remote(SendOpcode::kRead), 100'000, kRead);
  EXPECT_TRUE(finishes(kSoon));
  EXPECT_EQ(requester().probes, 1u);
  EXPECT_THAT(asked, testing::ElementsAre(kRead, kRead));
}

// A program is told that its peer has read, and takes its memory back; what comes then has been on
// its way for long.
TEST_F(RcLoss, AReadThatComesAgainTooLateIsNothingToTheQueuePair) {
  std::vector<std::byte> late;
  world.link.tap = [&](int, const wire::Packet& p) {
    if (p.shape->kind != Kind::kReadRequest) return true;
    late.assign(wire::datagram_bytes(p.opcode, 0), std::byte{0});
    wire::Head head;
    head.opcode = p.opcode;
    head.dest_qp = world.far().self();
    head.psn = p.psn;
    head.remote_key = p.remote_key;
    head.remote_address = p.remote_address;
    head.dma_length = p.dma_length;
    wire::encode(head, late);
    return true;
  };
  world.near().post(remote(SendOpcode::kRead, 500), 2000, 3000);
  ASSERT_TRUE(finishes(kSoon));
  const MemoryKey other = world.far().add_region(memory::kLocalWrite | memory::kRemoteWrite);
  ASSERT_TRUE(world.far().regions.remove(world.far().key));
  InTransit packet;
  packet.bytes = late;
  world.far().receive(packet);
  world.run(kSoon);
  EXPECT_EQ(responder().gone, 1u);
  EXPECT_EQ(world.far().pair.state(), qp::QpState::kReadyToSend);
  EXPECT_TRUE(world.far().events.empty());
  world.far().key = other;
  write();
  EXPECT_TRUE(finishes(kSoon));
}

// Whoever waits for it is told at once.
TEST_F(RcLoss, AReadThatComesAgainTooLateIsRefused) {
  warm_up();
  lose(1, 1, [&](const wire::Packet& p) {
    if (p.shape->kind != Kind::kReadResponse) return false;
    world.far().regions.remove(world.far().key);
    return true;
  });
  world.near().post(remote(SendOpcode::kRead, 500), 2000, 100);
  world.run(kSoon);
  const auto done = world.near().poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, Status::kRemoteAccess);
  EXPECT_EQ(world.far().pair.state(), qp::QpState::kReadyToSend);
}

// Also where it is known already that the first one was executed: an acknowledgement of what came
// behind it says so.
TEST_F(RcLoss, AReadThatWasAcknowledgedAndComesAgainTooLateIsRefused) {
  warm_up();
  bool is_acknowledged = false;
  lose(1, 1, [](const wire::Packet& p) { return p.shape->kind == Kind::kReadResponse; });
  const auto first = world.link.tap;
  world.link.tap = [&, first](int from, const wire::Packet& p) {
    if (from == 1 && p.shape->kind == Kind::kAcknowledge && p.syndrome.is_ack()) {
      world.far().regions.remove(world.far().key);
      is_acknowledged = true;
    }
    return first(from, p);
  };
  world.near().post(remote(SendOpcode::kRead, 500), 2000, 100);
  world.near().post(remote(SendOpcode::kWrite, 500), 3000, 100);
  world.run(kSoon);
  const auto done = world.near().poll();
  ASSERT_TRUE(is_acknowledged);
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].status, Status::kRemoteAccess);
  EXPECT_EQ(done[1].status, Status::kFlushed);
  EXPECT_EQ(world.far().pair.state(), qp::QpState::kReadyToSend);
}

// The answers of the READ are lost, and the WRITE behind it is refused: the READ has not happened,
// whatever the NAK acknowledges.
TEST_F(RcLoss, ARefusalDoesNotCompleteTheReadBeforeIt) {
  warm_up();
  lose(1, 1000, [](const wire::Packet& p) { return p.shape->kind == Kind::kReadResponse; });
  world.near().post(remote(SendOpcode::kRead, 500), 2000, 100);
  auto bad = remote(SendOpcode::kWrite);
  bad.remote_key.value ^= 0x5000;
  world.near().post(bad, 0, 10);
  world.run(Duration::seconds(1));
  const auto done = world.near().poll();
  ASSERT_EQ(done.size(), 2u);
  EXPECT_NE(done[0].status, Status::kSuccess);
  EXPECT_EQ(done[1].status, Status::kFlushed);
}

TEST_F(RcLoss, TheAnswerOfAReadAcknowledgesWhatCameBeforeIt) {
  warm_up();
  lose(1, 1000, [](const wire::Packet& p) { return p.shape->kind == Kind::kAcknowledge; });
  write(8);
  world.near().post(remote(SendOpcode::kRead, 500), 2000, 100);
  EXPECT_TRUE(finishes(kRoundTrip + Duration::microseconds(5)));
}

TEST_F(RcLoss, NothingIsAcknowledgedBeforeTheAnswersOfAnEarlierRead) {
  warm_up();
  world.near().post(remote(SendOpcode::kRead), 100'000, 60'000);
  write(8);
  world.run(kSoon);
  EXPECT_EQ(world.near().poll().size(), 2u);
  EXPECT_EQ(requester().repeated, 0u);
}

TEST_F(RcLoss, NoNakFollowsAnRnrNak) {
  warm_up();
  world.near().post({.opcode = SendOpcode::kSend}, 0, 10);
  write(kLong);
  world.run(Duration::microseconds(200));
  EXPECT_GT(responder().not_ready, 0u);
  EXPECT_GT(responder().ahead, 0u);
  EXPECT_EQ(responder().naks, 0u);
}

TEST_F(RcLoss, NothingIsAskedForFromTheErrorState) {
  world.near().post({.opcode = SendOpcode::kSend}, 0, 8);
  world.near().turn();
  InTransit packet = world.link.take();
  world.far().receive(packet);  // there is no receive for it
  world.far().pair.fail(qp::QpEvent::kFatal);
  world.far().turn();
  EXPECT_TRUE(world.link.is_empty());
}

TEST_F(RcLoss, ExecutesAnAtomicOnceWhoseAnswerIsLost) {
  warm_up();
  lose(1, 3, [](const wire::Packet& p) { return p.shape->kind == Kind::kAtomicAcknowledge; });
  auto add = remote(SendOpcode::kFetchAdd, 64);
  add.compare_add = 5;
  world.near().post(add, 0, 8);
  EXPECT_TRUE(finishes(kSoon));
  std::uint64_t value = 0;
  std::memcpy(&value, &world.far().memory[64], sizeof value);
  EXPECT_EQ(value, 5u);
  EXPECT_EQ(responder().duplicates, 3u);
}

TEST_F(RcLoss, DoesNotCountRetriesWhileALongMessageMakesProgress) {
  // After each timeout five packets more get through; the retry count would not do for all of them.
  TestWorld slow(EndOptions{.timeout = 4, .retry_count = 1});
  slow.link.tap = [&](int from, const wire::Packet& p) {
    const auto through = 5 + 5 * slow.near().rc().requester().counters().timeouts;
    return from == 1 || p.psn - wire::Psn(0xFFFFF0) < static_cast<int>(through);
  };
  slow.near().post({.opcode = SendOpcode::kWrite,
                    .remote_address = slow.far().address(0),
                    .remote_key = slow.far().key},
                   0, 50'000);
  slow.run(kSoon);
  EXPECT_EQ(slow.near().poll().at(0).status, Status::kSuccess);
  EXPECT_GT(slow.near().rc().requester().counters().timeouts, 3u);
}

TEST_F(RcLoss, TakesTwoPacketsInTheWrongOrderWithoutANak) {
  TestWorld patient(
      EndOptions{.reorder_packets = 8, .reorder_patience = Duration::microseconds(5)});
  unsigned count = 0;
  patient.link.tap = [&](int from, const wire::Packet&) {
    patient.link.options.reorder = from == 0 && ++count == 3 ? 100'000 : 0;
    return true;
  };
  patient.link.options.reorder_by = Duration::microseconds(2);
  patient.near().post({.opcode = SendOpcode::kWrite,
                       .remote_address = patient.far().address(0),
                       .remote_key = patient.far().key},
                      0, kLong);
  patient.run(kSoon);
  EXPECT_EQ(patient.near().poll().at(0).status, Status::kSuccess);
  EXPECT_GT(patient.far().rc().responder().counters().ahead, 0u);
  EXPECT_EQ(patient.far().rc().responder().counters().naks, 0u);
  EXPECT_EQ(patient.near().rc().requester().counters().repeated, 0u);
}

TEST_F(RcLoss, NamesAGapWhenItsPatienceIsOver) {
  TestWorld patient(EndOptions{
      .timeout = 12, .reorder_packets = 32, .reorder_patience = Duration::microseconds(5)});
  patient.link.tap = [is_lost = false](int from, const wire::Packet& packet) mutable {
    if (from != 0 || packet.opcode.code() != wire::Code::kWriteMiddle) return true;
    return std::exchange(is_lost, true);
  };
  qp::SendRequest write = {.opcode = SendOpcode::kWrite,
                           .remote_address = patient.far().address(0),
                           .remote_key = patient.far().key};
  patient.near().post(write, 0, kLong);
  patient.run(kSoon);
  EXPECT_EQ(patient.near().poll().size(), 1u);
  EXPECT_EQ(patient.far().rc().responder().counters().naks, 1u);
  EXPECT_EQ(patient.near().rc().requester().counters().naks, 1u);
  EXPECT_EQ(patient.near().rc().requester().counters().timeouts, 0u);
}

TEST_F(RcLoss, SelectiveRepeatSendsOnlyWhatIsMissing) {
  TestWorld both(EndOptions{.in_flight = {.packets = 128, .bytes = 1 << 20},
                            .reorder_packets = 128,
                            .reorder_patience = Duration::microseconds(2),
                            .selective = true});
  unsigned count = 0;
  both.link.tap = [&](int from, const wire::Packet&) {
    if (from == 1) return true;
    ++count;
    return count != 5 && count != 6 && count != 20;
  };
  both.near().post({.opcode = SendOpcode::kWrite,
                    .remote_address = both.far().address(0),
                    .remote_key = both.far().key},
                   0, 100'000);
  both.run(kSoon);
  EXPECT_EQ(both.near().poll().at(0).status, Status::kSuccess);
  EXPECT_EQ(both.near().rc().requester().counters().repeated, 3u);
}

// What is missing is named again and again, each time after twice as long.
TEST_F(RcLoss, WhatDoesNotComeIsNamedAgain) {
  TestWorld both(EndOptions{.timeout = 14,  // 67 ms
                            .in_flight = {.packets = 128, .bytes = 1 << 20},
                            .reorder_packets = 128,
                            .reorder_patience = Duration::microseconds(2),
                            .selective = true});
  both.link.tap = [count = 0](int from, const wire::Packet&) mutable {
    if (from == 1) return true;
    ++count;
    return count <= 10 && count != 5;
  };
  both.near().post({.opcode = SendOpcode::kWrite,
                    .remote_address = both.far().address(0),
                    .remote_key = both.far().key},
                   0, 10'000);
  const auto named_after = [&both](Duration time) {
    both.run(time);
    return both.far().rc().responder().counters().naks;
  };
  EXPECT_EQ(named_after(Duration::microseconds(50)), 1u);
  EXPECT_EQ(named_after(Duration::microseconds(100)), 2u);
  EXPECT_EQ(named_after(Duration::microseconds(200)), 3u);
  EXPECT_EQ(named_after(Duration::microseconds(400)), 4u);
  EXPECT_EQ(named_after(Duration::microseconds(800)), 5u);
}

// What is posted before the NIC goes back.
TEST_F(RcLoss, NothingOvertakesWhatHasToBeSentOnceMore) {
  TestWorld keen(EndOptions{.issues_first = true, .posts_at_once = true});
  keen.link.tap = [is_lost = false](int from, const wire::Packet&) mutable {
    return from == 1 || std::exchange(is_lost, true);
  };
  const auto post = [&keen](std::uint64_t id, std::uint32_t length) {
    keen.far().post_receive(id, id * 4096, 4096);
    keen.near().post({.wr_id = id, .opcode = SendOpcode::kSend}, id * 4096, length);
  };
  post(0, 3000);
  keen.near().turn();
  keen.deliver_all();
  keen.far().turn();
  keen.deliver_all();
  EXPECT_EQ(keen.near().rc().requester().counters().naks, 1u);
  post(1, 10);
  EXPECT_EQ(keen.near().sent_at_once, 0u);
  keen.run(kSoon);
  EXPECT_EQ(keen.near().poll().size(), 2u);
  EXPECT_EQ(keen.near().rc().requester().counters().timeouts, 0u);
  EXPECT_EQ(keen.near().rc().requester().counters().repeated, 3u);
}

// Round trips of 10 ms, which nobody knows yet: a probe is answered by what was sent first, and
// nothing else is sent again.
TEST_F(RcLoss, ASlowPeerIsNotTakenForLoss) {
  for (const SendOpcode opcode : {SendOpcode::kWrite, SendOpcode::kRead}) {
    TestWorld slow(EndOptions{.timeout = 17});  // 537 ms
    slow.link.options.delay = Duration::milliseconds(5);
    for (unsigned i = 0; i < 16; ++i) {
      slow.near().post(
          {.opcode = opcode, .remote_address = slow.far().address(0), .remote_key = slow.far().key},
          100'000, 60'000);
    }
    slow.run(Duration::seconds(5));
    EXPECT_EQ(slow.near().poll().size(), 16u);
    const RequesterCounters& counters = slow.near().rc().requester().counters();
    EXPECT_GT(counters.probes, 0u);
    EXPECT_LE(counters.repeated, 2 * counters.probes);
  }
}

// All requests are lost: when the answer to the probe has come and no other follows it, the other
// three are sent again, at once and together.
TEST_F(RcLoss, WhatLiesBehindAProbeIsSentAgainWhenNothingFollowsItsAnswer) {
  warm_up();
  lose(0, 4, [](const wire::Packet& p) { return p.shape->kind == Kind::kReadRequest; });
  for (unsigned i = 0; i < 4; ++i)
    world.near().post(remote(SendOpcode::kRead), 100'000 + i * kLong, kLong);
  const Instant begin = world.now();
  std::size_t done = 0;
  world.run_until([&] { return (done += world.near().poll().size()) == 4; }, kSoon);
  EXPECT_EQ(done, 4u);
  EXPECT_LT(world.now() - begin, kRoundTrip * 6);
}

TEST_F(RcLoss, NotifiesOfMarksNotTooOften) {
  world.link.options.mark = 100'000;
  world.link.tap = [](int, const wire::Packet& packet) {
    EXPECT_EQ(packet.becn, packet.opcode == wire::kCnp) << "A17.9.3";
    return true;
  };
  write(100'000);
  EXPECT_TRUE(finishes(kSoon));
  const std::uint64_t sent = world.far().engine->counters().notifications_sent;
  EXPECT_GE(sent, 1u);
  EXPECT_LE(sent, 3u);
  EXPECT_EQ(world.near().engine->counters().notifications, sent);
}

}  // namespace
}  // namespace verbena::roce
