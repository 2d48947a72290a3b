// SPDX-License-Identifier: MIT
// Patterns between two machines, checked byte for byte: what perftest and the pingpongs of
// rdma-core do not show. It is linked with the system's libibverbs and runs over any device.
//
//   exchange DEVICE GID_INDEX MTU rc|refusals|uc|ud PORT [SERVER]
#include "exchange.h"

#include <arpa/inet.h>
#include <endian.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace exchange {

void die(const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  std::vprintf(format, arguments);
  va_end(arguments);
  std::printf("\n");
  std::fflush(stdout);
  _exit(2);
}

Talk::Talk(const Setting& setting) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htobe16(setting.port);
  const int yes = 1;
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (setting.server.empty()) {
    if (bind(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0 || listen(fd, 1) != 0) {
      die("port %u: %s", setting.port, strerror(errno));
    }
    fd_ = accept(fd, nullptr, nullptr);
    close(fd);
  } else {
    if (inet_pton(AF_INET, setting.server.c_str(), &at.sin_addr) != 1 ||
        ::connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0) {
      die("%s: %s", setting.server.c_str(), strerror(errno));
    }
    fd_ = fd;
  }
  setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

void Talk::put_bytes(const void* from, std::size_t size) {
  const auto* bytes = static_cast<const char*>(from);
  while (size > 0) {
    const ssize_t done = send(fd_, bytes, size, MSG_NOSIGNAL);
    if (done <= 0) die("the other end is gone");
    bytes += done;
    size -= static_cast<std::size_t>(done);
  }
}

void Talk::get_bytes(void* to, std::size_t size) {
  const ssize_t done = recv(fd_, to, size, MSG_WAITALL);
  if (done != static_cast<ssize_t>(size)) die("the other end is gone");
}

void fill(std::byte* memory, std::uint32_t seed) {
  for (std::uint32_t i = 0; i < kRegion; ++i) {
    memory[i] = static_cast<std::byte>((i * 167u + (i >> 8) * 13u + seed) & 0xff);
  }
}

void serve(const Setting& setting) {
  End end(setting);
  Talk talk(setting);
  for (;;) {
    const auto request = talk.get<Request>();
    switch (request.verb) {
      case Request::kConnect:
        fill(end.memory(), 2);
        end.connect(talk, request.plan, false);
        break;
      case Request::kReceive:
        end.post_receive(request);
        talk.put(true);
        break;
      case Request::kPoll: {
        const auto completions = end.poll(request.count);
        talk.put(static_cast<std::uint32_t>(completions.size()));
        talk.put_bytes(completions.data(), completions.size() * sizeof(Completion));
        break;
      }
      case Request::kLook: talk.put_bytes(end.memory(), kRegion); break;
      case Request::kBye: return;
    }
  }
}

namespace {

int run(const Setting& setting, std::string_view part) {
  if (setting.server.empty()) {
    serve(setting);
    return 0;
  }
  Client client(setting);
  if (part == "rc") {
    reliable(client);
  } else if (part == "refusals") {
    reliable_refusals(client);
  } else if (part == "uc") {
    unreliable(client);
  } else if (part == "ud") {
    datagrams(client);
  }
  client.bye();
  std::printf("%d passed, %d failed\n", client.passed(), client.failures());
  return client.failures() == 0 && client.passed() > 0 ? 0 : 1;
}

}  // namespace
}  // namespace exchange

int main(int count, char** words) {
  if (count < 6) exchange::die("exchange DEVICE GID_INDEX MTU rc|refusals|uc|ud PORT [SERVER]");
  const exchange::Setting setting{
      .device = words[1],
      .gid_index = std::atoi(words[2]),
      .mtu = static_cast<std::uint32_t>(std::atoi(words[3])),
      .server = count > 6 ? words[6] : "",
      .port = static_cast<std::uint16_t>(std::atoi(words[5])),
  };
  return exchange::run(setting, words[4]);
}
