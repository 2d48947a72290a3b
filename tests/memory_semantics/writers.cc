// SPDX-License-Identifier: MIT
// Others who use the memory at the very moment in which it is registered or deregistered: threads,
// signal handlers, system calls, and threads that sleep on it.
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <thread>
#include <vector>

#include "world.h"

namespace semantics {
namespace {

volatile std::uint64_t* word_at(std::byte* at) {
  return reinterpret_cast<volatile std::uint64_t*>(at);
}

// Threads count without locks, each in words of its own on every page, while the region comes and
// goes; and the peer adds atomically beside them. Looks for the lost write: a store into a page
// that had been copied already.
void increments(World& world) {
  constexpr unsigned kThreads = 2;
  constexpr std::size_t kPages = 64;
  Peer peer(world.next());
  std::byte* const memory = map_pages(kPages * kPage);
  std::atomic<bool> is_over{false};
  std::array<std::array<std::uint64_t, kPages>, kThreads> counted{};
  const auto count = [&](std::size_t thread) {
    for (std::size_t turn = thread * 7; !is_over; ++turn) {
      const std::size_t page = turn % kPages;
      volatile std::uint64_t* const word = word_at(memory + page * kPage + thread * 1024);
      for (int i = 0; i < 4; ++i)
        *word = *word + 1;
      counted[thread][page] += 4;
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kThreads; ++i)
    threads.emplace_back(count, i);
  std::uint64_t added = 0;
  auto* const shared_word = reinterpret_cast<std::uint64_t*>(memory + 5 * kPage + 3800);
  for (unsigned round = 0; round < rounds(200, 20'000); ++round) {
    ibv_mr* const mr = peer.reg(memory, kPages * kPage);
    for (int i = 0; i < 2; ++i, ++added)
      require(peer.add(mr, shared_word, 1) == added, "an add was lost");
    Peer::dereg(mr);
  }
  is_over = true;
  for (std::thread& thread : threads)
    thread.join();
  for (std::size_t thread = 0; thread < kThreads; ++thread) {
    for (std::size_t page = 0; page < kPages; ++page) {
      const std::uint64_t found = *word_at(memory + page * kPage + thread * 1024);
      require(found == counted[thread][page], "page %zu: counted %zu, found %zu", page,
              static_cast<std::size_t>(counted[thread][page]), static_cast<std::size_t>(found));
    }
  }
}

// Fresh memory that threads touch for the first time while it is registered. Looks for the lost
// first touch: a page that was absent when its neighbours were copied.
void first_touches(World& world) {
  constexpr unsigned kThreads = 2;
  constexpr std::size_t kPages = 512;
  Peer peer(world.next());
  for (unsigned round = 0; round < rounds(100, 3000); ++round) {
    std::byte* const memory = map_pages(kPages * kPage);
    std::atomic<unsigned> ready{0};
    std::vector<std::thread> threads;
    for (unsigned thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        ++ready;
        while (ready < kThreads + 1) {
        }
        // One from the front, one from the back; each its own pages, every fourth stays untouched.
        for (std::size_t i = thread; i < kPages; i += kThreads) {
          if (i % 4 != 3) *word_at(memory + (thread == 0 ? i : kPages - i) * kPage) = round + 1;
        }
      });
    }
    while (ready < kThreads) {
    }
    ++ready;
    ibv_mr* mr = peer.reg(memory, kPages * kPage);
    if (round % 2 == 0) {
      Peer::dereg(mr);
      mr = nullptr;
    }
    for (std::thread& thread : threads)
      thread.join();
    for (std::size_t i = 0; i < kPages; ++i) {
      // Thread 0 has the even pages, thread 1 kPages minus an odd number: the odd ones.
      const std::size_t number = i % 2 == 0 ? i : kPages - i;
      const std::uint64_t wanted = number % 4 != 3 ? round + 1 : 0;
      require(*word_at(memory + i * kPage) == wanted, "page %zu has %zu, not %zu", i,
              static_cast<std::size_t>(*word_at(memory + i * kPage)),
              static_cast<std::size_t>(wanted));
    }
    if (mr) {
      peer.touch(mr, memory, 8 * kPage, round);
      Peer::dereg(mr);
    }
    munmap(memory, kPages * kPage);
  }
}

// System calls of another thread that read into and write from the memory meanwhile: a page that is
// withheld for a moment must not make them answer EFAULT, nor lose what they brought.
void calls_meanwhile(World& world) {
  constexpr std::size_t kSize = 16 * kPage;
  Peer peer(world.next());
  std::byte* const memory = map_pages(kSize);
  std::atomic<bool> is_over{false};
  std::thread caller([&] {
    int fds[2];
    require(pipe(fds) == 0, "pipe");
    std::vector<std::byte> copy(kSize / 2);
    for (std::uint64_t turn = 1; !is_over; ++turn) {
      // Halves: one is read into, the other written from.
      fill(copy.data(), copy.size(), turn);
      require(::write(fds[1], copy.data(), copy.size()) == static_cast<ssize_t>(copy.size()),
              "write");
      const ssize_t got = ::read(fds[0], memory, copy.size());
      require(got == static_cast<ssize_t>(copy.size()), "read into it: %s",
              got < 0 ? strerror(errno) : "short");
      expect(memory, copy.size(), turn, "what a system call read into the memory");
      fill(memory + kSize / 2, kSize / 2, turn + 1);
      const ssize_t put = ::write(fds[1], memory + kSize / 2, kSize / 2);
      require(put == static_cast<ssize_t>(kSize / 2), "write from it: %s",
              put < 0 ? strerror(errno) : "short");
      require(::read(fds[0], copy.data(), copy.size()) == put, "read");
      expect(copy.data(), copy.size(), turn + 1, "what a system call wrote from the memory");
    }
  });
  for (unsigned round = 0; round < rounds(800, 20'000); ++round) {
    ibv_mr* const mr = peer.reg(memory, kSize);
    usleep(round % 4 * 10);
    Peer::dereg(mr);
  }
  is_over = true;
  caller.join();
}

volatile std::uint64_t* handler_words = nullptr;
volatile sig_atomic_t handler_runs = 0;
constexpr std::size_t kHandlerPages = 64;

void count_in_handler(int) {
  const int saved = errno;
  const auto page = static_cast<std::size_t>(handler_runs) % kHandlerPages;
  handler_words[page * kPage / 8] = handler_words[page * kPage / 8] + 1;
  handler_runs = handler_runs + 1;
  errno = saved;
}

// A signal handler that writes to the memory, in the very thread that registers it. Looks for the
// deadlock of who waits for itself, and for lost writes.
void handlers(World& world) {
  Peer peer(world.next());
  std::byte* const memory = map_pages(kHandlerPages * kPage);
  handler_words = word_at(memory);
  struct sigaction action{};
  action.sa_handler = count_in_handler;
  action.sa_flags = SA_RESTART;
  require(sigaction(SIGUSR1, &action, nullptr) == 0, "sigaction");
  const pthread_t self = pthread_self();
  std::atomic<bool> is_over{false};
  std::thread sender([&] {
    while (!is_over) {
      pthread_kill(self, SIGUSR1);
      usleep(50);
    }
  });
  while (handler_runs < static_cast<int>(rounds(1000, 50'000)))
    Peer::dereg(peer.reg(memory, kHandlerPages * kPage));
  is_over = true;
  sender.join();
  std::uint64_t sum = 0;
  for (std::size_t page = 0; page < kHandlerPages; ++page)
    sum += *word_at(memory + page * kPage);
  require(sum == static_cast<std::uint64_t>(handler_runs), "the handler counted %d, found %zu",
          static_cast<int>(handler_runs), static_cast<std::size_t>(sum));
}

long futex(volatile std::uint32_t* word, int operation, std::uint32_t value,
           const timespec* limit = nullptr) {
  return syscall(SYS_futex, word, operation, value, limit, nullptr, 0);
}

// A thread sleeps on a word of the memory (a condition variable, a thread that is joined) when it
// is registered or deregistered, and is woken afterwards. Looks for the sleeper that the kernel no
// longer finds, because the word now belongs to another object. Both kinds of futex: those of one
// process, and those that a process might share.
void sleep_across(Peer& peer, std::byte* memory, int flag, bool is_leaving) {
  auto* const word = reinterpret_cast<volatile std::uint32_t*>(memory + 2 * kPage);
  *word = 0;
  ibv_mr* mr = is_leaving ? peer.reg(memory, 4 * kPage) : nullptr;
  std::atomic<int> state{0};
  std::thread sleeper([&] {
    const timespec limit{60, 0};
    state = 1;
    // A sleeper goes on sleeping when it wakes for nothing, as all users of futexes do.
    while (*word == 0) {
      const long done = futex(word, FUTEX_WAIT | flag, 0, &limit);
      if (done != 0 && errno == ETIMEDOUT) {
        state = 2;
        return;
      }
    }
  });
  while (state != 1)
    std::this_thread::yield();
  usleep(3000);  // until it sleeps
  if (is_leaving) {
    Peer::dereg(mr);
  } else {
    mr = peer.reg(memory, 4 * kPage);
  }
  *word = 1;
  futex(word, FUTEX_WAKE | flag, 1);
  sleeper.join();
  require(state != 2, "a thread that slept on a %s futex %s is not woken",
          flag ? "private" : "shared", is_leaving ? "at deregistration" : "at registration");
  if (!is_leaving) Peer::dereg(mr);
}

void sleepers(World& world) {
  Peer peer(world.next());
  std::byte* const memory = map_pages(4 * kPage);
  for (unsigned round = 0; round < rounds(20, 200); ++round) {
    for (const bool is_leaving : {false, true}) {
      sleep_across(peer, memory, FUTEX_PRIVATE_FLAG, is_leaving);
      sleep_across(peer, memory, 0, is_leaving);
    }
  }
}

// Threads that register, use and give back regions over the same pages at the same time, with a
// peer and a device context each.
void crowds(World& world) {
  constexpr std::size_t kPages = 64;
  std::byte* const memory = map_pages(kPages * kPage);
  std::vector<int> wires;
  for (int i = 0; i < World::kPeers; ++i)
    wires.push_back(world.next());
  in_threads(World::kPeers, [&](unsigned thread) {
    Peer peer(wires[thread]);
    Numbers numbers(50 + thread);
    // Of every page a quarter is this thread's.
    const std::size_t quarter = kPage / World::kPeers;
    for (std::size_t page = 0; page < kPages; ++page)
      fill(memory + page * kPage + thread * quarter, quarter, page);
    for (unsigned round = 0; round < rounds(800, 10'000); ++round) {
      const std::size_t first = numbers.between(0, kPages - 1);
      const std::size_t last = numbers.between(first, kPages - 1);
      ibv_mr* const mr = peer.reg(memory + first * kPage, (last - first + 1) * kPage);
      const std::size_t page = numbers.between(first, last);
      std::byte* const mine = memory + page * kPage + thread * quarter;
      peer.touch(mr, mine, quarter, page);
      Peer::dereg(mr);
      expect(mine, quarter, page, "one's own part of a page");
    }
    for (std::size_t page = 0; page < kPages; ++page)
      expect(memory + page * kPage + thread * quarter, quarter, page, "one's own part, at the end");
  });
}

}  // namespace

std::vector<Scenario> writer_scenarios() {
  return {{"increments", increments},
          {"first-touches", first_touches},
          {"calls-meanwhile", calls_meanwhile},
          {"handlers", handlers},
          {"sleepers", sleepers},
          {"crowds", crowds}};
}

}  // namespace semantics
