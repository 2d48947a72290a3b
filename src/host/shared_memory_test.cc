// SPDX-License-Identifier: MIT
#include "host/shared_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "host/fork_guard.h"

namespace verbena::host {
namespace {

// A memfd with some of the seals, as a peer that is careless or hostile might pass it.
PrivateFd memfd(std::size_t size, int seals) {
  PrivateFd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(size)), 0);
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}
constexpr int kAllSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// Runs `body` in a forked child and gives what it returns.
template <class Body>
int in_child(Body body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

TEST(SharedMemory, IsTheSameMemoryForBothSides) {
  auto mine = SharedMemory::create(100);
  ASSERT_TRUE(mine);
  auto theirs = SharedMemory::adopt(mine->fd, 100);
  ASSERT_TRUE(theirs);
  EXPECT_EQ(mine->memory.size() % 4096, 0u);
  EXPECT_NE(mine->memory.data(), theirs->data());
  std::strcpy(reinterpret_cast<char*>(mine->memory.data()), "verbena");
  EXPECT_STREQ(reinterpret_cast<const char*>(theirs->data()), "verbena");
}

TEST(SharedMemory, OutlivesItsDescriptorsAndMoves) {
  auto mine = SharedMemory::create(4096);
  ASSERT_TRUE(mine);
  auto adopted = SharedMemory::adopt(mine->fd, 4096);
  ASSERT_TRUE(adopted);
  mine->fd.reset();
  SharedMemory theirs = std::move(*adopted);
  EXPECT_FALSE(*adopted);
  mine->memory.at<int>(8) = 42;
  EXPECT_EQ(theirs.at<int>(8), 42);
  theirs = SharedMemory();
  EXPECT_FALSE(theirs);
  EXPECT_EQ(mine->memory.at<int>(8), 42);
}

TEST(SharedMemory, CannotChangeItsSize) {
  auto mine = SharedMemory::create(8192);
  ASSERT_TRUE(mine);
  EXPECT_NE(ftruncate(mine->fd.get(), 0), 0);
  EXPECT_NE(ftruncate(mine->fd.get(), 1 << 20), 0);
}

TEST(SharedMemory, RefusesWhatCouldStillShrink) {
  for (const int seals : {0, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SHRINK | F_SEAL_GROW}) {
    const PrivateFd fd = memfd(4096, seals);
    auto adopted = SharedMemory::adopt(fd, 4096);
    ASSERT_FALSE(adopted);
    EXPECT_EQ(adopted.error(), MemoryError::kNotSealed);
  }
  EXPECT_TRUE(SharedMemory::adopt(memfd(4096, kAllSeals), 4096));
}

TEST(SharedMemory, RefusesAnotherSize) {
  for (const std::size_t size : {0, 1, 4095, 4097, 8192}) {
    auto adopted = SharedMemory::adopt(memfd(size, kAllSeals), 4096);
    ASSERT_FALSE(adopted);
    EXPECT_EQ(adopted.error(), MemoryError::kWrongSize);
  }
  EXPECT_FALSE(SharedMemory::adopt(memfd(0, kAllSeals), 0));
  EXPECT_FALSE(SharedMemory::adopt(memfd(4096, kAllSeals), SIZE_MAX));
}

TEST(SharedMemory, RefusesWhatIsNoMemfd) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const PrivateFd in(ends[0]), out(ends[1]), file(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  for (const PrivateFd* fd : {&in, &out, &file}) {
    auto adopted = SharedMemory::adopt(*fd, 4096);
    ASSERT_FALSE(adopted);
    EXPECT_EQ(adopted.error(), MemoryError::kNotSealed);
  }
  EXPECT_FALSE(SharedMemory::adopt(PrivateFd(), 4096));
}

TEST(SharedMemory, RefusesMemoryThatItMayNotWrite) {
  auto adopted = SharedMemory::adopt(memfd(4096, F_SEAL_FUTURE_WRITE | kAllSeals), 4096);
  ASSERT_FALSE(adopted);
  EXPECT_EQ(adopted.error(), MemoryError::kDenied);
}

TEST(SharedMemory, RefusesHugePagesOfAPeer) {
  const PrivateFd fd(memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
  if (!fd) GTEST_SKIP() << "the kernel has no huge pages";
  constexpr std::size_t kHuge = 2 << 20;
  if (ftruncate(fd.get(), kHuge) != 0) GTEST_SKIP() << "huge pages of another size";
  ASSERT_EQ(fcntl(fd.get(), F_ADD_SEALS, kAllSeals), 0);
  auto adopted = SharedMemory::adopt(fd, kHuge);
  ASSERT_FALSE(adopted);
  EXPECT_EQ(adopted.error(), MemoryError::kNotSealed);
}

TEST(SharedMemory, SaysWhenThereIsNoRoom) {
  EXPECT_EQ(SharedMemory::create(0).error(), MemoryError::kNoMemory);
  EXPECT_EQ(SharedMemory::create(SIZE_MAX).error(), MemoryError::kNoMemory);
  EXPECT_EQ(in_child([] {
              const rlimit none{3, 3};
              setrlimit(RLIMIT_NOFILE, &none);
              auto refused = SharedMemory::create(4096);
              return refused || refused.error() != MemoryError::kNoDescriptor;
            }),
            0);
  EXPECT_EQ(in_child([] {
              signal(SIGXFSZ, SIG_IGN);
              const rlimit small{4096, 4096};
              setrlimit(RLIMIT_FSIZE, &small);
              auto refused = SharedMemory::create(8192);
              return refused || refused.error() != MemoryError::kNoMemory;
            }),
            0);
}

TEST(SharedMemory, StaysOutOfForkedChildren) {
  auto mine = SharedMemory::create(4096);
  ASSERT_TRUE(mine);
  const auto address = reinterpret_cast<std::uintptr_t>(mine->memory.data());
  EXPECT_EQ(in_child([&] {
              std::ifstream maps("/proc/self/maps");
              std::uintptr_t from = 0, to = 0;
              char dash = 0;
              for (std::string rest; maps >> std::hex >> from >> dash >> to; getline(maps, rest)) {
                if (from <= address && address < to) return 1;
              }
              return 0;
            }),
            0);
}

TEST(SharedMemory, UnmapsNothingInAForkedChild) {
  auto mine = SharedMemory::create(4096);
  ASSERT_TRUE(mine);
  EXPECT_EQ(in_child([&] {
              // Something of the child's own where the parent has its memory.
              auto* own = static_cast<int*>(mmap(mine->memory.data(), 4096, PROT_READ | PROT_WRITE,
                                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
              mine->memory = SharedMemory();
              *own = 7;  // a crash if it went
              return *own - 7;
            }),
            0);
}

TEST(PrivateFd, ClosesNoStrangersDescriptor) {
  auto fd = std::make_unique<PrivateFd>(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int number = fd->get();
  std::thread([&] { fd.reset(); }).join();
  EXPECT_GE(fcntl(number, F_GETFD), 0);
  close(number);
}

TEST(ForkGuard, KnowsAChild) {
  const ForkGuard guard;
  EXPECT_TRUE(guard.in_owner());
  EXPECT_EQ(in_child([&] { return guard.in_owner() ? 1 : 0; }), 0);
  EXPECT_EQ(in_child([&] { return in_child([&] { return guard.in_owner() ? 1 : 0; }); }), 0);
  EXPECT_TRUE(guard.in_owner());
}

}  // namespace
}  // namespace verbena::host
