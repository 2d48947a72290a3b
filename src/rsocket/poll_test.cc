// SPDX-License-Identifier: MIT
#include "rsocket/poll.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <thread>

#include "rsocket/socket.h"

namespace verbena::rsocket {
namespace {

// Becomes readable when its event comes; some are from the beginning, or as soon as a wait begins.
class Fake final : public Socket {
 public:
  enum class Ready : std::uint8_t { kNever, kAtOnce, kWhenArmed };
  explicit Fake(Ready when) : Socket(AF_INET, SOCK_STREAM), when_(when) {
    event_ = UniqueFd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    watch(event_.get());
  }
  void announce() const {
    const std::uint64_t one = 1;
    EXPECT_EQ(write(event_.get(), &one, sizeof one), 8);
  }

  int bind(const sockaddr*, socklen_t) override { return EOPNOTSUPP; }
  int listen(int) override { return EOPNOTSUPP; }
  Result<Socket*, int> accept() override { return refuse(EOPNOTSUPP); }
  int connect(const sockaddr*, socklen_t) override { return EOPNOTSUPP; }
  int shutdown(int) override { return EOPNOTSUPP; }
  void close() override {}
  Result<std::size_t, int> receive(std::span<const iovec>, int, Sender*) override {
    return refuse(EOPNOTSUPP);
  }
  Result<std::size_t, int> send(std::span<const iovec>, int, const sockaddr*, socklen_t) override {
    return refuse(EOPNOTSUPP);
  }
  int name(sockaddr_storage&, socklen_t&) override { return EOPNOTSUPP; }
  int peer_name(sockaddr_storage&, socklen_t&) override { return EOPNOTSUPP; }
  int set_option(int, int, const void*, socklen_t) override { return EOPNOTSUPP; }
  int get_option(int, int, void*, socklen_t*) override { return EOPNOTSUPP; }

 protected:
  bool advance() override {
    std::uint64_t count = 0;
    if (read(event_.get(), &count, sizeof count) == sizeof count) when_ = Ready::kAtOnce;
    return when_ == Ready::kAtOnce;
  }
  void arm() override {
    if (when_ == Ready::kWhenArmed) when_ = Ready::kAtOnce;
  }
  short readiness() override { return when_ == Ready::kAtOnce ? POLLIN : short{0}; }

 private:
  Ready when_;
  UniqueFd event_;
};

// In the table while a test lasts.
class Open {
 public:
  explicit Open(Fake::Ready when = Fake::Ready::kNever)
      : socket_(new Fake(when)), fd_(enter(socket_).value()) {}
  ~Open() { take_out(fd_); }
  Open(const Open&) = delete;
  Open& operator=(const Open&) = delete;
  Fake& socket() const { return *socket_; }
  pollfd wanted(short events = POLLIN) const { return {fd_, events, 0}; }

 private:
  Fake* socket_;
  int fd_;
};

Instant in(Duration time) { return clock_now() + time; }

// Those behind it then do not wait at all.
TEST(Poll, SeesWhatBecomesReadyAsItBeginsToWait) {
  for (std::size_t which = 0; which < 3; ++which) {
    const auto when = [which](std::size_t each) {
      return each == which ? Fake::Ready::kWhenArmed : Fake::Ready::kNever;
    };
    const std::array<Open, 3> open = {Open(when(0)), Open(when(1)), Open(when(2))};
    std::array fds = {open[0].wanted(), open[1].wanted(), open[2].wanted()};
    EXPECT_EQ(poll_all(fds.data(), fds.size(), Instant::never()), 1);
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_EQ(fds[i].revents, i == which ? POLLIN : 0);
  }
}

TEST(Poll, WakesForEachOfSeveralSockets) {
  for (int which = 0; which < 2; ++which) {
    const Open first;
    const Open second;
    std::array fds = {first.wanted(), second.wanted()};
    std::thread other([&] {
      usleep(20'000);
      (which == 0 ? first : second).socket().announce();
    });
    EXPECT_EQ(poll_all(fds.data(), fds.size(), in(Duration::seconds(20))), 1);
    EXPECT_EQ(fds[static_cast<std::size_t>(which)].revents, POLLIN);
    other.join();
  }
}

TEST(Poll, LooksAtOrdinaryDescriptorsAsWell) {
  const UniqueFd event(eventfd(1, EFD_CLOEXEC));
  const Open idle;
  std::array fds = {pollfd{-1, POLLIN, 0}, idle.wanted(), pollfd{event.get(), POLLIN, 0}};
  EXPECT_EQ(poll_all(fds.data(), fds.size(), Instant::never()), 1);
  EXPECT_EQ(fds[0].revents, 0);
  EXPECT_EQ(fds[2].revents, POLLIN);
}

TEST(Poll, EndsAtItsTime) {
  const Open idle;
  std::array fds = {idle.wanted()};
  const Instant begin = clock_now();
  EXPECT_EQ(poll_all(fds.data(), fds.size(), begin + Duration::milliseconds(5)), 0);
  EXPECT_GE(clock_now(), begin + Duration::milliseconds(5));
}

TEST(Select, CountsEachMeaningAndClearsTheRest) {
  const Open ready(Fake::Ready::kAtOnce);
  const Open idle;
  fd_set readable;
  FD_ZERO(&readable);
  const int first = ready.wanted().fd;
  const int second = idle.wanted().fd;
  FD_SET(first, &readable);
  FD_SET(second, &readable);
  fd_set writable = readable;
  const int count = std::max(first, second) + 1;
  EXPECT_EQ(select_all(count, &readable, &writable, nullptr, in(Duration::seconds(20))), 1);
  EXPECT_TRUE(FD_ISSET(first, &readable));
  EXPECT_FALSE(FD_ISSET(second, &readable));
  EXPECT_FALSE(FD_ISSET(first, &writable));
}

TEST(Select, RefusesADescriptorThatIsNone) {
  const Open idle;
  fd_set readable;
  FD_ZERO(&readable);
  // Above all others, so that no other thread opens another of that number.
  const int closed = fcntl(idle.wanted().fd, F_DUPFD_CLOEXEC, 900);
  ::close(closed);
  FD_SET(closed, &readable);
  EXPECT_EQ(select_all(closed + 1, &readable, nullptr, nullptr, Instant::never()), -1);
  EXPECT_EQ(errno, EBADF);
}

}  // namespace
}  // namespace verbena::rsocket
