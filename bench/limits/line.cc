// SPDX-License-Identifier: MIT
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <new>

#include "limits/limits.h"
#include "limits/ticks.h"

namespace verbena::bench {
namespace {

// Two lines that no prefetcher fetches together.
struct Court {
  alignas(256) std::atomic<std::uint64_t> first{0};
  alignas(256) std::atomic<std::uint64_t> second{0};
};

// Spins until the line holds the value; false when the other player has gone. No pause instruction:
// that would be slower than the line, and perftest's loop has none either.
bool await(const std::atomic<std::uint64_t>& line, std::uint64_t value, pid_t player) {
  std::uint64_t looks = 0;
  while (line.load(std::memory_order_acquire) != value) {
    constexpr std::uint64_t kBetweenChecks = std::uint64_t{1} << 24;
    if (++looks % kBetweenChecks == 0 && player != 0 && waitpid(player, nullptr, WNOHANG) != 0) {
      return false;
    }
  }
  return true;
}

[[noreturn]] void return_every_ball(Court& court, Lines lines, int core, std::uint64_t rounds) {
  // The parent's death ends this process, or it would spin for ever.
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || !pin(core)) {
    _exit(1);
  }
  std::atomic<std::uint64_t>& reply = lines == Lines::kOne ? court.first : court.second;
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    await(court.first, 2 * round - 1, 0);
    reply.store(2 * round, std::memory_order_release);
  }
  _exit(0);
}

}  // namespace

bool pin(int core) {
  if (core < 0 || core >= CPU_SETSIZE) {
    return false;
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(core), &set);
  return sched_setaffinity(0, sizeof set, &set) == 0;
}

std::optional<std::vector<std::uint64_t>> line_rounds(Lines lines, int core, int other_core,
                                                      std::uint64_t rounds) {
  void* memory =
      mmap(nullptr, sizeof(Court), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED || !pin(core)) {
    return std::nullopt;
  }
  auto& court = *new (memory) Court;
  std::vector<std::uint64_t> taken(rounds);
  const pid_t player = fork();
  if (player < 0) {
    return std::nullopt;
  }
  if (player == 0) {
    return_every_ball(court, lines, other_core, rounds);
  }
  const std::atomic<std::uint64_t>& reply = lines == Lines::kOne ? court.first : court.second;
  std::uint64_t before = ticks();
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    court.first.store(2 * round - 1, std::memory_order_release);
    if (!await(reply, 2 * round, player)) {
      return std::nullopt;
    }
    const std::uint64_t now = ticks();
    taken[round - 1] = now - before;
    before = now;
  }
  waitpid(player, nullptr, 0);
  munmap(memory, sizeof(Court));
  return taken;
}

}  // namespace verbena::bench
