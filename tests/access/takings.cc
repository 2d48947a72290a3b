// SPDX-License-Identifier: MIT
// Every way to take access away, under full traffic, from a peer that runs, is stopped, or dies.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string_view>
#include <thread>
#include <vector>

#include "traffic.h"

namespace access_test {

using probe::require;

namespace {

constexpr std::size_t kAdoptable = 256 * 1024;
constexpr std::size_t kTooLargeToAdopt = std::size_t{64} << 20;

void modify(Victim& victim, ibv_qp_state state) {
  ibv_qp_attr to{};
  to.qp_state = state;
  require(ibv_modify_qp(victim.qp, &to, IBV_QP_STATE) == 0, "ibv_modify_qp");
}

void pause(int milliseconds) { usleep(static_cast<useconds_t>(milliseconds) * 1000); }

struct Condition {
  const char* name;
  int before;  // the signal that the peer gets before; 0: none
  int after;
};
constexpr Condition kConditions[] = {
    {"running", 0, 0}, {"stopped", SIGSTOP, SIGCONT}, {"killed", SIGKILL, 0}};

void take_once(probe::Node& node, probe::Wire& wire, pid_t peer, const Taking& taking,
               const Condition& condition, unsigned round) {
  const std::size_t size = round % 3 == 2 ? kTooLargeToAdopt : kAdoptable;
  Victim victim(node, wire, size, round % 2 ? kUsed : 0);
  victim.wait_for_traffic();
  usleep(round * 37 % 500);
  if (condition.before) kill(peer, condition.before);
  // What is stopped stops soon, not at once.
  if (condition.before) pause(2);
  const double seconds = seconds_of([&] { taking.take(node, victim); });
  victim.mark();
  require(seconds < kBound, "%s of a peer that is %s took %.1f s", taking.name, condition.name,
          seconds);
  if (condition.before == SIGKILL) victim.forget_peer();
  for (int i = 0; i < 2; ++i) {
    if (condition.after) kill(peer, condition.after);
    pause(5);
    require(victim.is_untouched(), "written after %s, by a peer that is %s", taking.name,
            condition.name);
  }
}

void dereg(probe::Node&, Victim& victim) { victim.deregister(); }

void rereg(probe::Node&, Victim& victim) {
  // Of no use to the peer: another key.
  require(ibv_rereg_mr(victim.mr, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, victim.other_memory,
                       victim.size, 0) == 0,
          "ibv_rereg_mr");
}

void narrow(probe::Node&, Victim& victim) {
  require(ibv_rereg_mr(victim.mr, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0,
                       IBV_ACCESS_LOCAL_WRITE) == 0,
          "ibv_rereg_mr");
}

void destroy(probe::Node&, Victim& victim) {
  require(ibv_destroy_qp(victim.qp) == 0, "ibv_destroy_qp");
  victim.qp = nullptr;
}

}  // namespace

const Taking kTakings[] = {
    {"dereg", dereg},
    {"rereg", rereg},
    {"fewer rights", narrow},
    {"reset", [](probe::Node&, Victim& victim) { modify(victim, IBV_QPS_RESET); }},
    {"error", [](probe::Node&, Victim& victim) { modify(victim, IBV_QPS_ERR); }},
    {"destroy", destroy},
};
const std::size_t kTakingCount = std::size(kTakings);

void takings(const char* name) {
  const Condition* condition = nullptr;
  for (const Condition& each : kConditions) {
    if (std::string_view(each.name) == name) condition = &each;
  }
  require(condition != nullptr, "no such condition: %s", name);
  // Who dies is one process a round.
  const bool dies = condition->before == SIGKILL;
  const unsigned pairs = dies ? (is_long() ? 20 : 1) * static_cast<unsigned>(kTakingCount) : 1;
  const unsigned rounds = dies ? 1 : (is_long() ? 100 : 6) * static_cast<unsigned>(kTakingCount);
  for (unsigned pair = 0; pair < pairs; ++pair) {
    pid_t peer = 0;
    int fds[2];
    require(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds) == 0, "socketpair");
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      probe::i_am("peer");
      close(fds[0]);
      probe::Wire wire(fds[1]);
      write_all_the_time(wire);
      _exit(0);
    }
    close(fds[1]);
    const bool good = probe::run_one(
        [&] {
          probe::i_am("owner");
          probe::Wire wire(fds[0]);
          probe::Node node;
          peer = wire.get<pid_t>();
          for (unsigned round = 0; round < rounds; ++round)
            take_once(node, wire, peer, kTakings[(pair + round) % kTakingCount], *condition, round);
          if (!dies) dismiss(wire);
        },
        is_long() ? 900 : 120);
    close(fds[0]);
    kill(child, SIGKILL);
    require(good, "see above");
  }
}

}  // namespace access_test
