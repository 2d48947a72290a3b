// SPDX-License-Identifier: MIT
// What must go on: a stopped target serves, a third process does not suffer from a stopped one,
// and a key that is none is an error.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "traffic.h"

namespace access_test {

using probe::require;

namespace {

constexpr std::size_t kLarge = std::size_t{64} << 20;
constexpr std::size_t kSmall = 256 * 1024;
constexpr std::uint32_t kLength = 100'000;

// What the user of remote memory has.
struct User {
  probe::Node& node;
  ibv_qp* qp;
  ibv_mr* mr;
  const probe::Address& peer;

  void execute(ibv_wr_opcode opcode, std::uint32_t length) {
    require(probe::post(qp, {.opcode = opcode,
                             .id = 7,
                             .memory = mr->addr,
                             .length = length,
                             .local_key = mr->lkey,
                             .remote = peer.memory,
                             .remote_key = peer.key,
                             .compare_add = 5}) == 0,
            "ibv_post_send");
    node.wait_success(7);
  }
};

// Each kind of one-sided operation, with content.
void round_trip(User& user, std::uint8_t value, bool with_atomics) {
  auto* const bytes = static_cast<std::uint8_t*>(user.mr->addr);
  std::memset(bytes, value, kLength);
  user.execute(IBV_WR_RDMA_WRITE, kLength);
  std::memset(bytes, 0, kLength);
  user.execute(IBV_WR_RDMA_READ, kLength);
  require(std::all_of(bytes, bytes + kLength, [&](std::uint8_t b) { return b == value; }),
          "READ gives something else than WRITE wrote");
  if (!with_atomics) return;
  std::uint64_t before = 0;
  user.execute(IBV_WR_ATOMIC_FETCH_AND_ADD, 8);
  std::memcpy(&before, bytes, 8);
  user.execute(IBV_WR_ATOMIC_FETCH_AND_ADD, 8);
  std::uint64_t after = 0;
  std::memcpy(&after, bytes, 8);
  require(after == before + 5, "a fetch-and-add of 5 added %llu",
          static_cast<unsigned long long>(after - before));
}

void serve(probe::Wire& wire, std::size_t size) {
  probe::Node node;
  std::byte* const memory = probe::map_pages(size);
  std::memset(memory, 0, kLength);
  ibv_mr* const mr = node.reg(memory, size);
  probe::Address peer;
  node.meet(wire, {0, mr->rkey, reinterpret_cast<std::uint64_t>(memory), {}}, peer);
  wire.put(getpid());
  wire.meet();
  const auto value = wire.get<std::uint8_t>();
  require(memory[kLength - 1] == std::byte{value}, "what was written while stopped is not here");
}

void use(probe::Wire& wire, bool with_atomics) {
  probe::Node node;
  std::byte* const memory = probe::map_pages(kSmall);
  ibv_mr* const mr = node.reg(memory, kSmall);
  probe::Address peer;
  ibv_qp* const qp = node.meet(wire, {}, peer);
  User user{node, qp, mr, peer};
  const auto target = wire.get<pid_t>();
  // The first operations ask for what the later ones use.
  for (std::uint8_t i = 1; i <= 20; ++i) {
    round_trip(user, i, true);
    usleep(2000);
  }
  require(kill(target, SIGSTOP) == 0, "kill");
  usleep(5000);
  const int rounds = is_long() ? 5000 : 200;
  for (int i = 0; i < rounds; ++i)
    round_trip(user, static_cast<std::uint8_t>(i), with_atomics);
  std::memset(memory, 0x42, kLength);
  user.execute(IBV_WR_RDMA_WRITE, kLength);
  require(kill(target, SIGCONT) == 0, "kill");
  wire.meet();
  wire.put(std::uint8_t{0x42});
}

}  // namespace

void serves() {
  if (has_only_the_ring()) probe::skip("with the ring only the target's CPU serves");
  const bool adopts = !is_set("VERBENA_ADOPT", "never");
  require(probe::run_two([](probe::Wire& wire) { serve(wire, kSmall); },
                         [&](probe::Wire& wire) { use(wire, adopts); }),
          "a small region");
  require(probe::run_two([](probe::Wire& wire) { serve(wire, kLarge); },
                         [](probe::Wire& wire) { use(wire, false); }),
          "a region that is not adopted");
}

// One peer is stopped in the middle of a write, and loses its mapping; the memory of another one
// becomes private with it, under its traffic, and not a byte of that gets lost.
void bystander() {
  int fds[2];
  require(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds) == 0, "socketpair");
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    probe::i_am("stopped peer");
    close(fds[0]);
    probe::Wire wire(fds[1]);
    write_all_the_time(wire);
    _exit(0);
  }
  close(fds[1]);
  const bool good = probe::run_two(
      [&](probe::Wire& wire) {
        probe::Node node;
        std::byte* const memory = probe::map_pages(kSmall);
        std::memset(memory, 0, kSmall);
        ibv_mr* const mr = node.reg(memory, kSmall);
        probe::Address other;
        node.meet(wire, {0, mr->rkey, reinterpret_cast<std::uint64_t>(memory), {}}, other);
        probe::Wire stopped_wire(fds[0]);
        const auto stopped = stopped_wire.get<pid_t>();
        for (int round = 0; round < (is_long() ? 200 : 20); ++round) {
          Victim victim(node, stopped_wire, kSmall, kUsed);
          victim.wait_for_traffic();
          kill(stopped, SIGSTOP);
          usleep(2000);
          kTakings[3 + round % 3].take(node, victim);
          victim.mark();
          kill(stopped, SIGCONT);
          usleep(2000);
          require(victim.is_untouched(), "written afterwards");
        }
        dismiss(stopped_wire);
        wire.put(true);
        wire.meet();
      },
      [](probe::Wire& wire) {
        probe::Node node;
        std::byte* const memory = probe::map_pages(kSmall);
        ibv_mr* const mr = node.reg(memory, kSmall);
        probe::Address peer;
        ibv_qp* const qp = node.meet(wire, {}, peer);
        User user{node, qp, mr, peer};
        char byte = 0;
        for (unsigned i = 0; recv(wire.fd(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) <= 0; ++i)
          round_trip(user, static_cast<std::uint8_t>(i), true);
        wire.get<bool>();
        wire.meet();
      },
      is_long() ? 600 : 90);
  close(fds[0]);
  kill(child, SIGKILL);
  require(good, "see above");
}

// As the first operation, when nothing was ever written.
void key_zero() {
  const bool good = probe::run_two(
      [](probe::Wire& wire) {
        probe::Node node;
        probe::Address peer;
        node.meet(wire, {}, peer);
        wire.meet();
      },
      [](probe::Wire& wire) {
        probe::Node node;
        std::byte* const memory = probe::map_pages(4096);
        ibv_mr* const mr = node.reg(memory, 4096);
        probe::Address peer;
        ibv_qp* const qp = node.meet(wire, {}, peer);
        usleep(50'000);
        require(probe::post(qp, {.memory = memory, .length = 8, .local_key = mr->lkey}) == 0,
                "ibv_post_send");
        require(node.wait().status == IBV_WC_REM_ACCESS_ERR, "key 0 is no key");
        wire.meet();
      });
  require(good, "see above");
}

}  // namespace access_test
