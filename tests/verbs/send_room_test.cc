// SPDX-License-Identifier: MIT
// A program that posts until it is told that there is no room, and takes completions then: its
// completion queue has as many entries as its send queue has places, and does not overrun.
#include <array>
#include <cerrno>
#include <ostream>
#include <stop_token>
#include <thread>
#include <vector>

#include "base/test_seed.h"
#include "fixture.h"

namespace verbena::verbs::testing {
namespace {

constexpr std::uint32_t kPlaces = 32;

struct Way {
  const char* name;
  ibv_wr_opcode opcode;
  std::uint32_t length;
  std::size_t list;  // requests of one call
};
std::ostream& operator<<(std::ostream& out, const Way& way) { return out << way.name; }

class SendRoom : public VerbsTest, public ::testing::WithParamInterface<Way> {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    cq.reset(ibv_create_cq(context.get(), kPlaces, nullptr, nullptr, 0));
    ASSERT_TRUE(cq);
    received.reset(ibv_create_cq(context.get(), 1024, nullptr, nullptr, 0));
    qp = make_qp(IBV_QPT_RC, [this](ibv_qp_init_attr_ex& wanted) {
      wanted.recv_cq = received.get();
      wanted.cap.max_send_wr = kPlaces;
      wanted.cap.max_recv_wr = 512;
    });
    ASSERT_TRUE(qp);
    connect(qp.get());
  }
  void TearDown() override {
    qp.reset();
    received.reset();
  }
  // As many as there is room for.
  void post_all() {
    ibv_sge piece = sge(0, GetParam().length);
    for (;;) {
      std::vector<ibv_send_wr> list(GetParam().list);
      for (std::size_t i = 0; i < list.size(); ++i) {
        list[i] = send(piece, posted + i, GetParam().opcode);
        list[i].wr.rdma = {.remote_addr = address(kBytes / 2), .rkey = mr->rkey};
        list[i].next = i + 1 < list.size() ? &list[i + 1] : nullptr;
      }
      ibv_send_wr* bad = nullptr;
      const int refused = ibv_post_send(qp.get(), list.data(), &bad);
      posted += refused != 0 ? static_cast<std::uint64_t>(bad - list.data()) : list.size();
      ASSERT_LE(posted - taken, kPlaces);
      if (refused == 0) continue;
      ASSERT_EQ(refused, ENOMEM);
      return;
    }
  }

  Own<ibv_cq> received;
  Own<ibv_qp> qp;
  std::uint64_t posted = 0;
  std::uint64_t taken = 0;
};

TEST_P(SendRoom, IsThatOfTheCompletions) {
  SeededRandom random(test_seed());
  for (int round = 0; round < 200; ++round) {
    ibv_sge place = sge(kBytes / 2, GetParam().length);
    if (GetParam().opcode == IBV_WR_SEND) {
      for (std::uint32_t i = 0; i < kPlaces; ++i) {
        ibv_recv_wr request = receive(place);
        ibv_recv_wr* refused = nullptr;
        if (ibv_post_recv(qp.get(), &request, &refused) != 0) break;
      }
      ibv_wc drained[64];
      while (ibv_poll_cq(received.get(), 64, drained) > 0) {
      }
    }
    ASSERT_NO_FATAL_FAILURE(post_all());
    ASSERT_EQ(posted - taken, kPlaces) << round;
    for (std::uint64_t i = random.below(kPlaces) + 1; i > 0; --i, ++taken) {
      const ibv_wc completion = next_completion();
      ASSERT_EQ(completion.status, IBV_WC_SUCCESS);
      ASSERT_EQ(completion.wr_id, taken);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(
    Ways, SendRoom,
    ::testing::Values(Way{"write", IBV_WR_RDMA_WRITE, 8, 1}, Way{"writes", IBV_WR_RDMA_WRITE, 8, 7},
                      Way{"larger", IBV_WR_RDMA_WRITE, 2048, 1}, Way{"send", IBV_WR_SEND, 8, 1},
                      Way{"sends", IBV_WR_SEND, 8, 7}, Way{"read", IBV_WR_RDMA_READ, 64, 1}),
    [](const auto& each) { return std::string(each.param.name); });

// Queue pairs whose completions go to one queue, which has a place for all.
class SharedRoom : public VerbsTest {
 protected:
  static constexpr std::uint32_t kEach = 8;

  void SetUp() override {
    VerbsTest::SetUp();
    cq.reset(ibv_create_cq(context.get(), 2 * kEach, nullptr, nullptr, 0));
    ASSERT_TRUE(cq);
    received.reset(ibv_create_cq(context.get(), 64, nullptr, nullptr, 0));
    ASSERT_TRUE(received);
  }
  void TearDown() override { received.reset(); }

  Own<ibv_qp> make(std::uint32_t places = kEach, ibv_srq* srq = nullptr) {
    Own<ibv_qp> made = make_qp(IBV_QPT_RC, [&](ibv_qp_init_attr_ex& wanted) {
      wanted.recv_cq = received.get();
      wanted.srq = srq;
      wanted.cap.max_send_wr = places;
    });
    EXPECT_TRUE(made);
    if (made) connect(made.get());
    return made;
  }
  // Only then is what it posts executed at once. While no completion waits.
  void warm(ibv_qp* qp) {
    for (int i = 0; i < 3; ++i) {
      ASSERT_EQ(write(qp), 0);
      take(1);
    }
  }
  Own<ibv_qp> make_warm(ibv_srq* srq = nullptr) {
    Own<ibv_qp> made = make(kEach, srq);
    if (made) warm(made.get());
    return made;
  }
  int write(ibv_qp* qp) {
    ibv_sge piece = sge(0, 8);
    ibv_send_wr request = send(piece, 1, IBV_WR_RDMA_WRITE);
    request.wr.rdma = {.remote_addr = address(kBytes / 2), .rkey = mr->rkey};
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(qp, &request, &bad);
  }
  // As many as there is room for, and no more once they are all done.
  std::uint32_t write_all(ibv_qp* qp) {
    constexpr int kTurns = 500;
    std::uint32_t posted = 0;
    for (int turn = 0; turn < kTurns; ++turn) {
      while (posted < 10 * kEach && write(qp) == 0)
        ++posted;
      ibv_wc none;
      EXPECT_EQ(ibv_poll_cq(received.get(), 1, &none),
                0);  // the NIC has a turn; all the rest waits
    }
    return posted;
  }
  void take(std::uint32_t count) {
    for (; count > 0; --count)
      ASSERT_EQ(next_completion().status, IBV_WC_SUCCESS);
  }
  // Something else for some microseconds.
  void look_away() {
    ibv_wc none;
    for (int i = 0; i < 100; ++i)
      ASSERT_EQ(ibv_poll_cq(received.get(), 1, &none), 0);
  }

  Own<ibv_cq> received;
};

TEST_F(SharedRoom, StaysTakenWhenAnotherIsReset) {
  const Own<ibv_qp> one = make_warm();
  const Own<ibv_qp> other = make_warm();
  EXPECT_EQ(write_all(one.get()), kEach);
  EXPECT_EQ(write_all(other.get()), kEach);
  ibv_qp_attr to{};
  to.qp_state = IBV_QPS_RESET;
  ASSERT_EQ(ibv_modify_qp(other.get(), &to, IBV_QP_STATE), 0);
  connect(other.get());
  EXPECT_EQ(write_all(one.get()), 0u);
  EXPECT_EQ(write_all(other.get()), kEach);
  take(3);
  EXPECT_EQ(write_all(one.get()), 3u);
  EXPECT_EQ(write_all(other.get()), 0u);
  take(2 * kEach);
}

TEST_F(SharedRoom, StaysTakenWhenAnotherIsDestroyed) {
  const Own<ibv_qp> one = make_warm();
  Own<ibv_qp> other = make_warm();
  EXPECT_EQ(write_all(other.get()), kEach);
  EXPECT_EQ(write_all(one.get()), kEach);
  other.reset();
  EXPECT_EQ(write_all(one.get()), 0u);
  other = make();
  EXPECT_EQ(write_all(other.get()), kEach);
  take(2 * kEach);
  EXPECT_EQ(write_all(one.get()), kEach);
  take(kEach);
}

// Each posts until it is told that there is no room, and goes on; the completions are taken one by
// one. An overrun would end both.
TEST_F(SharedRoom, IsNoLargerForTwoThreads) {
  const std::uint32_t completions = is_another_path() ? 5'000 : 20'000;  // a wire is slow
  const std::array<Own<ibv_qp>, 2> pairs = {make_warm(), make_warm()};
  {
    std::vector<std::jthread> posting;
    posting.reserve(pairs.size());
    for (const Own<ibv_qp>& each : pairs)
      posting.emplace_back([this, qp = each.get()](const std::stop_token& end) {
        while (!end.stop_requested()) {
          const int refused = write(qp);
          ASSERT_TRUE(refused == 0 || refused == ENOMEM) << refused;
        }
      });
    for (std::uint32_t i = 0; i < completions && !HasFailure(); ++i) {
      ASSERT_EQ(next_completion().status, IBV_WC_SUCCESS) << i;
      look_away();
    }
  }
  for (ibv_wc last; ibv_poll_cq(cq.get(), 1, &last) > 0;)
    EXPECT_EQ(last.status, IBV_WC_SUCCESS);
}

TEST_F(SharedRoom, IsNoneWithoutPlaces) {
  const Own<ibv_qp> qp = make(0);
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(write_all(qp.get()), 0u);
}

// What the NIC posts for rendezvous has places of its own.
TEST_F(SharedRoom, IsNoLargerWhereTagsAreMatched) {
  ibv_srq_init_attr_ex wanted{};
  wanted.attr = {.max_wr = 16, .max_sge = 1, .srq_limit = 0};
  wanted.comp_mask =
      IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM;
  wanted.srq_type = IBV_SRQT_TM;
  wanted.pd = pd.get();
  wanted.cq = received.get();
  wanted.tm_cap = {.max_num_tags = 16, .max_ops = 10};
  const Own<ibv_srq> srq(ibv_create_srq_ex(context.get(), &wanted));
  ASSERT_TRUE(srq);
  const Own<ibv_qp> qp = make_warm(srq.get());
  for (int round = 0; round < 40; ++round) {
    ASSERT_EQ(write_all(qp.get()), kEach);
    take(3);
    ASSERT_EQ(write_all(qp.get()), 3u);
    take(kEach);
  }
}

}  // namespace
}  // namespace verbena::verbs::testing
