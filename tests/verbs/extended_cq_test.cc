// SPDX-License-Identifier: MIT
// Completion queues with more than the standard: timestamps, ignored overruns, events for several
// completions (ibv_create_cq_ex(3), ibv_modify_cq(3), ibv_query_rt_values_ex(3)).
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <thread>
#include <vector>

#include "fixture.h"

namespace verbena::verbs::testing {
namespace {

std::uint64_t clock_nanoseconds(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec);
}

class ExtendedCq : public VerbsTest {
 protected:
  ibv_cq_ex* make(std::uint64_t wc_flags, std::uint32_t flags = 0,
                  ibv_comp_channel* channel = nullptr, std::uint32_t cqe = 32) {
    ibv_cq_init_attr_ex wanted = {};
    wanted.cqe = cqe;
    wanted.wc_flags = wc_flags;
    wanted.channel = channel;
    wanted.flags = flags;
    wanted.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
    return ibv_create_cq_ex(context.get(), &wanted);
  }
  void make_loop(ibv_cq* completions) {
    qp = make_qp(IBV_QPT_RC, [&](ibv_qp_init_attr_ex& wanted) {
      wanted.send_cq = wanted.recv_cq = completions;
      wanted.cap.max_send_wr = 64;
    });
    ASSERT_TRUE(qp);
    connect(qp.get());
  }
  void post_write(std::uint64_t wr_id) {
    ibv_sge part = sge(0, 8);
    ibv_send_wr request = send(part, wr_id, IBV_WR_RDMA_WRITE);
    request.wr.rdma = {.remote_addr = address(512), .rkey = mr->rkey};
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(0, ibv_post_send(qp.get(), &request, &bad));
  }
  static int start(ibv_cq_ex* ex) {
    ibv_poll_cq_attr attributes = {};
    int answer = ENOENT;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while ((answer = ibv_start_poll(ex, &attributes)) == ENOENT &&
           std::chrono::steady_clock::now() < deadline) {
    }
    return answer;
  }
  std::uint64_t raw_clock() {
    ibv_values_ex values = {};
    values.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
    EXPECT_EQ(0, ibv_query_rt_values_ex(context.get(), &values));
    EXPECT_EQ(std::uint32_t{IBV_VALUES_MASK_RAW_CLOCK}, values.comp_mask);
    return static_cast<std::uint64_t>(values.raw_clock.tv_sec) * 1'000'000'000 +
           static_cast<std::uint64_t>(values.raw_clock.tv_nsec);
  }

  Own<ibv_qp> qp;
};

TEST_F(ExtendedCq, TimestampsAreOfTheClockThatTheDeviceTellsOf) {
  ibv_device_attr_ex device = {};
  ASSERT_EQ(0, ibv_query_device_ex(context.get(), nullptr, &device));
  EXPECT_EQ(~std::uint64_t{0}, device.completion_timestamp_mask);
  EXPECT_EQ(1'000'000u, device.hca_core_clock);  // kHz: a tick is a nanosecond

  ibv_cq_ex* const ex =
      make(std::uint64_t{IBV_WC_STANDARD_FLAGS} | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
           IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK);
  ASSERT_TRUE(ex);
  const Own<ibv_cq> owned(ibv_cq_ex_to_cq(ex));
  make_loop(owned.get());
  std::uint64_t before = raw_clock();
  const std::uint64_t wall_before = clock_nanoseconds(CLOCK_REALTIME);
  for (std::uint64_t i = 1; i <= 5; ++i) {
    post_write(i);
    ASSERT_EQ(0, start(ex));
    const std::uint64_t stamp = ibv_wc_read_completion_ts(ex);
    const std::uint64_t wall = ibv_wc_read_completion_wallclock_ns(ex);
    ibv_end_poll(ex);
    EXPECT_GE(stamp, before);
    before = raw_clock();
    EXPECT_LE(stamp, before);
    // The clock of the wall is slewed: a millisecond is far more than that.
    constexpr std::uint64_t kSlack = 1'000'000;
    EXPECT_GE(wall + kSlack, wall_before);
    EXPECT_LE(wall, clock_nanoseconds(CLOCK_REALTIME) + kSlack);
  }
  qp.reset();
}

TEST_F(ExtendedCq, EveryFlagIsKnown) {
  ibv_cq_ex* const ex = make(IBV_CREATE_CQ_SUP_WC_FLAGS);
  ASSERT_TRUE(ex);
  const Own<ibv_cq> owned(ibv_cq_ex_to_cq(ex));
  make_loop(owned.get());
  post_write(9);
  ASSERT_EQ(0, start(ex));
  EXPECT_EQ(9u, ex->wr_id);
  EXPECT_EQ(0u, ibv_wc_read_cvlan(ex));
  EXPECT_EQ(0u, ibv_wc_read_flow_tag(ex));
  ibv_wc_tm_info tags = {.tag = 1, .priv = 1};
  ibv_wc_read_tm_info(ex, &tags);
  EXPECT_EQ(0u, tags.tag);
  EXPECT_EQ(0u, tags.priv);
  ibv_end_poll(ex);
  qp.reset();
  EXPECT_FALSE(make(std::uint64_t{1} << 40));
  EXPECT_EQ(EINVAL, errno);
  EXPECT_FALSE(make(0, 1u << 10));
  EXPECT_EQ(EOPNOTSUPP, errno);
}

TEST_F(ExtendedCq, AnOverrunIsIgnoredWhereThatWasAskedFor) {
  ibv_cq_ex* const ex = make(IBV_WC_STANDARD_FLAGS, IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN, nullptr, 1);
  ASSERT_TRUE(ex);
  const Own<ibv_cq> owned(ibv_cq_ex_to_cq(ex));
  make_loop(owned.get());
  const auto capacity = static_cast<std::uint64_t>(owned->cqe);
  const std::uint64_t count = capacity + 5;
  ASSERT_LT(count, 64u);
  for (std::uint64_t i = 0; i < count; ++i)
    post_write(i);
  // Whether the last ones are there shows a completion that comes after them.
  std::vector<std::uint64_t> seen;
  while (seen.empty() || seen.back() != count - 1) {
    ASSERT_EQ(0, start(ex));
    seen.push_back(ex->wr_id);
    ibv_end_poll(ex);
  }
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  ibv_qp_attr attributes = {};
  ibv_qp_init_attr initial;
  ASSERT_EQ(0, ibv_query_qp(qp.get(), &attributes, IBV_QP_STATE, &initial));
  EXPECT_EQ(IBV_QPS_RTS, attributes.qp_state);
  qp.reset();
}

class Moderated : public ExtendedCq {
 protected:
  void SetUp() override {
    ExtendedCq::SetUp();
    channel.reset(ibv_create_comp_channel(context.get()));
    ASSERT_TRUE(channel);
    told.reset(ibv_create_cq(context.get(), 64, nullptr, channel.get(), 0));
    ASSERT_TRUE(told);
    make_loop(told.get());
  }
  void TearDown() override { qp.reset(); }

  int moderate(std::uint16_t count, std::uint16_t period) {
    ibv_modify_cq_attr wanted = {};
    wanted.attr_mask = IBV_CQ_ATTR_MODERATE;
    wanted.moderate = {.cq_count = count, .cq_period = period};
    return ibv_modify_cq(told.get(), &wanted);
  }
  bool has_event(std::chrono::milliseconds patience) {
    pollfd watched{channel->fd, POLLIN, 0};
    return ::poll(&watched, 1, static_cast<int>(patience.count())) == 1;
  }
  void take_event() {
    ibv_cq* from = nullptr;
    void* cookie = nullptr;
    ASSERT_EQ(0, ibv_get_cq_event(channel.get(), &from, &cookie));
    EXPECT_EQ(told.get(), from);
    ibv_ack_cq_events(from, 1);
  }
  // Without driving more than is needed: the completions are there.
  int drain() {
    ibv_wc completions[16];
    int all = 0;
    while (const int got = ibv_poll_cq(told.get(), 16, completions))
      all += got;
    return all;
  }
  static constexpr std::chrono::milliseconds kLong{20'000};

  Own<ibv_comp_channel> channel;
  Own<ibv_cq> told;
};

TEST_F(Moderated, TheDeviceSaysHowFarItGoes) {
  ibv_device_attr_ex device = {};
  ASSERT_EQ(0, ibv_query_device_ex(context.get(), nullptr, &device));
  EXPECT_EQ(65535, device.cq_mod_caps.max_cq_count);
  EXPECT_EQ(65535, device.cq_mod_caps.max_cq_period);
  ibv_modify_cq_attr wanted = {};
  EXPECT_EQ(0, ibv_modify_cq(told.get(), &wanted));  // nothing
  wanted.attr_mask = IBV_CQ_ATTR_RESERVED;
  EXPECT_EQ(EINVAL, ibv_modify_cq(told.get(), &wanted));
}

TEST_F(Moderated, ThePeriodEndsTheWaiting) {
  ASSERT_EQ(0, moderate(1000, 2000));
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(0, ibv_req_notify_cq(told.get(), 0));
    const auto begin = std::chrono::steady_clock::now();
    post_write(1);
    ASSERT_TRUE(has_event(kLong));
    EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::microseconds(2000));
    take_event();
    EXPECT_EQ(1, drain());
  }
}

TEST_F(Moderated, EnoughCompletionsEndIt) {
  ASSERT_EQ(0, moderate(4, 65535));
  ASSERT_EQ(0, ibv_req_notify_cq(told.get(), 0));
  for (std::uint64_t i = 0; i < 4; ++i)
    post_write(i);
  ASSERT_TRUE(has_event(kLong));
  take_event();
  // Armed once.
  for (std::uint64_t i = 0; i < 4; ++i)
    post_write(i);
  int all = 0;
  while (all < 8)
    all += drain();
  EXPECT_FALSE(has_event(std::chrono::milliseconds(0)));
}

TEST_F(Moderated, WithoutACountOrAPeriodEachHasItsEvent) {
  for (const auto& [count, period] : std::vector<std::pair<std::uint16_t, std::uint16_t>>{
           {0, 0}, {100, 0}, {0, 65535}, {1, 65535}}) {
    ASSERT_EQ(0, moderate(count, period));
    ASSERT_EQ(0, ibv_req_notify_cq(told.get(), 0));
    post_write(1);
    ASSERT_TRUE(has_event(kLong));
    take_event();
    int all = 0;
    while (all < 1)
      all += drain();
  }
}

TEST_F(Moderated, ItCanBeDestroyedWhileCompletionsWait) {
  ASSERT_EQ(0, moderate(1000, 65535));
  ASSERT_EQ(0, ibv_req_notify_cq(told.get(), 0));
  post_write(1);
  int all = 0;
  while (all < 1)
    all += drain();
  qp.reset();
  told.reset();
  channel.reset();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // past the period
}

}  // namespace
}  // namespace verbena::verbs::testing
