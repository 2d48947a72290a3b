// SPDX-License-Identifier: MIT
// How long rclose() waits for what is on its way, by a clock that runs ahead.
#include <endian.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <rdma/rsocket.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

constexpr int kBuffer = 16 << 20;

// Of the thread that closes: half a second for each look at the clock.
thread_local bool is_ahead = false;
thread_local std::int64_t ahead_by = 0;  // half seconds

}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const auto done = static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  if (done == 0 && is_ahead) time->tv_sec += ++ahead_by / 2;
  return done;
}

namespace verbena {
namespace {

sockaddr_in loopback() {
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htobe32(INADDR_LOOPBACK);
  return name;
}

// A process that takes one connection, and tells how many bytes came by it.
void receive_all(int pipe) {
  const int listener = rsocket(AF_INET, SOCK_STREAM, 0);
  rsetsockopt(listener, SOL_SOCKET, SO_RCVBUF, &kBuffer, sizeof kBuffer);
  sockaddr_in name = loopback();
  socklen_t size = sizeof name;
  auto* const address = reinterpret_cast<sockaddr*>(&name);
  EXPECT_EQ(rbind(listener, address, size), 0);
  EXPECT_EQ(rlisten(listener, 1), 0);
  EXPECT_EQ(rgetsockname(listener, address, &size), 0);
  EXPECT_EQ(write(pipe, &name, sizeof name), ssize_t{sizeof name});
  const int fd = raccept(listener, nullptr, nullptr);
  EXPECT_GE(fd, 0);
  std::vector<char> bytes(1 << 20);
  std::uint64_t sum = 0;
  for (;;) {
    const ssize_t got = rrecv(fd, bytes.data(), bytes.size(), 0);
    if (got <= 0) break;
    sum += static_cast<std::uint64_t>(got);
  }
  EXPECT_EQ(write(pipe, &sum, sizeof sum), ssize_t{sizeof sum});
}

// As long as something moves, however long that takes.
TEST(RsocketClose, WaitsWhileAnythingMoves) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    receive_all(ends[1]);
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  close(ends[1]);
  sockaddr_in name{};
  ASSERT_EQ(read(ends[0], &name, sizeof name), ssize_t{sizeof name});
  const int fd = rsocket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(rsetsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kBuffer, sizeof kBuffer), 0);
  ASSERT_EQ(rconnect(fd, reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
  // All that it lets us send is on its way when it goes on.
  kill(child, SIGSTOP);
  waitpid(child, nullptr, WUNTRACED);
  const std::vector<char> bytes(1 << 20);
  std::uint64_t sent = 0;
  for (;;) {
    const ssize_t done = rsend(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (done <= 0) break;
    sent += static_cast<std::uint64_t>(done);
  }
  std::thread later([child] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    kill(child, SIGCONT);
  });
  is_ahead = true;
  EXPECT_EQ(rclose(fd), 0);
  is_ahead = false;
  later.join();
  std::uint64_t received = 0;
  EXPECT_EQ(read(ends[0], &received, sizeof received), ssize_t{sizeof received});
  EXPECT_GE(sent, std::uint64_t{kBuffer});
  EXPECT_EQ(received, sent);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  close(ends[0]);
}

}  // namespace
}  // namespace verbena
