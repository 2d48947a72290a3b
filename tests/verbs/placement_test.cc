// SPDX-License-Identifier: MIT
// ATOMIC WRITE and FLUSH (IBTA vol 1, annex A19). FLUSH came after the headers that we are built
// with: here it is reached as a program does that was built with newer ones.
#include <cerrno>
#include <cstring>

#include "fixture.h"

namespace verbena::verbs::testing {
namespace {

constexpr std::uint64_t kWithFlush = 1 << 11;
constexpr auto kFlushed = static_cast<ibv_wc_opcode>(8);
constexpr int kFlushGlobal = 1 << 8;
constexpr std::uint8_t kGlobal = 1;
constexpr std::uint8_t kPersistent = 2;
constexpr std::uint8_t kRange = 0;
constexpr std::uint8_t kRegion = 1;

struct NewerQpEx {
  ibv_qp_ex known;
  void (*wr_flush)(ibv_qp_ex*, std::uint32_t, std::uint64_t, std::size_t, std::uint8_t,
                   std::uint8_t);
};

class Placement : public VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | kFlushGlobal;
    flushable.reset(ibv_reg_mr(pd.get(), memory.data(), memory.size(), kAccess));
    ASSERT_TRUE(flushable);
    qp = make_qp(IBV_QPT_RC, [](ibv_qp_init_attr_ex& wanted) {
      wanted.cap.max_inline_data = 0;
      wanted.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
      wanted.send_ops_flags = IBV_QP_EX_WITH_ATOMIC_WRITE | IBV_QP_EX_WITH_RDMA_WRITE | kWithFlush;
    });
    target = make_qp();
    ASSERT_TRUE(qp && target);
    connect(qp.get(), target.get());
    connect(target.get(), qp.get());
    // Whether it may be flushed is one of the rights of a queue pair.
    ibv_qp_attr attributes = {};
    attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | kFlushGlobal;
    ASSERT_EQ(0, ibv_modify_qp(target.get(), &attributes, IBV_QP_ACCESS_FLAGS));
    ex = ibv_qp_to_qp_ex(qp.get());
    ex->wr_flags = IBV_SEND_SIGNALED;
  }
  int flush(std::uint32_t key, std::size_t offset, std::size_t length, std::uint8_t placement,
            std::uint8_t selectivity = kRange) {
    ibv_wr_start(ex);
    reinterpret_cast<NewerQpEx*>(ex)->wr_flush(ex, key, address(offset), length, placement,
                                               selectivity);
    return ibv_wr_complete(ex);
  }
  int store(std::size_t offset, std::uint64_t value) {
    ibv_wr_start(ex);
    ibv_wr_atomic_write(ex, flushable->rkey, address(offset), &value);
    value = 0;  // was taken already
    return ibv_wr_complete(ex);
  }

  Own<ibv_mr> flushable;
  Own<ibv_qp> target;
  Own<ibv_qp> qp;
  ibv_qp_ex* ex = nullptr;
};

TEST_F(Placement, TheDeviceSaysThatItHasBoth) {
  ibv_device_attr_ex attributes = {};
  ASSERT_EQ(0, ibv_query_device_ex(context.get(), nullptr, &attributes));
  EXPECT_TRUE(attributes.device_cap_flags_ex & 1ULL << 38);   // flush, global
  EXPECT_FALSE(attributes.device_cap_flags_ex & 1ULL << 39);  // flush, persistent
  EXPECT_TRUE(attributes.device_cap_flags_ex & 1ULL << 40);   // atomic write
}

TEST_F(Placement, AnAtomicWriteStoresEightBytes) {
  ASSERT_EQ(0, store(64, 0x1122334455667788));
  const ibv_wc done = next_completion();
  EXPECT_EQ(IBV_WC_SUCCESS, done.status);
  EXPECT_EQ(IBV_WC_ATOMIC_WRITE, done.opcode);
  std::uint64_t value = 0;
  std::memcpy(&value, memory.data() + 64, sizeof value);
  EXPECT_EQ(0x1122334455667788u, value);
}

TEST_F(Placement, AnAtomicWriteIsPostedAsAWorkRequestToo) {
  memory[512] = 77;
  ibv_sge from = sge(512, 8);
  ibv_send_wr request = send(from, 5, IBV_WR_ATOMIC_WRITE);
  request.wr.rdma = {.remote_addr = address(128), .rkey = flushable->rkey};
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(0, ibv_post_send(qp.get(), &request, &bad));
  EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
  EXPECT_EQ(77, memory[128]);
}

TEST_F(Placement, AMisalignedAtomicWriteIsRefused) {
  ASSERT_EQ(0, store(65, 1));
  EXPECT_EQ(IBV_WC_REM_INV_REQ_ERR, next_completion().status);
}

TEST_F(Placement, AFlushFollowsWhatItFlushes) {
  memory[0] = 33;
  ibv_wr_start(ex);
  ibv_wr_rdma_write(ex, flushable->rkey, address(1024));
  ibv_wr_set_sge(ex, mr->lkey, address(0), 512);
  reinterpret_cast<NewerQpEx*>(ex)->wr_flush(ex, flushable->rkey, address(1024), 512, kGlobal,
                                             kRange);
  ASSERT_EQ(0, ibv_wr_complete(ex));
  EXPECT_EQ(IBV_WC_RDMA_WRITE, next_completion().opcode);
  const ibv_wc done = next_completion();
  EXPECT_EQ(IBV_WC_SUCCESS, done.status);
  EXPECT_EQ(kFlushed, done.opcode);
  EXPECT_EQ(33, memory[1024]);
  ASSERT_EQ(0, flush(flushable->rkey, 0, 0, kGlobal, kRegion));
  EXPECT_EQ(IBV_WC_SUCCESS, next_completion().status);
}

TEST_F(Placement, AFlushOfWhatMayNotBeFlushedIsRefused) {
  ASSERT_EQ(0, flush(mr->rkey, 0, 8, kGlobal));
  EXPECT_EQ(IBV_WC_REM_ACCESS_ERR, next_completion().status);
}

TEST_F(Placement, AFlushOutsideIsRefused) {
  ASSERT_EQ(0, flush(flushable->rkey, kBytes - 4, 8, kGlobal));
  EXPECT_EQ(IBV_WC_REM_ACCESS_ERR, next_completion().status);
}

TEST_F(Placement, AFlushInAnotherDomainIsRefused) {
  const Own<ibv_pd> other(ibv_alloc_pd(context.get()));
  const Own<ibv_mr> foreign(
      ibv_reg_mr(other.get(), memory.data(), memory.size(),
                 IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | kFlushGlobal));
  ASSERT_TRUE(foreign);
  ASSERT_EQ(0, flush(foreign->rkey, 0, 8, kGlobal));
  EXPECT_EQ(IBV_WC_REM_ACCESS_ERR, next_completion().status);
  for (ibv_qp* const each : {qp.get(), target.get()}) {
    ibv_qp_attr attributes = {};
    ibv_qp_init_attr initial = {};
    ASSERT_EQ(0, ibv_query_qp(each, &attributes, IBV_QP_STATE, &initial));
    EXPECT_EQ(IBV_QPS_ERR, attributes.qp_state);
  }
}

// Nothing here outlives its memory.
TEST_F(Placement, NothingIsPersistent) {
  EXPECT_EQ(nullptr, ibv_reg_mr(pd.get(), memory.data(), memory.size(),
                                IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | 1 << 9));
  ASSERT_EQ(0, flush(flushable->rkey, 0, 8, kPersistent));
  EXPECT_EQ(IBV_WC_REM_INV_REQ_ERR, next_completion().status);
}

TEST_F(Placement, AFlushThatIsNoneIsNotPosted) {
  EXPECT_EQ(EINVAL, flush(flushable->rkey, 0, 8, 4));
  EXPECT_EQ(EINVAL, flush(flushable->rkey, 0, 8, kGlobal, 2));
  EXPECT_EQ(EINVAL, flush(flushable->rkey, 0, std::size_t{1} << 32, kGlobal));
  EXPECT_TRUE(no_completion());
  ASSERT_EQ(0, flush(flushable->rkey, 0, 8, 0));
  EXPECT_EQ(IBV_WC_LOC_QP_OP_ERR, next_completion().status);
}

}  // namespace
}  // namespace verbena::verbs::testing
