// SPDX-License-Identifier: MIT
// A program that sends datagrams and reads none of the answers.
#include <endian.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <rdma/rsocket.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

namespace verbena {
namespace {

int bound_socket(sockaddr_in& name) {
  const int fd = rsocket(AF_INET, SOCK_DGRAM, 0);
  name = {};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htobe32(INADDR_LOOPBACK);
  socklen_t size = sizeof name;
  auto* const address = reinterpret_cast<sockaddr*>(&name);
  EXPECT_EQ(rbind(fd, address, size), 0);
  EXPECT_EQ(rgetsockname(fd, address, &size), 0);
  return fd;
}

bool send_one(int fd, const sockaddr_in& to) {
  const char byte = 'd';
  const ssize_t sent =
      rsendto(fd, &byte, 1, MSG_DONTWAIT, reinterpret_cast<const sockaddr*>(&to), sizeof to);
  EXPECT_TRUE(sent == 1 || errno == EAGAIN) << errno;
  return sent == 1;
}

TEST(RsocketDatagrams, GoOnWhereTheAnswersAreNotRead) {
  sockaddr_in ours, theirs;
  const int sender = bound_socket(ours);
  const int echo = bound_socket(theirs);
  constexpr int kDatagrams = 2000;  // many times what a socket keeps
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  int sent = 0;
  while (sent < kDatagrams && std::chrono::steady_clock::now() < end) {
    sent += send_one(sender, theirs);
    for (char byte = 0; rrecv(echo, &byte, 1, MSG_DONTWAIT) == 1;)
      send_one(echo, ours);
  }
  EXPECT_EQ(sent, kDatagrams);
  // What came first is there.
  char byte = 0;
  EXPECT_EQ(rrecv(sender, &byte, 1, MSG_DONTWAIT), 1);
  EXPECT_EQ(rclose(sender), 0);
  EXPECT_EQ(rclose(echo), 0);
}

}  // namespace
}  // namespace verbena
