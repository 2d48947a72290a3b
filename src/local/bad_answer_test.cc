// SPDX-License-Identifier: MIT
// A responder at the other end of the rings whose answers are none to what it was asked (IBTA
// vol 1, 11.6.2): an answer of another kind is a bad response, a READ with more or fewer bytes than
// asked for a length error. The requester ends in its error state; the other end does not know.
//
// What is executed by the initiator itself (direct.h) has no answer of a peer, so none can be bad.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "local/test_pair.h"

namespace verbena::local {
namespace {

using queues::SendOpcode;
using queues::Status;
using ::testing::ElementsAre;

struct BadAnswer {
  const char* name;
  SendOpcode asked;
  std::uint32_t length;
  // Writes what is answered, behind what came before.
  void (*answer)(RingWriter& to, ConduitHeader& header);
  Status status;
};

// The second operation, of three.
constexpr std::uint32_t kAsked = 1;

void put(RingWriter& to, ResponseKind kind, std::uint32_t offset, std::uint32_t length) {
  const std::uint32_t units = units_for(length);
  std::byte* const room = to.reserve(units);
  ASSERT_TRUE(room);
  std::fill_n(room + sizeof(RecordHead), units * kUnit - sizeof(RecordHead), std::byte{9});
  auto* const record = reinterpret_cast<ResponseRecord*>(room);
  record->index = kAsked;
  record->offset = offset;
  record->piece_length = length;
  to.publish(units, static_cast<std::uint8_t>(kind), 0);
}

// One end is a queue pair, and beside the other one, which hears nothing, somebody writes answers.
class BadAnswers : public ::testing::TestWithParam<BadAnswer> {
 protected:
  BadAnswers() : a(qp::QpType::kRc, kA), b(qp::QpType::kRc, kB) {
    key = a.add(memory.data() + kAt, kSize, kAll);
    a.ready(kB);
    b.ready(kA);
    SharedConduit to_a = make_conduit(1);
    SharedConduit to_b = make_conduit(2);
    a.carrier.offer(std::move(to_a.first), {&b.doorbell, kB.index()});
    b.carrier.attach(std::move(to_a.second));
    a.carrier.attach(std::move(to_b.second));
    answering = std::move(to_b.first);
    writer = answering.response_writer();
  }
  void post(SendOpcode opcode, std::uint32_t length) {
    const Sge sge{reinterpret_cast<std::uint64_t>(memory.data() + kAt), length, key};
    qp::SendRequest request;
    request.opcode = opcode;
    request.sges = {&sge, 1};
    ASSERT_TRUE(a.pair.post_send(request).has_value());
  }
  bool is_untouched(std::size_t from, std::size_t upto) const {
    return std::all_of(memory.begin() + static_cast<std::ptrdiff_t>(from),
                       memory.begin() + static_cast<std::ptrdiff_t>(upto),
                       [](std::byte each) { return each == std::byte{0}; });
  }

  static constexpr std::size_t kAt = 4096;
  static constexpr std::size_t kSize = 4096;
  std::vector<std::byte> memory = std::vector<std::byte>(3 * kSize);
  End a;
  End b;
  Conduit answering;
  RingWriter writer;
  MemoryKey key;
  Instant now = Instant::at(1'000'000'000);
};

TEST_P(BadAnswers, EndWhatTheyAnswer) {
  post(SendOpcode::kWrite, 10);  // executed before whatever is answered behind it
  post(GetParam().asked, GetParam().length);
  post(SendOpcode::kWrite, 10);
  a.turn(now);
  GetParam().answer(writer, answering.header());
  a.turn(now);
  a.turn(now);
  b.turn(now);
  std::vector<Status> statuses;
  for (const queues::Completion& each : a.poll())
    statuses.push_back(each.status);
  EXPECT_THAT(statuses, ElementsAre(Status::kSuccess, GetParam().status, Status::kFlushed));
  EXPECT_EQ(a.pair.state(), qp::QpState::kError);
  EXPECT_EQ(b.pair.state(), qp::QpState::kReadyToSend);
  EXPECT_TRUE(is_untouched(0, kAt) && is_untouched(kAt + GetParam().length, memory.size()));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadAnswers,
    ::testing::Values(
        BadAnswer{"too_many_bytes", SendOpcode::kRead, 64,
                  [](RingWriter& to, ConduitHeader&) { put(to, ResponseKind::kData, 0, 65); },
                  Status::kLocalLength},
        BadAnswer{"too_many_in_a_later_piece", SendOpcode::kRead, 64,
                  [](RingWriter& to, ConduitHeader&) {
                    put(to, ResponseKind::kData, 0, 40);
                    put(to, ResponseKind::kData, 40, 40);
                  },
                  Status::kLocalLength},
        BadAnswer{"behind_its_end", SendOpcode::kRead, 64,
                  [](RingWriter& to, ConduitHeader&) { put(to, ResponseKind::kData, 64, 8); },
                  Status::kLocalLength},
        BadAnswer{"too_few_bytes", SendOpcode::kRead, 64,
                  [](RingWriter& to, ConduitHeader& header) {
                    put(to, ResponseKind::kData, 0, 63);
                    header.executed.store(kAsked + 1);
                  },
                  Status::kLocalLength},
        BadAnswer{"no_bytes", SendOpcode::kRead, 64,
                  [](RingWriter&, ConduitHeader& header) { header.executed.store(kAsked + 2); },
                  Status::kLocalLength},
        BadAnswer{"no_value", SendOpcode::kFetchAdd, 8,
                  [](RingWriter&, ConduitHeader& header) { header.executed.store(kAsked + 1); },
                  Status::kBadResponse},
        BadAnswer{"a_value_for_a_read", SendOpcode::kRead, 8,
                  [](RingWriter& to, ConduitHeader&) { put(to, ResponseKind::kValue, 0, 0); },
                  Status::kBadResponse},
        BadAnswer{"bytes_for_an_atomic", SendOpcode::kFetchAdd, 8,
                  [](RingWriter& to, ConduitHeader&) { put(to, ResponseKind::kData, 0, 8); },
                  Status::kBadResponse},
        BadAnswer{"bytes_for_a_write", SendOpcode::kWrite, 64,
                  [](RingWriter& to, ConduitHeader&) { put(to, ResponseKind::kData, 0, 64); },
                  Status::kBadResponse},
        BadAnswer{"a_value_for_a_write", SendOpcode::kWrite, 64,
                  [](RingWriter& to, ConduitHeader&) { put(to, ResponseKind::kValue, 0, 0); },
                  Status::kBadResponse}),
    [](const auto& bad) { return std::string(bad.param.name); });

}  // namespace
}  // namespace verbena::local
