// SPDX-License-Identifier: MIT
// Memory of the device (ibv_alloc_dm(3)).
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "fixture.h"

namespace verbena::verbs::testing {
namespace {

constexpr int kLocal = IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE;
constexpr int kRemote = kLocal | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

struct Free {
  void operator()(ibv_dm* p) const { EXPECT_EQ(0, ibv_free_dm(p)); }
};
using OwnDm = std::unique_ptr<ibv_dm, Free>;

class DeviceMemoryTest : public VerbsTest {
 protected:
  OwnDm alloc(std::size_t length) {
    ibv_alloc_dm_attr wanted{};
    wanted.length = length;
    return OwnDm(ibv_alloc_dm(context.get(), &wanted));
  }
  Own<ibv_mr> reg(ibv_dm* dm, std::uint64_t offset, std::size_t length, int access = kRemote) {
    return Own<ibv_mr>(ibv_reg_dm_mr(pd.get(), dm, offset, length, static_cast<unsigned>(access)));
  }
  std::uint64_t most() const {
    ibv_device_attr_ex attributes{};
    EXPECT_EQ(0, ibv_query_device_ex(context.get(), nullptr, &attributes));
    return attributes.max_dm_size;
  }
};

TEST_F(DeviceMemoryTest, HoldsWhatIsCopiedThere) {
  const OwnDm dm = alloc(5000);
  ASSERT_TRUE(dm);
  EXPECT_EQ(0, ibv_memcpy_to_dm(dm.get(), 4992, "12345678", 8));
  std::array<char, 12> back{};
  EXPECT_EQ(0, ibv_memcpy_from_dm(back.data(), dm.get(), 4988, 12));
  EXPECT_EQ(0, std::memcmp(back.data(),
                           "\0\0\0\0"
                           "12345678",
                           12))
      << "the rest is zero";
}

TEST_F(DeviceMemoryTest, CopiesAreChecked) {
  const OwnDm dm = alloc(100);
  ASSERT_TRUE(dm);
  std::array<char, 128> host{};
  EXPECT_EQ(EFAULT, ibv_memcpy_to_dm(dm.get(), 100, host.data(), 4));
  EXPECT_EQ(EFAULT, ibv_memcpy_to_dm(dm.get(), 0, host.data(), 104));
  EXPECT_EQ(EFAULT, ibv_memcpy_from_dm(host.data(), dm.get(), ~std::uint64_t{3}, 8));
  EXPECT_EQ(EINVAL, ibv_memcpy_to_dm(dm.get(), 2, host.data(), 4));
  EXPECT_EQ(EINVAL, ibv_memcpy_from_dm(host.data(), dm.get(), 0, 6));
  EXPECT_EQ(0, ibv_memcpy_to_dm(dm.get(), 96, host.data(), 4));
}

TEST_F(DeviceMemoryTest, TakesWritesAndAtomicsFromItsFirstByteOn) {
  const OwnDm dm = alloc(4096);
  ASSERT_TRUE(dm);
  const Own<ibv_mr> region = reg(dm.get(), 64, 128);
  ASSERT_TRUE(region);
  EXPECT_EQ(nullptr, region->addr);
  const Own<ibv_qp> qp = make_qp();
  connect(qp.get());
  std::fill_n(memory.begin(), 8, std::uint8_t{1});
  ibv_sge from = sge(0, 8);
  ibv_send_wr request = send(from, 1, IBV_WR_RDMA_WRITE);
  request.wr.rdma = {16, region->rkey};
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(0, ibv_post_send(qp.get(), &request, &bad));
  ASSERT_EQ(IBV_WC_SUCCESS, next_completion().status);
  request = send(from, 2, IBV_WR_ATOMIC_FETCH_AND_ADD);
  request.wr.atomic = {16, 1, 0, region->rkey};
  ASSERT_EQ(0, ibv_post_send(qp.get(), &request, &bad));
  ASSERT_EQ(IBV_WC_SUCCESS, next_completion().status);
  std::uint64_t there = 0;
  ASSERT_EQ(0, ibv_memcpy_from_dm(&there, dm.get(), 64 + 16, sizeof there));
  EXPECT_EQ(0x0101010101010102u, there);
}

TEST_F(DeviceMemoryTest, RegistrationsAreChecked) {
  const OwnDm dm = alloc(100);
  ASSERT_TRUE(dm);
  EXPECT_FALSE(reg(dm.get(), 0, 104));
  EXPECT_EQ(EINVAL, errno);
  EXPECT_FALSE(reg(dm.get(), ~std::uint64_t{0}, 4));
  EXPECT_FALSE(reg(dm.get(), 0, 100, IBV_ACCESS_LOCAL_WRITE)) << "it has no address";
  EXPECT_FALSE(reg(dm.get(), 0, 100, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_REMOTE_WRITE));
  EXPECT_TRUE(reg(dm.get(), 100, 0)) << "nothing may be registered as well";
}

TEST_F(DeviceMemoryTest, StaysWhileItIsRegistered) {
  const OwnDm dm = alloc(100);
  ASSERT_TRUE(dm);
  const Own<ibv_mr> region = reg(dm.get(), 0, 100);
  ASSERT_TRUE(region);
  EXPECT_EQ(EBUSY, ibv_free_dm(dm.get()));
}

TEST_F(DeviceMemoryTest, ThereIsAsMuchAsTheDeviceSays) {
  const std::uint64_t all = most();
  EXPECT_FALSE(alloc(all + 1));
  EXPECT_EQ(ENOMEM, errno);
  {
    const OwnDm half = alloc(all / 2);
    const OwnDm other_half = alloc(all / 2);
    ASSERT_TRUE(half && other_half);
    EXPECT_FALSE(alloc(1));
    EXPECT_EQ(ENOMEM, errno);
  }
  EXPECT_TRUE(alloc(all));
}

TEST_F(DeviceMemoryTest, WhatItIsAskedForIsChecked) {
  ibv_alloc_dm_attr wanted{};
  EXPECT_FALSE(ibv_alloc_dm(context.get(), &wanted));
  EXPECT_EQ(EINVAL, errno);
  wanted = {.length = 64, .log_align_req = 0, .comp_mask = 1};
  EXPECT_FALSE(ibv_alloc_dm(context.get(), &wanted));
  EXPECT_EQ(EINVAL, errno);
}

}  // namespace
}  // namespace verbena::verbs::testing
