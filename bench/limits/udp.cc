// SPDX-License-Identifier: MIT
#include <endian.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <span>

#include "limits/limits.h"
#include "limits/ticks.h"

namespace verbena::bench {
namespace {

// What a SEND of 2 bytes is as RoCEv2: a BTH of 12 bytes, payload padded to 4, an ICRC. An
// acknowledgement is as long.
constexpr std::uint16_t kPacket = 20;
constexpr std::size_t kPacketsMost = 2;

msghdr message_of(sockaddr_in& peer, iovec& piece, std::span<char> control) {
  msghdr message{};
  message.msg_name = &peer;
  message.msg_namelen = sizeof peer;
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  return message;
}

struct Player {
  const Packets packets;
  int socket = -1;
  sockaddr_in address{};
  sockaddr_in other{};

  explicit Player(Packets kind)
      : packets(kind), socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htobe32(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* const place = reinterpret_cast<sockaddr*>(&address);
    const bool is_ready =
        socket >= 0 && bind(socket, place, length) == 0 &&
        getsockname(socket, place, &length) == 0 &&
        (packets == Packets::kPlain ||
         (set(IPPROTO_IP, IP_PKTINFO) && set(IPPROTO_IP, IP_RECVTOS) && set(IPPROTO_UDP, UDP_GRO)));
    if (!is_ready) {
      close(socket);
      socket = -1;
    }
  }
  ~Player() { close(socket); }
  Player(const Player&) = delete;
  Player& operator=(const Player&) = delete;

  bool plays_with(const Player& with) {
    other = with.address;
    if (socket < 0 || with.socket < 0) return false;
    const auto* const place = reinterpret_cast<const sockaddr*>(&other);
    return packets == Packets::kTrain || connect(socket, place, sizeof other) == 0;
  }
  bool serve() {
    std::array<char, kPacketsMost * kPacket> bytes{};
    if (packets == Packets::kPlain) return send(socket, bytes.data(), kPacket, 0) == kPacket;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof kPacket)> control{};
    iovec piece{bytes.data(), bytes.size()};
    const msghdr message = message_of(other, piece, control);
    cmsghdr* const size = CMSG_FIRSTHDR(&message);
    *size = {CMSG_LEN(sizeof kPacket), IPPROTO_UDP, UDP_SEGMENT};
    std::memcpy(CMSG_DATA(size), &kPacket, sizeof kPacket);
    return sendmsg(socket, &message, 0) == ssize_t{bytes.size()};
  }
  // Spins until a packet has come; false when the other player has gone.
  bool await(pid_t player) {
    for (std::uint64_t looks = 1;; ++looks) {
      if (receive()) return true;
      constexpr std::uint64_t kBetweenChecks = std::uint64_t{1} << 20;
      if (errno != EAGAIN) return false;
      if (looks % kBetweenChecks == 0 && player != 0 && waitpid(player, nullptr, WNOHANG) != 0) {
        return false;
      }
    }
  }

 private:
  bool set(int level, int name) const {
    const int on = 1;
    return setsockopt(socket, level, name, &on, sizeof on) == 0;
  }
  bool receive() const {
    std::array<char, kPacketsMost * kPacket> bytes;
    if (packets == Packets::kPlain)
      return recv(socket, bytes.data(), bytes.size(), MSG_DONTWAIT) >= 0;
    alignas(cmsghdr) std::array<char, 256> control;
    sockaddr_in from;
    iovec piece{bytes.data(), bytes.size()};
    msghdr message = message_of(from, piece, control);
    return recvmsg(socket, &message, MSG_DONTWAIT) >= 0;
  }
};

[[noreturn]] void return_every_packet(Player& self, int core, std::uint64_t rounds) {
  // The parent's death ends this process, or it would spin for ever.
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || !pin(core)) {
    _exit(1);
  }
  for (std::uint64_t round = 0; round < rounds; ++round) {
    if (!self.await(0) || !self.serve()) _exit(1);
  }
  _exit(0);
}

}  // namespace

std::optional<std::vector<std::uint64_t>> udp_rounds(Packets packets, int core, int other_core,
                                                     std::uint64_t rounds) {
  Player first(packets);
  Player second(packets);
  if (!first.plays_with(second) || !second.plays_with(first) || !pin(core)) {
    return std::nullopt;
  }
  const pid_t player = fork();
  if (player < 0) {
    return std::nullopt;
  }
  if (player == 0) {
    return_every_packet(second, other_core, rounds);
  }
  std::vector<std::uint64_t> taken(rounds);
  std::uint64_t before = ticks();
  for (std::uint64_t& each : taken) {
    if (!first.serve() || !first.await(player)) {
      return std::nullopt;
    }
    const std::uint64_t now = ticks();
    each = now - before;
    before = now;
  }
  waitpid(player, nullptr, 0);
  return taken;
}

}  // namespace verbena::bench
