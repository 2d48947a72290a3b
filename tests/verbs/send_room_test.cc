// SPDX-License-Identifier: MIT
// A program that posts until it is told that there is no room, and takes completions then: its
// completion queue has as many entries as its send queue has places, and does not overrun.
#include <cerrno>
#include <ostream>
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

}  // namespace
}  // namespace verbena::verbs::testing
