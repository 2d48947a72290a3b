// SPDX-License-Identifier: MIT
// What the calls of <rdma/rsocket.h> say to arguments that make no sense, and at odd times.
#include <endian.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <infiniband/ib.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <rdma/rsocket.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace verbena {
namespace {

// The errno of a call that fails with -1; 0 when it does not.
template <class Call>
int error_of(Call call) {
  errno = 0;
  return call() == -1 ? errno : 0;
}

class OpenSocket {
 public:
  explicit OpenSocket(int family, int type = SOCK_STREAM) : fd_(rsocket(family, type, 0)) {}
  ~OpenSocket() { EXPECT_EQ(rclose(fd_), 0); }
  OpenSocket(const OpenSocket&) = delete;
  OpenSocket& operator=(const OpenSocket&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

// The last bytes before a page that nobody may read: an address as short as it says.
class ShortAddress {
 public:
  ShortAddress(sa_family_t family, socklen_t size) : size_(size) {
    page_ = static_cast<char*>(
        mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_NE(page_, MAP_FAILED);
    EXPECT_EQ(mprotect(page_ + kPage, kPage, PROT_NONE), 0);
    if (size >= sizeof family) std::memcpy(page_ + kPage - size, &family, sizeof family);
  }
  ~ShortAddress() { munmap(page_, 2 * kPage); }
  ShortAddress(const ShortAddress&) = delete;
  ShortAddress& operator=(const ShortAddress&) = delete;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(page_ + kPage - size_); }
  socklen_t size() const { return size_; }

 private:
  static constexpr std::size_t kPage = 4096;
  char* page_;
  socklen_t size_;
};

struct Family {
  sa_family_t family;
  socklen_t size;
};
constexpr Family kFamilies[] = {
    {AF_INET, sizeof(sockaddr_in)}, {AF_INET6, sizeof(sockaddr_in6)}, {AF_IB, sizeof(sockaddr_ib)}};

TEST(RsocketCalls, RefuseAddressesThatAreTooShort) {
  for (const auto [family, whole] : kFamilies) {
    for (const socklen_t size : {0u, 1u, 2u, 8u, whole - 2}) {  // aligned, so not one less
      SCOPED_TRACE("family " + std::to_string(family) + ", " + std::to_string(size) + " bytes");
      const ShortAddress address(family, size);
      const OpenSocket socket(family);
      EXPECT_EQ(error_of([&] { return rbind(socket.fd(), address.get(), size); }), EINVAL);
      EXPECT_EQ(error_of([&] { return rconnect(socket.fd(), address.get(), size); }), EINVAL);
    }
  }
  const OpenSocket socket(AF_INET);
  EXPECT_EQ(error_of([&] { return rbind(socket.fd(), nullptr, sizeof(sockaddr_in)); }), EINVAL);
  EXPECT_EQ(error_of([&] { return rconnect(socket.fd(), nullptr, sizeof(sockaddr_in)); }), EINVAL);
}

TEST(RsocketCalls, RefuseSocketsThatThereAreNot) {
  EXPECT_EQ(error_of([] { return rsocket(AF_UNIX, SOCK_STREAM, 0); }), EAFNOSUPPORT);
  EXPECT_EQ(error_of([] { return rsocket(AF_INET, SOCK_SEQPACKET, 0); }), EPROTONOSUPPORT);
  EXPECT_EQ(error_of([] { return rsocket(AF_INET, SOCK_STREAM, IPPROTO_UDP); }), EPROTONOSUPPORT);
  EXPECT_EQ(error_of([] { return rsocket(AF_IB, SOCK_DGRAM, 0); }), EPROTONOSUPPORT);
}

struct Call {
  const char* name;
  std::function<long(int)> make;
};

std::vector<Call> all_calls() {
  static char byte;
  static iovec part{&byte, 1};
  static msghdr message{};
  static sockaddr_storage address{};
  static socklen_t size = sizeof address;
  static auto* const at = reinterpret_cast<sockaddr*>(&address);
  static int value = 1;
  static socklen_t value_size = sizeof value;
  return {
      {"rbind", [](int fd) { return rbind(fd, at, sizeof address); }},
      {"rlisten", [](int fd) { return rlisten(fd, 1); }},
      {"raccept", [](int fd) { return raccept(fd, nullptr, nullptr); }},
      {"rconnect", [](int fd) { return rconnect(fd, at, sizeof address); }},
      {"rshutdown", [](int fd) { return rshutdown(fd, SHUT_RDWR); }},
      {"rclose", [](int fd) { return rclose(fd); }},
      {"rrecv", [](int fd) { return rrecv(fd, &byte, 1, 0); }},
      {"rrecvfrom", [](int fd) { return rrecvfrom(fd, &byte, 1, 0, at, &size); }},
      {"rrecvmsg", [](int fd) { return rrecvmsg(fd, &message, 0); }},
      {"rsend", [](int fd) { return rsend(fd, &byte, 1, 0); }},
      {"rsendto", [](int fd) { return rsendto(fd, &byte, 1, 0, at, size); }},
      {"rsendmsg", [](int fd) { return rsendmsg(fd, &message, 0); }},
      {"rread", [](int fd) { return rread(fd, &byte, 1); }},
      {"rreadv", [](int fd) { return rreadv(fd, &part, 1); }},
      {"rwrite", [](int fd) { return rwrite(fd, &byte, 1); }},
      {"rwritev", [](int fd) { return rwritev(fd, &part, 1); }},
      {"rgetpeername", [](int fd) { return rgetpeername(fd, at, &size); }},
      {"rgetsockname", [](int fd) { return rgetsockname(fd, at, &size); }},
      {"rsetsockopt",
       [](int fd) { return rsetsockopt(fd, SOL_SOCKET, SO_SNDBUF, &value, value_size); }},
      {"rgetsockopt",
       [](int fd) { return rgetsockopt(fd, SOL_SOCKET, SO_SNDBUF, &value, &value_size); }},
      {"rfcntl", [](int fd) { return rfcntl(fd, F_GETFL, 0L); }},
      {"riomap", [](int fd) { return riomap(fd, &byte, 1, PROT_WRITE, 0, -1); }},
      {"riounmap", [](int fd) { return riounmap(fd, &byte, 1); }},
      {"riowrite", [](int fd) { return static_cast<long>(riowrite(fd, &byte, 1, 0, 0)); }},
  };
}

TEST(RsocketCalls, KnowTheirOwnDescriptorsOnly) {
  const int file = open("/dev/null", O_RDWR | O_CLOEXEC);
  ASSERT_GE(file, 0);
  const int closed = rsocket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(rclose(closed), 0);
  for (const Call& call : all_calls()) {
    for (const int fd : {-1, INT_MAX, file, closed}) {
      EXPECT_EQ(error_of([&] { return call.make(fd); }), EBADF) << call.name << " of " << fd;
    }
  }
  close(file);
}

TEST(RsocketCalls, RefuseListsThatAreTooLong) {
  const OpenSocket socket(AF_INET);
  char byte = 0;
  const iovec part{&byte, 1};
  for (const int count : {-1, IOV_MAX + 1}) {
    EXPECT_EQ(error_of([&] { return rreadv(socket.fd(), &part, count); }), EINVAL);
    EXPECT_EQ(error_of([&] { return rwritev(socket.fd(), &part, count); }), EINVAL);
  }
  EXPECT_EQ(error_of([&] { return rrecvmsg(socket.fd(), nullptr, 0); }), EINVAL);
  EXPECT_EQ(error_of([&] { return rsendmsg(socket.fd(), nullptr, 0); }), EINVAL);
}

TEST(RsocketCalls, WantAConnection) {
  const OpenSocket socket(AF_INET);
  char byte = 0;
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  EXPECT_EQ(error_of([&] { return rsend(socket.fd(), &byte, 1, 0); }), ENOTCONN);
  EXPECT_EQ(error_of([&] { return rrecv(socket.fd(), &byte, 1, 0); }), ENOTCONN);
  EXPECT_EQ(error_of([&] {
              return rgetpeername(socket.fd(), reinterpret_cast<sockaddr*>(&address), &size);
            }),
            ENOTCONN);
  EXPECT_EQ(error_of([&] { return raccept(socket.fd(), nullptr, nullptr); }), EINVAL);
}

// A socket that listens on the loopback interface, and does not wait.
sockaddr_in listen_without_waiting(int fd) {
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htobe32(INADDR_LOOPBACK);
  socklen_t size = sizeof name;
  EXPECT_EQ(rbind(fd, reinterpret_cast<sockaddr*>(&name), size), 0);
  EXPECT_EQ(rlisten(fd, 4), 0);
  EXPECT_EQ(rfcntl(fd, F_SETFL, O_NONBLOCK), 0);
  EXPECT_EQ(rgetsockname(fd, reinterpret_cast<sockaddr*>(&name), &size), 0);
  return name;
}

// Asks for a connection that is not accepted yet.
void ask(int fd, sockaddr_in to, int listener) {
  ASSERT_EQ(rfcntl(fd, F_SETFL, O_NONBLOCK), 0);
  auto* const address = reinterpret_cast<sockaddr*>(&to);
  ASSERT_EQ(error_of([&] { return rconnect(fd, address, sizeof to); }), EINPROGRESS);
  for (;;) {
    pollfd ends[] = {{fd, POLLOUT, 0}, {listener, POLLIN, 0}};
    ASSERT_GT(rpoll(ends, 2, 20'000), 0);
    ASSERT_EQ(ends[0].revents, 0);
    if (ends[1].revents != 0) return;
  }
}

TEST(RsocketCalls, AcceptNobodyWhoHasGone) {
  const OpenSocket listener(AF_INET);
  const sockaddr_in here = listen_without_waiting(listener.fd());
  const OpenSocket other(AF_INET);
  const sockaddr_in there = listen_without_waiting(other.fd());
  {
    const OpenSocket client(AF_INET);
    ASSERT_NO_FATAL_FAILURE(ask(client.fd(), here, listener.fd()));
  }
  // What the next one asks comes after the end of the first.
  const OpenSocket next(AF_INET);
  ASSERT_NO_FATAL_FAILURE(ask(next.fd(), there, other.fd()));
  EXPECT_EQ(error_of([&] { return raccept(listener.fd(), nullptr, nullptr); }), EAGAIN);
}

// Its descriptor says that there may be news, so nobody could sleep who waits for it.
TEST(RsocketCalls, KeepNobodyAliveWhoIsNotConnected) {
  const OpenSocket listener(AF_INET);
  listen_without_waiting(listener.fd());
  const int one = 1;
  ASSERT_EQ(rsetsockopt(listener.fd(), SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one), 0);
  ASSERT_EQ(rsetsockopt(listener.fd(), IPPROTO_TCP, TCP_KEEPIDLE, &one, sizeof one), 0);
  pollfd news{listener.fd(), POLLIN, 0};
  EXPECT_EQ(poll(&news, 1, 1'500), 0);
}

TEST(RsocketCalls, WaitForAsLongAsAProgramCanSay) {
  const OpenSocket socket(AF_INET);
  ASSERT_EQ(rlisten(socket.fd(), 1), 0);
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(write(ends[1], "", 1), 1);
  });
  fd_set wanted;
  FD_ZERO(&wanted);
  FD_SET(socket.fd(), &wanted);
  FD_SET(ends[0], &wanted);
  timeval timeout{std::numeric_limits<time_t>::max(), 999'999};
  EXPECT_EQ(rselect(FD_SETSIZE, &wanted, nullptr, nullptr, &timeout), 1);
  EXPECT_TRUE(FD_ISSET(ends[0], &wanted));
  later.join();
  for (const int fd : ends)
    close(fd);
}

}  // namespace
}  // namespace verbena
