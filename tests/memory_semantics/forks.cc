// SPDX-License-Identifier: MIT
// Children. Private memory is the child's own from the moment of fork: whatever RDMA did to the
// parent's, neither sees the other's writes, and what the child frees is its own.
#include <sched.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "world.h"

extern char** environ;

namespace semantics {
namespace {

// Two processes that take turns.
class Turns {
 public:
  Turns() { require(pipe(to_child_) == 0 && pipe(to_parent_) == 0, "pipe: %s", strerror(errno)); }
  ~Turns() {
    for (const int fd : {to_child_[0], to_child_[1], to_parent_[0], to_parent_[1]})
      close(fd);
  }
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  void i_am_child() {
    close(to_child_[1]);
    close(to_parent_[0]);
    to_child_[1] = to_parent_[0] = -1;
  }
  void i_am_parent() {
    close(to_child_[0]);
    close(to_parent_[1]);
    to_child_[0] = to_parent_[1] = -1;
  }
  void child_is_done() { put(to_parent_[1]); }
  void parent_is_done() { put(to_child_[1]); }
  void wait_for_child() { take(to_parent_[0]); }
  void wait_for_parent() { take(to_child_[0]); }

 private:
  static void put(int fd) { require(::write(fd, "x", 1) == 1, "the other process is gone"); }
  static void take(int fd) {
    char byte = 0;
    require(::read(fd, &byte, 1) == 1, "the other process is gone");
  }
  int to_child_[2];
  int to_parent_[2];
};

pid_t by_fork() { return fork(); }
pid_t by_plain_fork() { return _Fork(); }
// As runtimes do that know nothing of libc.
pid_t by_clone() { return static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)); }

// Memory of the program: of the heap, and mapped.
struct Memory {
  static constexpr std::size_t kSize = 64 * kKilo;
  std::byte* heap = static_cast<std::byte*>(std::malloc(kSize));
  std::byte* mapped = map_pages(kSize);
  std::byte* both[2] = {heap, mapped};

  void fill_all(std::uint64_t seed) const {
    for (std::byte* at : both)
      fill(at, kSize, seed);
  }
  void expect_all(std::uint64_t seed, const char* when) const {
    for (const std::byte* at : both)
      expect(at, kSize, seed, when);
  }
};

// Whether a process has anything there. Asks the kernel: touching it would be a signal.
bool is_there(const void* at) {
  int fds[2];
  require(pipe(fds) == 0, "pipe: %s", strerror(errno));
  const bool is_readable = ::write(fds[1], at, 1) == 1;
  require(is_readable || errno == EFAULT, "write: %s", strerror(errno));
  close(fds[0]);
  close(fds[1]);
  return is_readable;
}

// The part of a child that was made without anybody's handlers. Of registered memory it may have
// nothing (as after ibv_fork_init, with which such memory is MADV_DONTFORK), page by page; what it
// has is its own, and as it was. Whatever it does, the parent's memory does not change.
void be_child_that_may_lack(const Memory& memory, Turns& turns) {
  turns.i_am_child();
  const auto each_page_there = [&](const auto& see) {
    for (std::byte* const begin : memory.both) {
      for (std::size_t at = 0, next = 0; at < Memory::kSize; at = next) {
        const auto offset = reinterpret_cast<std::uintptr_t>(begin + at) % kPage;
        next = std::min(at + kPage - offset, Memory::kSize);
        if (is_there(begin + at)) see(begin + at, next - at, at);
      }
    }
  };
  const auto expect_what_is_there = [&](std::uint64_t seed, const char* when) {
    each_page_there([&](const std::byte* page, std::size_t size, std::size_t first) {
      expect(page, size, seed, when, first);
    });
  };
  expect_what_is_there(1, "the child, at first");
  turns.child_is_done();
  turns.wait_for_parent();
  expect_what_is_there(1, "the child, after the parent's writes");
  each_page_there(
      [](std::byte* page, std::size_t size, std::size_t first) { fill(page, size, 3, first); });
  turns.child_is_done();
  turns.wait_for_parent();
  expect_what_is_there(3, "the child, after its own writes");
  turns.child_is_done();
  turns.wait_for_parent();
  expect_what_is_there(3, "the child, after the parent's deregistration");
}

// The child's part: what it sees is what was there at fork, or what it wrote itself.
void be_child(const Memory& memory, Turns& turns) {
  turns.i_am_child();
  memory.expect_all(1, "the child, at first");
  turns.child_is_done();
  turns.wait_for_parent();  // which wrote meanwhile, and its peer too
  memory.expect_all(1, "the child, after the parent's writes");
  memory.fill_all(3);
  turns.child_is_done();
  turns.wait_for_parent();
  memory.expect_all(3, "the child, after its own writes");
  turns.child_is_done();
  turns.wait_for_parent();  // which deregistered
  memory.expect_all(3, "the child, after the parent's deregistration");
}

void fork_and_write(Peer& peer, pid_t (*fork_by)(),
                    void (*child_part)(const Memory&, Turns&) = be_child) {
  const Memory memory;
  memory.fill_all(1);
  ibv_mr* const heap = peer.reg(memory.heap, Memory::kSize);
  ibv_mr* const mapped = peer.reg(memory.mapped, Memory::kSize);
  for (std::byte* at : memory.both)
    peer.touch(at == memory.heap ? heap : mapped, at, Memory::kSize, 1);
  Turns turns;
  const pid_t child = fork_by();
  require(child >= 0, "fork: %s", strerror(errno));
  if (child == 0) {
    probe::i_am("child");
    child_part(memory, turns);
    _exit(0);
  }
  turns.i_am_parent();
  turns.wait_for_child();
  memory.expect_all(1, "the parent, after fork");
  fill(memory.heap, Memory::kSize, 2);
  peer.write(mapped, memory.mapped, Memory::kSize, 2);
  turns.parent_is_done();
  turns.wait_for_child();
  memory.expect_all(2, "the parent, after the child's writes");
  peer.read(heap, memory.heap, Memory::kSize, 2);
  peer.read(mapped, memory.mapped, Memory::kSize, 2);
  peer.write(heap, memory.heap, Memory::kSize, 4);
  peer.write(mapped, memory.mapped, Memory::kSize, 4);
  memory.expect_all(4, "the parent, after the peer's WRITE");
  turns.parent_is_done();
  turns.wait_for_child();
  Peer::dereg(heap);
  Peer::dereg(mapped);
  memory.expect_all(4, "the parent, after deregistration");
  memory.fill_all(5);
  turns.parent_is_done();
  require_child(child);
  memory.expect_all(5, "the parent, at the end");
  std::free(memory.heap);
  munmap(memory.mapped, Memory::kSize);
}

// Looks for: pages that parent and child share, in either direction, whoever writes: a thread of
// theirs or the peer.
void fork_writes(World& world) {
  Peer peer(world.next());
  for (unsigned round = 0; round < rounds(40, 400); ++round)
    fork_and_write(peer, by_fork);
}

// The same by ways of forking that call nobody's handlers: the parent's memory is never changed by
// the child, nor is what the child has of it by the parent.
void plain_fork_writes(World& world) {
  Peer peer(world.next());
  for (unsigned round = 0; round < rounds(40, 400); ++round)
    fork_and_write(peer, by_plain_fork, be_child_that_may_lack);
}
void clone_writes(World& world) {
  Peer peer(world.next());
  for (unsigned round = 0; round < rounds(40, 400); ++round)
    fork_and_write(peer, by_clone, be_child_that_may_lack);
}

// Forked before the memory is registered, and looked at afterwards: adoption copies pages that the
// two still share for reading.
void fork_before(World& world) {
  Peer peer(world.next());
  for (unsigned round = 0; round < rounds(60, 600); ++round) {
    const Memory memory;
    memory.fill_all(1);
    Turns turns;
    const pid_t child = fork();
    if (child == 0) {
      probe::i_am("child");
      turns.i_am_child();
      turns.wait_for_parent();
      memory.expect_all(1, "the child, after the parent's registration");
      memory.fill_all(2);
      turns.child_is_done();
      turns.wait_for_parent();
      memory.expect_all(2, "the child, after the parent's deregistration");
      _exit(0);
    }
    turns.i_am_parent();
    ibv_mr* const heap = peer.reg(memory.heap, Memory::kSize);
    ibv_mr* const mapped = peer.reg(memory.mapped, Memory::kSize);
    memory.expect_all(1, "after registration");
    turns.parent_is_done();
    turns.wait_for_child();
    memory.expect_all(1, "the parent, after the child's writes");
    peer.touch(heap, memory.heap, Memory::kSize, 3);
    peer.touch(mapped, memory.mapped, Memory::kSize, 3);
    Peer::dereg(heap);
    Peer::dereg(mapped);
    turns.parent_is_done();
    require_child(child);
    memory.expect_all(3, "the parent, at the end");
    std::free(memory.heap);
    munmap(memory.mapped, Memory::kSize);
  }
}

// The child frees what it inherited, and exits as programs do. Looks for a parent whose allocator
// finds its lists changed (with a partly moved heap page it aborts), or whose blocks are zero
// because the child gave them back.
void fork_free(World& world) {
  Peer peer(world.next());
  Numbers numbers(40);
  for (unsigned round = 0; round < rounds(30, 300); ++round) {
    struct Block {
      void* at;
      std::size_t size;
      ibv_mr* mr;
    };
    std::vector<Block> blocks;
    for (int i = 0; i < 60; ++i) {
      const std::size_t size = numbers.size_between(64, 200 * kKilo);
      void* const at = std::malloc(size);
      ibv_mr* const mr = i % 2 == 0 ? peer.reg(at, size) : nullptr;
      if (mr) peer.write(mr, at, size, 1);
      fill(at, size, round);
      blocks.push_back({at, size, mr});
    }
    in_child([&] {
      for (const Block& block : blocks) {
        expect(block.at, block.size, round, "the child");
        if (block.mr && block.size % 2 == 0) ibv_dereg_mr(block.mr);  // EIO, as documented
        memset(block.at, 0xDD, block.size);
        std::free(block.at);
      }
      if (round % 2 == 0) std::exit(0);
    });
    for (const Block& block : blocks) {
      expect(block.at, block.size, round, "the parent, after the child freed");
      if (!block.mr) continue;
      peer.read(block.mr, block.at, block.size, round);
      Peer::dereg(block.mr);
      expect(block.at, block.size, round, "the parent, after deregistration");
    }
    for (const Block& block : blocks)
      std::free(block.at);
  }
}

// Threads count in registered memory while the process forks, and the peer adds to it. The child
// has one moment's values, and they stay; the parent loses no count.
void fork_threads(World& world) {
  constexpr unsigned kThreads = 2;
  Peer peer(world.next());
  std::byte* const memory = map_pages(16 * kPage);
  ibv_mr* const mr = peer.reg(memory, 16 * kPage);
  const auto word = [memory](unsigned page) {
    return reinterpret_cast<volatile std::uint64_t*>(memory + page * kPage);
  };
  std::atomic<bool> is_over{false};
  std::uint64_t counted[kThreads] = {};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (; !is_over; ++counted[i])
        *word(i) = *word(i) + 1;
    });
  }
  peer.begin_adds(mr, const_cast<std::uint64_t*>(word(8)));
  for (unsigned round = 0; round < rounds(40, 400); ++round) {
    in_child([&] {
      const std::uint64_t before[] = {*word(0), *word(1), *word(8)};
      usleep(5000);
      const std::uint64_t after[] = {*word(0), *word(1), *word(8)};
      require(memcmp(before, after, sizeof before) == 0, "the parent's threads write in the child");
      for (const unsigned page : {0, 1, 8})
        *word(page) = 0;
    });
  }
  const std::uint64_t adds = peer.end_adds();
  is_over = true;
  for (std::thread& thread : threads)
    thread.join();
  Peer::dereg(mr);
  for (unsigned i = 0; i < kThreads; ++i)
    require(*word(i) == counted[i], "a thread counted %zu, the memory says %zu",
            static_cast<std::size_t>(counted[i]), static_cast<std::size_t>(*word(i)));
  require(*word(8) == adds, "the peer added %zu, the memory says %zu",
          static_cast<std::size_t>(adds), static_cast<std::size_t>(*word(8)));
}

[[gnu::noinline]] pid_t by_vfork(char* const* words) {
  // NOLINTNEXTLINE(bugprone-unsafe-functions,clang-analyzer-security.insecureAPI.vfork): tested
  const pid_t child = vfork();
  if (child == 0) {
    execvp(words[0], words);
    _exit(127);
  }
  return child;
}

// Children that only exec: vfork, posix_spawn, system, popen. The parent's memory stays as it was,
// under the peer's WRITEs; and the child's program is not hindered by what is registered.
void spawns(World& world) {
  Peer peer(world.next());
  const Memory memory;
  ibv_mr* const mr = peer.reg(memory.mapped, Memory::kSize);
  char name[] = "true";
  char* const words[] = {name, nullptr};
  for (unsigned round = 0; round < rounds(15, 150); ++round) {
    peer.touch(mr, memory.mapped, Memory::kSize, round);
    require(std::system("exit 0") == 0, "system");
    pid_t child = 0;
    require(posix_spawnp(&child, name, nullptr, nullptr, words, environ) == 0, "posix_spawn");
    require_child(child);
    require_child(by_vfork(words));
    FILE* const lines = popen("echo word", "r");
    char line[16] = {};
    require(lines && std::fgets(line, sizeof line, lines) && strcmp(line, "word\n") == 0, "popen");
    pclose(lines);
    expect(memory.mapped, Memory::kSize, round, "after children of all kinds");
  }
  Peer::dereg(mr);
  expect(memory.mapped, Memory::kSize, rounds(15, 150) - 1, "after deregistration");
}

// A child that goes on with RDMA of its own: it registers memory that it inherited, registered in
// the parent too, and both use it with a peer each.
void fork_and_register(World& world) {
  Peer peer(world.next());
  const Memory memory;
  ibv_mr* const mr = peer.reg(memory.mapped, Memory::kSize);
  peer.touch(mr, memory.mapped, Memory::kSize, 1);
  const int wire = world.next();
  Turns turns;
  const pid_t child = fork();
  if (child == 0) {
    probe::i_am("child");
    turns.i_am_child();
    turns.wait_for_parent();
    expect(memory.mapped, Memory::kSize, 1, "the child, before it registers");
    Peer own(wire);
    ibv_mr* const again = own.reg(memory.mapped, Memory::kSize);
    expect(memory.mapped, Memory::kSize, 1, "the child, registered");
    own.use(again, memory.mapped, Memory::kSize, 2);
    turns.child_is_done();
    turns.wait_for_parent();
    expect(memory.mapped, Memory::kSize, 2, "the child, after the parent's peer");
    own.read(again, memory.mapped, Memory::kSize, 2);
    Peer::dereg(again);
    expect(memory.mapped, Memory::kSize, 2, "the child, deregistered");
    _exit(0);
  }
  turns.i_am_parent();
  peer.write(mr, memory.mapped, Memory::kSize, 4);
  turns.parent_is_done();
  turns.wait_for_child();
  expect(memory.mapped, Memory::kSize, 4, "the parent, after the child's peer");
  peer.use(mr, memory.mapped, Memory::kSize, 3);
  turns.parent_is_done();
  require_child(child);
  peer.read(mr, memory.mapped, Memory::kSize, 3);
  Peer::dereg(mr);
  expect(memory.mapped, Memory::kSize, 3, "the parent, deregistered");
}

}  // namespace

std::vector<Scenario> fork_scenarios() {
  return {{"fork-writes", fork_writes},
          {"fork-without-handlers", plain_fork_writes},
          {"clone-writes", clone_writes},
          {"fork-before", fork_before},
          {"fork-free", fork_free},
          {"fork-threads", fork_threads},
          {"spawns", spawns},
          {"fork-and-register", fork_and_register}};
}

}  // namespace semantics
