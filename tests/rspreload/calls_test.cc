// SPDX-License-Identifier: MIT
// Calls of libc by a program whose sockets are rsockets.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <rdma/rsocket.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <stop_token>
#include <thread>

namespace verbena {
namespace {

bool is_rsocket(int fd) {
  int slots = 0;
  socklen_t size = sizeof slots;
  return getsockopt(fd, SOL_RDMA, RDMA_SQSIZE, &slots, &size) == 0;
}

TEST(RspreloadCalls, KeepAnRsocketThatNothingTakesThePlaceOf) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_TRUE(is_rsocket(fd));
  const int closed = dup(STDIN_FILENO);
  ASSERT_EQ(close(closed), 0);
  for (const int none : {-1, closed}) {
    errno = 0;
    EXPECT_EQ(dup2(none, fd), -1);
    EXPECT_EQ(errno, EBADF);
    EXPECT_EQ(dup3(none, fd, 0), -1);
    EXPECT_TRUE(is_rsocket(fd));
  }
  EXPECT_EQ(close(fd), 0);
}

// An rsocket keeps its number while it has other descriptors.
TEST(RspreloadCalls, PutNothingWhereAnRsocketIsHidden) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const int other = dup(fd);
  ASSERT_TRUE(is_rsocket(other));
  EXPECT_EQ(dup2(other, fd), fd) << "it is there already";
  EXPECT_TRUE(is_rsocket(fd));
  ASSERT_EQ(close(fd), 0);
  EXPECT_EQ(dup2(STDIN_FILENO, fd), -1);
  EXPECT_EQ(errno, EBUSY);
  EXPECT_TRUE(is_rsocket(other));
  EXPECT_EQ(close(other), 0);
  EXPECT_EQ(dup2(STDIN_FILENO, fd), fd);
  EXPECT_EQ(close(fd), 0);
}

// As programs of libuv close.
TEST(RspreloadCalls, ForgetAnRsocketThatASystemCallCloses) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_TRUE(is_rsocket(fd));
  EXPECT_EQ(syscall(SYS_close, fd), 0);
  EXPECT_FALSE(is_rsocket(fd));
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_TRUE(ends[0] == fd || ends[1] == fd) << "the number is free";
  EXPECT_EQ(write(ends[1], "a", 1), 1);
  char byte = 0;
  EXPECT_EQ(read(ends[0], &byte, 1), 1);
  for (const int end : ends)
    EXPECT_EQ(syscall(SYS_close, end), 0);
  EXPECT_EQ(syscall(SYS_close, ends[0]), -1);
  EXPECT_EQ(errno, EBADF);
  EXPECT_EQ(syscall(SYS_getpid), getpid());
}

class RspreloadRanges : public ::testing::TestWithParam<bool> {};

TEST_P(RspreloadRanges, AreForgotten) {
  const int first = socket(AF_INET, SOCK_STREAM, 0);
  const int second = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_TRUE(is_rsocket(first) && is_rsocket(second));
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    const bool by_system_call = GetParam();
    EXPECT_EQ(by_system_call ? syscall(SYS_close_range, 3, ~0u, 0) : close_range(3, ~0u, 0), 0);
    for (int i = 0; i < 20; ++i) {
      const int file = open("/proc/self/comm", O_RDONLY);
      char byte = 0;
      EXPECT_EQ(read(file, &byte, 1), 1) << i;
    }
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  for (const int fd : {first, second})
    EXPECT_EQ(close(fd), 0);
  EXPECT_EQ(close(first), -1);
}
INSTANTIATE_TEST_SUITE_P(Ways, RspreloadRanges, ::testing::Bool());

TEST(RspreloadCalls, CloseEachNumberOnce) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const int other = dup(fd);
  EXPECT_EQ(close(fd), 0);
  EXPECT_EQ(close(fd), -1);
  EXPECT_EQ(errno, EBADF);
  EXPECT_TRUE(is_rsocket(other));
  EXPECT_EQ(close(other), 0);
}

// Whoever opens something meanwhile does not get the number.
TEST(RspreloadCalls, PutAnotherInThePlaceOfAnRsocketAtOnce) {
  std::atomic<int> wrong{0};
  std::jthread opener([&](const std::stop_token& end) {
    while (!end.stop_requested()) {
      const int file = open("/proc/self/comm", O_RDONLY);
      struct stat status{};
      if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) ++wrong;
      close(file);
    }
  });
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  for (int i = 0; i < 300; ++i) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    ASSERT_TRUE(is_rsocket(fd));
    ASSERT_EQ(dup2(pipe_ends[0], fd), fd);
    struct stat status{};
    ASSERT_EQ(fstat(fd, &status), 0);
    ASSERT_TRUE(S_ISFIFO(status.st_mode));
    ASSERT_EQ(close(fd), 0);
  }
  opener.request_stop();
  opener.join();
  EXPECT_EQ(wrong, 0);
  for (const int end : pipe_ends)
    close(end);
}

bool take_over(int kept, int replaced) {
  return dup2(kept, STDOUT_FILENO) == STDOUT_FILENO && dup2(STDIN_FILENO, replaced) == replaced &&
         close(kept) == 0 && dup(STDIN_FILENO) >= 0;  // in its place
}

// It closes what it inherits, and gives what it runs other standard descriptors: all in the memory
// of its parent, as posix_spawn(3) and Python's subprocess do.
TEST(RspreloadCalls, OfAChildOfVforkAreNothingToItsParent) {
  const int kept = socket(AF_INET, SOCK_STREAM, 0);
  const int replaced = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_TRUE(is_rsocket(kept) && is_rsocket(replaced));
  const pid_t child = vfork();  // NOLINT(bugprone-unsafe-functions): others call it
  if (child == 0)
    _exit(take_over(kept, replaced) ? 0 : 1);  // NOLINT(clang-analyzer-unix.Vfork): as they do
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(is_rsocket(STDOUT_FILENO));
  for (const int fd : {kept, replaced}) {
    EXPECT_TRUE(is_rsocket(fd)) << fd;
    EXPECT_EQ(close(fd), 0);
    EXPECT_FALSE(is_rsocket(fd));
  }
}

}  // namespace
}  // namespace verbena
