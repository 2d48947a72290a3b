// SPDX-License-Identifier: MIT
// XRC domains of one file in two processes: both know whether it is there, and each reaches its own
// queues and targets. What is meant for the other one's is refused, and loudly
// (docs/decisions/0019-xrc-domains-are-of-a-process.md).
#include "xrc_processes.h"

#include <sys/mman.h>

#include <cerrno>

#include "other_process.h"

namespace verbena::verbs::testing {
namespace {

TEST_F(XrcProcesses, AgreeOnWhetherAFileHasADomain) {
  const UniqueFd file(memfd_create("xrc", MFD_CLOEXEC));
  const UniqueFd another(memfd_create("xrc", MFD_CLOEXEC));
  ASSERT_TRUE(file && another);
  EXPECT_EQ(EAGAIN, error_of_open(file.get(), 0)) << "nobody has it";
  OtherProcess other("HaveADomain");
  other.talk().say(0, file.get());
  ASSERT_EQ(1u, other.talk().number());
  EXPECT_EQ(EINVAL, error_of_open(file.get(), O_CREAT | O_EXCL)) << "the other one has it";
  EXPECT_EQ(0, error_of_open(file.get(), 0));
  EXPECT_EQ(0, error_of_open(file.get(), O_CREAT));
  EXPECT_EQ(EAGAIN, error_of_open(another.get(), 0)) << "of this file nobody has one";
  other.talk().say(0);
  EXPECT_TRUE(other.ended_well());
  EXPECT_EQ(EAGAIN, error_of_open(file.get(), 0)) << "the last one has left";
  EXPECT_EQ(0, error_of_open(file.get(), O_CREAT | O_EXCL));
  EXPECT_EQ(EAGAIN, error_of_open(file.get(), 0));
}

TEST_F(XrcProcesses, WhoDiesHasNoDomain) {
  const UniqueFd file(memfd_create("xrc", MFD_CLOEXEC));
  OtherProcess other("HaveADomain");
  other.talk().say(0, file.get());
  ASSERT_EQ(1u, other.talk().number());
  EXPECT_EQ(EINVAL, error_of_open(file.get(), O_CREAT | O_EXCL));
  other.kill();
  EXPECT_EQ(0, error_of_open(file.get(), O_CREAT | O_EXCL));
}

TEST_F(XrcProcesses, AQueueOfAnotherProcessIsRefused) {
  const UniqueFd file(memfd_create("xrc", MFD_CLOEXEC));
  const Domain shared = open(file.get(), O_CREAT);
  const Own<ibv_srq> ours = make_srq(shared.get(), pd.get());
  const Own<ibv_qp> initiator = make_initiator();
  ASSERT_TRUE(shared && ours && initiator);
  post(ours.get(), sge(0, 8), 1);
  OtherProcess other("HaveATarget");
  other.talk().say(0, file.get());
  const std::uint64_t target = other.talk().number();
  const auto theirs = static_cast<std::uint32_t>(other.talk().number());
  // A target lives with its creator.
  EXPECT_FALSE(open_again(shared.get(), static_cast<std::uint32_t>(target)));
  EXPECT_EQ(EOPNOTSUPP, errno);
  other.talk().say(initiator->qp_num);
  ASSERT_EQ(1u, other.talk().number());
  connect_to(initiator.get(), target);
  memory[64] = 0x5A;
  ibv_sge from = sge(64, 8);
  post(initiator.get(), send(from, 2), theirs);
  EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
  EXPECT_EQ(0x5Au, other.talk().number());
  post(initiator.get(), send(from, 3), number_of(ours.get()));
  const ibv_wc wc = next_completion();
  EXPECT_EQ(3u, wc.wr_id);
  EXPECT_EQ(IBV_WC_REM_INV_REQ_ERR, wc.status);
  EXPECT_EQ(IBV_QPS_ERR, state_of(initiator.get()));
  EXPECT_TRUE(no_completion());
  other.talk().say(0);
  EXPECT_TRUE(other.ended_well());
}

}  // namespace
}  // namespace verbena::verbs::testing
