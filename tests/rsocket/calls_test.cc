// SPDX-License-Identifier: MIT
// What the calls of <rdma/rsocket.h> say to arguments that make no sense.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <infiniband/ib.h>
#include <limits.h>
#include <netinet/in.h>
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
