// SPDX-License-Identifier: MIT
// The objects of one open device used from another: ibv_import_device and its company.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "fixture.h"
#include "other_process.h"

namespace verbena::verbs::testing {
namespace {

class Import : public VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    imported.reset(ibv_import_device(duplicate(context->cmd_fd)));
    ASSERT_TRUE(imported);
  }
  // Above all others: once it is closed, no thread of ours opens another of that number.
  static int duplicate(int fd) { return fcntl(fd, F_DUPFD_CLOEXEC, 900); }
  Own<ibv_context> imported;
};

TEST_F(Import, ADeviceKeepsItsDescriptor) {
  const int fd = imported->cmd_fd;
  EXPECT_NE(context->cmd_fd, fd);
  EXPECT_STREQ(ibv_get_device_name(context->device), ibv_get_device_name(imported->device));
  // An imported one can be imported.
  Own<ibv_context> again(ibv_import_device(duplicate(fd)));
  EXPECT_TRUE(again);
  imported.reset();
  EXPECT_EQ(-1, fcntl(fd, F_GETFD));
  EXPECT_EQ(EBADF, errno);
}

TEST_F(Import, WhatIsNoDeviceIsRefused) {
  EXPECT_EQ(nullptr, ibv_import_device(0));
  EXPECT_EQ(EOPNOTSUPP, errno);
  EXPECT_EQ(nullptr, ibv_import_device(-1));
  EXPECT_EQ(nullptr, ibv_import_pd(imported.get(), 0x7fffffff));
  EXPECT_EQ(EINVAL, errno);
  EXPECT_EQ(nullptr, ibv_import_dm(imported.get(), 0x7fffffff));
  EXPECT_EQ(nullptr, ibv_import_mr(pd.get(), 0x7fffffff));
}

// A queue pair on the imported domain, with the imported region, writes to itself.
TEST_F(Import, ADomainAndARegionServeAQueuePair) {
  ibv_pd* const other = ibv_import_pd(imported.get(), pd->handle);
  ASSERT_TRUE(other);
  ibv_mr* const region = ibv_import_mr(other, mr->handle);
  ASSERT_TRUE(region);
  EXPECT_EQ(mr->rkey, region->rkey);
  EXPECT_EQ(mr->length, region->length);
  EXPECT_EQ(nullptr, region->addr);
  EXPECT_EQ(EINVAL, ibv_dereg_mr(region));
  const Own<ibv_cq> completions(ibv_create_cq(imported.get(), 16, nullptr, nullptr, 0));
  ibv_qp_init_attr wanted = {};
  wanted.send_cq = wanted.recv_cq = completions.get();
  wanted.cap.max_send_wr = wanted.cap.max_recv_wr = 4;
  wanted.cap.max_send_sge = wanted.cap.max_recv_sge = 1;
  wanted.qp_type = IBV_QPT_RC;
  Own<ibv_qp> qp(ibv_create_qp(other, &wanted));
  ASSERT_TRUE(qp);
  connect(qp.get());
  memory[0] = 5;
  ibv_sge from = {.addr = address(0), .length = 64, .lkey = region->lkey};
  ibv_send_wr request = send(from, 1, IBV_WR_RDMA_WRITE);
  request.wr.rdma = {.remote_addr = address(1024), .rkey = region->rkey};
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(0, ibv_post_send(qp.get(), &request, &bad));
  ibv_wc done = {};
  while (ibv_poll_cq(completions.get(), 1, &done) == 0) {
  }
  EXPECT_EQ(IBV_WC_SUCCESS, done.status);
  EXPECT_EQ(5, memory[1024]);
  ibv_unimport_mr(region);
  // The queue pair goes on, and keeps the domain.
  ibv_unimport_pd(other);
  mr.reset();
  EXPECT_EQ(EBUSY, ibv_dealloc_pd(pd.get()));
  qp.reset();
  EXPECT_EQ(0, ibv_dealloc_pd(pd.release()));
}

TEST_F(Import, ARegionOfAnotherDomainIsNotFound) {
  const Own<ibv_pd> other(ibv_alloc_pd(context.get()));
  EXPECT_EQ(nullptr, ibv_import_mr(other.get(), mr->handle));
  EXPECT_EQ(EINVAL, errno);
}

TEST_F(Import, DeviceMemoryIsTheSame) {
  ibv_alloc_dm_attr wanted = {.length = 4096, .log_align_req = 0, .comp_mask = 0};
  ibv_dm* const dm = ibv_alloc_dm(context.get(), &wanted);
  ASSERT_TRUE(dm);
  ibv_dm* const same = ibv_import_dm(imported.get(), dm->handle);
  ASSERT_TRUE(same);
  const std::uint64_t word = 0x1234;
  std::uint64_t read = 0;
  EXPECT_EQ(0, ibv_memcpy_to_dm(dm, 8, &word, sizeof word));
  EXPECT_EQ(0, ibv_memcpy_from_dm(&read, same, 8, sizeof read));
  EXPECT_EQ(word, read);
  EXPECT_EQ(EINVAL, ibv_free_dm(same));
  ibv_unimport_dm(same);
  EXPECT_EQ(0, ibv_free_dm(dm));
}

// What is behind its handles lies in the other process.
TEST_F(Import, ADeviceOfAnotherProcessIsRefused) {
  OtherProcess other("ShowADevice");
  const auto shown = other.talk().hear();
  ASSERT_TRUE(shown && shown->fd);
  EXPECT_EQ(nullptr, ibv_import_device(shown->fd.get()));
  EXPECT_EQ(EOPNOTSUPP, errno);
  EXPECT_NE(-1, fcntl(shown->fd.get(), F_GETFD)) << "it stays the program's";
  other.talk().say(0);
  EXPECT_TRUE(other.ended_well());
}

}  // namespace
}  // namespace verbena::verbs::testing
