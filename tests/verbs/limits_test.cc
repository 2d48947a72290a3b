// SPDX-License-Identifier: MIT
// Objects of each kind up to the maximum that the device tells; one more is refused, and destroying
// them brings everything back.
#include <dirent.h>
#include <fcntl.h>
#include <malloc.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <thread>
#include <vector>

#include "nic/device.h"
#include "raw_packets.h"

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

// Of few objects, less than each of them would leave.
constexpr std::uint64_t kHeapSlack = 4096;

// `make` gives an owned object, `others` are there already. Twice: what a first round leaves taken,
// the second one lacks.
template <class Make>
void fill(std::uint64_t most, std::uint64_t others, Make make) {
  ASSERT_GT(most, others);
  std::size_t before = 0;
  std::size_t heap_before = 0;
  for (int round = 0; round < 2; ++round) {
    {
      using Object = decltype(make());
      std::vector<Object> made;
      for (std::uint64_t i = others; i < most; ++i) {
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
  // Not equal: a thread of ours may just then close what an earlier test had, or have one open that
  // it closes soon.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (open_descriptors() > before && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_LE(open_descriptors(), before);
  // Of thousands of objects one may not have left a byte each.
  const std::size_t heap = mallinfo2().uordblks;
  EXPECT_LT(heap, heap_before + std::max<std::uint64_t>(most, kHeapSlack));
}

// Casts: the attributes have signed numbers.
std::uint64_t told(int most) { return static_cast<std::uint64_t>(most); }

class Limits : public VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    ASSERT_EQ(0, ibv_query_device(context.get(), &device));
  }
  ibv_device_attr device = {};
};

TEST_F(Limits, ProtectionDomains) {
  fill(told(device.max_pd), 1, [&] { return Own<ibv_pd>(ibv_alloc_pd(context.get())); });
}

TEST_F(Limits, CompletionQueues) {
  fill(told(device.max_cq), 1,
       [&] { return Own<ibv_cq>(ibv_create_cq(context.get(), 1, nullptr, nullptr, 0)); });
}

TEST_F(Limits, SharedReceiveQueues) {
  fill(told(device.max_srq), 0, [&] {
    ibv_srq_init_attr wanted{};
    wanted.attr = {.max_wr = 1, .max_sge = 1, .srq_limit = 0};
    return Own<ibv_srq>(ibv_create_srq(pd.get(), &wanted));
  });
}

TEST_F(Limits, AddressHandles) {
  ibv_ah_attr path = own_address();
  fill(told(device.max_ah), 0, [&] { return Own<ibv_ah>(ibv_create_ah(pd.get(), &path)); });
}

TEST_F(Limits, MemoryRegions) {
  if (is_another_path()) GTEST_SKIP() << "no path has a part in it, and it takes ten seconds";
  fill(told(device.max_mr), 1, [&] {
    return Own<ibv_mr>(ibv_reg_mr(pd.get(), memory.data(), 64, IBV_ACCESS_LOCAL_WRITE));
  });
}

TEST_F(Limits, MemoryWindows) {
  fill(told(device.max_mw), 0, [&] { return Own<ibv_mw>(ibv_alloc_mw(pd.get(), IBV_MW_TYPE_2)); });
}

TEST_F(Limits, QueuePairs) {
  fill(told(device.max_qp), 0, [&] {
    return make_qp(IBV_QPT_RC, [](ibv_qp_init_attr_ex& wanted) {
      wanted.cap = {.max_send_wr = 1,
                    .max_recv_wr = 1,
                    .max_send_sge = 1,
                    .max_recv_sge = 1,
                    .max_inline_data = 0};
    });
  });
}

// Sizes of one object: the largest works, and together with the largest of the others; one more is
// EINVAL.
TEST_F(Limits, SizesOfQueuePairs) {
  const auto most = [](int value) { return static_cast<std::uint32_t>(value); };
  ibv_qp_cap largest{.max_send_wr = most(device.max_qp_wr),
                     .max_recv_wr = most(device.max_qp_wr),
                     .max_send_sge = most(device.max_sge),
                     .max_recv_sge = most(device.max_sge),
                     .max_inline_data = 0};
  const auto make = [&] {
    errno = 0;
    return make_qp(IBV_QPT_RC, [&](ibv_qp_init_attr_ex& wanted) { wanted.cap = largest; });
  };
  EXPECT_TRUE(make());
  for (std::uint32_t ibv_qp_cap::* const size :
       {&ibv_qp_cap::max_send_wr, &ibv_qp_cap::max_recv_wr, &ibv_qp_cap::max_send_sge,
        &ibv_qp_cap::max_recv_sge}) {
    ++(largest.*size);
    EXPECT_FALSE(make());
    EXPECT_EQ(EINVAL, errno);
    --(largest.*size);
  }
}

TEST_F(Limits, SizesOfSharedReceiveQueues) {
  const auto error_of = [&](int depth, int sges) {
    ibv_srq_init_attr wanted{};
    wanted.attr.max_wr = static_cast<std::uint32_t>(depth);
    wanted.attr.max_sge = static_cast<std::uint32_t>(sges);
    errno = 0;
    return Own<ibv_srq>(ibv_create_srq(pd.get(), &wanted)) ? 0 : errno;
  };
  EXPECT_EQ(0, error_of(device.max_srq_wr, device.max_srq_sge));
  EXPECT_EQ(EINVAL, error_of(device.max_srq_wr + 1, 1));
  EXPECT_EQ(EINVAL, error_of(1, device.max_srq_sge + 1));
}

TEST_F(Limits, SizesOfCompletionQueues) {
  const auto error_of = [&](int places) {
    errno = 0;
    return Own<ibv_cq>(ibv_create_cq(context.get(), places, nullptr, nullptr, 0)) ? 0 : errno;
  };
  EXPECT_EQ(0, error_of(device.max_cqe));
  EXPECT_EQ(EINVAL, error_of(device.max_cqe + 1));
}

TEST_F(Limits, ReadsOnTheirWay) {
  const auto error_of = [&](int out, int in) {
    const Own<ibv_qp> qp = make_qp();
    to_init(qp.get());
    ibv_qp_attr wanted{};
    wanted.qp_state = IBV_QPS_RTR;
    wanted.path_mtu = IBV_MTU_1024;
    wanted.dest_qp_num = qp->qp_num;
    wanted.max_dest_rd_atomic = static_cast<std::uint8_t>(in);
    wanted.max_rd_atomic = static_cast<std::uint8_t>(out);
    wanted.min_rnr_timer = 1;
    wanted.ah_attr = own_address();
    const int refused =
        ibv_modify_qp(qp.get(), &wanted,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    if (refused) return refused;
    wanted.qp_state = IBV_QPS_RTS;
    return ibv_modify_qp(qp.get(), &wanted,
                         IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                             IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
  };
  EXPECT_EQ(0, error_of(device.max_qp_init_rd_atom, device.max_qp_rd_atom));
  EXPECT_EQ(EINVAL, error_of(device.max_qp_init_rd_atom + 1, 1));
  EXPECT_EQ(EINVAL, error_of(1, device.max_qp_rd_atom + 1));
}

// They count among the protection domains: a device tells no number of their own.
TEST_F(Limits, XrcDomains) {
#ifdef VERBENA_SANITIZED
  GTEST_SKIP() << "with a sanitizer, so many domains take half a minute";
#endif
  const auto close = [](ibv_xrcd* p) { EXPECT_EQ(0, ibv_close_xrcd(p)); };
  fill(told(device.max_pd), 1, [&] {
    ibv_xrcd_init_attr wanted{};
    wanted.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    wanted.fd = -1;
    wanted.oflags = O_CREAT;
    return std::unique_ptr<ibv_xrcd, decltype(close)>(ibv_open_xrcd(context.get(), &wanted), close);
  });
}

TEST_F(Limits, DeviceMemory) {
  ibv_device_attr_ex extended = {};
  ASSERT_EQ(0, ibv_query_device_ex(context.get(), nullptr, &extended));
  constexpr std::uint64_t kPiece = 1u << 20;
  ASSERT_EQ(0u, extended.max_dm_size % kPiece);
  const auto release = [](ibv_dm* p) { EXPECT_EQ(0, ibv_free_dm(p)); };
  const auto alloc = [&](std::size_t length) {
    ibv_alloc_dm_attr wanted{.length = length, .log_align_req = 0, .comp_mask = 0};
    return std::unique_ptr<ibv_dm, decltype(release)>(ibv_alloc_dm(context.get(), &wanted),
                                                      release);
  };
  fill(extended.max_dm_size / kPiece, 0, [&] { return alloc(kPiece); });
  EXPECT_TRUE(alloc(extended.max_dm_size)) << "in one piece";
}

class RawLimits : public RawPacketTest {
 protected:
  void SetUp() override {
    RawPacketTest::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(0, ibv_query_device_ex(context.get(), nullptr, &device));
  }
  OwnRaw<ibv_wq> make_wq() {
    ibv_wq_init_attr wanted{};
    wanted.wq_type = IBV_WQT_RQ;
    wanted.max_wr = wanted.max_sge = 1;
    wanted.pd = pd.get();
    wanted.cq = cq.get();
    return OwnRaw<ibv_wq>(ibv_create_wq(context.get(), &wanted));
  }
  OwnRaw<ibv_rwq_ind_table> make_table(std::vector<ibv_wq*> queues) {
    ibv_rwq_ind_table_init_attr wanted{};
    wanted.log_ind_tbl_size = static_cast<std::uint32_t>(std::countr_zero(queues.size()));
    wanted.ind_tbl = queues.data();
    return OwnRaw<ibv_rwq_ind_table>(ibv_create_rwq_ind_table(context.get(), &wanted));
  }
  ibv_device_attr_ex device = {};
};

// Work queues and queue pairs of raw packets are of one number.
TEST_F(RawLimits, WorkQueues) {
  fill(device.max_wq_type_rq, 1, [&] { return make_wq(); });
}

TEST_F(RawLimits, QueuePairsOfRawPackets) {
#ifdef VERBENA_SANITIZED
  GTEST_SKIP() << "with a sanitizer, 2 GiB of frames that nobody touches take real memory";
#endif
  fill(told(device.orig_attr.max_raw_ethy_qp), 1, [&] {
    return make_qp(IBV_QPT_RAW_PACKET, [](ibv_qp_init_attr_ex& wanted) {
      wanted.cap = {.max_send_wr = 1,
                    .max_recv_wr = 1,
                    .max_send_sge = 1,
                    .max_recv_sge = 1,
                    .max_inline_data = 0};
    });
  });
}

TEST_F(RawLimits, TablesOfWorkQueues) {
  const auto wq = make_wq();
  fill(device.rss_caps.max_rwq_indirection_tables, 0, [&] { return make_table({wq.get()}); });
}

TEST_F(RawLimits, WorkQueuesInATable) {
  const auto wq = make_wq();
  const std::uint32_t most = device.rss_caps.max_rwq_indirection_table_size;
  EXPECT_TRUE(make_table(std::vector(most, wq.get())));
  EXPECT_FALSE(make_table(std::vector(std::size_t{most} * 2, wq.get())));
  EXPECT_EQ(EINVAL, errno);
}

// Of flows and counters a device tells no number to programs. There is one all the same.
TEST_F(RawLimits, Flows) {
#ifdef VERBENA_SANITIZED
  GTEST_SKIP() << "with a sanitizer, so many flows take half a minute";
#endif
  if (is_another_path()) GTEST_SKIP() << "no path has a part in it, and it takes ten seconds";
  const Own<ibv_qp> receiver = make_receiver();
  std::uint32_t last = 0;
  const auto make = [&] {
    auto spec = eth_spec(1);
    spec.val.dst_mac[4] = static_cast<std::uint8_t>(++last);
    spec.val.dst_mac[3] = static_cast<std::uint8_t>(last >> 8);
    return make_flow(receiver.get(), wish(spec));
  };
  fill(nic::Limits{}.flows, 0, make);
}

TEST_F(RawLimits, Counters) {
  const auto make = [&] {
    ibv_counters_init_attr wanted{};
    return OwnRaw<ibv_counters>(ibv_create_counters(context.get(), &wanted));
  };
  fill(nic::Limits{}.counters, 0, make);
}

}  // namespace
}  // namespace verbena::verbs::testing
