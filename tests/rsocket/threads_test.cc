// SPDX-License-Identifier: MIT
// A stream that several threads use, one of which waits in a call of it.
#include <endian.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <rdma/rsocket.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>
#include <vector>

namespace verbena {
namespace {

constexpr std::chrono::milliseconds kPause{100};  // that it waits by then is likely

class RsocketThreads : public ::testing::Test {
 protected:
  RsocketThreads() : listener(rsocket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htobe32(INADDR_LOOPBACK);
    socklen_t size = sizeof name;
    auto* const address = reinterpret_cast<sockaddr*>(&name);
    EXPECT_EQ(rbind(listener, address, size), 0);
    EXPECT_EQ(rlisten(listener, 1), 0);
    EXPECT_EQ(rgetsockname(listener, address, &size), 0);
    std::thread client([&] {
      here = rsocket(AF_INET, SOCK_STREAM, 0);
      EXPECT_EQ(rconnect(here, address, size), 0);
    });
    there = raccept(listener, nullptr, nullptr);
    client.join();
  }
  ~RsocketThreads() override {
    for (const int fd : {here, there, listener})
      EXPECT_EQ(rclose(fd), 0);
  }
  static void set_timeout(int fd, int option, suseconds_t microseconds) {
    const timeval timeout{0, microseconds};
    ASSERT_EQ(rsetsockopt(fd, SOL_SOCKET, option, &timeout, sizeof timeout), 0);
  }

  int listener;
  int here = -1;
  int there = -1;
};

// The thread may hold whatever there is at that moment, and is not there to let go.
TEST_F(RsocketThreads, AForkedChildClosesWhatAnotherIsAmid) {
  std::atomic<bool> ends{false};
  std::thread sender([&] {
    const std::vector<char> bytes(100'000);
    while (!ends && rsend(here, bytes.data(), bytes.size(), 0) > 0) {
    }
  });
  std::thread receiver([&] {
    std::vector<char> bytes(100'000);
    while (rrecv(there, bytes.data(), bytes.size(), 0) > 0) {
    }
  });
  for (int i = 0; i < 30; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      char byte = 0;
      bool is_good = rrecv(there, &byte, 1, 0) == -1 && errno == EIO;
      is_good = is_good && rsend(here, &byte, 1, 0) == -1 && errno == EIO;
      for (const int fd : {here, there, listener})
        is_good = is_good && rclose(fd) == 0;
      is_good = is_good && dup(STDIN_FILENO) <= std::max({here, there, listener});  // all closed
      _exit(is_good ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0) << i;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ends = true;
  sender.join();
  EXPECT_EQ(rshutdown(here, SHUT_RDWR), 0);
  receiver.join();
}

// A handler that wants calls to go on, and one that does not.
TEST_F(RsocketThreads, ACallGoesOnAfterAHandlerThatWantsThat) {
  for (const bool restarts : {true, false}) {
    struct sigaction action{};
    action.sa_handler = [](int) {};
    action.sa_flags = restarts ? SA_RESTART : 0;
    ASSERT_EQ(sigaction(SIGUSR1, &action, nullptr), 0);
    std::thread receiver([&] {
      char byte = 0;
      EXPECT_EQ(rrecv(there, &byte, 1, 0), restarts ? 1 : -1) << errno;
      EXPECT_TRUE(restarts || errno == EINTR);
    });
    std::this_thread::sleep_for(kPause);
    EXPECT_EQ(pthread_kill(receiver.native_handle(), SIGUSR1), 0);
    std::this_thread::sleep_for(kPause);
    EXPECT_EQ(restarts ? rsend(here, "a", 1, 0) : 1, 1);
    receiver.join();
  }
  signal(SIGUSR1, SIG_DFL);
}

TEST_F(RsocketThreads, AListenerGoesOnWhenItsSendingHalfEnds) {
  EXPECT_EQ(rshutdown(listener, SHUT_WR), 0);
  EXPECT_EQ(rfcntl(listener, F_SETFL, O_NONBLOCK), 0);
  EXPECT_EQ(raccept(listener, nullptr, nullptr), -1);
  EXPECT_EQ(errno, EAGAIN);
}

// Who waits looks again by itself after five seconds, whether it was woken or not.
class RsocketWakes : public RsocketThreads {
 protected:
  template <class Wake>
  static void wake(std::thread& who, Wake wake_it) {
    const auto begin = std::chrono::steady_clock::now();
    std::this_thread::sleep_for(kPause);
    EXPECT_EQ(wake_it(), 0);
    who.join();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(4));
  }
};

TEST_F(RsocketWakes, AShutdownWakesWhoReceives) {
  std::thread receiver([&] {
    char byte = 0;
    EXPECT_EQ(rrecv(there, &byte, 1, 0), 0);
  });
  wake(receiver, [&] { return rshutdown(there, SHUT_RD); });
}

TEST_F(RsocketWakes, AListenersEndWakesWhoAccepts) {
  std::thread server([&] {
    EXPECT_EQ(raccept(listener, nullptr, nullptr), -1);
    EXPECT_EQ(errno, EINVAL);
  });
  wake(server, [&] { return rshutdown(listener, SHUT_RDWR); });
}

TEST_F(RsocketThreads, ACallWaitsForAsLongAsItsSocketSays) {
  set_timeout(there, SO_RCVTIMEO, 20'000);
  char byte = 0;
  EXPECT_EQ(rrecv(there, &byte, 1, 0), -1);
  EXPECT_EQ(errno, EAGAIN);
  set_timeout(listener, SO_RCVTIMEO, 20'000);
  EXPECT_EQ(raccept(listener, nullptr, nullptr), -1);
  EXPECT_EQ(errno, EAGAIN);
  set_timeout(here, SO_SNDTIMEO, 20'000);
  const std::vector<char> bytes(1 << 20);
  while (rsend(here, bytes.data(), bytes.size(), 0) > 0) {
  }
  EXPECT_EQ(errno, EAGAIN);

  timeval known{};
  socklen_t size = sizeof known;
  EXPECT_EQ(rgetsockopt(here, SOL_SOCKET, SO_SNDTIMEO, &known, &size), 0);
  EXPECT_EQ(known.tv_usec, 20'000);
  EXPECT_EQ(rgetsockopt(here, SOL_SOCKET, SO_RCVTIMEO, &known, &size), 0);
  EXPECT_EQ(known.tv_usec, 0);
  const timeval none{0, 1'000'000};
  EXPECT_EQ(rsetsockopt(here, SOL_SOCKET, SO_SNDTIMEO, &none, sizeof none), -1);
  EXPECT_EQ(errno, EDOM);
}

}  // namespace
}  // namespace verbena
