// SPDX-License-Identifier: MIT
// A responder whose answers are none to what it was asked (IBTA vol 1, 9.9.2, 11.6.2): an answer of
// another kind is a bad response, a READ with more or fewer bytes than asked for a length error.
// Nothing of it is written, and the requester ends in its error state; the other end does not know.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "roce/test_world.h"

namespace verbena::roce {
namespace {

using queues::SendOpcode;
using queues::Status;
using testing::ElementsAre;
using wire::Code;

constexpr std::uint32_t kMtu = 1024;

struct BadAnswer {
  const char* name;
  SendOpcode asked;
  std::uint32_t length;
  Code answer;
  std::uint32_t answered;  // bytes
  Status status;
};

class BadAnswers : public testing::TestWithParam<BadAnswer> {
 protected:
  // Whatever the far end says is lost.
  BadAnswers() {
    world.link.tap = [](int, const wire::Packet&) { return false; };
  }
  void post(SendOpcode opcode, std::uint32_t length, std::uint64_t wr_id) {
    world.near().post({.wr_id = wr_id,
                       .opcode = opcode,
                       .remote_address = world.far().address(0),
                       .remote_key = world.far().key},
                      kAt, length);
    while (world.near().turn()) {
    }
  }
  void answer(Code code, std::uint32_t length, std::uint32_t packets_after_first) {
    const std::vector<std::byte> payload(length, std::byte{9});
    wire::Packet packet;
    packet.opcode = wire::Opcode::of(wire::Service::kRc, code);
    packet.shape = &wire::shape_of(packet.opcode);
    packet.psn = wire::Psn(EndOptions{}.first_psn) + packets_after_first;
    packet.payload = payload;
    packet.original = 0x0909090909090909;
    world.near().give(packet, world.near().from_peer());
    while (world.near().turn()) {
    }
  }
  std::vector<Status> ends() {
    std::vector<Status> all;
    for (const queues::Completion& each : world.near().poll())
      all.push_back(each.status);
    return all;
  }

  static constexpr std::size_t kAt = 4096;
  TestWorld world{EndOptions{.path_mtu = kMtu}};
};

TEST_P(BadAnswers, EndWhatTheyAnswer) {
  post(SendOpcode::kWrite, 10, 1);  // executed before whatever is answered behind it
  post(GetParam().asked, GetParam().length, 2);
  post(SendOpcode::kWrite, 10, 3);
  answer(GetParam().answer, GetParam().answered, 1);
  EXPECT_THAT(ends(), ElementsAre(Status::kSuccess, GetParam().status, Status::kFlushed));
  EXPECT_EQ(world.near().rc().requester().counters().bad_answers, 1u);
  EXPECT_EQ(world.near().pair.state(), qp::QpState::kError);
  EXPECT_EQ(world.far().pair.state(), qp::QpState::kReadyToSend);
  EXPECT_TRUE(std::ranges::all_of(world.near().memory,
                                  [](std::byte each) { return each == std::byte{0}; }));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadAnswers,
    testing::Values(BadAnswer{"too_many_bytes", SendOpcode::kRead, 64, Code::kReadResponseOnly, 68,
                              Status::kLocalLength},
                    BadAnswer{"too_few_bytes", SendOpcode::kRead, 64, Code::kReadResponseOnly, 60,
                              Status::kLocalLength},
                    BadAnswer{"no_bytes", SendOpcode::kRead, 64, Code::kReadResponseOnly, 0,
                              Status::kLocalLength},
                    BadAnswer{"another_path_mtu", SendOpcode::kRead, 2 * kMtu,
                              Code::kReadResponseFirst, kMtu / 2, Status::kLocalLength},
                    BadAnswer{"bytes_for_a_flush", SendOpcode::kAtomicWrite, 8,
                              Code::kReadResponseOnly, 8, Status::kLocalLength},
                    BadAnswer{"a_value_for_a_read", SendOpcode::kRead, 8, Code::kAtomicAcknowledge,
                              0, Status::kBadResponse},
                    BadAnswer{"bytes_for_an_atomic", SendOpcode::kFetchAdd, 8,
                              Code::kReadResponseOnly, 8, Status::kBadResponse},
                    BadAnswer{"bytes_for_a_write", SendOpcode::kWrite, 64, Code::kReadResponseOnly,
                              64, Status::kBadResponse},
                    BadAnswer{"a_value_for_a_write", SendOpcode::kWrite, 64,
                              Code::kAtomicAcknowledge, 0, Status::kBadResponse}),
    [](const auto& bad) { return std::string(bad.param.name); });

// Nobody's READ ends well because a later one was answered badly.
TEST_F(BadAnswers, AReadWhoseAnswerIsMissingIsAskedForFirst) {
  post(SendOpcode::kRead, 64, 1);
  post(SendOpcode::kRead, 64, 2);
  answer(Code::kReadResponseOnly, 68, 1);
  EXPECT_THAT(ends(), testing::IsEmpty());
  answer(Code::kReadResponseOnly, 64, 0);
  EXPECT_THAT(ends(), ElementsAre(Status::kSuccess));
  answer(Code::kReadResponseOnly, 68, 1);
  EXPECT_THAT(ends(), ElementsAre(Status::kLocalLength));
}

}  // namespace
}  // namespace verbena::roce
