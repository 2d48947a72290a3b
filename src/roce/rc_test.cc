// SPDX-License-Identifier: MIT
// A reliable connection on a line that loses nothing: every operation, and what goes over the line
// for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "roce/test_world.h"

namespace verbena::roce {
namespace {

using queues::SendOpcode;
using queues::Status;
using testing::ElementsAre;

void fill(TestEnd& end, std::size_t offset, std::size_t length) {
  for (std::size_t i = 0; i < length; ++i)
    end.memory[offset + i] = static_cast<std::byte>(i * 7 + i / 256 + 1);
}
qp::SendRequest remote(const TestEnd& to, std::size_t offset, SendOpcode opcode) {
  return {.opcode = opcode, .remote_address = to.address(offset), .remote_key = to.key};
}

class RcSizes : public testing::TestWithParam<std::tuple<std::uint32_t, std::uint32_t>> {
 protected:
  std::uint32_t mtu() const { return std::get<0>(GetParam()); }
  std::uint32_t length() const { return std::get<1>(GetParam()); }
  TestWorld world{EndOptions{.path_mtu = std::get<0>(GetParam())}};
};

TEST_P(RcSizes, Send) {
  fill(world.near(), 0, length());
  world.far().post_receive(5, 1000, length() + 10);
  world.near().post({.wr_id = 1, .opcode = SendOpcode::kSend}, 0, length());
  world.run(kSoon);
  const auto sends = world.near().poll();
  ASSERT_EQ(sends.size(), 1u);
  EXPECT_EQ(sends[0].status, Status::kSuccess);
  const auto receives = world.far().poll_receives();
  ASSERT_EQ(receives.size(), 1u);
  EXPECT_EQ(receives[0].byte_length, length());
  EXPECT_EQ(receives[0].wr_id, 5u);
  EXPECT_TRUE(equal(world.near(), 0, world.far(), 1000, length()));
  EXPECT_EQ(world.far().memory[1000 + length()], std::byte{0});
  EXPECT_EQ(world.near().rc().requester().counters().packets, wire::packets_of(length(), mtu()));
  EXPECT_EQ(world.near().rc().requester().counters().repeated, 0u);
}

TEST_P(RcSizes, Write) {
  fill(world.near(), 0, length());
  world.near().post(remote(world.far(), 2000, SendOpcode::kWrite), 0, length());
  world.run(kSoon);
  EXPECT_EQ(world.near().poll().at(0).status, Status::kSuccess);
  EXPECT_TRUE(equal(world.near(), 0, world.far(), 2000, length()));
  EXPECT_EQ(world.far().memory[2000 + length()], std::byte{0});
}

TEST_P(RcSizes, WriteWithImmediate) {
  fill(world.near(), 0, length());
  world.far().post_receive(9, 0, 0);
  auto request = remote(world.far(), 2000, SendOpcode::kWriteWithImmediate);
  request.immediate = 0xA1B2C3D4;
  world.near().post(request, 0, length());
  world.run(kSoon);
  const auto receives = world.far().poll_receives();
  ASSERT_EQ(receives.size(), 1u);
  EXPECT_EQ(receives[0].immediate, 0xA1B2C3D4);
  EXPECT_EQ(receives[0].byte_length, length());
  EXPECT_EQ(receives[0].kind, queues::CompletionKind::kReceiveWithImmediate);
  EXPECT_TRUE(equal(world.near(), 0, world.far(), 2000, length()));
}

TEST_P(RcSizes, Read) {
  fill(world.far(), 100, length());
  world.near().post(remote(world.far(), 100, SendOpcode::kRead), 3000, length());
  world.run(kSoon);
  const auto done = world.near().poll();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, Status::kSuccess);
  EXPECT_EQ(done[0].byte_length, length());
  EXPECT_TRUE(equal(world.far(), 100, world.near(), 3000, length()));
  EXPECT_EQ(world.near().memory[3000 + length()], std::byte{0});
}

INSTANTIATE_TEST_SUITE_P(All, RcSizes,
                         testing::Combine(testing::Values(256, 512, 1024, 2048, 4096),
                                          testing::Values(0, 1, 3, 255, 256, 257, 4095, 4096, 4097,
                                                          8192, 100'001)));

// Also where its middle leaves in runs, as it does once the time of a round trip is known.
TEST(Rc, SendsEachPacketOfALongWriteOnce) {
  constexpr std::uint32_t kMtu = 1024;
  constexpr std::uint32_t kLength = 200'000;
  TestWorld world{EndOptions{.path_mtu = kMtu}};
  fill(world.near(), 0, kLength);
  for (std::uint32_t done = 1; done <= 2; ++done) {
    world.near().post(remote(world.far(), 2000, SendOpcode::kWrite), 0, kLength);
    world.run(kSoon);
    ASSERT_EQ(world.near().poll().at(0).status, Status::kSuccess);
    EXPECT_TRUE(equal(world.near(), 0, world.far(), 2000, kLength));
    EXPECT_EQ(world.near().rc().requester().counters().packets,
              done * wire::packets_of(kLength, kMtu));
    EXPECT_EQ(world.near().rc().requester().counters().repeated, 0u);
  }
}

// All packets of a message but the first and the last one have nothing to say but their bytes.
TEST(Rc, TakesTheMiddleOfAMessageAtOnce) {
  TestWorld world;
  fill(world.near(), 0, 20 * 1024);
  world.near().post(remote(world.far(), 4096, SendOpcode::kWrite), 0, 20 * 1024);
  world.run(kSoon);
  EXPECT_EQ(world.far().received_at_once, 18u);
  EXPECT_TRUE(equal(world.near(), 0, world.far(), 4096, 20 * 1024));

  world.far().post_receive(1, 40 * 1024, 30 * 1024);
  world.near().post({.wr_id = 2, .opcode = SendOpcode::kSend}, 0, 20 * 1024 - 5);
  world.run(kSoon);
  EXPECT_EQ(world.far().received_at_once, 2 * 18u);
  EXPECT_TRUE(equal(world.near(), 0, world.far(), 40 * 1024, 20 * 1024 - 5));
  EXPECT_EQ(world.near().poll().size(), 2u);
}

// What is not the next one, is of the other kind, goes beyond the message's end or has another path
// MTU is for the general way to judge, and nothing has happened.
TEST(Rc, TakesNothingElseForTheMiddleOfAMessage) {
  TestWorld world;
  const auto offer = [&](wire::Code code, wire::Psn psn, std::size_t bytes) {
    wire::Head head;
    head.opcode = wire::Opcode::of(wire::Service::kRc, code);
    head.pkey = 0xFFFF;
    head.psn = psn;
    head.dma_length = 3 * 1024;
    head.remote_address = world.far().address(0);
    head.remote_key = world.far().key;
    std::vector<std::byte> packet(wire::shape_of(head.opcode).header_bytes + bytes +
                                  wire::kIcrcBytes);
    wire::encode(head, packet);
    const Arrival arrival = world.far().from_peer();
    if (code == wire::Code::kWriteFirst) world.far().give(*wire::parse(packet), arrival);
    return world.far().engine->receive_at_once(packet, arrival.ip.flow.source,
                                               world.far().pair.window(),
                                               world.far().pair.responder(), Now(world.now()));
  };
  const wire::Psn first(EndOptions{}.first_psn);
  EXPECT_FALSE(offer(wire::Code::kWriteMiddle, first, 1024));  // nothing has begun
  EXPECT_FALSE(offer(wire::Code::kWriteFirst, first, 1024));
  EXPECT_FALSE(offer(wire::Code::kWriteMiddle, first, 1024));
  EXPECT_FALSE(offer(wire::Code::kWriteMiddle, first + 2, 1024));
  EXPECT_FALSE(offer(wire::Code::kSendMiddle, first + 1, 1024));
  EXPECT_FALSE(offer(wire::Code::kWriteMiddle, first + 1, 512));
  EXPECT_FALSE(offer(wire::Code::kWriteLast, first + 1, 1024));
  EXPECT_TRUE(offer(wire::Code::kWriteMiddle, first + 1, 1024));
  EXPECT_FALSE(offer(wire::Code::kWriteMiddle, first + 2, 1024));  // the last one says that it is
}

TEST(Rc, HandsOverImmediateDataOfASend) {
  TestWorld world;
  world.far().post_receive(1, 0, 100);
  world.near().post({.opcode = SendOpcode::kSendWithImmediate, .immediate = 77}, 0, 10);
  world.run(kSoon);
  const auto receives = world.far().poll_receives();
  ASSERT_EQ(receives.size(), 1u);
  EXPECT_EQ(receives[0].immediate, 77u);
  EXPECT_EQ(receives[0].flags, queues::kHasImmediate);
}

TEST(Rc, AsksForAnEventOnlyWhereTheSenderDid) {
  TestWorld world;
  std::vector<bool> solicited;
  world.link.tap = [&](int from, const wire::Packet& packet) {
    if (from == 0) solicited.push_back(packet.is_solicited);
    return true;
  };
  world.far().post_receive(1, 0, 2000);
  world.near().post({.opcode = SendOpcode::kSend, .flags = queues::kSolicited}, 0, 2000);
  world.run(kSoon);
  EXPECT_THAT(solicited, ElementsAre(false, true));
}

TEST(Rc, ExecutesAtomicsAndGivesTheValueBefore) {
  TestWorld world;
  std::uint64_t value = 40;
  std::memcpy(&world.far().memory[64], &value, sizeof value);
  auto add = remote(world.far(), 64, SendOpcode::kFetchAdd);
  add.compare_add = 2;
  world.near().post(add, 0, 8);
  auto swap = remote(world.far(), 64, SendOpcode::kCompareSwap);
  swap.compare_add = 42;
  swap.swap = 1000;
  world.near().post(swap, 8, 8);
  swap.swap = 2000;  // does not compare any more
  world.near().post(swap, 16, 8);
  world.run(kSoon);
  std::array<std::uint64_t, 3> before{};
  std::memcpy(before.data(), world.near().memory.data(), sizeof before);
  EXPECT_THAT(before, ElementsAre(40, 42, 1000));
  std::memcpy(&value, &world.far().memory[64], sizeof value);
  EXPECT_EQ(value, 1000u);
  EXPECT_EQ(world.near().poll().size(), 3u);
}

TEST(Rc, AcknowledgesABatchOnce) {
  TestWorld world(EndOptions{.in_flight = {.packets = 64, .bytes = 1 << 20}});
  for (int i = 0; i < 32; ++i)
    world.near().post(remote(world.far(), 0, SendOpcode::kWrite), 0, 8);
  world.run(kSoon);
  EXPECT_EQ(world.near().poll().size(), 32u);
  // Each asks, but they come back to back. The line delivers them one by one.
  EXPECT_LE(world.far().rc().responder().counters().acks, 32u);
}

TEST(Rc, SendsNoMoreThanMayBeOnItsWay) {
  TestWorld world(EndOptions{.in_flight = {.packets = 10, .bytes = 4 * 1024}});
  int out = 0;
  int most = 0;
  world.link.tap = [&](int from, const wire::Packet&) {
    out = from == 0 ? out + 1 : 0;
    most = std::max(most, out);
    return true;
  };
  world.near().post(remote(world.far(), 0, SendOpcode::kWrite), 0, 64 * 1024);
  world.run(kSoon);
  EXPECT_EQ(world.near().poll().size(), 1u);
  EXPECT_LE(most, 4);
}

// How many packets left at a time, for one WRITE.
std::vector<int> trains_of(const InFlight& in_flight, std::uint32_t bytes) {
  TestWorld world(EndOptions{.in_flight = in_flight});
  world.link.options.backlog_max = Duration::milliseconds(1);
  std::vector<int> trains;
  Instant last;
  world.link.tap = [&](int from, const wire::Packet&) {
    if (from != 0) return true;
    if (trains.empty() || world.link.now != last) trains.push_back(0);
    last = world.link.now;
    ++trains.back();
    return true;
  };
  fill(world.near(), 0, bytes);
  world.near().post(remote(world.far(), 0, SendOpcode::kWrite), 0, bytes);
  world.run(kSoon);
  EXPECT_EQ(world.near().poll().size(), 1u);
  EXPECT_TRUE(equal(world.near(), 0, world.far(), 0, bytes));
  return trains;
}

// Whoever gives turns asks, for the window has issued all of it by then.
TEST(Rc, SaysThatTheRestOfALongMessageIsToBeSent) {
  TestWorld world(EndOptions{.in_flight = {.packets = 10, .bytes = 4 * 1024}});
  EXPECT_FALSE(world.near().engine->wants_to_send());
  world.near().post(remote(world.far(), 0, SendOpcode::kWrite), 0, 20'000);
  world.near().turn();
  EXPECT_FALSE(world.near().pair.window().has_unissued());
  EXPECT_TRUE(world.near().engine->wants_to_send());
  world.run(kSoon);
  EXPECT_EQ(world.near().poll().at(0).status, Status::kSuccess);
  EXPECT_FALSE(world.near().engine->wants_to_send());
}

TEST(Rc, WaitsForRoomForATrain) {
  const auto trains = trains_of({.packets = 64, .bytes = 1 << 20, .train = 8}, 200 * 1024);
  // What is left of the message need not fill one.
  for (const int train : std::span(trains).first(trains.size() - 1))
    EXPECT_GE(train, 8);
}

// Where it would wait for the answer to all of it, a train is not worth waiting for.
TEST(Rc, ATrainIsAPartOfWhatMayBeOnItsWay) {
  const auto trains = trains_of({.packets = 16, .bytes = 1 << 20, .train = 16}, 200 * 1024);
  EXPECT_GT(trains.size(), 30u);
}

TEST(Rc, AsksForALongReadInParts) {
  TestWorld world(EndOptions{.in_flight = {.packets = 16, .bytes = 16 * 1024}});
  std::vector<std::uint32_t> lengths;
  world.link.tap = [&](int from, const wire::Packet& packet) {
    if (from == 0 && packet.shape->kind == wire::Kind::kReadRequest) {
      lengths.push_back(packet.dma_length);
    }
    return true;
  };
  fill(world.far(), 0, 100'000);
  world.near().post(remote(world.far(), 0, SendOpcode::kRead), 100'000, 100'000);
  world.run(kSoon);
  EXPECT_TRUE(equal(world.far(), 0, world.near(), 100'000, 100'000));
  std::uint64_t sum = 0;
  for (const std::uint32_t length : lengths) {
    EXPECT_LE(length, 16u * 1024);
    sum += length;
  }
  EXPECT_EQ(sum, 100'000u);
}

TEST(Rc, WaitsUntilAReceiveIsPosted) {
  TestWorld world;
  fill(world.near(), 0, 5000);
  world.near().post({.opcode = SendOpcode::kSend}, 0, 5000);
  world.run(Duration::microseconds(100));
  EXPECT_TRUE(world.near().poll().empty());
  EXPECT_GT(world.far().rc().responder().counters().not_ready, 0u);
  world.far().post_receive(1, 0, 5000);
  world.run(kSoon);
  EXPECT_EQ(world.near().poll().at(0).status, Status::kSuccess);
  EXPECT_TRUE(equal(world.near(), 0, world.far(), 0, 5000));
  EXPECT_EQ(world.near().rc().requester().counters().timeouts, 0u);
}

TEST(Rc, WaitsWithTheLastPacketOfAWriteWithImmediate) {
  TestWorld world;
  fill(world.near(), 0, 5000);
  int firsts = 0;
  world.link.tap = [&](int, const wire::Packet& packet) {
    firsts += packet.opcode.code() == wire::Code::kWriteFirst;
    return true;
  };
  world.near().post(remote(world.far(), 0, SendOpcode::kWriteWithImmediate), 0, 5000);
  world.run(Duration::microseconds(200));
  EXPECT_TRUE(world.near().poll().empty());
  world.far().post_receive(1, 0, 0);
  world.run(kSoon);
  EXPECT_EQ(world.near().poll().at(0).status, Status::kSuccess);
  EXPECT_EQ(firsts, 1);  // what was acknowledged is not sent again
}

TEST(Rc, GivesUpWaitingForAReceive) {
  TestWorld world(EndOptions{.rnr_retry = 2});
  world.near().post({.opcode = SendOpcode::kSend}, 0, 10);
  world.run(kSoon);
  EXPECT_EQ(world.near().poll().at(0).status, Status::kRnrRetryExceeded);
  EXPECT_EQ(world.far().rc().responder().counters().not_ready, 3u);
}

TEST(Rc, EndsWithSilence) {
  TestWorld world(EndOptions{.retry_count = 2});
  world.link.options.is_cut = true;
  world.near().post(remote(world.far(), 0, SendOpcode::kWrite), 0, 200'000);
  world.near().post(remote(world.far(), 0, SendOpcode::kWrite), 0, 10);
  world.run(kSoon);
  const auto done = world.near().poll();
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].status, Status::kRetryExceeded);
  EXPECT_EQ(done[1].status, Status::kFlushed);
  EXPECT_EQ(world.near().rc().requester().counters().timeouts, 3u);
  EXPECT_EQ(world.near().engine->next_deadline(), std::nullopt);
}

struct Bad {
  const char* name;
  SendOpcode opcode;
  std::size_t offset;
  std::uint32_t length;
  bool wrong_key;
  Status status;
  qp::QpEvent event;
};
class RcRefusals : public testing::TestWithParam<Bad> {};

TEST_P(RcRefusals, ReachBothSides) {
  TestWorld world;
  const Bad& bad = GetParam();
  world.near().post(remote(world.far(), 0, SendOpcode::kWrite), 0, 100);
  auto request = remote(world.far(), bad.offset, bad.opcode);
  if (bad.wrong_key) request.remote_key.value ^= 0x5000;
  world.near().post(request, 0, bad.length);
  world.near().post(remote(world.far(), 0, SendOpcode::kWrite), 0, 100);
  world.run(kSoon);
  const auto done = world.near().poll();
  ASSERT_EQ(done.size(), 3u);
  EXPECT_EQ(done[0].status, Status::kSuccess);
  EXPECT_EQ(done[1].status, bad.status);
  EXPECT_EQ(done[2].status, Status::kFlushed);
  EXPECT_EQ(world.far().pair.state(), qp::QpState::kError);
  EXPECT_THAT(world.far().events, testing::Contains(bad.event));
}

INSTANTIATE_TEST_SUITE_P(
    All, RcRefusals,
    testing::Values(Bad{"write_key", SendOpcode::kWrite, 0, 10, true, Status::kRemoteAccess,
                        qp::QpEvent::kAccessError},
                    Bad{"write_range", SendOpcode::kWrite, 256 * 1024 - 5, 10, false,
                        Status::kRemoteAccess, qp::QpEvent::kAccessError},
                    Bad{"long_write", SendOpcode::kWrite, 256 * 1024 - 5000, 10'000, false,
                        Status::kRemoteAccess, qp::QpEvent::kAccessError},
                    Bad{"read_key", SendOpcode::kRead, 0, 10, true, Status::kRemoteAccess,
                        qp::QpEvent::kAccessError},
                    Bad{"atomic_key", SendOpcode::kFetchAdd, 0, 8, true, Status::kRemoteAccess,
                        qp::QpEvent::kAccessError},
                    Bad{"misaligned", SendOpcode::kFetchAdd, 4, 8, false,
                        Status::kRemoteInvalidRequest, qp::QpEvent::kRequestError}),
    [](const auto& bad) { return std::string(bad.param.name); });

// What a peer sends packet by packet, and what becomes of it.
struct RcRaw : testing::Test {
  TestWorld world;
  wire::Psn psn{0xFFFFF0};
  std::vector<wire::Syndrome> answers;
  void SetUp() override {
    world.link.tap = [&](int from, const wire::Packet& packet) {
      if (from == 1) answers.push_back(packet.syndrome);
      return false;
    };
  }
  void give(wire::Code code, std::size_t length, std::uint32_t dma_length = 0) {
    const std::vector<std::byte> payload(length, std::byte{9});
    wire::Packet packet;
    packet.opcode = wire::Opcode::of(wire::Service::kRc, code);
    packet.shape = &wire::shape_of(packet.opcode);
    packet.psn = psn;
    packet.remote_address = world.far().address(0);
    packet.remote_key = world.far().key;
    packet.dma_length = dma_length;
    packet.payload = payload;
    psn = psn.next();
    world.far().give(packet, world.far().from_peer());
  }
  void expect_refused() {
    world.run(Duration::microseconds(1));
    EXPECT_EQ(world.far().pair.state(), qp::QpState::kError);
    EXPECT_THAT(world.far().events, testing::Contains(qp::QpEvent::kRequestError));
    EXPECT_THAT(answers, ElementsAre(wire::Syndrome::nak(wire::NakCode::kInvalidRequest)));
  }
};

TEST_F(RcRaw, AWriteShorterThanItsDmaLengthIsRefused) {
  give(wire::Code::kWriteFirst, 1024, 3000);
  give(wire::Code::kWriteLast, 1024);
  expect_refused();
}

TEST_F(RcRaw, AWriteLongerThanItsDmaLengthIsRefused) {
  give(wire::Code::kWriteFirst, 1024, 3000);
  give(wire::Code::kWriteMiddle, 1024);
  give(wire::Code::kWriteMiddle, 1024);
  expect_refused();
  EXPECT_EQ(world.far().memory[2048], std::byte{0});
}

TEST_F(RcRaw, AMessageThatHasNotBegunIsRefused) {
  give(wire::Code::kSendMiddle, 1024);
  expect_refused();
}

TEST_F(RcRaw, AMessageInAnotherIsRefused) {
  give(wire::Code::kWriteFirst, 1024, 3000);
  give(wire::Code::kWriteOnly, 10, 10);
  expect_refused();
}

TEST_F(RcRaw, APacketThatIsNotOfThePathMtuIsRefused) {
  give(wire::Code::kWriteFirst, 2048, 3000);
  expect_refused();
}

TEST_F(RcRaw, MoreReadsThanAgreedAreRefused) {
  for (int i = 0; i < 4; ++i)
    give(wire::Code::kReadRequest, 0, 1024);
  EXPECT_EQ(world.far().pair.state(), qp::QpState::kReadyToSend);
  give(wire::Code::kReadRequest, 0, 1024);
  expect_refused();
}

TEST(Rc, RefusesAMessageLongerThanItsReceive) {
  TestWorld world;
  world.far().post_receive(1, 0, 3000);
  world.near().post({.opcode = SendOpcode::kSend}, 0, 10'000);
  world.run(kSoon);
  EXPECT_EQ(world.near().poll().at(0).status, Status::kRemoteInvalidRequest);
  EXPECT_EQ(world.far().poll_receives().at(0).status, Status::kLocalLength);
}

}  // namespace
}  // namespace verbena::roce
