// SPDX-License-Identifier: MIT
// Extended reliable connections (annex A14) on the wire: each request names the shared receive
// queue that it is for, and with it the protection domain of what it touches.
#include <gtest/gtest.h>

#include <cstring>

#include "roce/test_world.h"

namespace verbena::roce {
namespace {

using queues::SendOpcode;
using queues::Status;

constexpr std::uint32_t kOfOurDomain = 0x701;
constexpr std::uint32_t kOther = 0x702;  // of another protection domain

class XrcWire : public testing::Test {
 protected:
  XrcWire() {
    far().shared_queues.queues = {
        {kOfOurDomain, {&ours, &far().receive_completions, PdId{1}}},
        {kOther, {&other, &far().receive_completions, PdId{2}}},
    };
    other_key = far().add_region(memory::kLocalWrite | memory::kRemoteWrite | memory::kRemoteRead |
                                     memory::kRemoteAtomic | memory::kFlushGlobal,
                                 PdId{2});
    for (std::size_t i = 0; i < 64; ++i)
      near().memory[i] = static_cast<std::byte>(i + 1);
  }
  TestEnd& near() { return world.near(); }
  TestEnd& far() { return world.far(); }

  qp::SendRequest request(SendOpcode opcode, std::uint32_t queue) {
    return {.opcode = opcode,
            .remote_address = far().address(0),
            .remote_key = queue == kOther ? other_key : far().key,
            .shared_queue = queue};
  }
  // Posts it, with so many bytes of the near memory; how it ends.
  Status run(const qp::SendRequest& request, std::uint32_t length, std::size_t offset = 0) {
    near().post(request, offset, length);
    world.run(kSoon);
    const auto done = near().poll();
    return done.size() == 1 ? done[0].status : Status::kFatal;
  }
  void post_to(queues::ReceiveQueue& queue, std::uint64_t id, MemoryKey key) {
    const Sge sge{far().address(1000), 64, key};
    ASSERT_FALSE(queue.post(id, {&sge, 1}));
  }

  TestWorld world{EndOptions{.is_xrc = true}};
  queues::ReceiveQueue ours{4, 1};
  queues::ReceiveQueue other{4, 1};
  MemoryKey other_key;
};

TEST_F(XrcWire, AMessageTakesAReceiveOfTheQueueItNames) {
  post_to(ours, 1, far().key);
  post_to(other, 2, other_key);
  auto message = request(SendOpcode::kSendWithImmediate, kOther);
  message.immediate = 77;
  EXPECT_EQ(run(message, 10), Status::kSuccess);
  const auto received = far().poll_receives();
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(received[0].wr_id, 2u);
  EXPECT_EQ(received[0].immediate, 77u);
  EXPECT_EQ(received[0].qp, far().self());
  EXPECT_EQ(std::memcmp(&far().memory[1000], near().memory.data(), 10), 0);
}

TEST_F(XrcWire, EveryRequestIsAnswered) {
  EXPECT_EQ(run(request(SendOpcode::kWrite, kOfOurDomain), 64), Status::kSuccess);
  EXPECT_EQ(run(request(SendOpcode::kRead, kOfOurDomain), 64, 256), Status::kSuccess);
  EXPECT_EQ(std::memcmp(&near().memory[256], near().memory.data(), 64), 0);
  EXPECT_EQ(run(request(SendOpcode::kRead, kOfOurDomain), 0), Status::kSuccess);
  auto add = request(SendOpcode::kFetchAdd, kOfOurDomain);
  add.compare_add = 1;
  EXPECT_EQ(run(add, 8, 512), Status::kSuccess);
  EXPECT_EQ(run(request(SendOpcode::kAtomicWrite, kOfOurDomain), 8), Status::kSuccess);
  auto flush = request(SendOpcode::kFlush, kOfOurDomain);
  flush.flush = {.length = 64, .global_visibility = true};
  EXPECT_EQ(run(flush, 0), Status::kSuccess);
}

TEST_F(XrcWire, AQueueGivesItsProtectionDomain) {
  EXPECT_EQ(run(request(SendOpcode::kWrite, kOfOurDomain), 64), Status::kSuccess);
  EXPECT_EQ(run(request(SendOpcode::kWrite, kOther), 64), Status::kSuccess);
  // The answer of a READ is of its own queue's, whatever has come behind it.
  near().post(request(SendOpcode::kRead, kOther), 256, 64);
  near().post(request(SendOpcode::kWrite, kOfOurDomain), 0, 64);
  near().turn();
  while (!world.link.is_empty()) {
    InTransit packet = world.link.take();
    far().receive(packet);
  }
  world.run(kSoon);
  EXPECT_EQ(near().poll().size(), 2u);
  EXPECT_EQ(std::memcmp(&near().memory[256], near().memory.data(), 64), 0);
  EXPECT_EQ(far().pair.state(), qp::QpState::kReadyToSend);
  auto wrong = request(SendOpcode::kWrite, kOfOurDomain);
  wrong.remote_key = other_key;
  EXPECT_EQ(run(wrong, 64), Status::kRemoteAccess);
}

TEST_F(XrcWire, AQueueThatIsNotThereIsRefused) {
  EXPECT_EQ(run(request(SendOpcode::kWrite, 0x703), 8), Status::kRemoteInvalidRequest);
  EXPECT_EQ(far().pair.state(), qp::QpState::kError);
}

TEST_F(XrcWire, TheTargetAsksForNothing) {
  const Sge sge = far().sge(0, 8);
  qp::SendRequest request{.opcode = SendOpcode::kWrite};
  request.sges = {&sge, 1};
  EXPECT_EQ(far().pair.post_send(request).error(), qp::PostError::kWrongState);
}

}  // namespace
}  // namespace verbena::roce
