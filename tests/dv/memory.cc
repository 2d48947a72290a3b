// SPDX-License-Identifier: MIT
// The preload keeps a program's memory what it was: calls that shared memory would answer
// otherwise, made while the memory is registered and adopted, with a peer that writes to it.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string_view>
#include <thread>
#include <vector>

#include "environment/node.h"
#include "verbena/dv.h"

namespace {

using namespace probe;

constexpr std::size_t kPage = 4096;
constexpr std::size_t kSize = 32 * kPage;

bool is_all(const std::byte* at, std::size_t size, int value) {
  return std::all_of(at, at + size,
                     [value](std::byte each) { return each == static_cast<std::byte>(value); });
}

// What the owner wants the peer to do; length 0: leave.
struct Wish {
  std::uint64_t address;
  std::uint32_t key;
  std::uint32_t length;
  std::uint32_t value;
  bool is_read;
};

// Writes what it is told, or reads and says whether it is that.
void peer(Wire& wire) {
  i_am("peer");
  Node node;
  const auto own = map_pages(kSize);
  ibv_mr* const mr = node.reg(own, kSize);
  Address owner;
  ibv_qp* const qp = node.meet(wire, {}, owner);
  for (;;) {
    const auto wish = wire.get<Wish>();
    if (wish.length == 0) return;
    std::memset(own, wish.is_read ? ~wish.value : wish.value, wish.length);
    Work work{.memory = own, .length = wish.length, .local_key = mr->lkey};
    work.opcode = wish.is_read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
    work.remote = wish.address;
    work.remote_key = wish.key;
    require(post(qp, work) == 0, "post");
    node.wait_success(1);
    wire.put(is_all(own, wish.length, static_cast<int>(wish.value & 0xff)));
  }
}

class Owner {
 public:
  explicit Owner(Wire& wire) : wire_(wire) {
    i_am("owner");
    Address theirs;
    node.meet(wire_, {}, theirs);
  }
  ~Owner() { wire_.put(Wish{}); }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;

  // Fails when nothing is adopted: then nothing here would be shown.
  ibv_mr* adopt(std::byte* memory, std::size_t size) {
    ibv_mr* const mr = node.reg(memory, size);
    require(is_mapped(mr), "it was not adopted");
    return mr;
  }
  static bool is_mapped(ibv_mr* mr) {
    verbena_dv_mr reach = {};
    require(verbena_dv_query_mr(mr, &reach) == 0, "verbena_dv_query_mr");
    return reach.mapped_length != 0;
  }
  void write(const ibv_mr* mr, const std::byte* at, std::size_t size, int value) {
    wish(mr, at, size, value, false);
    require(is_all(at, size, value), "what the peer wrote is not there");
  }
  void read(const ibv_mr* mr, const std::byte* at, std::size_t size, int value) {
    require(wish(mr, at, size, value, true), "the peer reads something else");
  }

  Node node;

 private:
  bool wish(const ibv_mr* mr, const std::byte* at, std::size_t size, int value, bool is_read) {
    wire_.put(Wish{reinterpret_cast<std::uint64_t>(at), mr->rkey, static_cast<std::uint32_t>(size),
                   static_cast<std::uint32_t>(value), is_read});
    return wire_.get<bool>();
  }
  Wire& wire_;
};

void advise(std::byte* at, std::size_t size, int advice) {
  errno = 12345;
  require(madvise(at, size, advice) == 0, "madvise %d: %s", advice, strerror(errno));
  require(errno == 12345, "errno is not what it was");
}

void* checked(void* mapped) {
  require(mapped != MAP_FAILED, "mapping: %s", strerror(errno));
  return mapped;
}

void dontneed(Wire& wire) {
  Owner owner(wire);
  for (int round = 0; round < 200; ++round) {
    auto* const memory = static_cast<std::byte*>(std::malloc(kSize));
    ibv_mr* const mr = owner.adopt(memory, kSize);
    owner.write(mr, memory, kSize, 1);
    std::byte* const page = memory + (kPage - reinterpret_cast<std::uintptr_t>(memory) % kPage);
    advise(page + 4 * kPage, 8 * kPage, MADV_DONTNEED);
    require(is_all(page + 4 * kPage, 8 * kPage, 0), "not zero");
    owner.read(mr, page + 4 * kPage, 8 * kPage, 0);
    require(is_all(memory, static_cast<std::size_t>(page - memory) + 4 * kPage, 1), "in front");
    require(is_all(page + 12 * kPage, kPage, 1), "behind");
    owner.write(mr, memory, kSize, 2);
    require(Owner::is_mapped(mr), "it is not shared any more");
    require(ibv_dereg_mr(mr) == 0, "dereg");
    require(is_all(memory, kSize, 2), "after deregistration");
    std::free(memory);
  }
}

// Where the pages cannot be given back in place: read-only memory, and more than one mapping.
void dontneed_otherwise(Wire& wire) {
  Owner owner(wire);
  std::byte* const memory = map_pages(kSize);
  ibv_mr* const mr = owner.adopt(memory + 8 * kPage, 8 * kPage);
  std::memset(memory, 3, kSize);
  require(mprotect(memory + 8 * kPage, 4 * kPage, PROT_READ) == 0, "mprotect");
  advise(memory, kSize, MADV_DONTNEED);
  require(is_all(memory, kSize, 0), "not zero");
  require(mprotect(memory + 8 * kPage, 4 * kPage, PROT_READ | PROT_WRITE) == 0, "mprotect");
  owner.write(mr, memory + 8 * kPage, 8 * kPage, 4);
  require(ibv_dereg_mr(mr) == 0, "dereg");
  require(is_all(memory + 8 * kPage, 8 * kPage, 4), "after deregistration");
}

void free_advice(Wire& wire) {
  Owner owner(wire);
  for (int round = 0; round < 200; ++round) {
    std::byte* const memory = map_pages(kSize);
    ibv_mr* const mr = owner.adopt(memory, 16 * kPage);
    owner.write(mr, memory, 16 * kPage, 1);
    advise(memory, kSize, MADV_FREE);
    std::memset(memory, 5, kSize);
    owner.read(mr, memory, 16 * kPage, 5);
    require(ibv_dereg_mr(mr) == 0, "dereg");
    require(is_all(memory, kSize, 5), "what was written after MADV_FREE");
    munmap(memory, kSize);
  }
}

void grown(Wire& wire) {
  Owner owner(wire);
  for (int round = 0; round < 100; ++round) {
    std::byte* memory = map_pages(kSize);
    ibv_mr* const mr = owner.adopt(memory, kSize);
    owner.write(mr, memory, kSize, 1);
    memory = static_cast<std::byte*>(checked(mremap(memory, kSize, 4 * kSize, MREMAP_MAYMOVE)));
    require(is_all(memory, kSize, 1), "content lost");
    require(is_all(memory + kSize, 3 * kSize, 0), "what it grew by is not zero");
    std::memset(memory, 2, 4 * kSize);
    // It is the program's own again, also at its new place.
    require(madvise(memory, 4 * kSize, MADV_DONTNEED) == 0, "madvise");
    require(is_all(memory, 4 * kSize, 0), "moved, and given back");
    std::memset(memory, 2, 4 * kSize);
    require(ibv_dereg_mr(mr) == 0, "dereg");
    require(is_all(memory, 4 * kSize, 2), "after deregistration");
    ibv_mr* const again = owner.adopt(memory, 4 * kSize);
    owner.write(again, memory + 2 * kSize, kSize, 3);
    require(ibv_dereg_mr(again) == 0, "dereg");
    munmap(memory, 4 * kSize);
  }
}

// New memory in the place of registered memory: the peer reaches what the program has there.
void mapped_over(Wire& wire) {
  Owner owner(wire);
  for (int round = 0; round < 100; ++round) {
    std::byte* const memory = map_pages(kSize);
    ibv_mr* const mr = owner.adopt(memory, kSize);
    owner.write(mr, memory, kSize, 1);
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (round % 2) munmap(memory + 4 * kPage, 8 * kPage);
    checked(mmap(memory + 4 * kPage, 8 * kPage, PROT_READ | PROT_WRITE, kFlags, -1, 0));
    require(is_all(memory + 4 * kPage, 8 * kPage, 0), "not new");
    owner.read(mr, memory + 4 * kPage, 8 * kPage, 0);
    owner.write(mr, memory + 2 * kPage, 12 * kPage, 2);
    require(ibv_dereg_mr(mr) == 0, "dereg");
    require(is_all(memory + 2 * kPage, 12 * kPage, 2), "after deregistration");
    require(is_all(memory + 14 * kPage, kSize - 14 * kPage, 1), "behind it");
    munmap(memory, kSize);
  }
}

void child_sees(const std::function<bool()>& look, const char* what) {
  const pid_t child = fork();
  require(child >= 0, "fork");
  if (child == 0) _exit(look() ? 0 : 1);
  int status = 0;
  require(waitpid(child, &status, 0) == child && status == 0, "%s", what);
}

void flags(Wire& wire) {
  Owner owner(wire);
  for (int round = 0; round < 20; ++round) {
    std::byte* const memory = map_pages(kSize);
    ibv_mr* const mr = owner.adopt(memory, kSize);
    owner.write(mr, memory, kSize, 1);
    const auto is_there = [memory] { return msync(memory, kPage, MS_ASYNC) == 0; };
    switch (round % 3) {
      case 0:
        advise(memory, kSize, MADV_WIPEONFORK);
        child_sees([&] { return is_all(memory, kSize, 0); }, "MADV_WIPEONFORK");
        break;
      case 1:
        advise(memory, kSize, MADV_DONTFORK);
        child_sees([&] { return !is_there(); }, "MADV_DONTFORK");
        advise(memory, kSize, MADV_DOFORK);
        child_sees(is_there, "MADV_DOFORK");
        break;
      default: advise(memory, kSize, MADV_DONTDUMP); break;
    }
    owner.write(mr, memory, kSize, 2);
    require(ibv_dereg_mr(mr) == 0, "dereg");
    require(is_all(memory, kSize, 2), "after deregistration");
    munmap(memory, kSize);
  }
}

// Allocated memory, whose content may be dropped as well.
void allocated(Wire& wire) {
  Owner owner(wire);
  auto* const memory = static_cast<std::byte*>(verbena_dv_alloc(owner.node.context, kSize));
  require(memory != nullptr, "verbena_dv_alloc: %s", strerror(errno));
  ibv_mr* const mr = owner.adopt(memory, kSize);
  owner.write(mr, memory, kSize, 1);
  advise(memory, kSize, MADV_DONTNEED);
  require(is_all(memory, kSize, 0), "not zero");
  owner.write(mr, memory, kSize, 2);
  require(Owner::is_mapped(mr), "it is not shared any more");
  advise(memory, kSize, MADV_WIPEONFORK);
  require(!Owner::is_mapped(mr), "still shared");
  require(is_all(memory, kSize, 2), "made private");
  owner.write(mr, memory, kSize, 3);
  require(ibv_dereg_mr(mr) == 0, "dereg");
  require(verbena_dv_free(owner.node.context, memory) == 0, "verbena_dv_free");
}

// An allocator that gives memory back all the time, in threads, around memory that comes and goes
// as registered: calloc's is zero, and what peers and the program write stays.
void load(Wire& wire) {
  Owner owner(wire);
  constexpr int kThreads = 3;
  std::atomic<bool> is_over{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&is_over, t] {
      unsigned state = 7919u * static_cast<unsigned>(t + 1);
      while (!is_over.load()) {
        state = state * 1664525u + 1013904223u;
        const std::size_t size = 1 + (state >> 8) % (256 * 1024);
        auto* const block = static_cast<std::byte*>(std::calloc(1, size));
        require(block && is_all(block, size, 0), "calloc of %zu bytes is not zero", size);
        std::memset(block, 0xee, size);
        std::free(block);
      }
    });
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  std::size_t size = 1;
  while (std::chrono::steady_clock::now() < end) {
    size = size * 5 % 130'003 + 1;
    auto* const memory = static_cast<std::byte*>(std::calloc(1, size));
    require(is_all(memory, size, 0), "calloc of %zu bytes is not zero", size);
    ibv_mr* const mr = owner.node.reg(memory, size);
    owner.write(mr, memory, std::min(size, kSize), 4);
    require(ibv_dereg_mr(mr) == 0, "dereg");
    require(is_all(memory, std::min(size, kSize), 4), "after deregistration");
    std::free(memory);
  }
  is_over = true;
  for (std::thread& thread : threads)
    thread.join();
}

struct Scene {
  std::string_view name;
  void (*run)(Wire&);
};
constexpr Scene kScenes[] = {
    {"dontneed", dontneed},       {"dontneed-otherwise", dontneed_otherwise},
    {"free", free_advice},        {"grown", grown},
    {"mapped-over", mapped_over}, {"flags", flags},
    {"allocated", allocated},     {"load", load}};

}  // namespace

int main(int count, char** arguments) {
  for (const Scene& scene : kScenes) {
    if (count != 2 || scene.name != arguments[1]) continue;
    return run_two(scene.run, peer) ? 0 : 1;
  }
  std::fprintf(stderr, "usage: dv_memory SCENE\n");
  return 2;
}
