// SPDX-License-Identifier: MIT
// Completion events, asynchronous events, and what a child after fork may do.
#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

#include "fixture.h"

namespace verbena::verbs::testing {
namespace {

constexpr int kLong = 20'000;  // milliseconds

bool is_readable(int fd, int timeout) {
  pollfd waiting = {.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&waiting, 1, timeout) == 1;
}

class Events : public VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    channel.reset(ibv_create_comp_channel(context.get()));
    ASSERT_TRUE(channel);
    cq.reset(ibv_create_cq(context.get(), 16, this, channel.get(), 0));
    ASSERT_TRUE(cq);
  }
  void TearDown() override { cq.reset(); }

  // A zero-byte WRITE to itself.
  void complete_one(ibv_qp* qp) {
    ibv_send_wr request = {};
    request.opcode = IBV_WR_RDMA_WRITE;
    request.send_flags = IBV_SEND_SIGNALED;
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(0, ibv_post_send(qp, &request, &bad));
  }

  Own<ibv_comp_channel> channel;
};

TEST_F(Events, AnArmedQueueWakesItsChannelOnce) {
  const Own<ibv_qp> qp = make_qp();
  ASSERT_TRUE(qp);
  connect(qp.get());
  EXPECT_FALSE(is_readable(channel->fd, 0));
  ASSERT_EQ(0, ibv_req_notify_cq(cq.get(), 0));
  complete_one(qp.get());
  complete_one(qp.get());
  ASSERT_TRUE(is_readable(channel->fd, kLong));
  ibv_cq* source = nullptr;
  void* cookie = nullptr;
  ASSERT_EQ(0, ibv_get_cq_event(channel.get(), &source, &cookie));
  EXPECT_EQ(cq.get(), source);
  EXPECT_EQ(this, cookie);
  EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
  EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
  EXPECT_FALSE(is_readable(channel->fd, 0));
  ibv_ack_cq_events(source, 1);
  EXPECT_EQ(1u, cq->comp_events_completed);
}

TEST_F(Events, ANonBlockingChannelSaysSo) {
  ASSERT_EQ(0, fcntl(channel->fd, F_SETFL, O_NONBLOCK));
  ibv_cq* source = nullptr;
  void* cookie = nullptr;
  errno = 0;
  EXPECT_EQ(-1, ibv_get_cq_event(channel.get(), &source, &cookie));
  EXPECT_EQ(EAGAIN, errno);
  ASSERT_EQ(0, fcntl(context->async_fd, F_SETFL, O_NONBLOCK));
  ibv_async_event event;
  errno = 0;
  EXPECT_EQ(-1, ibv_get_async_event(context.get(), &event));
  EXPECT_EQ(EAGAIN, errno);
}

TEST_F(Events, DestroyingWaitsUntilEventsAreAcknowledged) {
  Own<ibv_qp> qp = make_qp();
  ASSERT_TRUE(qp);
  connect(qp.get());
  ASSERT_EQ(0, ibv_req_notify_cq(cq.get(), 0));
  complete_one(qp.get());
  ibv_cq* source = nullptr;
  void* cookie = nullptr;
  ASSERT_EQ(0, ibv_get_cq_event(channel.get(), &source, &cookie));
  qp.reset();
  std::atomic<bool> is_destroyed{false};
  std::thread destroyer([&] {
    cq.reset();
    is_destroyed = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(is_destroyed);
  ibv_ack_cq_events(source, 1);
  destroyer.join();
  EXPECT_TRUE(is_destroyed);
}

// An event that nobody fetched goes with its queue; the descriptor is quiet again.
TEST_F(Events, DestroyingTakesBackWhatNobodyFetched) {
  Own<ibv_qp> qp = make_qp();
  ASSERT_TRUE(qp);
  connect(qp.get());
  ASSERT_EQ(0, ibv_req_notify_cq(cq.get(), 0));
  complete_one(qp.get());
  ASSERT_TRUE(is_readable(channel->fd, kLong));
  qp.reset();
  cq.reset();
  EXPECT_FALSE(is_readable(channel->fd, 0));
}

TEST_F(Events, TheLimitOfASharedQueueIsAnEventOfTheQueue) {
  ibv_srq_init_attr wanted = {.srq_context = nullptr, .attr = {4, 1, 0}};
  const Own<ibv_srq> srq(ibv_create_srq(pd.get(), &wanted));
  ASSERT_TRUE(srq);
  const Own<ibv_qp> qp = make_qp(IBV_QPT_RC, [&](ibv_qp_init_attr_ex& w) { w.srq = srq.get(); });
  ASSERT_TRUE(qp);
  connect(qp.get());
  ibv_sge part = sge(0, 8);
  ibv_recv_wr request = receive(part);
  ibv_recv_wr* bad_receive = nullptr;
  for (int i = 0; i < 2; ++i)
    ASSERT_EQ(0, ibv_post_srq_recv(srq.get(), &request, &bad_receive));
  ibv_srq_attr limit = {.max_wr = 0, .max_sge = 0, .srq_limit = 2};
  ASSERT_EQ(0, ibv_modify_srq(srq.get(), &limit, IBV_SRQ_LIMIT));
  ibv_send_wr out = send(part);
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(0, ibv_post_send(qp.get(), &out, &bad));
  next_completion();
  next_completion();

  ibv_async_event event = {};
  do {  // the first message is one, too (communication established) where it came before RTS
    ASSERT_TRUE(is_readable(context->async_fd, kLong));
    ASSERT_EQ(0, ibv_get_async_event(context.get(), &event));
    ibv_ack_async_event(&event);
  } while (event.event_type == IBV_EVENT_COMM_EST);
  EXPECT_EQ(IBV_EVENT_SRQ_LIMIT_REACHED, event.event_type);
  EXPECT_EQ(srq.get(), event.element.srq);
  EXPECT_EQ(1u, srq->events_completed);
}

// The last wish of a child: an exit status that names what went wrong.
int try_as_child(ibv_context* context, ibv_pd* pd, ibv_cq* cq, ibv_qp* qp, ibv_mr* mr) {
  ibv_wc completion;
  ibv_send_wr request = {};
  ibv_send_wr* bad = nullptr;
  ibv_recv_wr receive = {};
  ibv_recv_wr* bad_receive = nullptr;
  ibv_device_attr device;
  ibv_qp_attr attributes = {};
  ibv_qp_init_attr initial;
  if (ibv_poll_cq(cq, 1, &completion) >= 0) return 1;
  if (ibv_post_send(qp, &request, &bad) != EIO || bad != &request) return 2;
  if (ibv_post_recv(qp, &receive, &bad_receive) != EIO) return 3;
  if (ibv_req_notify_cq(cq, 0) != EIO) return 4;
  if (ibv_query_device(context, &device) != EIO) return 5;
  if (ibv_query_qp(qp, &attributes, 0, &initial) != EIO) return 6;
  if (ibv_modify_qp(qp, &attributes, IBV_QP_STATE) != EIO) return 7;
  if (ibv_alloc_pd(context) || errno != EIO) return 8;
  if (ibv_reg_mr(pd, &device, sizeof device, 0) || errno != EIO) return 9;
  if (ibv_create_cq(context, 1, nullptr, nullptr, 0) || errno != EIO) return 10;
  // In any order, and without waiting for the parent.
  if (ibv_dealloc_pd(pd) != EIO) return 11;
  if (ibv_destroy_cq(cq) != EIO) return 12;
  if (ibv_destroy_qp(qp) != EIO) return 13;
  if (ibv_dereg_mr(mr) != EIO) return 14;
  ibv_close_device(context);
  // A device that the child opens is its own.
  ibv_device** const list = ibv_get_device_list(nullptr);
  if (!list || !list[0]) return 15;
  ibv_context* const fresh = ibv_open_device(list[0]);
  if (!fresh || ibv_query_device(fresh, &device) != 0) return 16;
  return ibv_close_device(fresh) ? 17 : 0;
}

TEST_F(Events, AChildCannotUseWhatItInherits) {
  const Own<ibv_qp> qp = make_qp();
  ASSERT_TRUE(qp);
  connect(qp.get());
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);  // a child that hangs is a failure, not a hanging test
    _exit(try_as_child(context.get(), pd.get(), cq.get(), qp.get(), mr.get()));
  }
  int status = 0;
  ASSERT_EQ(child, waitpid(child, &status, 0));
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(0, WEXITSTATUS(status));
  // The parent's work on.
  complete_one(qp.get());
  EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
}

}  // namespace
}  // namespace verbena::verbs::testing
