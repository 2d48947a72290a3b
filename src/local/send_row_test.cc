// SPDX-License-Identifier: MIT
// Small SENDs that lie together in one record.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "local/test_small.h"

namespace verbena::local {
namespace {

using queues::CompletionKind;
using queues::Status;

class SendRow : public Small {
 protected:
  // Message `i` of so many bytes each, and where it comes to lie.
  void send_row(std::uint32_t length, unsigned count) {
    a.carrier.hold();
    for (unsigned i = 0; i < count; ++i)
      ASSERT_TRUE(send(a, length, false, i));
    a.carrier.release();
  }
  void post(std::uint32_t length, unsigned count, unsigned from = 0) {
    for (unsigned i = from; i < from + count; ++i)
      receive(b, length, std::size_t{length} * i);
  }
  // Message i begins with byte i of ours.
  bool is_there(std::uint32_t length, unsigned count) {
    for (unsigned i = 0; i < count; ++i)
      if (!std::equal(&taken[length * i], &taken[length * i] + length, &bytes[i])) return false;
    return true;
  }
  // Everything that happens, and what each end hears of.
  struct Heard {
    std::vector<queues::Completion> sent;
    std::vector<queues::Completion> received;
  };
  Heard settle() {
    Heard heard;
    for (int i = 0; i < 50; ++i) {
      now = now + Duration::milliseconds(1);
      a.turn(now);
      b.turn(now);
      for (const auto& one : a.poll())
        heard.sent.push_back(one);
      for (const auto& one : b.poll())
        heard.received.push_back(one);
    }
    return heard;
  }
};

INSTANTIATE_TEST_SUITE_P(, SendRow, ::testing::Values(Ways::kTiny));

TEST_P(SendRow, ArrivesMessageByMessage) {
  begin();
  for (const std::uint32_t length : {1u, 7u, 8u, 16u, 17u, 31u, 32u}) {
    const unsigned count = length > 8 ? 15 : 60;  // one row, or two of which one is not full
    taken.fill(0);
    post(length, count);
    send_row(length, count);
    for (unsigned i = 0; i < count; ++i) {
      ASSERT_EQ(take(b), 1u) << length << ", message " << i;
      const auto done = b.poll();
      ASSERT_EQ(done.size(), 1u);
      EXPECT_EQ(done[0].byte_length, length);
      EXPECT_FALSE(done[0].flags & queues::kHasImmediate);
    }
    EXPECT_EQ(take(b), 0u);
    EXPECT_TRUE(is_there(length, count));
    a.turn(now);
    EXPECT_EQ(a.poll().size(), count);
  }
}

TEST_P(SendRow, SharesLinesAndAHead) {
  SharedConduit conduit = make_conduit(1);
  RingReader requests = conduit.first.request_reader();
  RingRequester requester(qp::QpType::kRc);
  requester.attach(std::move(conduit.second));
  requester.hold();
  for (std::uint32_t i = 0; i < kRowMost + 1; ++i) {
    ASSERT_TRUE(
        requester.send_at_once({.index = qp::OpIndex(7 + i),
                                .from = reinterpret_cast<const std::byte*>(bytes.data()) + i,
                                .source = sge(a, 8)},
                               {}));
  }
  requester.release();
  alignas(kUnit) RequestRecord record;
  const std::byte* payload = nullptr;
  std::uint32_t units = 0;
  ASSERT_TRUE(requests.peek(reinterpret_cast<Unit&>(record), payload, units));
  EXPECT_EQ(units, 1 + kRowMost * 8 / kUnit);
  EXPECT_EQ(record.head.kind, static_cast<std::uint8_t>(RequestKind::kSendRow));
  EXPECT_EQ(record.index, 7u);
  EXPECT_EQ(record.row, kRowMost);
  requests.consume(units);
  ASSERT_TRUE(requests.peek(reinterpret_cast<Unit&>(record), payload, units));
  EXPECT_EQ(units, 1u) << "a single one is like any other";
  EXPECT_EQ(record.head.kind, static_cast<std::uint8_t>(RequestKind::kSend));
  EXPECT_EQ(record.index, 7 + kRowMost);
  EXPECT_EQ(std::memcmp(record.inline_payload, &bytes[kRowMost], 8), 0);
}

TEST_P(SendRow, IsBrokenUpByWhatIsOfAnotherLength) {
  begin();
  const std::array<std::uint32_t, 9> lengths{8, 8, 8, 16, 100, 8, 40, 8, 8};
  for (int lap = 0; lap < 200; ++lap) {
    a.carrier.hold();
    for (const std::uint32_t length : lengths) {
      receive(b, 128);
      ASSERT_TRUE(send(a, length));
    }
    a.carrier.release();
    ASSERT_EQ(take(b, 20), lengths.size());
    const auto done = b.poll();
    ASSERT_EQ(done.size(), lengths.size());
    for (std::size_t i = 0; i < done.size(); ++i)
      EXPECT_EQ(done[i].byte_length, lengths[i]);
    a.turn(now);
    ASSERT_EQ(a.poll().size(), lengths.size());
  }
}

TEST_P(SendRow, WaitsInItsMiddleForReceives) {
  begin();
  post(8, 3);
  send_row(8, 20);
  EXPECT_EQ(take(b, 20), 3u);
  EXPECT_EQ(take(b, 20), 0u);
  b.turn(now);
  EXPECT_EQ(b.poll().size(), 3u);
  post(8, 17, 3);
  const Heard heard = settle();
  EXPECT_EQ(heard.sent.size(), 20u);
  EXPECT_EQ(heard.received.size(), 17u) << "each came once";
  for (const auto& one : heard.sent)
    EXPECT_EQ(one.status, Status::kSuccess);
  EXPECT_TRUE(is_there(8, 20));
}

TEST_P(SendRow, EndsWithTheMessageThatIsTooLong) {
  begin();
  post(8, 2);
  receive(b, 4, 100);
  post(8, 5, 3);
  send_row(8, 8);
  const Heard heard = settle();
  ASSERT_EQ(heard.sent.size(), 8u);
  ASSERT_EQ(heard.received.size(), 8u);
  for (unsigned i = 0; i < 8; ++i) {
    EXPECT_EQ(heard.sent[i].status, i < 2    ? Status::kSuccess
                                    : i == 2 ? Status::kRemoteInvalidRequest
                                             : Status::kFlushed);
    EXPECT_EQ(heard.received[i].status, i < 2    ? Status::kSuccess
                                        : i == 2 ? Status::kLocalLength
                                                 : Status::kFlushed);
  }
}

// A few by the general way, a few by the short one, and so on.
TEST_P(SendRow, IsTakenByBothWays) {
  begin();
  for (unsigned each = 1; each < 9; ++each) {
    taken.fill(0);
    post(8, 40);
    send_row(8, 40);
    unsigned came = 0;
    for (unsigned round = 0; came < 40 && round < 100; ++round) {
      if (round % 2 != 0) {
        take(b, each);
        came += static_cast<unsigned>(b.poll().size());
        continue;
      }
      qp::Budget budget{.operations = each};
      b.carrier.serve(b.pair.responder(), budget, now);
      came += static_cast<unsigned>(b.poll().size());
    }
    EXPECT_EQ(came, 40u);
    EXPECT_TRUE(is_there(8, 40));
    a.turn(now);
    EXPECT_EQ(a.poll().size(), 40u);
  }
}

TEST_P(SendRow, IsForgedInVain) {
  using Change = std::uint8_t (*)(RequestRecord&);
  constexpr std::uint8_t kWhole = kFirst | kLast;
  for (const Change change : {
           +[](RequestRecord& r) { return r.row = 0, kWhole; },
           +[](RequestRecord& r) { return r.row = kRowMost + 1, kWhole; },
           +[](RequestRecord& r) { return r.row = 9, kWhole; },
           +[](RequestRecord& r) { return r.row = ~0u, kWhole; },
           +[](RequestRecord& r) { return r.piece_length = r.total_length = 0, kWhole; },
           +[](RequestRecord& r) { return r.piece_length = r.total_length = 33, kWhole; },
           +[](RequestRecord& r) { return r.piece_length = r.total_length = 1u << 31, kWhole; },
           +[](RequestRecord& r) { return r.total_length = 9, kWhole; },
           +[](RequestRecord& r) { return r.offset = 1, kWhole; },
           +[](RequestRecord&) { return std::uint8_t{kFirst}; },
           +[](RequestRecord&) { return std::uint8_t{kWhole | kLent}; },
       }) {
    End victim(qp::QpType::kRc, kB);
    victim.takes_small = false;
    victim.ready(kA);
    std::array<std::byte, 64> memory{};
    const MemoryKey key = victim.add(memory.data(), memory.size(), memory::kLocalWrite);
    for (int i = 0; i < 8; ++i) {
      const Sge place{reinterpret_cast<std::uint64_t>(memory.data()), 64, key};
      ASSERT_TRUE(victim.pair.post_receive(1, {&place, 1}).has_value());
    }
    SharedConduit conduit = make_conduit(1);
    RingWriter requests = conduit.second.request_writer();
    victim.carrier.offer(std::move(conduit.first), {});
    victim.turn(now);  // so that the short way is open
    auto* record = reinterpret_cast<RequestRecord*>(requests.reserve(2));
    ASSERT_TRUE(record);
    record = new (record) RequestRecord{};
    record->total_length = record->piece_length = 8;
    record->row = 4;
    std::memset(static_cast<void*>(reinterpret_cast<std::byte*>(record) + kUnit), 0x5a, kUnit);
    requests.publish(2, static_cast<std::uint8_t>(RequestKind::kSendRow), change(*record));
    EXPECT_EQ(victim.carrier.take_small(victim.pair.responder(), victim.pair.window(), 9, now), 0u);
    victim.turn(now);
    for (const auto& one : victim.poll())
      EXPECT_NE(one.status, Status::kSuccess);
    EXPECT_EQ(std::ranges::count(memory, std::byte{}), 64) << "nothing was written";
  }
}

}  // namespace
}  // namespace verbena::local
