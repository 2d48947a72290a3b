// SPDX-License-Identifier: MIT
// Patterns, peers, and small pieces that many scenarios need.
#include "world.h"

#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>

namespace semantics {
namespace {

constexpr int kSkipped = 77;

std::uint64_t mixed(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

std::uint64_t word_of(std::uint64_t seed, std::uint64_t index) {
  return mixed(seed * 0x2545f4914f6cdd1d + index);
}

std::byte byte_of(std::uint64_t seed, std::size_t at) {
  return static_cast<std::byte>(word_of(seed, at / 8) >> (at % 8 * 8));
}

[[noreturn]] void tell_difference(const std::byte* at, std::size_t size, std::uint64_t seed,
                                  const char* when, std::size_t first) {
  std::size_t wrong = 0, zero = 0, begin = size;
  for (std::size_t i = 0; i < size; ++i) {
    if (at[i] == byte_of(seed, first + i)) continue;
    begin = std::min(begin, i);
    ++wrong;
    if (at[i] == std::byte{0}) ++zero;
  }
  fail("%s: %zu of %zu bytes are wrong, from %zu on (page offset %zu); %zu of them are zero", when,
       wrong, size, begin, reinterpret_cast<std::uintptr_t>(at + begin) % kPage, zero);
}

// Each in front of its wire; the owner's ends are not theirs.
void begin_peer(int wire_fd, const std::vector<int>& others, PeerKind kind) {
  const pid_t child = fork();
  require(child >= 0, "fork: %s", strerror(errno));
  if (child > 0) return;
  probe::i_am("peer");
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const int fd : others)
    close(fd);
  if (kind == PeerKind::kPidNamespace) {
    require(unshare(CLONE_NEWPID) == 0, "unshare: %s", strerror(errno));
    in_child([&] {
      require(getpid() == 1, "not the first of its namespace");
      serve(probe::Wire(wire_fd));
    });
  } else {
    serve(probe::Wire(wire_fd));
  }
  _exit(0);
}

}  // namespace

void fill(void* at, std::size_t size, std::uint64_t seed, std::size_t first) {
  auto* const bytes = static_cast<std::byte*>(at);
  std::size_t i = 0;
  for (; i < size && (first + i) % 8 != 0; ++i)
    bytes[i] = byte_of(seed, first + i);
  for (; i + 8 <= size; i += 8) {
    const std::uint64_t word = word_of(seed, (first + i) / 8);
    memcpy(bytes + i, &word, 8);
  }
  for (; i < size; ++i)
    bytes[i] = byte_of(seed, first + i);
}

void expect(const void* at, std::size_t size, std::uint64_t seed, const char* when,
            std::size_t first) {
  const auto* const bytes = static_cast<const std::byte*>(at);
  std::size_t i = 0;
  bool is_same = true;
  for (; i < size && (first + i) % 8 != 0; ++i)
    is_same &= bytes[i] == byte_of(seed, first + i);
  for (; i + 8 <= size; i += 8) {
    std::uint64_t word = 0;
    memcpy(&word, bytes + i, 8);
    is_same &= word == word_of(seed, (first + i) / 8);
  }
  for (; i < size; ++i)
    is_same &= bytes[i] == byte_of(seed, first + i);
  if (!is_same) tell_difference(bytes, size, seed, when, first);
}

void expect_zero(const void* at, std::size_t size, const char* when) {
  const auto* const bytes = static_cast<const std::byte*>(at);
  const auto* const wrong =
      std::find_if(bytes, bytes + size, [](std::byte byte) { return byte != std::byte{0}; });
  require(wrong == bytes + size, "%s: byte %zu of %zu is %u, not zero", when,
          static_cast<std::size_t>(wrong - bytes), size,
          wrong == bytes + size ? 0 : std::to_integer<unsigned>(*wrong));
}

Numbers::Numbers(std::uint64_t stream) {
  const char* seed = std::getenv("VERBENA_TEST_SEED");
  state_ = mixed(stream + (seed ? std::strtoull(seed, nullptr, 0) : 1) * 0x10001);
}

std::uint64_t Numbers::next() { return mixed(state_++); }

std::size_t Numbers::between(std::size_t least, std::size_t most) {
  return least + next() % (most - least + 1);
}

std::size_t Numbers::size_between(std::size_t least, std::size_t most) {
  std::size_t doublings = 0;
  for (std::size_t size = least; size < most; size *= 2)
    ++doublings;
  const std::size_t low = least << between(0, doublings);
  return std::min(between(low, 2 * low), most);
}

World::World(PeerKind kind) : kind_(kind) {
  for (int i = 0; i < kPeers; ++i) {
    int fds[2];
    require(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) == 0, "socketpair");
    wires_.push_back(fds[0]);
    if (kind == PeerKind::kThread) {
      std::thread([fd = fds[1]] { serve(probe::Wire(fd)); }).detach();
      continue;
    }
    begin_peer(fds[1], wires_, kind);
    close(fds[1]);
  }
  std::reverse(wires_.begin(), wires_.end());
}

int World::next() {
  require(!wires_.empty(), "the scenario wants more peers than there are");
  const int wire = wires_.back();
  wires_.pop_back();
  return wire;
}

unsigned rounds(unsigned quick, unsigned in_long) {
  const char* mode = std::getenv("VERBENA_TEST_MODE");
  if (mode && std::string_view(mode) == "long") return in_long;
  return std::getenv("VERBENA_TEST_BRIEF") ? std::max(quick / 4, 1U) : quick;
}

bool may_adopt() {
  const char* path = std::getenv("VERBENA_PATH");
  const char* adopt = std::getenv("VERBENA_ADOPT");
  return !(path && std::string_view(path) == "ring") &&
         !(adopt && std::string_view(adopt) == "never");
}

void require_child(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0)
    require(errno == EINTR, "waitpid: %s", strerror(errno));
  if (WIFEXITED(status) && WEXITSTATUS(status) == kSkipped) _exit(kSkipped);
  if (WIFSIGNALED(status)) fail("a child died of signal %d", WTERMSIG(status));
  require(WEXITSTATUS(status) == 0, "a child ended with %d", WEXITSTATUS(status));
}

void in_child(const std::function<void()>& body) {
  const pid_t child = fork();
  require(child >= 0, "fork: %s", strerror(errno));
  if (child == 0) {
    probe::i_am("child");
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    body();
    _exit(0);
  }
  require_child(child);
}

void in_threads(unsigned count, const std::function<void(unsigned)>& body) {
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < count; ++i)
    threads.emplace_back([&body, i] { body(i); });
  for (std::thread& thread : threads)
    thread.join();
}

}  // namespace semantics
