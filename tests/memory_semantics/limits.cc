// SPDX-License-Identifier: MIT
// Many regions, and little of everything: descriptors, address space, memory. Registration works,
// whether it can do something clever or not, and what it did it can undo when there is nothing left
// to do it with.
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "world.h"

namespace semantics {
namespace {

// How many more files the program can open.
std::size_t free_descriptors(std::size_t most) {
  std::vector<int> fds;
  while (fds.size() < most) {
    const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (fd < 0) break;
    fds.push_back(fd);
  }
  for (const int fd : fds)
    close(fd);
  return fds.size();
}

// How many more mappings the program can make, up to so many.
std::size_t free_mappings(std::size_t most) {
  std::byte* const memory = map_pages(most * kPage);
  std::size_t made = 0;
  // Every second page of other rights: each change makes two more.
  for (std::size_t page = 1; page < most; page += 2, made += 2) {
    if (mprotect(memory + page * kPage, kPage, PROT_READ) != 0) break;
  }
  munmap(memory, most * kPage);
  return made;
}

void limit_to(decltype(RLIMIT_AS) what, rlim_t value) {
  rlimit limit{};
  getrlimit(what, &limit);
  limit.rlim_cur = value;
  require(setrlimit(what, &limit) == 0, "setrlimit: %s", strerror(errno));
}

// 50,000 regions of all sizes in 50,000 blocks of the heap. The mappings and descriptors that the
// process may have are the program's: it must still find most of them free.
void many_regions(World& world) {
  constexpr std::size_t kRegions = 50'000;
  limit_to(RLIMIT_NOFILE, 1024);
  Peer peer(world.next());
  Numbers numbers(80);
  struct Region {
    std::byte* at;
    std::size_t size;
    ibv_mr* mr;
  };
  std::vector<Region> regions;
  for (std::size_t i = 0; i < kRegions; ++i) {
    const std::size_t size = numbers.size_between(64, 16 * kKilo);
    auto* const at = static_cast<std::byte*>(std::malloc(size));
    require(at != nullptr, "malloc");
    fill(at, size, i);
    regions.push_back({at, size, peer.reg(at, size)});
  }
  require(free_descriptors(200) == 200, "no descriptors are left for the program");
  require(free_mappings(20'000) >= 19'998, "no mappings are left for the program");
  for (std::size_t i = 0; i < kRegions; i += 97)
    peer.touch(regions[i].mr, regions[i].at, regions[i].size, i);
  for (std::size_t i = 0; i < kRegions; ++i) {
    const std::size_t last = regions.size() - 1;
    std::swap(regions[numbers.between(0, last)], regions[last]);
    Peer::dereg(regions[last].mr);
    regions[last].mr = nullptr;
    std::free(regions[last].at);
    regions.pop_back();
  }
  for (std::size_t i = 0; i < kRegions; ++i) {
    void* const at = std::calloc(1, 1000);
    expect_zero(at, 1000, "calloc afterwards");
    std::free(at);
  }
}

// Many regions, each in a mapping of its own, with room for 256 descriptors: registration works,
// and the program can still open its files.
void few_descriptors(World& world) {
  limit_to(RLIMIT_NOFILE, 256);
  Peer peer(world.next());
  const std::size_t before = free_descriptors(256);
  std::vector<std::pair<std::byte*, ibv_mr*>> regions;
  for (std::size_t i = 0; i < 1500; ++i) {
    std::byte* const at = map_pages(64 * kKilo);
    fill(at, 64 * kKilo, i);
    regions.emplace_back(at, peer.reg(at, 64 * kKilo));
  }
  const std::size_t after = free_descriptors(256);
  require(after >= 128, "the program could open %zu files, and now %zu", before, after);
  for (std::size_t i = 0; i < regions.size(); ++i) {
    if (i % 25 == 0) peer.touch(regions[i].second, regions[i].first, 64 * kKilo, i);
    Peer::dereg(regions[i].second);
    expect(regions[i].first, 64 * kKilo, i, "after deregistration");
    munmap(regions[i].first, 64 * kKilo);
  }
  // Some few that serve all regions may stay.
  const std::size_t at_last = free_descriptors(256);
  require(at_last + 16 >= before, "descriptors are lost: %zu, now %zu", before, at_last);
}

// No descriptor at all, and no address space: at registration, and at deregistration of what was
// registered in better days. What was adopted must come back whole; being forgotten is not an
// option.
void check_private(std::byte* at, std::size_t size, std::uint64_t seed, const char* when) {
  expect(at, size, seed, when);
  in_child([&] { memset(at, 0, size); });
  expect(at, size, seed, when);
  require(madvise(at, size, MADV_DONTNEED) == 0, "madvise: %s", strerror(errno));
  expect_zero(at, size, when);
}

void exhausted(World& world, decltype(RLIMIT_AS) what, rlim_t value, const char* when) {
  Peer peer(world.next());
  constexpr std::size_t kSize = 256 * kKilo;
  struct Region {
    std::byte* at;
    ibv_mr* mr;
  };
  std::vector<Region> regions;
  for (std::size_t i = 0; i < 40; ++i) {
    std::byte* const at = map_pages(kSize);
    fill(at, kSize, i);
    regions.push_back({at, i < 20 ? peer.reg(at, kSize) : nullptr});
    if (i < 20) peer.touch(regions[i].mr, at, kSize, i);
  }
  rlimit before{};
  getrlimit(what, &before);
  limit_to(what, value);
  for (std::size_t i = 20; i < 40; ++i) {
    regions[i].mr = peer.reg(regions[i].at, kSize);
    peer.touch(regions[i].mr, regions[i].at, kSize, i);
  }
  for (const Region& region : regions)
    Peer::dereg(region.mr);
  for (std::size_t i = 0; i < 40; ++i)
    expect(regions[i].at, kSize, i, when);
  limit_to(what, before.rlim_cur);
  for (std::size_t i = 0; i < 40; ++i)
    check_private(regions[i].at, kSize, i, when);
}

std::size_t address_space() {
  FILE* const file = fopen("/proc/self/statm", "re");
  std::size_t pages = 0;
  require(file && std::fscanf(file, "%zu", &pages) == 1, "/proc/self/statm");
  std::fclose(file);
  return pages * kPage;
}

void no_descriptors(World& world) { exhausted(world, RLIMIT_NOFILE, 3, "with no descriptor left"); }
void no_address_space(World& world) {
  // What the exhausting itself needs, and the stacks of threads, are there by then.
  exhausted(world, RLIMIT_AS, 1, "with no address space left");
}

// A program that was given little more address space than it uses.
void address_limit(World& world) {
  Peer peer(world.next());
  constexpr std::size_t kSize = 32 * kMega;
  std::byte* const memory = map_pages(kSize);
  fill(memory, kSize, 1);
  limit_to(RLIMIT_AS, address_space() + 2 * kMega);
  for (unsigned round = 0; round < rounds(3, 30); ++round) {
    std::vector<ibv_mr*> regions;
    for (std::size_t at = 0; at < kSize; at += kMega) {
      regions.push_back(peer.reg(memory + at, kMega));
      peer.touch(regions.back(), memory + at, 64 * kKilo, round);
    }
    void* const block = std::malloc(kMega);
    require(block != nullptr, "no address space is left for the program");
    memset(block, 1, kMega);
    std::free(block);
    for (ibv_mr* mr : regions)
      Peer::dereg(mr);
    for (std::size_t at = 0; at < kSize; at += kMega)
      expect(memory + at, 64 * kKilo, round, "after deregistration");
  }
}

// In a control group that has room for little more than the program's own memory (run_memory.py
// makes it and names it). Looks for memory that is held twice: the process is killed then.
void memory_group(World& world) {
  const char* const group = std::getenv("VERBENA_TEST_CGROUP");
  if (!group) skip("no memory control group can be made here");
  FILE* const file = fopen(group, "we");
  require(file && std::fprintf(file, "%d", getpid()) > 0 && std::fclose(file) == 0, "%s: %s", group,
          strerror(errno));
  Peer peer(world.next());
  constexpr std::size_t kSize = 64 * kMega;
  std::byte* const memory = map_pages(kSize);
  for (unsigned round = 0; round < rounds(2, 20); ++round) {
    for (const std::size_t piece : {512 * kKilo, 4 * kMega, kSize}) {
      std::vector<ibv_mr*> regions;
      fill(memory, kSize, round);
      for (std::size_t at = 0; at < kSize; at += piece)
        regions.push_back(peer.reg(memory + at, piece));
      expect(memory, kSize, round, "after registration");
      for (std::size_t i = 0; i < regions.size(); ++i)
        peer.touch(regions[i], memory + i * piece, 32 * kKilo, i);
      for (ibv_mr* mr : regions)
        Peer::dereg(mr);
      for (std::size_t i = 0; i < regions.size(); ++i)
        expect(memory + i * piece, 32 * kKilo, i, "after deregistration");
      require(madvise(memory, kSize, MADV_DONTNEED) == 0, "madvise");
    }
  }
}

// Large memory, untouched for the most part: registering it must not fill it.
void sparse(World& world) {
  Peer peer(world.next());
  constexpr std::size_t kSize = std::size_t{8} << 30;
  void* const mapped = mmap(nullptr, kSize, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) skip("8 GiB of address space are refused here");
  auto* const memory = static_cast<std::byte*>(mapped);
  const auto resident = [] {
    FILE* const file = fopen("/proc/self/statm", "re");
    std::size_t all = 0, pages = 0;
    require(file && std::fscanf(file, "%zu %zu", &all, &pages) == 2, "/proc/self/statm");
    std::fclose(file);
    return pages * kPage;
  };
  const std::size_t before = resident();
  ibv_mr* const whole = peer.reg(memory, kSize);
  ibv_mr* const part = peer.reg(memory + kMega, kMega);
  require(resident() < before + 64 * kMega, "registering memory filled it: %zu MiB",
          (resident() - before) >> 20);
  for (std::size_t at = 0; at < kSize; at += kSize / 16) {
    peer.touch(whole, memory + at, kPage, at);
    expect_zero(memory + at + kPage, kPage, "a page that nobody touched");
  }
  peer.touch(part, memory + kMega, kMega, 4);
  Peer::dereg(part);
  expect(memory + kMega, kMega, 4, "a part, deregistered");
  Peer::dereg(whole);
  for (std::size_t at = 0; at < kSize; at += kSize / 16)
    expect(memory + at, kPage, at, "after deregistration");
  munmap(memory, kSize);
}

// Huge pages of both kinds. Those of hugetlb, private and shared, cannot be split; transparent ones
// must not lose what they hold when they are.
void hugetlb(World& world) {
  Peer peer(world.next());
  constexpr std::size_t kSize = 4 * kMega;
  for (const int kind : {MAP_PRIVATE, MAP_SHARED}) {
    void* const mapped = mmap(nullptr, kSize, PROT_READ | PROT_WRITE,
                              kind | MAP_ANONYMOUS | MAP_HUGETLB | (21 << MAP_HUGE_SHIFT), -1, 0);
    if (mapped == MAP_FAILED) skip("there are no huge pages to be had (hugetlb)");
    auto* const memory = static_cast<std::byte*>(mapped);
    fill(memory, kSize, 1);
    ibv_mr* const mr = peer.reg(memory + 100, kSize - 200);
    expect(memory, kSize, 1, "huge pages, registered");
    peer.use(mr, memory + 100, kSize - 200, 2);
    Peer::dereg(mr);
    expect(memory + 100, kSize - 200, 2, "huge pages, deregistered");
    in_child([&] { memset(memory + 100, 0, 100); });
    if (kind == MAP_PRIVATE) expect(memory + 100, kSize - 200, 2, "after a child's writes");
    munmap(memory, kSize);
  }
}

void transparent_huge(World& world) {
  Peer peer(world.next());
  Numbers numbers(81);
  constexpr int kCollapse = 25;  // MADV_COLLAPSE, which libc's headers do not have yet
  constexpr std::size_t kHuge = 2 * kMega, kSize = 4 * kHuge;
  for (unsigned round = 0; round < rounds(10, 100); ++round) {
    std::byte* const mapped = map_pages(kSize + kHuge);
    std::byte* const memory =
        mapped + (kHuge - reinterpret_cast<std::uintptr_t>(mapped) % kHuge) % kHuge;
    if (madvise(memory, kSize, MADV_HUGEPAGE) != 0) skip("there are no transparent huge pages");
    fill(memory, kSize, round);
    std::vector<ibv_mr*> regions;
    for (int i = 0; i < 8; ++i) {
      const std::size_t begin = numbers.between(0, kSize - 1);
      const std::size_t size = std::min(kSize - begin, numbers.size_between(1, kHuge));
      regions.push_back(peer.reg(memory + begin, size));
      peer.write(regions.back(), memory + begin, size, 3);
      fill(memory + begin, size, round, begin);
    }
    regions.push_back(peer.reg(memory, kSize));
    peer.read(regions.back(), memory, kSize, round);
    // Huge again, if the kernel will.
    if (round % 2 == 0) static_cast<void>(madvise(memory, kHuge, kCollapse));
    for (ibv_mr* mr : regions)
      Peer::dereg(mr);
    expect(memory, kSize, round, "transparent huge pages, deregistered");
    require(madvise(memory, kSize, MADV_DONTNEED) == 0, "madvise");
    expect_zero(memory, kSize, "transparent huge pages, given back");
    munmap(mapped, kSize + kHuge);
  }
}

}  // namespace

std::vector<Scenario> limit_scenarios() {
  return {{"many-regions", many_regions},
          {"few-descriptors", few_descriptors},
          {"no-descriptors", no_descriptors},
          {"no-address-space", no_address_space},
          {"address-limit", address_limit},
          {"memory-group", memory_group},
          {"sparse", sparse},
          {"hugetlb", hugetlb},
          {"transparent-huge", transparent_huge}};
}

}  // namespace semantics
