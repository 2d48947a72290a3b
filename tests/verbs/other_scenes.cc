// SPDX-License-Identifier: MIT
// What other processes do in the tests of the verbs (other_process.h): a program of its own, as it
// is nobody's test.
#include "xrc_processes.h"

namespace verbena::verbs::testing {
namespace {

using XrcScene = XrcProcesses;
using DeviceScene = VerbsTest;

// Has a domain of the file that it is given until it hears something.
TEST_F(XrcScene, HaveADomain) {
  const Talk parent = OtherProcess::parent();
  const auto file = parent.hear();
  ASSERT_TRUE(file);
  const Domain shared = open(file->fd.get(), O_CREAT | O_EXCL);
  ASSERT_TRUE(shared);
  parent.say(1);
  parent.hear();
}

// And a target in it, for an initiator that it is told of.
TEST_F(XrcScene, HaveATarget) {
  const Talk parent = OtherProcess::parent();
  const auto file = parent.hear();
  ASSERT_TRUE(file);
  const Domain shared = open(file->fd.get(), O_CREAT);
  const Own<ibv_srq> ours = make_srq(shared.get(), pd.get());
  const Own<ibv_qp> target = make_target(shared.get());
  ASSERT_TRUE(ours && target);
  post(ours.get(), sge(0, 8), 1);
  parent.say(target->qp_num);
  parent.say(number_of(ours.get()));
  connect_to(target.get(), parent.number());
  parent.say(1);
  // Its own queue is reached.
  const ibv_wc wc = next_completion();
  EXPECT_EQ(IBV_WC_SUCCESS, wc.status);
  parent.say(memory[0]);
  parent.hear();  // the parent's queue was asked for
  EXPECT_EQ(IBV_QPS_ERR, state_of(target.get()));
  ibv_async_event event{};
  ASSERT_EQ(0, ibv_get_async_event(context.get(), &event));
  if (event.event_type == IBV_EVENT_COMM_EST) {
    ibv_ack_async_event(&event);
    ASSERT_EQ(0, ibv_get_async_event(context.get(), &event));
  }
  EXPECT_EQ(IBV_EVENT_QP_REQ_ERR, event.event_type);
  ibv_ack_async_event(&event);
}

// Shows an open device to its parent.
TEST_F(DeviceScene, ShowADevice) {
  const Talk parent = OtherProcess::parent();
  parent.say(pd->handle, context->cmd_fd);
  parent.hear();
}

}  // namespace
}  // namespace verbena::verbs::testing
