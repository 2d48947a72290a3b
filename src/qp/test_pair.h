// SPDX-License-Identifier: MIT
// For tests: a queue pair with its queues and memory, and what it tells.
#pragma once

#include <gtest/gtest.h>

#include "qp/queue_pair.h"
#include "qp/test_bench.h"

namespace verbena::qp {

class Pair final : public QpEvents {
 public:
  // `completed`: how many completions its completion queue seems to have had before.
  explicit Pair(QpConfig wanted = {}, std::uint32_t completed = 0)
      : sends(64, nullptr, queues::Pushers::kAny, {.first = completed}),
        shared(8, 2),
        qp(complete(wanted)) {}

  // RESET to `state` with all attributes that the moves need.
  void move_to(QpState state) {
    const bool connected = qp.config().type != QpType::kUd;
    const bool reliable = qp.config().type == QpType::kRc;
    const std::uint32_t init = kPkeyIndex | kPort | (connected ? kAccessFlags : kQkey);
    const std::uint32_t rtr =
        (connected ? kAddressVector | kPathMtu | kDestinationQp | kReceivePsn : 0u) |
        (reliable ? kReadsInMax | kRnrTimer : 0u);
    const std::uint32_t rts =
        kSendPsn | (reliable ? kTimeout | kRetryCount | kRnrRetry | kReadsOutMax : 0u);
    step(QpState::kInit, init);
    if (state == QpState::kInit) return;
    step(QpState::kReadyToReceive, rtr);
    if (state == QpState::kReadyToReceive) return;
    step(QpState::kReadyToSend, rts);
    if (state != QpState::kReadyToSend) step(state, 0);
  }
  void step(QpState to, std::uint32_t mask) {
    QpAttributes wanted = values;
    wanted.state = to;
    ASSERT_TRUE(qp.modify(wanted, mask | kState));
    ASSERT_EQ(qp.state(), to);
  }
  Result<void, PostError> send(queues::SendOpcode opcode = queues::SendOpcode::kSend,
                               std::uint8_t flags = 0) {
    const Sge sge = memory.sge(0, 8);
    return qp.post_send({.wr_id = next_id++, .opcode = opcode, .flags = flags, .sges = {&sge, 1}});
  }
  Result<void, PostError> receive() {
    const Sge sge = memory.sge(64, 64);
    return qp.post_receive(next_id++, {&sge, 1});
  }
  void qp_event(QpNum number, QpEvent event) override {
    EXPECT_EQ(number, kTestQp);
    events.push_back(event);
  }
  void qp_flushes(QpNum) override {
    is_told_first = is_told_first && sends.empty();
    ++flushes;
  }

  TestMemory memory;
  queues::CompletionQueue sends;
  queues::CompletionQueue receives{64, nullptr};
  queues::ReceiveQueue shared;
  QpAttributes values{.path_mtu = 5,
                      .qkey = 0x33,
                      .receive_psn = 0x111111,
                      .send_psn = 0x222222,
                      .destination = {0x654321},
                      .access = kAllAccess,
                      .path = {.has_grh = true, .port = 1},
                      .reads_out_max = 4,
                      .reads_in_max = 5,
                      .rnr_timer = 12,
                      .port = 1,
                      .timeout = 14,
                      .retry_count = 6,
                      .rnr_retry = 7};
  std::vector<QpEvent> events;
  unsigned flushes = 0;
  bool is_told_first = true;  // each time with no completion waiting
  std::uint64_t next_id = 0;
  QueuePair qp;

 private:
  QpConfig complete(QpConfig wanted) {
    wanted.number = kTestQp;
    wanted.pd = kTestPd;
    if (wanted.receive_pd != PdId{}) wanted.shared_receives = &shared;
    wanted.send_depth = wanted.receive_depth = 4;
    wanted.send_sge_max = wanted.receive_sge_max = 2;
    wanted.inline_max = 32;
    wanted.send_completions = &sends;
    wanted.receive_completions = &receives;
    wanted.regions = &memory.table;
    wanted.events = this;
    return wanted;
  }
};

}  // namespace verbena::qp
