// SPDX-License-Identifier: MIT
// Objects of each kind up to the maximum that the device tells; one more is refused, and destroying
// them brings everything back.
#include <dirent.h>
#include <malloc.h>

#include <cerrno>
#include <vector>

#include "fixture.h"

namespace verbena::verbs::testing {
namespace {

std::size_t open_descriptors() {
  std::size_t count = 0;
  DIR* const folder = opendir("/proc/self/fd");
  if (!folder) return 0;
  while (readdir(folder))
    ++count;
  closedir(folder);
  return count;
}

class Limits : public VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    ASSERT_EQ(0, ibv_query_device(context.get(), &device));
  }

  // `make` gives an owned object, `others` are there already. Twice: what a first round leaves
  // taken, the second one lacks.
  template <class Make>
  void fill(int most, int others, Make make) {
    ASSERT_GT(most, others);
    std::size_t before = 0;
    std::size_t heap_before = 0;
    for (int round = 0; round < 2; ++round) {
      {
        using Object = decltype(make());
        std::vector<Object> made;
        for (int i = others; i < most; ++i) {
          Object object = make();
          ASSERT_TRUE(object) << "object " << i << " of " << most << ", errno " << errno;
          made.push_back(std::move(object));
        }
        errno = 0;
        EXPECT_FALSE(make()) << "more than the device has";
        EXPECT_EQ(ENOMEM, errno);
        made.pop_back();
        EXPECT_TRUE(make()) << "one was given back";
      }
      // The first round starts threads, and takes descriptors that stay.
      if (round != 0) break;
      before = open_descriptors();
      heap_before = mallinfo2().uordblks;
    }
    EXPECT_EQ(before, open_descriptors());
    // Of thousands of objects one may not have left a byte each.
    const std::size_t heap = mallinfo2().uordblks;
    EXPECT_LT(heap, heap_before + static_cast<std::size_t>(most));
  }

  ibv_device_attr device = {};
};

TEST_F(Limits, ProtectionDomains) {
  fill(device.max_pd, 1, [&] { return Own<ibv_pd>(ibv_alloc_pd(context.get())); });
}

TEST_F(Limits, CompletionQueues) {
  fill(device.max_cq, 1,
       [&] { return Own<ibv_cq>(ibv_create_cq(context.get(), 1, nullptr, nullptr, 0)); });
}

TEST_F(Limits, SharedReceiveQueues) {
  fill(device.max_srq, 0, [&] {
    ibv_srq_init_attr wanted{};
    wanted.attr = {.max_wr = 1, .max_sge = 1, .srq_limit = 0};
    return Own<ibv_srq>(ibv_create_srq(pd.get(), &wanted));
  });
}

TEST_F(Limits, AddressHandles) {
  ibv_ah_attr path = own_address();
  fill(device.max_ah, 0, [&] { return Own<ibv_ah>(ibv_create_ah(pd.get(), &path)); });
}

TEST_F(Limits, MemoryRegions) {
  fill(device.max_mr, 1, [&] {
    return Own<ibv_mr>(ibv_reg_mr(pd.get(), memory.data(), 64, IBV_ACCESS_LOCAL_WRITE));
  });
}

TEST_F(Limits, MemoryWindows) {
  fill(device.max_mw, 0, [&] { return Own<ibv_mw>(ibv_alloc_mw(pd.get(), IBV_MW_TYPE_2)); });
}

TEST_F(Limits, QueuePairs) {
  fill(device.max_qp, 0, [&] {
    return make_qp(IBV_QPT_RC, [](ibv_qp_init_attr_ex& wanted) {
      wanted.cap = {.max_send_wr = 1,
                    .max_recv_wr = 1,
                    .max_send_sge = 1,
                    .max_recv_sge = 1,
                    .max_inline_data = 0};
    });
  });
}

}  // namespace
}  // namespace verbena::verbs::testing
