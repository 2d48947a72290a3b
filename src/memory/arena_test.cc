// SPDX-License-Identifier: MIT
#include "memory/arena.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <thread>

#include "memory/test_memory.h"

namespace verbena::memory {
namespace {

TEST(Arena, PlacesAreFarApartAndNeverUsedTwice) {
  auto arena = Arena::create(ArenaKind::kPeersWrite, 3);
  ASSERT_TRUE(arena);
  EXPECT_EQ(arena->generation(), 3u);
  const auto first = arena->take_place();
  const auto second = arena->take_place();
  ASSERT_TRUE(first && second);
  EXPECT_EQ(*second - *first, Arena::kPlaceStride);
  arena->clear_place(*first);
  const auto third = arena->take_place();
  ASSERT_TRUE(third);
  EXPECT_EQ(*third - *second, Arena::kPlaceStride);
}

TEST(Arena, ItsPlacesEnd) {
  auto arena = Arena::create(ArenaKind::kPeersWrite, 1, 2);
  ASSERT_TRUE(arena);
  EXPECT_TRUE(arena->take_place());
  EXPECT_TRUE(arena->take_place());
  EXPECT_FALSE(arena->take_place());
  EXPECT_FALSE(arena->take_place());
}

TEST(Arena, ItsSizeIsFixed) {
  const auto arena = Arena::create(ArenaKind::kPeersWrite, 1);
  ASSERT_TRUE(arena);
  EXPECT_NE(ftruncate(arena->descriptor(), 4096), 0);
  EXPECT_NE(ftruncate(arena->descriptor(), 0), 0);
  EXPECT_NE(fcntl(arena->descriptor(), F_ADD_SEALS, F_SEAL_WRITE), 0);
  EXPECT_EQ(fcntl(arena->descriptor(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

TEST(Arena, AClearedPlaceIsZero) {
  auto arena = Arena::create(ArenaKind::kPeersWrite, 1);
  ASSERT_TRUE(arena);
  arena->take_place();
  const auto place = arena->take_place();
  ASSERT_TRUE(place);
  char bytes[100];
  std::memset(bytes, 1, sizeof bytes);
  const auto at = static_cast<off_t>(*place);
  ASSERT_EQ(pwrite(arena->file(), bytes, sizeof bytes, at), 100);
  arena->clear_place(*place);
  ASSERT_EQ(pread(arena->file(), bytes, sizeof bytes, at), 100);
  for (const char each : bytes)
    EXPECT_EQ(each, 0);
}

TEST(Arena, ReadersCannotMapForWriting) {
  const auto arena = Arena::create(ArenaKind::kPeersRead, 1);
  ASSERT_TRUE(arena);
  EXPECT_NE(arena->descriptor(), arena->file());
  EXPECT_EQ(mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, arena->descriptor(), 0),
            MAP_FAILED);
  void* const at = mmap(nullptr, kPage, PROT_READ, MAP_SHARED, arena->descriptor(), 0);
  ASSERT_NE(at, MAP_FAILED);
  munmap(at, kPage);
}

TEST(Arena, ALimitOnFilesIsARefusalAndNoSignal) {
  rlimit limit;
  getrlimit(RLIMIT_FSIZE, &limit);
  const rlimit small{.rlim_cur = 1 << 20, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto arena = Arena::create(ArenaKind::kPeersWrite, 1);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  ASSERT_FALSE(arena);
  EXPECT_EQ(arena.error(), ArenaError::kFileSizeLimit);
}

TEST(Arena, NoDescriptorLeft) {
  rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit none{.rlim_cur = 0, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto arena = Arena::create(ArenaKind::kPeersWrite, 1);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_FALSE(arena);
  EXPECT_EQ(arena.error(), ArenaError::kNoDescriptor);
}

TEST(TableFd, IsOfOneThreadAndOneFile) {
  TableFd fd(open("/dev/null", O_RDWR | O_CLOEXEC));
  const int number = fd.get();
  ASSERT_GE(number, 0);
  std::thread([&] { EXPECT_EQ(fd.get(), -1); }).join();
  // The program closes it, and opens something else.
  close(number);
  EXPECT_EQ(fd.get(), -1);
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  ASSERT_TRUE(pipes[0] == number || dup2(pipes[0], number) == number);
  EXPECT_EQ(fd.get(), -1);
  fd.reset();
  EXPECT_GE(fcntl(number, F_GETFD), 0) << "closed a stranger's file";
  close(pipes[0]);
  close(pipes[1]);
  close(number);
}

}  // namespace
}  // namespace verbena::memory
