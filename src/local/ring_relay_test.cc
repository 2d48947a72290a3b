// SPDX-License-Identifier: MIT
// Both ends of the conduit by which an XRC target passes requests on: the target's, and that of the
// process which has the shared receive queue; and what either may do to the other one.
#include "local/ring_relay.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <deque>
#include <numeric>

#include "local/test_pair.h"
#include "local/test_relay.h"

namespace verbena::local {
namespace {

class RelayInRing : public testing::Test {
 protected:
  RelayInRing() {
    SharedConduit made = make_conduit(3);
    owner.ring.offer(std::move(made.first));
    relay = std::make_unique<RingRelay>(std::move(made.second));
    std::iota(reinterpret_cast<std::uint8_t*>(source.data()),
              reinterpret_cast<std::uint8_t*>(source.data() + source.size()), std::uint8_t{1});
  }
  qp::RelayPiece piece(qp::OpKind kind, std::uint32_t offset, std::uint32_t length,
                       std::uint32_t total) {
    return {.shared_queue = kQueue,
            .kind = kind,
            .is_first = offset == 0,
            .is_last = offset + length == total,
            .key = owner.region,
            .address = owner.address(0),
            .length = total,
            .offset = offset,
            .bytes = std::span(source).subspan(offset, length)};
  }
  // The next reply, after the owner had a turn.
  std::optional<qp::RelayReply::Kind> next() {
    owner.turn();
    const auto reply = relay->reply();
    if (!reply) return std::nullopt;
    answer = reply->answer;
    value = reply->value;
    relay->take_reply();
    return reply->kind;
  }

  using Kind = qp::RelayReply::Kind;
  std::vector<std::byte> source = std::vector<std::byte>(300'000);
  Owner owner;
  std::unique_ptr<RingRelay> relay;
  qp::Answer answer{};
  std::uint64_t value = 0;
};

TEST_F(RelayInRing, EachPieceIsAnswered) {
  owner.post(0, 5000);
  ASSERT_TRUE(relay->send(piece(qp::OpKind::kSend, 0, 1024, 3000)));
  EXPECT_EQ(next(), Kind::kDone);
  EXPECT_EQ(next(), std::nullopt);
  EXPECT_TRUE(owner.poll().empty());
  ASSERT_TRUE(relay->send(piece(qp::OpKind::kSend, 1024, 1024, 3000)));
  ASSERT_TRUE(relay->send(piece(qp::OpKind::kSend, 2048, 952, 3000)));
  EXPECT_EQ(relay->outstanding(), 2u);
  EXPECT_EQ(next(), Kind::kDone);
  EXPECT_EQ(next(), Kind::kDone);
  const auto received = owner.poll();
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(received[0].byte_length, 3000u);
  EXPECT_EQ(std::memcmp(owner.memory.data(), source.data(), 3000), 0);
}

TEST_F(RelayInRing, MoreThanTheRingHoldsGoesInTurns) {
  constexpr std::uint32_t kLength = 290'000;
  owner.post(0, kLength);
  std::uint32_t sent = 0;
  unsigned answered = 0;
  while (sent < kLength) {
    const std::uint32_t length = std::min(qp::Relay::kPieceMax, kLength - sent);
    if (relay->send(piece(qp::OpKind::kSend, sent, length, kLength)))
      sent += length;
    else
      ASSERT_NE(relay->outstanding(), 0u);
    if (next()) ++answered;
  }
  while (next())
    ++answered;
  EXPECT_EQ(relay->outstanding(), 0u);
  EXPECT_EQ(answered, (kLength + qp::Relay::kPieceMax - 1) / qp::Relay::kPieceMax);
  EXPECT_EQ(std::memcmp(owner.memory.data(), source.data(), kLength), 0);
}

TEST_F(RelayInRing, ARefusalVoidsWhatFollows) {
  ASSERT_TRUE(relay->send(piece(qp::OpKind::kSend, 0, 10, 10)));
  ASSERT_TRUE(relay->send(piece(qp::OpKind::kWrite, 0, 10, 10)));
  EXPECT_EQ(next(), Kind::kRefused);
  EXPECT_EQ(answer, qp::Answer::kNotReady);
  EXPECT_EQ(relay->outstanding(), 0u);
  EXPECT_EQ(owner.memory[0], std::byte{0});
  owner.post(100, 10);
  ASSERT_TRUE(relay->send(piece(qp::OpKind::kSend, 0, 10, 10)));
  EXPECT_EQ(next(), Kind::kDone);
  EXPECT_EQ(owner.poll().size(), 1u);
}

// The last packet of a WRITE with immediate comes again alone, or the whole WRITE does.
TEST_F(RelayInRing, AWriteThatLacksAReceiveGoesOnOrStartsOver) {
  auto last = piece(qp::OpKind::kWrite, 1000, 1000, 2000);
  last.arrived.has_immediate = true;
  ASSERT_TRUE(relay->send(piece(qp::OpKind::kWrite, 0, 1000, 2000)));
  ASSERT_TRUE(relay->send(last));
  EXPECT_EQ(next(), Kind::kDone);
  EXPECT_EQ(next(), Kind::kRefused);
  ASSERT_TRUE(relay->send(last));
  EXPECT_EQ(next(), Kind::kRefused);
  ASSERT_TRUE(relay->send(piece(qp::OpKind::kWrite, 0, 1000, 2000)));
  EXPECT_EQ(next(), Kind::kDone);
  ASSERT_TRUE(relay->send(last));
  EXPECT_EQ(next(), Kind::kRefused);
  owner.post(0, 0);
  ASSERT_TRUE(relay->send(last));
  EXPECT_EQ(next(), Kind::kDone);
  const auto received = owner.poll();
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(received[0].byte_length, 2000u);
}

TEST_F(RelayInRing, AReadMayComeAmidAMessage) {
  owner.post(0, 2000);
  ASSERT_TRUE(relay->send(piece(qp::OpKind::kSend, 0, 1000, 2000)));
  auto read = piece(qp::OpKind::kRead, 0, 0, 0);
  read.length = 20'000;
  ASSERT_TRUE(relay->send(read));
  ASSERT_TRUE(relay->send(piece(qp::OpKind::kSend, 1000, 1000, 2000)));
  EXPECT_EQ(next(), Kind::kDone);
  EXPECT_EQ(next(), Kind::kBytes);
  EXPECT_EQ(next(), Kind::kBytes);
  EXPECT_EQ(next(), Kind::kDone);
  EXPECT_EQ(next(), Kind::kDone);
  EXPECT_EQ(owner.poll().size(), 1u);
}

TEST_F(RelayInRing, ThatReadMayNameAnotherQueue) {
  owner.post(0, 2000);
  ASSERT_TRUE(relay->send(piece(qp::OpKind::kSend, 0, 1000, 2000)));
  auto read = piece(qp::OpKind::kRead, 0, 0, 0);
  read.shared_queue = kSecondQueue;
  read.length = 1000;
  ASSERT_TRUE(relay->send(read));
  ASSERT_TRUE(relay->send(piece(qp::OpKind::kSend, 1000, 1000, 2000)));
  EXPECT_EQ(next(), Kind::kDone);
  EXPECT_EQ(next(), Kind::kBytes);
  EXPECT_EQ(next(), Kind::kDone);
  EXPECT_EQ(next(), Kind::kDone);
  EXPECT_EQ(owner.poll().size(), 1u);
}

TEST_F(RelayInRing, AtomicsBringTheValueBefore) {
  const std::uint64_t before = 41;
  std::memcpy(owner.memory.data(), &before, sizeof before);
  auto add = piece(qp::OpKind::kFetchAdd, 0, 0, 0);
  add.compare_add = 2;
  ASSERT_TRUE(relay->send(add));
  EXPECT_EQ(next(), Kind::kValue);
  EXPECT_EQ(value, 41u);
  EXPECT_EQ(next(), Kind::kDone);
}

TEST_F(RelayInRing, WhoLeavesAnswersNothingMore) {
  owner.post(0, 10);
  ASSERT_TRUE(relay->send(piece(qp::OpKind::kSend, 0, 10, 10)));
  owner.turn();
  owner.ring.close();
  EXPECT_FALSE(relay->is_over()) << "it has answered before";
  EXPECT_EQ(next(), Kind::kDone);
  EXPECT_TRUE(relay->is_over());
}

// A process that says ever more of one piece, as fast as it is heard.
class Endless final : public qp::Relay {
 public:
  Sent send(const qp::RelayPiece&) override { return Sent::kSent; }
  bool knows_way_to(std::uint32_t) const override { return true; }
  std::uint32_t outstanding() const override { return 1; }
  std::optional<qp::RelayReply> reply() override {
    return qp::RelayReply{.kind = qp::RelayReply::Kind::kBytes, .bytes = {&byte_, 1}};
  }
  void take_reply() override {}

 private:
  const std::byte byte_{1};
};

TEST_F(RelayInRing, AnswersWithoutEndDoNotHoldTheTurn) {
  Endless endless;
  owner.responder.relay_by(&endless);
  ASSERT_TRUE(relay->send(
      {.shared_queue = kElsewhere, .kind = qp::OpKind::kRead, .key = owner.region, .length = 9}));
  qp::Budget first;
  EXPECT_FALSE(owner.ring.serve(owner.responder, first));
  qp::Budget second;
  EXPECT_TRUE(owner.ring.serve(owner.responder, second)) << "the rest in the next turn";
  EXPECT_EQ(second.operations, 0u);
}

// A process that writes what it likes. Whatever it says, at most what was asked is answered, and in
// its bounds.
class HostileOwner : public testing::TestWithParam<std::uint64_t> {};

constexpr std::uint32_t kUnitsMax = 200;

TEST_P(HostileOwner, SaysNothingThatWasNotAsked) {
  SCOPED_TRACE(testing::Message() << "seed " << GetParam());
  SeededRandom random(GetParam());
  SharedConduit made = make_conduit(3);
  Conduit theirs = std::move(made.first);
  RingWriter responses = theirs.response_writer();
  RingRelay relay(std::move(made.second));
  std::uint32_t asked = 0;
  std::uint32_t answered = 0;
  std::deque<qp::RelayPiece> waiting;
  for (int step = 0; step < 200 && !relay.is_over(); ++step) {
    qp::RelayPiece piece{.shared_queue = kQueue,
                         .kind = static_cast<qp::OpKind>(random.below(5)),
                         .length = static_cast<std::uint32_t>(random.below(40'000))};
    if (random.one_in(2) && relay.send(piece)) {
      ++asked;
      waiting.push_back(piece);
    }
    const auto units = static_cast<std::uint32_t>(1 + random.below(kUnitsMax));
    if (auto* record = reinterpret_cast<ResponseRecord*>(responses.reserve(units))) {
      record->index = answered + static_cast<std::uint32_t>(random.below(random.one_in(4) ? 3 : 1));
      record->offset = random.one_in(8) ? static_cast<std::uint32_t>(random.next()) : 0;
      record->piece_length = static_cast<std::uint32_t>(random.below(units * 80));
      record->answer = static_cast<std::uint8_t>(random.below(7));
      responses.publish(units, static_cast<std::uint8_t>(1 + random.below(4)), 0);
    }
    if (random.one_in(3)) theirs.header().executed.store(answered + random.one_in(3));
    while (const auto reply = relay.reply()) {
      ASSERT_FALSE(waiting.empty());
      if (reply->kind == qp::RelayReply::Kind::kBytes) {
        ASSERT_EQ(waiting.front().kind, qp::OpKind::kRead);
        ASSERT_LE(reply->offset + reply->bytes.size(), waiting.front().length);
        ASSERT_LE(reply->bytes.size(), std::size_t{kUnitsMax} * kUnit);
      }
      const bool is_refused = reply->kind == qp::RelayReply::Kind::kRefused;
      answered += is_refused
                      ? static_cast<std::uint32_t>(waiting.size())
                      : static_cast<std::uint32_t>(reply->kind == qp::RelayReply::Kind::kDone);
      if (is_refused)
        waiting.clear();
      else if (reply->kind == qp::RelayReply::Kind::kDone)
        waiting.pop_front();
      relay.take_reply();
    }
    ASSERT_EQ(relay.outstanding(), waiting.size());
    ASSERT_LE(answered, asked);
  }
}

// It could say so for ever.
TEST(HostileOwnerOfAQueue, SaysNothingInManyWords) {
  SharedConduit made = make_conduit(3);
  RingWriter responses = made.first.response_writer();
  RingRelay relay(std::move(made.second));
  ASSERT_TRUE(relay.send({.shared_queue = kQueue, .kind = qp::OpKind::kRead, .length = 10}));
  auto* const record = reinterpret_cast<ResponseRecord*>(responses.reserve(1));
  ASSERT_TRUE(record);
  record->index = record->offset = record->piece_length = 0;
  responses.publish(1, static_cast<std::uint8_t>(ResponseKind::kData), 0);
  EXPECT_FALSE(relay.reply());
  EXPECT_TRUE(relay.is_over());
}

TEST(HostileOwnerOfAQueue, TakesRequestsAndAnswersNone) {
  SharedConduit made = make_conduit(3);
  RingReader requests = made.first.request_reader();
  RingRelay relay(std::move(made.second));
  for (unsigned i = 0; i < 3 * kRequestUnits; ++i) {
    static_cast<void>(relay.send({.shared_queue = kQueue}));
    Unit record;
    const std::byte* payload = nullptr;
    std::uint32_t units = 0;
    if (requests.peek(record, payload, units)) requests.consume(units);
    static_cast<void>(requests.give_back());
  }
  EXPECT_EQ(relay.outstanding(), kRequestUnits);
}

INSTANTIATE_TEST_SUITE_P(Seeds, HostileOwner, testing::Range(std::uint64_t{1}, std::uint64_t{201}));

}  // namespace
}  // namespace verbena::local
