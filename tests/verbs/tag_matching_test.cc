// SPDX-License-Identifier: MIT
// Shared receive queues that match tags (ibv_post_srq_ops(3)), between two connected queue pairs:
// `near` sends, `far` is on the queue.
#include <endian.h>
#include <infiniband/tm_types.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <vector>

#include "fixture.h"

namespace verbena::verbs::testing {
namespace {

constexpr std::uint64_t kTagged = 100;
constexpr std::uint64_t kFree = 50;
constexpr std::size_t kRoom = 100'000;

struct Seen {
  std::uint64_t wr_id;
  ibv_wc_status status;
  ibv_wc_opcode opcode;
  unsigned flags;
  std::uint32_t length;
  std::uint64_t tag;
  std::uint32_t context;
};

class TagMatching : public VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    ibv_cq_init_attr_ex wanted = {};
    wanted.cqe = 256;
    wanted.wc_flags = std::uint64_t{IBV_WC_STANDARD_FLAGS} | IBV_WC_EX_WITH_TM_INFO;
    far_cq = ibv_create_cq_ex(context.get(), &wanted);
    ASSERT_TRUE(far_cq);
    owned_cq.reset(ibv_cq_ex_to_cq(far_cq));
    srq = make_srq(pd.get());
    ASSERT_TRUE(srq);
    constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
    source.resize(kRoom);
    target.assign(kRoom, 0);
    free_room.assign(8 * 1024, 0);
    source_mr.reset(ibv_reg_mr(pd.get(), source.data(), source.size(), kAccess));
    target_mr.reset(ibv_reg_mr(pd.get(), target.data(), target.size(), kAccess));
    free_mr.reset(ibv_reg_mr(pd.get(), free_room.data(), free_room.size(), kAccess));
    ASSERT_TRUE(source_mr && target_mr && free_mr);
    near = make_qp();
    far = make_qp(IBV_QPT_RC, [&](ibv_qp_init_attr_ex& w) {
      w.srq = srq.get();
      w.cap = {};
    });
    ASSERT_TRUE(near && far);
    connect(near.get(), far.get());
    connect(far.get(), near.get());
    for (std::size_t i = 0; i < 4; ++i)
      post_free(i);
  }
  void TearDown() override {
    near.reset();
    far.reset();
    srq.reset();
  }

  Own<ibv_srq> make_srq(ibv_pd* domain, std::uint32_t tags = 16,
                        const std::function<void(ibv_srq_init_attr_ex&)>& change = {}) {
    ibv_srq_init_attr_ex wanted = {};
    wanted.attr = {.max_wr = 16, .max_sge = 1, .srq_limit = 0};
    wanted.comp_mask =
        IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM;
    wanted.srq_type = IBV_SRQT_TM;
    wanted.pd = domain;
    wanted.cq = owned_cq.get();
    wanted.tm_cap = {.max_num_tags = tags, .max_ops = 10};
    if (change) change(wanted);
    return Own<ibv_srq>(ibv_create_srq_ex(context.get(), &wanted));
  }
  void post_free(std::size_t place) {
    ibv_sge room = {.addr = reinterpret_cast<std::uintptr_t>(free_room.data() + place * 1024),
                    .length = 1024,
                    .lkey = free_mr->lkey};
    ibv_recv_wr request = receive(room, kFree + place);
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(0, ibv_post_srq_recv(srq.get(), &request, &bad));
  }
  int operate(ibv_ops_wr& request) {
    ibv_ops_wr* bad = nullptr;
    const int error = ibv_post_srq_ops(srq.get(), &request, &bad);
    if (error) {
      EXPECT_EQ(&request, bad);
    }
    return error;
  }
  std::uint32_t add(std::uint64_t tag, std::uint32_t length, std::uint64_t mask = ~0ULL,
                    int flags = 0) {
    ibv_sge room = {.addr = reinterpret_cast<std::uintptr_t>(target.data()),
                    .length = length,
                    .lkey = target_mr->lkey};
    ibv_ops_wr request = {};
    request.wr_id = 7;
    request.opcode = IBV_WR_TAG_ADD;
    request.flags = flags;
    request.tm.add = {
        .recv_wr_id = kTagged + tag, .sg_list = &room, .num_sge = 1, .tag = tag, .mask = mask};
    EXPECT_EQ(0, operate(request));
    return request.tm.handle;
  }
  void synchronize(std::uint32_t seen) {
    ibv_ops_wr request = {};
    request.wr_id = 8;
    request.opcode = IBV_WR_TAG_SYNC;
    request.flags = IBV_OPS_SIGNALED | IBV_OPS_TM_SYNC;
    request.tm.unexpected_cnt = seen;
    EXPECT_EQ(0, operate(request));
  }
  // From the beginning of `source`, which gets this header.
  void post_message(ibv_tmh_op opcode, std::uint64_t tag, std::uint32_t length,
                    const ibv_rvh* rendezvous = nullptr) {
    for (std::size_t i = 0; i < source.size(); ++i)
      source[i] = static_cast<std::uint8_t>(i * 7 + tag);
    ibv_tmh header = {};
    header.opcode = static_cast<std::uint8_t>(opcode);
    header.app_ctx = htobe32(0x1234);
    header.tag = htobe64(tag);
    std::memcpy(source.data(), &header, sizeof header);
    if (rendezvous) std::memcpy(source.data() + sizeof header, rendezvous, sizeof *rendezvous);
    ibv_sge from = {.addr = reinterpret_cast<std::uintptr_t>(source.data()),
                    .length = length,
                    .lkey = source_mr->lkey};
    ibv_send_wr request = send(from, 1);
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(0, ibv_post_send(near.get(), &request, &bad));
  }
  ibv_rvh all_of_source(std::uint32_t length) const {
    return {.va = htobe64(reinterpret_cast<std::uintptr_t>(source.data())),
            .rkey = htobe32(source_mr->rkey),
            .len = htobe32(length)};
  }
  Seen next_seen() {
    ibv_poll_cq_attr attributes = {};
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (ibv_start_poll(far_cq, &attributes) == ENOENT) {
      if (std::chrono::steady_clock::now() < deadline) continue;
      ADD_FAILURE() << "no completion";
      return {};
    }
    ibv_wc_tm_info info = {};
    ibv_wc_read_tm_info(far_cq, &info);
    const Seen seen{far_cq->wr_id,
                    far_cq->status,
                    ibv_wc_read_opcode(far_cq),
                    ibv_wc_read_wc_flags(far_cq),
                    ibv_wc_read_byte_len(far_cq),
                    info.tag,
                    info.priv};
    ibv_end_poll(far_cq);
    return seen;
  }

  ibv_cq_ex* far_cq = nullptr;
  Own<ibv_cq> owned_cq;
  Own<ibv_srq> srq;
  std::vector<std::uint8_t> source;
  std::vector<std::uint8_t> target;
  std::vector<std::uint8_t> free_room;
  Own<ibv_mr> source_mr;
  Own<ibv_mr> target_mr;
  Own<ibv_mr> free_mr;
  Own<ibv_qp> near;
  Own<ibv_qp> far;
};

TEST_F(TagMatching, EagerMessagesOfAllLengthsFindTheirBuffer) {
  for (const std::uint32_t length : {16u, 17u, 100u, 5000u, 90'000u}) {
    std::fill(target.begin(), target.end(), std::uint8_t{0});
    add(3, static_cast<std::uint32_t>(kRoom), 0xff, IBV_OPS_SIGNALED);
    const Seen added = next_seen();
    EXPECT_EQ(IBV_WC_TM_ADD, added.opcode);
    EXPECT_EQ(7u, added.wr_id);
    EXPECT_EQ(0u, added.flags);
    post_message(IBV_TMH_EAGER, 0x7703, length);
    const Seen seen = next_seen();
    EXPECT_EQ(IBV_WC_SUCCESS, seen.status);
    EXPECT_EQ(IBV_WC_TM_RECV, seen.opcode);
    EXPECT_EQ(unsigned{IBV_WC_TM_MATCH} | IBV_WC_TM_DATA_VALID, seen.flags);
    EXPECT_EQ(kTagged + 3, seen.wr_id);
    EXPECT_EQ(length - 16, seen.length);
    EXPECT_EQ(0x7703u, seen.tag);
    EXPECT_EQ(0x1234u, seen.context);
    EXPECT_TRUE(std::equal(source.begin() + 16, source.begin() + length, target.begin()));
    EXPECT_EQ(0, target[length - 16]);
    EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
  }
}

TEST_F(TagMatching, WhatNobodyWaitsForTakesAReceive) {
  add(1, 1000);
  post_message(IBV_TMH_EAGER, 2, 200);
  const Seen seen = next_seen();
  EXPECT_EQ(IBV_WC_TM_RECV, seen.opcode);
  EXPECT_EQ(0u, seen.flags);
  EXPECT_EQ(kFree, seen.wr_id);
  EXPECT_EQ(200u, seen.length);
  EXPECT_EQ(0u, seen.tag);
  EXPECT_TRUE(std::equal(source.begin(), source.begin() + 200, free_room.begin()));

  // Until the program has said that it knows, new entries match nothing.
  add(3, 1000, ~0ULL, IBV_OPS_SIGNALED);
  EXPECT_EQ(unsigned{IBV_WC_TM_SYNC_REQ}, next_seen().flags);
  synchronize(1);
  const Seen done = next_seen();
  EXPECT_EQ(IBV_WC_TM_SYNC, done.opcode);
  EXPECT_EQ(8u, done.wr_id);
  EXPECT_EQ(0u, done.flags);
  post_message(IBV_TMH_EAGER, 3, 100);
  EXPECT_EQ(kTagged + 3, next_seen().wr_id);
  post_message(IBV_TMH_NO_TAG, 1, 100);
  const Seen plain = next_seen();
  EXPECT_EQ(IBV_WC_TM_NO_TAG, plain.opcode);
  EXPECT_EQ(kFree + 1, plain.wr_id);
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
}

TEST_F(TagMatching, ARendezvousIsFetched) {
  for (const std::uint32_t length : {0u, 1u, 4096u, 99'000u}) {
    ibv_sge room = sge(0, 64);
    ibv_recv_wr told = receive(room, 33);
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(0, ibv_post_recv(near.get(), &told, &bad));
    std::fill(target.begin(), target.end(), std::uint8_t{0});
    add(9, static_cast<std::uint32_t>(kRoom));
    const ibv_rvh rendezvous = all_of_source(length);
    post_message(IBV_TMH_RNDV, 9, 40, &rendezvous);
    const Seen matched = next_seen();
    EXPECT_EQ(unsigned{IBV_WC_TM_MATCH}, matched.flags);
    EXPECT_EQ(9u, matched.tag);
    EXPECT_EQ(length, matched.length);
    const Seen fetched = next_seen();
    EXPECT_EQ(IBV_WC_SUCCESS, fetched.status);
    EXPECT_EQ(IBV_WC_TM_RECV, fetched.opcode);
    EXPECT_EQ(unsigned{IBV_WC_TM_DATA_VALID}, fetched.flags);
    EXPECT_EQ(kTagged + 9, fetched.wr_id);
    EXPECT_TRUE(std::equal(source.begin(), source.begin() + length, target.begin()));
    EXPECT_EQ(0, target[length]);
    // And the sender hears of it.
    bool is_told = false;
    for (int i = 0; i < 2; ++i) {
      const ibv_wc completion = next_completion();
      EXPECT_EQ(IBV_WC_SUCCESS, completion.status);
      is_told |= completion.opcode == IBV_WC_RECV && completion.byte_len == sizeof(ibv_tmh);
    }
    ASSERT_TRUE(is_told);
    ibv_tmh header;
    std::memcpy(&header, memory.data(), sizeof header);
    EXPECT_EQ(IBV_TMH_FIN, header.opcode);
    EXPECT_EQ(htobe32(0x1234), header.app_ctx);
    EXPECT_EQ(htobe64(9), header.tag);
  }
}

TEST_F(TagMatching, ARendezvousThatDoesNotFitIsLeftToTheProgram) {
  add(9, 50);
  const ibv_rvh rendezvous = all_of_source(51);
  post_message(IBV_TMH_RNDV, 9, 32, &rendezvous);
  const Seen seen = next_seen();
  EXPECT_EQ(IBV_WC_TM_RNDV_INCOMPLETE, seen.status);
  EXPECT_EQ(kTagged + 9, seen.wr_id);
  EXPECT_EQ(0, std::memcmp(target.data(), &rendezvous, sizeof rendezvous));
  EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
}

TEST_F(TagMatching, AKeyThatIsNoneFailsTheReceiver) {
  add(9, 1000);
  ibv_rvh rendezvous = all_of_source(500);
  rendezvous.rkey = htobe32(source_mr->rkey ^ 0x40);
  post_message(IBV_TMH_RNDV, 9, 32, &rendezvous);
  EXPECT_EQ(unsigned{IBV_WC_TM_MATCH}, next_seen().flags);
  const Seen failed = next_seen();
  EXPECT_EQ(IBV_WC_REM_ACCESS_ERR, failed.status);
  EXPECT_EQ(kTagged + 9, failed.wr_id);
  EXPECT_TRUE(std::all_of(target.begin(), target.end(), [](std::uint8_t byte) { return !byte; }));
}

TEST_F(TagMatching, EntriesAreDeletedUntilTheyAreTaken) {
  const std::uint32_t handle = add(5, 1000);
  ibv_ops_wr request = {};
  request.wr_id = 6;
  request.opcode = IBV_WR_TAG_DEL;
  request.flags = IBV_OPS_SIGNALED;
  request.tm.handle = handle;
  ASSERT_EQ(0, operate(request));
  const Seen deleted = next_seen();
  EXPECT_EQ(IBV_WC_TM_DEL, deleted.opcode);
  EXPECT_EQ(IBV_WC_SUCCESS, deleted.status);
  EXPECT_EQ(6u, deleted.wr_id);
  ASSERT_EQ(0, operate(request));
  EXPECT_EQ(IBV_WC_TM_ERR, next_seen().status);
}

TEST_F(TagMatching, LimitsAreThoseThatTheDeviceTells) {
  ibv_device_attr_ex device = {};
  ASSERT_EQ(0, ibv_query_device_ex(context.get(), nullptr, &device));
  const ibv_tm_caps& caps = device.tm_caps;
  EXPECT_EQ(unsigned{IBV_TM_CAP_RC}, caps.flags);
  EXPECT_GE(caps.max_rndv_hdr_size, sizeof(ibv_tmh) + sizeof(ibv_rvh));
  const Own<ibv_srq> largest = make_srq(pd.get(), caps.max_num_tags);
  ASSERT_TRUE(largest);
  std::swap(srq, const_cast<Own<ibv_srq>&>(largest));
  std::vector<std::uint32_t> handles;
  for (std::uint32_t tag = 0; tag < caps.max_num_tags; ++tag)
    handles.push_back(add(tag, 8));
  std::ranges::sort(handles);
  EXPECT_TRUE(std::ranges::adjacent_find(handles) == handles.end());
  std::vector<ibv_sge> rooms(caps.max_sge + 1);
  ibv_ops_wr request = {};
  request.opcode = IBV_WR_TAG_ADD;
  request.tm.add.sg_list = rooms.data();
  request.tm.add.num_sge = static_cast<int>(caps.max_sge);
  EXPECT_EQ(ENOMEM, operate(request));
  request.tm.add.num_sge = static_cast<int>(caps.max_sge + 1);
  EXPECT_EQ(EINVAL, operate(request));
  request.tm.add.num_sge = -1;
  EXPECT_EQ(EINVAL, operate(request));
  request.flags = 4;
  EXPECT_EQ(EINVAL, operate(request));
  request.flags = 0;
  request.opcode = static_cast<ibv_ops_wr_opcode>(3);
  EXPECT_EQ(EINVAL, operate(request));
  std::swap(srq, const_cast<Own<ibv_srq>&>(largest));

  EXPECT_FALSE(make_srq(pd.get(), caps.max_num_tags + 1));
  EXPECT_EQ(EINVAL, errno);
  EXPECT_FALSE(make_srq(pd.get(), 0));
  for (const std::uint32_t missing :
       {std::uint32_t{IBV_SRQ_INIT_ATTR_CQ}, std::uint32_t{IBV_SRQ_INIT_ATTR_TM}}) {
    EXPECT_FALSE(make_srq(pd.get(), 16, [&](ibv_srq_init_attr_ex& w) { w.comp_mask &= ~missing; }));
    EXPECT_EQ(EINVAL, errno);
  }
}

TEST_F(TagMatching, BelongsToReliableConnectionsOfItsDomain) {
  const auto on_srq = [&](ibv_qp_init_attr_ex& w) { w.srq = srq.get(); };
  EXPECT_FALSE(make_qp(IBV_QPT_UC, on_srq));
  EXPECT_FALSE(make_qp(IBV_QPT_UD, on_srq));
  const Own<ibv_pd> other(ibv_alloc_pd(context.get()));
  EXPECT_FALSE(make_qp(IBV_QPT_RC, [&](ibv_qp_init_attr_ex& w) {
    w.srq = srq.get();
    w.pd = other.get();
  }));
  EXPECT_EQ(EINVAL, errno);
  // What it completes in stays while it is there; so does the queue while it has queue pairs.
  EXPECT_EQ(EBUSY, ibv_destroy_cq(owned_cq.get()));
  EXPECT_EQ(EBUSY, ibv_destroy_srq(srq.get()));
  // Not of a queue without tags.
  ibv_srq_init_attr plain = {};
  plain.attr = {.max_wr = 4, .max_sge = 1, .srq_limit = 0};
  const Own<ibv_srq> none(ibv_create_srq(pd.get(), &plain));
  ibv_ops_wr request = {};
  request.opcode = IBV_WR_TAG_SYNC;
  ibv_ops_wr* bad = nullptr;
  EXPECT_EQ(EINVAL, ibv_post_srq_ops(none.get(), &request, &bad));
}

// A queue pair that goes takes along what it was fetching; the entries are free again.
TEST_F(TagMatching, AQueuePairThatGoesLeavesTheListWhole) {
  for (int round = 0; round < 40; ++round) {
    add(9, 1000);
    const ibv_rvh rendezvous = all_of_source(900);
    post_message(IBV_TMH_RNDV, 9, 32, &rendezvous);
    EXPECT_EQ(unsigned{IBV_WC_TM_MATCH}, next_seen().flags);
    near.reset();
    far.reset();
    near = make_qp();
    far = make_qp(IBV_QPT_RC, [&](ibv_qp_init_attr_ex& w) { w.srq = srq.get(); });
    connect(near.get(), far.get());
    connect(far.get(), near.get());
    ibv_wc rest;
    while (ibv_poll_cq(owned_cq.get(), 1, &rest) == 1 || ibv_poll_cq(cq.get(), 1, &rest) == 1) {
    }
  }
}

}  // namespace
}  // namespace verbena::verbs::testing
