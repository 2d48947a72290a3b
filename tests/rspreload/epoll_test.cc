// SPDX-License-Identifier: MIT
// epoll(7) by a program whose sockets are rsockets.
#include <endian.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <rdma/rsocket.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <limits>
#include <thread>

namespace verbena {
namespace {

constexpr std::chrono::milliseconds kPause{100};  // that it waits by then is likely
constexpr int kPatience = 20'000;                 // milliseconds

#if defined(__has_feature)
constexpr bool kThreadSanitizer = __has_feature(thread_sanitizer);
constexpr bool kAddressSanitizer = __has_feature(address_sanitizer);
#else
constexpr bool kThreadSanitizer = false;
constexpr bool kAddressSanitizer = false;
#endif

class RspreloadEpoll : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kThreadSanitizer) GTEST_SKIP() << "inside of libc's calls the sanitizer sees no locks";
  }
  ~RspreloadEpoll() override {
    close(set);
    for (const int fd : {here, there, listener}) {
      if (fd < 0) continue;
      EXPECT_EQ(close(fd), 0);
    }
  }
  void listen_at_loopback() {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htobe32(INADDR_LOOPBACK);
    ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
    ASSERT_EQ(listen(listener, 4), 0);
  }
  void connect_here() {
    sockaddr_in name{};
    socklen_t size = sizeof name;
    auto* const address = reinterpret_cast<sockaddr*>(&name);
    ASSERT_EQ(getsockname(listener, address, &size), 0);
    here = socket(AF_INET, SOCK_STREAM, 0);
    ASSERT_EQ(connect(here, address, size), 0);
  }
  void connect_both() {
    listen_at_loopback();
    std::thread client([this] { connect_here(); });
    there = accept(listener, nullptr, nullptr);
    client.join();
    ASSERT_GE(there, 0);
  }
  static void add(int epoll, int fd, std::uint32_t events) {
    epoll_event event{.events = events, .data = {.fd = fd}};
    ASSERT_EQ(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), 0);
  }
  // Of which descriptor one event came; -1: none.
  static int next(int epoll, int patience = kPatience) {
    epoll_event event{};
    return epoll_wait(epoll, &event, 1, patience) == 1 ? event.data.fd : -1;
  }

  const int set = epoll_create1(EPOLL_CLOEXEC);
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  int here = -1;
  int there = -1;
};

// As event loops are woken that share a set with who registers: by a descriptor of its own, while
// the loop waits already.
TEST_F(RspreloadEpoll, CallsOutWhoWaitedBeforeTheFirstRsocket) {
  ASSERT_NO_FATAL_FAILURE(connect_both());
  const int other = dup(set);
  std::array<std::thread, 2> waiting;
  for (std::thread& each : waiting)
    each = std::thread([this] { EXPECT_EQ(next(set), there); });
  std::this_thread::sleep_for(kPause);
  ASSERT_NO_FATAL_FAILURE(add(other, there, EPOLLIN));
  std::this_thread::sleep_for(kPause);
  EXPECT_EQ(write(here, "a", 1), 1);
  for (std::thread& each : waiting)
    each.join();
  EXPECT_EQ(next(other), there);
  EXPECT_EQ(close(other), 0);
  EXPECT_EQ(next(set), there) << "it lives as long as one of its descriptors";
}

TEST_F(RspreloadEpoll, TellsEverybodyWhoWaitsOfAChange) {
  ASSERT_NO_FATAL_FAILURE(connect_both());
  ASSERT_NO_FATAL_FAILURE(add(set, listener, EPOLLIN));
  EXPECT_EQ(write(here, "a", 1), 1);
  std::array<std::thread, 3> waiting;
  for (std::thread& each : waiting)
    each = std::thread([this] { EXPECT_EQ(next(set), there); });
  std::this_thread::sleep_for(kPause);
  ASSERT_NO_FATAL_FAILURE(add(set, there, EPOLLIN));
  for (std::thread& each : waiting)
    each.join();
}

TEST_F(RspreloadEpoll, TellsOfASocketThatWasNothingWhenItCame) {
  ASSERT_NO_FATAL_FAILURE(add(set, listener, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET));
  EXPECT_EQ(next(set), listener) << "it is hung up";
  EXPECT_EQ(next(set, 0), -1);
  ASSERT_NO_FATAL_FAILURE(listen_at_loopback());
  std::thread client([this] { connect_here(); });
  EXPECT_EQ(next(set), listener);
  there = accept(listener, nullptr, nullptr);
  client.join();
}

// Which of its descriptors a program reads by does not matter.
TEST_F(RspreloadEpoll, TellsAgainOfWhatIsReadByAnotherDescriptor) {
  ASSERT_NO_FATAL_FAILURE(connect_both());
  const int other = dup(there);
  ASSERT_NO_FATAL_FAILURE(add(set, there, EPOLLIN | EPOLLET));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(write(here, "a", 1), 1);
    EXPECT_EQ(next(set), there);
    EXPECT_EQ(next(set, 0), -1);
    char byte = 0;
    EXPECT_EQ(read(other, &byte, 1), 1);
  }
  EXPECT_EQ(close(other), 0);
}

TEST_F(RspreloadEpoll, GivesBothKindsTheirTurn) {
  ASSERT_NO_FATAL_FAILURE(connect_both());
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  ASSERT_NO_FATAL_FAILURE(add(set, there, EPOLLIN));
  ASSERT_NO_FATAL_FAILURE(add(set, ends[0], EPOLLIN));
  EXPECT_EQ(write(here, "a", 1), 1);
  EXPECT_EQ(write(ends[1], "a", 1), 1);
  pollfd news{there, POLLIN, 0};
  ASSERT_EQ(poll(&news, 1, kPatience), 1);
  int turns = 0;
  for (int i = 0; i < 10; ++i)
    turns += next(set) == there ? 1 : 0;
  EXPECT_EQ(turns, 5);
  for (const int fd : ends)
    close(fd);
}

// Loops that are driven by others' give their set's descriptor away.
TEST_F(RspreloadEpoll, ASetIsReadableWhenOneOfItIs) {
  ASSERT_NO_FATAL_FAILURE(connect_both());
  ASSERT_NO_FATAL_FAILURE(add(set, there, EPOLLIN));
  pollfd news{set, POLLIN, 0};
  EXPECT_EQ(poll(&news, 1, 0), 0);
  EXPECT_EQ(write(here, "a", 1), 1);
  EXPECT_EQ(poll(&news, 1, kPatience), 1);
  EXPECT_EQ(news.revents, POLLIN);
}

TEST_F(RspreloadEpoll, APollerHearsWhatIsPutIntoItsSet) {
  ASSERT_NO_FATAL_FAILURE(connect_both());
  EXPECT_EQ(write(here, "a", 1), 1);
  std::thread waiting([this] {
    pollfd news{set, POLLIN, 0};
    EXPECT_EQ(poll(&news, 1, kPatience), 1);
  });
  std::this_thread::sleep_for(kPause);
  ASSERT_NO_FATAL_FAILURE(add(set, there, EPOLLIN));
  waiting.join();
}

// Nothing has come since it was told.
TEST_F(RspreloadEpoll, TellsOnceOfWhatIsOnlyLookedAtAndOfTheEnd) {
  ASSERT_NO_FATAL_FAILURE(connect_both());
  ASSERT_NO_FATAL_FAILURE(add(set, there, EPOLLIN | EPOLLRDHUP | EPOLLET));
  EXPECT_EQ(write(here, "a", 1), 1);
  EXPECT_EQ(next(set), there);
  char byte = 0;
  EXPECT_EQ(recv(there, &byte, 1, MSG_PEEK), 1);
  EXPECT_EQ(next(set, 0), -1);
  EXPECT_EQ(recv(there, &byte, 1, 0), 1);
  EXPECT_EQ(shutdown(here, SHUT_WR), 0);
  EXPECT_EQ(next(set), there);
  EXPECT_EQ(recv(there, &byte, 1, 0), 0);
  EXPECT_EQ(next(set, 0), -1);
}

TEST_F(RspreloadEpoll, WaitsForAsLongAsAProgramCanSay) {
  ASSERT_NO_FATAL_FAILURE(connect_both());
  ASSERT_NO_FATAL_FAILURE(add(set, there, EPOLLIN));
  std::thread later([this] {
    std::this_thread::sleep_for(kPause);
    EXPECT_EQ(write(here, "a", 1), 1);
  });
  epoll_event event{};
  const timespec longest{std::numeric_limits<time_t>::max(), 0};
  EXPECT_EQ(epoll_pwait2(set, &event, 1, &longest, nullptr), 1);
  later.join();
  const timespec none{0, 1'000'000'000};
  EXPECT_EQ(epoll_pwait2(set, &event, 1, &none, nullptr), -1);
  EXPECT_EQ(errno, EINVAL);
}

TEST_F(RspreloadEpoll, AnRsocketIsNoSet) {
  epoll_event event{.events = EPOLLIN, .data = {.fd = set}};
  EXPECT_EQ(epoll_ctl(listener, EPOLL_CTL_ADD, set, &event), -1);
  EXPECT_EQ(errno, EINVAL);
  here = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(epoll_ctl(listener, EPOLL_CTL_ADD, here, &event), -1);
  EXPECT_EQ(errno, EINVAL);
}

// The handler interrupts whatever the loop is amid; but for malloc(3), which bears no fork then.
TEST_F(RspreloadEpoll, AHandlerForksAmidACall) {
  if (kAddressSanitizer) GTEST_SKIP() << "the sanitizer bears no fork amid a call of its own";
  int pipe_ends[2];
  ASSERT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
  ASSERT_NO_FATAL_FAILURE(add(set, pipe_ends[0], EPOLLIN));
  static std::atomic<int> forks;
  forks = 0;
  struct sigaction action{};
  action.sa_handler = [](int) {
    const pid_t child = fork();
    if (child == 0) _exit(0);
    waitpid(child, nullptr, 0);
    ++forks;
  };
  struct sigaction before{};
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  const pthread_t loop = pthread_self();
  std::atomic<bool> ends{false};
  std::thread caller([&] {
    while (!ends) {
      pthread_kill(loop, SIGUSR1);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  });
  epoll_event event{};
  while (forks < 50)
    epoll_wait(set, &event, 1, 0);
  ends = true;
  caller.join();
  ASSERT_EQ(sigaction(SIGUSR1, &before, nullptr), 0);
  for (const int fd : pipe_ends)
    close(fd);
}

TEST_F(RspreloadEpoll, AForkedChildHasItsOwnView) {
  ASSERT_NO_FATAL_FAILURE(connect_both());
  ASSERT_NO_FATAL_FAILURE(add(set, there, EPOLLIN));
  std::thread waiting([this] { EXPECT_EQ(next(set), there); });
  std::this_thread::sleep_for(kPause);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    epoll_event event{.events = EPOLLIN, .data = {.fd = listener}};
    const bool is_good = epoll_ctl(set, EPOLL_CTL_ADD, listener, &event) == 0 &&
                         close(there) == 0 && close(set) == 0;
    _exit(is_good ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(write(here, "a", 1), 1);
  waiting.join();
}

TEST_F(RspreloadEpoll, ASetThatAChildOfVforkClosesIsNothingToItsParent) {
  ASSERT_NO_FATAL_FAILURE(connect_both());
  ASSERT_NO_FATAL_FAILURE(add(set, there, EPOLLIN));
  const pid_t child = vfork();        // NOLINT(bugprone-unsafe-functions): others call it
  if (child == 0) _exit(close(set));  // NOLINT(clang-analyzer-unix.Vfork): as they do
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(write(here, "a", 1), 1);
  EXPECT_EQ(next(set), there);
}

}  // namespace
}  // namespace verbena
