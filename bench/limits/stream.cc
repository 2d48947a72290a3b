// SPDX-License-Identifier: MIT
#include <endian.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "limits/limits.h"
#include "limits/ticks.h"

namespace verbena::bench {
namespace {

// What a train may be long (UDP's length, GSO's packets), and how many are on their way: with fewer
// or more of them it was slower.
constexpr std::uint64_t kTrainBytes = 65'507;
constexpr std::uint64_t kTrainPackets = 64;
constexpr std::uint64_t kWindow = 4;
// Without an answer: some seconds.
constexpr std::uint64_t kLooksMost = 10'000'000;

class Socket {
 public:
  Socket() : fd_(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    name_.sin_family = AF_INET;
    name_.sin_addr.s_addr = htobe32(INADDR_LOOPBACK);
    socklen_t size = sizeof name_;
    auto* const place = reinterpret_cast<sockaddr*>(&name_);
    if (bind(fd_, place, size) != 0 || getsockname(fd_, place, &size) != 0) name_ = {};
  }
  ~Socket() { close(fd_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  bool connect_to(const Socket& other) const {
    const auto* const place = reinterpret_cast<const sockaddr*>(&other.name_);
    return other.name_.sin_port != 0 && connect(fd_, place, sizeof other.name_) == 0;
  }
  bool set(int level, int option, int value) const {
    return setsockopt(fd_, level, option, &value, sizeof value) == 0;
  }
  bool send(const char* bytes, std::uint64_t size) const {
    return ::send(fd_, bytes, size, 0) == static_cast<ssize_t>(size);
  }
  // Nothing: nothing is there, or it failed.
  std::optional<std::uint64_t> receive(std::vector<char>& room) const {
    const ssize_t size = recv(fd_, room.data(), room.size(), MSG_DONTWAIT);
    if (size < 0) return std::nullopt;
    return static_cast<std::uint64_t>(size);
  }

 private:
  const int fd_;
  sockaddr_in name_{};
};

[[noreturn]] void confirm_every_train(const Socket& socket, int core, std::uint64_t bytes) {
  // The parent's death ends this process, or it would spin for ever.
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || !pin(core)) _exit(1);
  std::vector<char> room(kTrainBytes);
  for (std::uint64_t got = 0; got < bytes;) {
    const auto size = socket.receive(room);
    if (!size && errno != EAGAIN) _exit(1);
    if (!size) continue;
    got += *size;
    std::memcpy(room.data(), &got, sizeof got);
    if (!socket.send(room.data(), sizeof got)) _exit(1);
  }
  _exit(0);
}

}  // namespace

std::optional<Stream> udp_stream(int core, int other_core, std::uint64_t packet,
                                 std::uint64_t trains) {
  const Socket sender;
  const Socket receiver;
  constexpr int kBuffer = 8 << 20;
  const std::uint64_t train = std::min(kTrainBytes / packet, kTrainPackets) * packet;
  if (!sender.connect_to(receiver) || !receiver.connect_to(sender) ||
      !sender.set(IPPROTO_UDP, UDP_SEGMENT, static_cast<int>(packet)) ||
      !receiver.set(IPPROTO_UDP, UDP_GRO, 1) || !receiver.set(SOL_SOCKET, SO_RCVBUF, kBuffer) ||
      !pin(core))
    return std::nullopt;
  const pid_t player = fork();
  if (player < 0) return std::nullopt;
  if (player == 0) confirm_every_train(receiver, other_core, trains * train);
  const std::vector<char> bytes(train, 1);
  std::vector<char> room(16);
  const std::uint64_t begin = ticks();
  std::uint64_t sent = 0;
  std::uint64_t confirmed = 0;  // bytes
  for (std::uint64_t looks = 0; confirmed < trains * train;) {
    for (; sent < trains && sent * train < confirmed + kWindow * train; ++sent)
      if (!sender.send(bytes.data(), train)) return std::nullopt;
    if (sender.receive(room) == sizeof confirmed) {
      std::memcpy(&confirmed, room.data(), sizeof confirmed);
      looks = 0;
    } else if (++looks == kLooksMost) {  // one is lost, or the other process is gone
      kill(player, SIGKILL);
      break;
    }
  }
  const std::uint64_t taken = ticks() - begin;
  waitpid(player, nullptr, 0);
  if (confirmed < trains * train) return std::nullopt;
  return Stream{.bytes = trains * train, .ticks = taken};
}

}  // namespace verbena::bench
