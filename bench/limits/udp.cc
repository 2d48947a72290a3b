// SPDX-License-Identifier: MIT
#include <endian.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "limits/limits.h"
#include "limits/ticks.h"

namespace verbena::bench {
namespace {

// What a SEND of 2 bytes is as RoCEv2: a BTH of 12 bytes, payload padded to 4, an ICRC.
using Packet = std::array<char, 20>;

struct Player {
  int socket = -1;
  sockaddr_in address{};

  Player() : socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htobe32(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* const place = reinterpret_cast<sockaddr*>(&address);
    if (socket < 0 || bind(socket, place, length) != 0 ||
        getsockname(socket, place, &length) != 0) {
      close(socket);
      socket = -1;
    }
  }
  ~Player() { close(socket); }
  Player(const Player&) = delete;
  Player& operator=(const Player&) = delete;

  bool plays_with(const Player& other) {
    const auto* const place = reinterpret_cast<const sockaddr*>(&other.address);
    return socket >= 0 && other.socket >= 0 && connect(socket, place, sizeof other.address) == 0;
  }
  bool serve() {
    const Packet packet{};
    return send(socket, packet.data(), packet.size(), 0) == ssize_t{packet.size()};
  }
  // Spins until a packet has come; false when the other player has gone.
  bool await(pid_t player) {
    Packet packet;
    for (std::uint64_t looks = 1;; ++looks) {
      if (recv(socket, packet.data(), packet.size(), MSG_DONTWAIT) >= 0) return true;
      constexpr std::uint64_t kBetweenChecks = std::uint64_t{1} << 20;
      if (errno != EAGAIN) return false;
      if (looks % kBetweenChecks == 0 && player != 0 && waitpid(player, nullptr, WNOHANG) != 0) {
        return false;
      }
    }
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

std::optional<std::vector<std::uint64_t>> udp_rounds(int core, int other_core,
                                                     std::uint64_t rounds) {
  Player first;
  Player second;
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
