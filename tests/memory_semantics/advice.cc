// SPDX-License-Identifier: MIT
// What the program tells the kernel about its memory: that it no longer needs what is there
// (madvise), who may touch it (mprotect), what children see of it. All of it must mean the same
// before, during and after registration.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "world.h"

namespace semantics {
namespace {

constexpr std::size_t kSize = 32 * kPage;

void advise(std::byte* at, std::size_t size, int advice) {
  require(madvise(at, size, advice) == 0, "madvise %d: %s", advice, strerror(errno));
}

// MADV_DONTNEED makes private memory zero, after registration, also of a part.
void dontneed_after(World& world) {
  Peer peer(world.next());
  std::byte* const memory = map_pages(kSize);
  Numbers numbers(70);
  for (unsigned round = 0; round < rounds(300, 3000); ++round) {
    ibv_mr* const mr = peer.reg(memory + 10, kSize - 20);
    peer.write(mr, memory + 10, kSize - 20, round);
    Peer::dereg(mr);
    const std::size_t begin = numbers.between(0, 31) * kPage;
    const std::size_t size = numbers.between(1, 32 - begin / kPage) * kPage;
    fill(memory, kSize, round);
    advise(memory + begin, size, MADV_DONTNEED);
    expect_zero(memory + begin, size, "given back after deregistration");
    expect(memory, begin, round, "in front of what was given back");
    expect(memory + begin + size, kSize - begin - size, round, "behind what was given back",
           begin + size);
  }
}

// Also while it is registered: what the program reads then is zero. What the NIC does there
// afterwards may fail or not; deregistration must not bring the old bytes back.
void dontneed_registered_by(World& world, long (*give_back)(std::byte* at, std::size_t size)) {
  Peer peer(world.next());
  for (unsigned round = 0; round < rounds(100, 1000); ++round) {
    std::byte* const memory = map_pages(kSize);
    ibv_mr* const mr = peer.reg(memory, kSize);
    peer.touch(mr, memory, kSize, round);
    require(give_back(memory + 4 * kPage, 8 * kPage) == 0, "MADV_DONTNEED: %s", strerror(errno));
    expect_zero(memory + 4 * kPage, 8 * kPage, "given back while registered");
    fill(memory + 4 * kPage, 4 * kPage, 9);
    Peer::dereg(mr);
    expect(memory, 4 * kPage, round, "in front of what was given back");
    expect(memory + 4 * kPage, 4 * kPage, 9, "written again, after deregistration");
    expect_zero(memory + 8 * kPage, 4 * kPage, "given back, after deregistration");
    expect(memory + 12 * kPage, kSize - 12 * kPage, round, "behind it", 12 * kPage);
    munmap(memory, kSize);
  }
}

void dontneed_registered(World& world) {
  dontneed_registered_by(world, [](std::byte* at, std::size_t size) -> long {
    return madvise(at, size, MADV_DONTNEED);
  });
}
// By runtimes that know nothing of libc. A known limit where memory is adopted: nobody sees a
// system call that is made past libc, and of shared memory MADV_DONTNEED drops no content. The
// runner expects it to fail then, for this reason.
void dontneed_by_system_call(World& world) {
  static bool is_adopted;
  dontneed_registered_by(world, [](std::byte* at, std::size_t size) {
    is_adopted = is_adopted || is_shared(at);
    return syscall(SYS_madvise, at, size, MADV_DONTNEED);
  });
  if (!is_adopted) std::printf("note: nothing was adopted\n");
}

// MADV_FREE: each page is what it was or zero, and what is written afterwards stays.
void check_freed(const std::byte* memory, std::size_t begin, std::uint64_t seed, const char* when) {
  constexpr std::byte kZeros[16] = {};
  for (std::size_t page = begin; page < kSize; page += kPage) {
    if (memcmp(memory + page, kZeros, sizeof kZeros) == 0) {
      expect_zero(memory + page, kPage, when);
    } else {
      expect(memory + page, kPage, seed, when, page);
    }
  }
}

void free_advice(World& world) {
  Peer peer(world.next());
  std::byte* const memory = map_pages(kSize);
  for (unsigned round = 0; round < rounds(200, 2000); ++round) {
    ibv_mr* const mr = peer.reg(memory, kSize);
    peer.touch(mr, memory, kSize, 5);
    Peer::dereg(mr);
    advise(memory, kSize, MADV_FREE);
    if (round % 4 == 0) advise(memory, kSize, MADV_PAGEOUT);
    check_freed(memory, 0, 5, "freed after deregistration");
    fill(memory, 8 * kPage, 6);
    // Registration must not lose what was written since.
    ibv_mr* const again = peer.reg(memory, kSize);
    expect(memory, 8 * kPage, 6, "written after MADV_FREE");
    check_freed(memory, 8 * kPage, 5, "freed, then registered");
    peer.touch(again, memory, kSize, 7);
    Peer::dereg(again);
    expect(memory, kSize, 7, "at the end");
  }
}

// MADV_FREE is meaningless for shared memory: while registered the kernel may refuse it, as it
// refuses other things then. Whatever it says, written bytes stay.
void free_registered(World& world) {
  Peer peer(world.next());
  for (unsigned round = 0; round < rounds(100, 1000); ++round) {
    std::byte* const memory = map_pages(kSize);
    ibv_mr* const mr = peer.reg(memory, kSize);
    peer.touch(mr, memory, kSize, 5);
    require(madvise(memory, kSize, MADV_FREE) == 0, "MADV_FREE while registered: %s",
            strerror(errno));
    check_freed(memory, 0, 5, "freed while registered");
    fill(memory, kSize, 6);
    peer.read(mr, memory, kSize, 6);
    Peer::dereg(mr);
    expect(memory, kSize, 6, "after deregistration");
    munmap(memory, kSize);
  }
}

sigjmp_buf fault_place;
void on_fault(int) { siglongjmp(fault_place, 1); }

bool can_write(std::byte* at) {
  if (sigsetjmp(fault_place, 1) != 0) return false;
  *reinterpret_cast<volatile unsigned char*>(at) = *reinterpret_cast<volatile unsigned char*>(at);
  return true;
}

bool can_read(const std::byte* at) {
  if (sigsetjmp(fault_place, 1) != 0) return false;
  static_cast<void>(*reinterpret_cast<const volatile unsigned char*>(at));
  return true;
}

void protect(std::byte* at, std::size_t size, int rights) {
  require(mprotect(at, size, rights) == 0, "mprotect: %s", strerror(errno));
}

void expect_rights(std::byte* at, std::size_t size, int rights, const char* when) {
  for (std::size_t page = 0; page < size; page += kPage) {
    require(can_read(at + page) == ((rights & PROT_READ) != 0), "%s: reading page %zu", when,
            page / kPage);
    require(can_write(at + page) == ((rights & PROT_WRITE) != 0), "%s: writing page %zu", when,
            page / kPage);
  }
}

// Rights taken away while registered, and given back before or after deregistration. Looks for
// rights that come back by themselves, and content that changes on the way.
void protection(World& world) {
  Peer peer(world.next());
  signal(SIGSEGV, on_fault);
  signal(SIGBUS, on_fault);
  constexpr int kAll = PROT_READ | PROT_WRITE;
  std::byte* const memory = map_pages(kSize);
  unsigned round = 0;
  for (unsigned i = 0; i < rounds(20, 200); ++i) {
    for (const int rights : {PROT_READ, PROT_NONE}) {
      for (const bool is_early : {false, true}) {
        fill(memory, kSize, ++round);
        ibv_mr* const mr = peer.reg(memory, kSize);
        peer.touch(mr, memory, kSize, round);
        std::byte* const part = memory + 8 * kPage;
        protect(part, 8 * kPage, rights);
        expect_rights(part, 8 * kPage, rights, "protected while registered");
        expect_rights(memory, 8 * kPage, kAll, "in front of it");
        if (is_early) {
          protect(part, 8 * kPage, kAll);
          expect(memory, kSize, round, "rights given back");
          peer.touch(mr, memory, kSize, round);
        }
        Peer::dereg(mr);
        if (!is_early) {
          expect_rights(part, 8 * kPage, rights, "still protected after deregistration");
          protect(part, 8 * kPage, kAll);
        }
        expect_rights(memory, kSize, kAll, "at the end");
        expect(memory, kSize, round, "after all");
      }
    }
  }
}

// Memory that the program may only read, registered for reading: it stays so.
void read_only(World& world) {
  Peer peer(world.next());
  signal(SIGSEGV, on_fault);
  for (unsigned round = 0; round < rounds(50, 500); ++round) {
    std::byte* const memory = map_pages(kSize);
    fill(memory, kSize, round);
    protect(memory, kSize, PROT_READ);
    ibv_mr* const mr = peer.reg(memory, kSize, IBV_ACCESS_REMOTE_READ);
    expect_rights(memory, kSize, PROT_READ, "read-only memory, registered");
    peer.read(mr, memory, kSize, round);
    Peer::dereg(mr);
    expect_rights(memory, kSize, PROT_READ, "read-only memory, deregistered");
    protect(memory, kSize, PROT_READ | PROT_WRITE);
    expect(memory, kSize, round, "read-only memory");
    munmap(memory, kSize);
  }
}

// The flags of the mapping at an address, as the kernel writes them; those that come and go by
// themselves left out.
std::string flags_at(const std::byte* wanted) {
  FILE* const maps = fopen("/proc/self/smaps", "re");
  require(maps != nullptr, "/proc/self/smaps: %s", strerror(errno));
  char line[1024];
  bool is_here = false;
  std::string flags;
  while (std::fgets(line, sizeof line, maps)) {
    unsigned long begin = 0, end = 0;
    const auto at = reinterpret_cast<std::uintptr_t>(wanted);
    if (std::sscanf(line, "%lx-%lx ", &begin, &end) == 2) is_here = begin <= at && at < end;
    if (is_here && strncmp(line, "VmFlags:", 8) == 0) flags = line + 8;
  }
  std::fclose(maps);
  const std::size_t soft_dirty = flags.find(" sd");
  return soft_dirty == std::string::npos ? flags : flags.erase(soft_dirty, 3);
}

// What was asked for a mapping before it was registered is still so afterwards: that children do
// not get it (secrets), or get it empty (random generators), that it is not dumped, that it is
// locked.
void kept_flags(World& world) {
  Peer peer(world.next());
  struct Wish {
    int advice;
    const char* name;
  };
  for (const Wish wish :
       {Wish{MADV_NORMAL, "nothing"}, Wish{MADV_DONTFORK, "MADV_DONTFORK"},
        Wish{MADV_WIPEONFORK, "MADV_WIPEONFORK"}, Wish{MADV_DONTDUMP, "MADV_DONTDUMP"},
        Wish{MADV_HUGEPAGE, "MADV_HUGEPAGE"}, Wish{MADV_NOHUGEPAGE, "MADV_NOHUGEPAGE"},
        Wish{MADV_MERGEABLE, "MADV_MERGEABLE"}, Wish{-1, "mlock"}}) {
    std::byte* const memory = map_pages(kSize);
    // Kernels are built without some of them.
    const int done = wish.advice < 0 ? mlock(memory, kSize) : madvise(memory, kSize, wish.advice);
    if (done != 0) {
      std::printf("note: %s is refused here: %s\n", wish.name, strerror(errno));
      continue;
    }
    fill(memory, kSize, 3);
    const std::string before = flags_at(memory + 4 * kPage);
    ibv_mr* const mr = peer.reg(memory + 4 * kPage, 8 * kPage);
    peer.touch(mr, memory + 4 * kPage, 8 * kPage, 3);
    for (int i = 0; i < 2; ++i) {
      fill(memory, kSize, 3);
      in_child([&] {
        signal(SIGSEGV, on_fault);
        std::byte* const at = memory + 5 * kPage;
        if (wish.advice == MADV_DONTFORK) {
          require(!can_read(at), "%s: the child has it", wish.name);
        } else if (wish.advice == MADV_WIPEONFORK) {
          expect_zero(at, kPage, wish.name);
        } else {
          expect(at, kPage, 3, wish.name, 5 * kPage);
        }
      });
      if (i == 0) Peer::dereg(mr);
    }
    const std::string after = flags_at(memory + 4 * kPage);
    require(before == after, "%s: the mapping's flags were%s, are now%s", wish.name, before.c_str(),
            after.c_str());
    munmap(memory, kSize);
  }
}

// The same wishes, made while the memory is registered.
void flags_meanwhile(World& world) {
  Peer peer(world.next());
  std::byte* const memory = map_pages(kSize);
  fill(memory, kSize, 3);
  ibv_mr* const mr = peer.reg(memory, kSize);
  peer.touch(mr, memory, kSize, 3);
  advise(memory, kSize, MADV_DONTFORK);
  in_child([&] {
    signal(SIGSEGV, on_fault);
    require(!can_read(memory + kPage), "MADV_DONTFORK while registered: the child has it");
  });
  advise(memory, kSize, MADV_DOFORK);
  in_child([&] {
    expect(memory, kSize, 3, "MADV_DOFORK while registered");
    memset(memory, 0, kSize);
  });
  expect(memory, kSize, 3, "after a child's writes");
  require(mlock(memory, kSize) == 0 || errno == ENOMEM || errno == EPERM, "mlock: %s",
          strerror(errno));
  Peer::dereg(mr);
  expect(memory, kSize, 3, "at the end");
  in_child([&] { expect(memory, kSize, 3, "the child, after deregistration"); });
}

}  // namespace

std::vector<Scenario> advice_scenarios() {
  return {{"dontneed-after", dontneed_after},
          {"dontneed-registered", dontneed_registered},
          {"dontneed-by-system-call", dontneed_by_system_call},
          {"free-after", free_advice},
          {"free-registered", free_registered},
          {"protection", protection},
          {"read-only", read_only},
          {"kept-flags", kept_flags},
          {"flags-meanwhile", flags_meanwhile}};
}

}  // namespace semantics
