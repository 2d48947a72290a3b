// SPDX-License-Identifier: MIT
// A sender whose memory the peer may map: when it names it, and from when on it lends.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "local/test_pair.h"
#include "local/test_target.h"

namespace verbena::local {
namespace {

constexpr std::uint32_t kMessages = 300;
// How many messages may pass until one names its source, and the next one after it has to lend.
constexpr std::uint32_t kPatience = 70;

class Lending : public ::testing::Test {
 protected:
  Lending()
      : a(qp::QpType::kRc, kA),
        b(qp::QpType::kRc, kB),
        of_a({}, asked, b.sections),
        of_b({}, asked, a.sections) {
    a.takes_small = b.takes_small = false;
    a_key = a.add(lender.memory, Target::kSize, memory::kLocalWrite);
    b_key = b.add(room.data(), room.size(), memory::kLocalWrite);
    a.ready(kB);
    b.ready(kA);
    lender.show(a_key);
    of_a.take_tables(lender.look());
    SharedConduit to_b = make_conduit(1);
    SharedConduit to_a = make_conduit(2);
    b.carrier.offer(std::move(to_b.first), {&a.doorbell, kA.index()}, &of_a);
    a.carrier.offer(std::move(to_a.first), {&b.doorbell, kB.index()});
    a.carrier.attach(std::move(to_b.second), {&of_b, kA, kB, &lender.published.tables()});
    b.carrier.attach(std::move(to_a.second));
    // The first message in RTS goes the general way.
    exchange(8);
    generally = 0;
  }
  // At once where that is possible, which is asked twice, as the verbs do: first as for one of a
  // list of small ones.
  void send(std::uint32_t length) {
    const Sge piece{lender.address(), length, a_key};
    qp::SendWindow& window = a.pair.window();
    for (int attempt = 0; attempt < 2 && window.is_open(); ++attempt) {
      if (!a.carrier.send_at_once({.index = window.open_index(),
                                   .from = lender.memory,
                                   .source = piece,
                                   .is_first_out = window.oldest() == window.open_index()}))
        continue;
      window.write_down(0, 7, 0, piece);
      window.issued_at_once();
      return;
    }
    ++generally;
    ASSERT_TRUE(a.pair
                    .post_send({.wr_id = 7,
                                .opcode = queues::SendOpcode::kSend,
                                .sges = std::span<const Sge>(&piece, 1)})
                    .has_value());
    a.turn(now);
  }
  void receive(std::uint32_t length) {
    const Sge place{reinterpret_cast<std::uint64_t>(room.data()), length, b_key};
    ASSERT_TRUE(b.pair.post_receive(5, {&place, 1}).has_value());
  }
  // Whether the taker had a message from the sender's memory, which has changed before it looked.
  // (A program would wait for the completion.)
  bool exchange(std::uint32_t length) {
    receive(length);
    std::memset(lender.memory, 1, length);
    send(length);
    std::memset(lender.memory, 2, length);
    if (b.carrier.take_small(b.pair.responder(), b.pair.window(), 1, now) == 0) b.turn(now);
    const auto received = b.poll();
    EXPECT_EQ(received.size(), 1u);
    EXPECT_EQ(std::count(room.begin(), room.begin() + length, room[0]), length);
    a.turn(now);
    EXPECT_EQ(a.poll().size(), 1u);
    return room[0] == std::byte{2};
  }

  // From now on.
  void lend(std::uint32_t length) {
    exchange(length);
    of_a.map_now(a_key, lender.files);
    std::uint32_t copied = 0;
    while (copied < kPatience && !exchange(length))
      ++copied;
    ASSERT_LT(copied, kPatience);
  }

  Target lender;
  AskedMappings asked;
  End a, b;
  PeerMemory of_a, of_b;
  MemoryKey a_key, b_key;
  std::array<std::byte, 4096> room{};
  std::uint32_t generally = 0;
  Instant now = Instant::at(1'000'000'000);
};

class LendingOf : public Lending, public ::testing::WithParamInterface<std::uint32_t> {};

INSTANTIATE_TEST_SUITE_P(, LendingOf, ::testing::Values(kLentMin, 1000, 1024, 1025, 4096));

TEST_P(LendingOf, BeginsWhenThePeerHasMappedTheMemory) {
  EXPECT_FALSE(exchange(GetParam()));
  ASSERT_EQ(asked.asked, std::vector{a_key}) << "the first one names its source";
  for (std::uint32_t i = 0; i < kMessages; ++i)
    ASSERT_FALSE(exchange(GetParam()));
  of_a.map_now(a_key, lender.files);
  std::uint32_t copied = 0;
  while (copied < kPatience && !exchange(GetParam()))
    ++copied;
  EXPECT_LT(copied, kPatience);
  generally = 0;
  for (std::uint32_t i = 0; i < kMessages; ++i)
    ASSERT_TRUE(exchange(GetParam())) << i;
  EXPECT_EQ(generally, 0u);
}

// The program writes there again as soon as it hears that its message has ended.
TEST_P(LendingOf, IsOverWhenTheConnectionEnds) {
  lend(GetParam());
  receive(GetParam());
  std::memset(lender.memory, 1, GetParam());
  send(GetParam());
  EXPECT_TRUE(a.carrier.lends(a.pair.window()));
  a.move(kB, qp::QpState::kError);
  const auto ended = a.poll();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].status, queues::Status::kFlushed);
  std::memset(lender.memory, 2, GetParam());
  EXPECT_EQ(b.carrier.take_small(b.pair.responder(), b.pair.window(), 1, now), 0u);
  for (int i = 0; i < 3; ++i) {
    b.turn(now);
    a.turn(now);
  }
  EXPECT_TRUE(b.poll().empty());
}

TEST_P(LendingOf, IsOverForWritesToo) {
  lend(GetParam());
  const MemoryKey target = b.add(room.data(), room.size(), kAll);
  room.fill(std::byte{0});
  std::memset(lender.memory, 1, GetParam());
  const Sge piece{lender.address(), GetParam(), a_key};
  ASSERT_TRUE(a.pair
                  .post_send({.wr_id = 7,
                              .opcode = queues::SendOpcode::kWrite,
                              .remote_address = reinterpret_cast<std::uint64_t>(room.data()),
                              .remote_key = target,
                              .sges = std::span<const Sge>(&piece, 1)})
                  .has_value());
  a.turn(now);
  EXPECT_TRUE(a.carrier.lends(a.pair.window()));
  a.move(kB, qp::QpState::kError);
  ASSERT_EQ(a.poll().size(), 1u);
  std::memset(lender.memory, 2, GetParam());
  b.turn(now);
  EXPECT_EQ(std::count(room.begin(), room.end(), std::byte{0}), std::ssize(room));
}

TEST_P(LendingOf, IsKnownUntilThePeerHasCopied) {
  lend(GetParam());
  receive(GetParam());
  EXPECT_FALSE(a.carrier.lends(a.pair.window()));
  send(GetParam());
  EXPECT_TRUE(a.carrier.lends(a.pair.window()));
  ASSERT_EQ(b.carrier.take_small(b.pair.responder(), b.pair.window(), 1, now), 1u);
  EXPECT_FALSE(a.carrier.lends(a.pair.window())) << "although nobody has looked at its answer";
  a.turn(now);
  EXPECT_EQ(a.poll().size(), 1u);
  // Nothing is lent of what is copied into the ring.
  receive(kLentMin);
  send(kLentMin - 1);
  EXPECT_FALSE(a.carrier.lends(a.pair.window()));
}

TEST_P(LendingOf, NamesShortOnesNowAndThenOnly) {
  for (std::uint32_t i = 0; i < kMessages; ++i)
    exchange(GetParam());
  const bool is_copied_at_once = GetParam() <= 1024;
  EXPECT_LE(generally, is_copied_at_once ? kMessages / 60 : kMessages);
  EXPECT_GE(generally, is_copied_at_once ? kMessages / kPatience : kMessages);
  EXPECT_EQ(asked.asked.size(), generally);
}

TEST_F(Lending, ShorterOnesAreNeverNamed) {
  of_a.map_now(a_key, lender.files);
  for (std::uint32_t i = 0; i < kMessages; ++i)
    ASSERT_FALSE(exchange(kLentMin - 1));
  EXPECT_EQ(generally, 0u);
}

}  // namespace
}  // namespace verbena::local
