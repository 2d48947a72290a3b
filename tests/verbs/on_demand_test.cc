// SPDX-License-Identifier: MIT
// Regions whose pages come when they are used (ibv_reg_mr(3), IBV_ACCESS_ON_DEMAND), and what is
// advised about them (ibv_advise_mr(3)).
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "fixture.h"

namespace verbena::verbs::testing {
namespace {

constexpr int kAll = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

class OnDemandTest : public VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    room = static_cast<std::uint8_t*>(
        mmap(nullptr, kPages * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(MAP_FAILED, room);
  }
  void TearDown() override { munmap(room, kPages * page); }

  std::uint64_t place() const { return reinterpret_cast<std::uintptr_t>(room); }
  std::pair<Own<ibv_qp>, Own<ibv_qp>> make_pair() {
    std::pair pair(make_qp(), make_qp());
    connect(pair.first.get(), pair.second.get());
    connect(pair.second.get(), pair.first.get());
    return pair;
  }
  bool is_there(std::size_t which) const {
    unsigned char there = 0;
    EXPECT_EQ(0, mincore(room + which * page, page, &there));
    return there & 1;
  }
  ibv_wc write(ibv_qp* qp, std::uint64_t to, std::uint32_t key) {
    std::fill_n(memory.begin(), 8, std::uint8_t{0x5A});
    ibv_sge from = sge(0, 8);
    ibv_send_wr request = send(from, 1, IBV_WR_RDMA_WRITE);
    request.wr.rdma = {to, key};
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(0, ibv_post_send(qp, &request, &bad));
    return next_completion();
  }
  int advise(ibv_mr* region, ibv_advise_mr_advice advice, std::uint32_t flags,
             std::size_t length) const {
    ibv_sge range{place(), static_cast<std::uint32_t>(length), region->lkey};
    return ibv_advise_mr(pd.get(), advice, flags, &range, 1);
  }

  static constexpr std::size_t kPages = 4;
  std::size_t page = 0;
  std::uint8_t* room = nullptr;
};

TEST_F(OnDemandTest, MemoryMayComeAfterItsRegistration) {
  ASSERT_EQ(0, mprotect(room, kPages * page, PROT_NONE));
  EXPECT_FALSE(ibv_reg_mr(pd.get(), room, page, kAll)) << "without on demand it has to be there";
  const Own<ibv_mr> region(ibv_reg_mr(pd.get(), room, page, kAll | IBV_ACCESS_ON_DEMAND));
  ASSERT_TRUE(region);
  ASSERT_EQ(0, mprotect(room, kPages * page, PROT_READ | PROT_WRITE));
  const Own<ibv_qp> qp = make_qp();
  connect(qp.get());
  EXPECT_EQ(IBV_WC_SUCCESS, write(qp.get(), place() + 8, region->rkey).status);
  EXPECT_EQ(0x5A, room[8]);
}

// Neither side ends the program.
TEST_F(OnDemandTest, MemoryThatIsNotThereWhenItIsUsedIsAnError) {
  const Own<ibv_mr> region(ibv_reg_mr(pd.get(), room, page, kAll | IBV_ACCESS_ON_DEMAND));
  ASSERT_TRUE(region);
  ASSERT_EQ(0, mprotect(room, page, PROT_NONE));
  const auto [qp, peer] = make_pair();
  EXPECT_EQ(IBV_WC_REM_OP_ERR, write(qp.get(), place(), region->rkey).status);
}

// Its pages are the program's, whatever the program does with them.
TEST_F(OnDemandTest, MemoryMayBeReplacedWhileItIsRegistered) {
  const Own<ibv_mr> region(ibv_reg_mr(pd.get(), room, page, kAll | IBV_ACCESS_ON_DEMAND));
  ASSERT_TRUE(region);
  const Own<ibv_qp> qp = make_qp();
  connect(qp.get());
  EXPECT_EQ(IBV_WC_SUCCESS, write(qp.get(), place(), region->rkey).status);
  ASSERT_EQ(room, mmap(room, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
                       -1, 0));
  EXPECT_EQ(0, room[0]);
  EXPECT_EQ(IBV_WC_SUCCESS, write(qp.get(), place(), region->rkey).status);
  EXPECT_EQ(0x5A, room[0]);
}

class ImplicitTest : public OnDemandTest {
 protected:
  Own<ibv_mr> register_all(int access) {
    return Own<ibv_mr>(ibv_reg_mr(pd.get(), nullptr, SIZE_MAX, access));
  }
};

TEST_F(ImplicitTest, IsAllMemoryOfTheProgram) {
  const Own<ibv_mr> all = register_all(kAll | IBV_ACCESS_ON_DEMAND);
  ASSERT_TRUE(all);
  const Own<ibv_qp> qp = make_qp();
  connect(qp.get());
  EXPECT_EQ(IBV_WC_SUCCESS, write(qp.get(), place() + page - 4, all->rkey).status);
  EXPECT_EQ(0x5A, room[page + 3]);
}

TEST_F(ImplicitTest, MayBeBothEndsOfAnOperation) {
  const Own<ibv_mr> all = register_all(kAll | IBV_ACCESS_ON_DEMAND);
  ASSERT_TRUE(all);
  const Own<ibv_qp> qp = make_qp();
  connect(qp.get());
  std::fill_n(room, page, std::uint8_t{7});
  ibv_sge from{place(), static_cast<std::uint32_t>(page), all->lkey};
  ibv_send_wr request = send(from, 1, IBV_WR_RDMA_WRITE);
  request.wr.rdma = {place() + 2 * page, all->rkey};
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(0, ibv_post_send(qp.get(), &request, &bad));
  ASSERT_EQ(IBV_WC_SUCCESS, next_completion().status);
  EXPECT_TRUE(std::equal(room, room + page, room + 2 * page));
}

// From the first address to the last.
TEST_F(ImplicitTest, RefusesAddressesWithoutMemory) {
  const Own<ibv_mr> all = register_all(kAll | IBV_ACCESS_ON_DEMAND);
  ASSERT_TRUE(all);
  for (const std::uint64_t nowhere :
       {std::uint64_t{0}, std::uint64_t{1} << 52, ~std::uint64_t{0} - 64}) {
    const auto [qp, peer] = make_pair();
    EXPECT_EQ(IBV_WC_REM_OP_ERR, write(qp.get(), nowhere, all->rkey).status) << nowhere;
  }
}

TEST_F(ImplicitTest, NeedsOnDemand) {
  EXPECT_FALSE(register_all(kAll));
  EXPECT_EQ(EFAULT, errno);
}

TEST_F(OnDemandTest, PrefetchingBringsThePages) {
  const Own<ibv_mr> region(ibv_reg_mr(pd.get(), room, kPages * page, kAll | IBV_ACCESS_ON_DEMAND));
  ASSERT_TRUE(region);
  ASSERT_FALSE(is_there(1));
  EXPECT_EQ(0, advise(region.get(), IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
                      IBV_ADVISE_MR_FLAG_FLUSH, 2 * page));
  EXPECT_FALSE(is_there(1));
  EXPECT_EQ(0, advise(region.get(), IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH,
                      2 * page));
  EXPECT_TRUE(is_there(1));
  EXPECT_FALSE(is_there(2));
}

TEST_F(OnDemandTest, AdviceIsChecked) {
  const Own<ibv_mr> region(
      ibv_reg_mr(pd.get(), room, page, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_ON_DEMAND));
  ASSERT_TRUE(region);
  constexpr auto kRead = IBV_ADVISE_MR_ADVICE_PREFETCH;
  constexpr std::uint32_t kWait = IBV_ADVISE_MR_FLAG_FLUSH;
  EXPECT_EQ(0, advise(region.get(), kRead, kWait, page));
  EXPECT_EQ(0, advise(region.get(), kRead, 0, page));
  EXPECT_EQ(EFAULT, advise(region.get(), kRead, kWait, page + 1)) << "beyond the region";
  EXPECT_EQ(EFAULT, advise(region.get(), IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, kWait, page))
      << "without the right";
  EXPECT_EQ(EINVAL, advise(region.get(), kRead, 2, page)) << "no such flag";
  EXPECT_EQ(EINVAL, advise(region.get(), static_cast<ibv_advise_mr_advice>(3), kWait, page));
  EXPECT_EQ(EINVAL, ibv_advise_mr(pd.get(), kRead, kWait, nullptr, 0));
  ASSERT_EQ(0, mprotect(room, page, PROT_NONE));
  EXPECT_EQ(EFAULT, advise(region.get(), kRead, kWait, page)) << "not there";
}

}  // namespace
}  // namespace verbena::verbs::testing
