// SPDX-License-Identifier: MIT
// The program's own mappings: regions that overlap, mremap, and memory that is unmapped while it is
// registered.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "world.h"

namespace semantics {
namespace {

// Regions at any offset, of any length, over each other, of the same bytes, in any order of coming
// and going. Looks for: bytes around a region that change, a region that no longer names its memory
// after another one on its pages has gone, and memory that keeps something of it at the end.
void ranges(World& world) {
  Peer peer(world.next());
  Numbers numbers(20);
  constexpr std::size_t kSize = 64 * kPage;
  std::byte* const memory = map_pages(kSize);
  struct Region {
    ibv_mr* mr;
    std::size_t begin, size;
  };
  std::vector<Region> regions;
  fill(memory, kSize, 1);
  const auto some = [&]() -> Region& { return regions[numbers.between(0, regions.size() - 1)]; };
  for (unsigned round = 0; round < rounds(3000, 30'000); ++round) {
    if (regions.size() < 2 || (regions.size() < 40 && numbers.between(0, 1) == 0)) {
      std::size_t begin = numbers.between(0, kSize - 1);
      if (numbers.between(0, 2) == 0) begin -= begin % kPage;
      const std::size_t size = std::min(kSize - begin, numbers.size_between(1, 16 * kPage));
      regions.push_back({peer.reg(memory + begin, size), begin, size});
      if (numbers.between(0, 3) == 0)
        regions.push_back({peer.reg(memory + begin, size), begin, size});
    } else {
      Region& gone = some();
      Peer::dereg(gone.mr);
      gone = regions.back();
      regions.pop_back();
    }
    const Region& region = some();
    const std::size_t part = numbers.between(1, std::min(region.size, 2 * kPage));
    const std::size_t begin = region.begin + numbers.between(0, region.size - part);
    peer.write(region.mr, memory + begin, part, round);
    expect(memory + begin, part, round, "what was written");
    fill(memory + begin, part, 1, begin);
    peer.write(region.mr, memory + begin, part, 2);
    fill(memory + begin, part, 1, begin);
    if (round % 64 == 0) expect(memory, kSize, 1, "everything");
  }
  for (const Region& region : regions)
    Peer::dereg(region.mr);
  expect(memory, kSize, 1, "at the end");
  require(madvise(memory, kSize, MADV_DONTNEED) == 0, "madvise");
  expect_zero(memory, kSize, "given back");
}

std::byte* remapped(std::byte* at, std::size_t from, std::size_t to) {
  void* const moved = mremap(at, from, to, MREMAP_MAYMOVE);
  require(moved != MAP_FAILED, "mremap: %s", strerror(errno));
  return static_cast<std::byte*>(moved);
}

// Grows and shrinks a mapping of which some part was, or is, registered. Looks for: content lost by
// the move, growth that is not zero (old bytes of a shared object) or not there at all (SIGBUS
// behind its end), and a deregistration that harms what lies at the old place now.
void mremap_with(World& world, bool is_registered_meanwhile) {
  Peer peer(world.next());
  Numbers numbers(is_registered_meanwhile ? 21 : 22);
  std::size_t size = 32 * kPage;
  std::byte* memory = map_pages(size);
  fill(memory, size, 0);
  for (unsigned round = 0; round < rounds(200, 2000); ++round) {
    const std::size_t begin = numbers.between(0, size - 1);
    const std::size_t part = numbers.between(1, size - begin);
    ibv_mr* const mr = peer.reg(memory + begin, part);
    peer.touch(mr, memory + begin, part, round + 7);
    fill(memory + begin, part, 0, begin);
    if (!is_registered_meanwhile) Peer::dereg(mr);
    const std::size_t wanted = numbers.between(1, 128) * kPage;
    memory = remapped(memory, size, wanted);
    expect(memory, std::min(size, wanted), 0, "after mremap");
    if (wanted > size) expect_zero(memory + size, wanted - size, "what a mapping grew by");
    if (is_registered_meanwhile) Peer::dereg(mr);
    expect(memory, std::min(size, wanted), 0, "after deregistration");
    if (wanted > size) {
      expect_zero(memory + size, wanted - size, "after deregistration");
      fill(memory + size, wanted - size, 0, size);
    }
    size = wanted;
  }
  // Down to one page, and up again.
  ibv_mr* const mr = peer.reg(memory, size);
  peer.touch(mr, memory, size, 3);
  Peer::dereg(mr);
  memory = remapped(memory, size, kPage);
  memory = remapped(memory, kPage, 16 * kPage);
  expect_zero(memory + kPage, 15 * kPage, "shrunk and grown again");
}

void mremap_after(World& world) { mremap_with(world, false); }
void mremap_registered(World& world) { mremap_with(world, true); }

int temporary_file(std::size_t size) {
  const int fd = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  require(fd >= 0 && ftruncate(fd, static_cast<off_t>(size)) == 0, "a temporary file: %s",
          strerror(errno));
  return fd;
}

std::byte* map_at(std::byte* at, std::size_t size, int flags, int fd) {
  void* const mapped = mmap(at, size, PROT_READ | PROT_WRITE, flags | MAP_FIXED_NOREPLACE, fd, 0);
  require(mapped == at, "mmap at an address: %s", strerror(errno));
  return at;
}

// What comes to lie where registered memory was, and how to see that it is whole.
struct Successor {
  const char* name;
  int flags;
  bool has_file;
};

// Unmaps registered memory and maps something else there. Deregistration then must not bring the
// old bytes back, replace the new mapping by one of another kind (a file that no longer gets what
// is written), or unmap it.
void unmap_and_map(Peer& peer, const Successor& next, std::size_t begin, std::size_t part) {
  constexpr std::size_t kSize = 32 * kPage;
  std::byte* const memory = map_pages(kSize);
  fill(memory, kSize, 1);
  ibv_mr* const mr = peer.reg(memory, kSize);
  peer.touch(mr, memory, kSize, 1);
  require(munmap(memory + begin, part) == 0, "munmap");
  const int fd = next.has_file ? temporary_file(part) : -1;
  std::byte* const at = map_at(memory + begin, part, next.flags, fd);
  fill(at, part, 2);
  Peer::dereg(mr);
  expect(at, part, 2, next.name);
  expect(memory, begin, 1, "in front of what was unmapped");
  expect(memory + begin + part, kSize - begin - part, 1, "behind what was unmapped", begin + part);
  fill(at, part, 3);
  expect(at, part, 3, next.name);
  if (next.has_file && next.flags & MAP_SHARED) {
    std::vector<std::byte> content(part);
    require(pread(fd, content.data(), part, 0) == static_cast<ssize_t>(part), "pread");
    expect(content.data(), part, 3, "the file that was mapped there");
  }
  if (next.flags == (MAP_PRIVATE | MAP_ANONYMOUS)) {
    require(madvise(at, part, MADV_DONTNEED) == 0, "madvise");
    expect_zero(at, part, "the new mapping, given back");
  }
  // Nothing of it belongs to a child, unless it was shared.
  fill(memory, begin, 4);
  in_child([&] { memset(memory, 0, begin); });
  expect(memory, begin, 4, "after a child's writes");
  munmap(memory, kSize);
  if (fd >= 0) close(fd);
}

void unmapped(World& world) {
  Peer peer(world.next());
  constexpr std::array<Successor, 4> kNext{{
      {"private memory in its place", MAP_PRIVATE | MAP_ANONYMOUS, false},
      {"shared memory in its place", MAP_SHARED | MAP_ANONYMOUS, false},
      {"a file in its place", MAP_SHARED, true},
      {"a private view of a file in its place", MAP_PRIVATE, true},
  }};
  for (unsigned round = 0; round < rounds(10, 100); ++round) {
    for (const Successor& next : kNext) {
      unmap_and_map(peer, next, 0, 32 * kPage);
      unmap_and_map(peer, next, 8 * kPage, 4 * kPage);
      unmap_and_map(peer, next, 0, 4 * kPage);
      unmap_and_map(peer, next, 28 * kPage, 4 * kPage);
    }
  }
}

// Unmapped, and what comes in its place is registered, too, while the old region is still there (a
// cache of registrations that was not told). The new region names the new memory: looks for a NIC
// that takes the address for what it knew before, and writes to the old pages.
void unmapped_and_registered(World& world) {
  Peer peer(world.next());
  constexpr std::size_t kSize = 16 * kPage;
  for (unsigned round = 0; round < rounds(50, 500); ++round) {
    std::byte* const memory = map_pages(kSize);
    ibv_mr* const old = peer.reg(memory, kSize);
    peer.touch(old, memory, kSize, 1);
    const bool is_whole = round % 2 == 0;
    const std::size_t begin = is_whole ? 0 : 4 * kPage;
    const std::size_t part = is_whole ? kSize : 8 * kPage;
    require(munmap(memory + begin, part) == 0, "munmap");
    const int flags = round % 3 == 0 ? MAP_SHARED : MAP_PRIVATE;
    map_at(memory + begin, part, flags | MAP_ANONYMOUS, -1);
    fill(memory, kSize, 2);
    ibv_mr* const mr = peer.reg(memory, kSize);
    expect(memory, kSize, 2, "new memory at an old address, registered");
    peer.read(mr, memory, kSize, 2);
    peer.use(mr, memory, kSize, 3);
    Peer::dereg(round % 4 < 2 ? old : mr);
    expect(memory, kSize, 3, "one of two regions deregistered");
    Peer::dereg(round % 4 < 2 ? mr : old);
    expect(memory, kSize, 3, "new memory at an old address, deregistered");
    munmap(memory, kSize);
  }
}

// Unmapped, and nothing comes in its place: deregistration leaves the hole, and what is mapped
// around it.
void unmapped_hole(World& world) {
  Peer peer(world.next());
  for (unsigned round = 0; round < rounds(50, 500); ++round) {
    constexpr std::size_t kSize = 16 * kPage;
    std::byte* const memory = map_pages(kSize);
    ibv_mr* const mr = peer.reg(memory, kSize);
    peer.touch(mr, memory, kSize, round);
    require(munmap(memory + 4 * kPage, 8 * kPage) == 0, "munmap");
    Peer::dereg(mr);
    expect(memory, 4 * kPage, round, "in front of the hole");
    expect(memory + 12 * kPage, 4 * kPage, round, "behind the hole", 12 * kPage);
    map_at(memory + 4 * kPage, 8 * kPage, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    expect_zero(memory + 4 * kPage, 8 * kPage, "the hole, filled");
    munmap(memory, kSize);
  }
}

// Mappings that lie beside each other and may become one in the kernel's eyes: a region over
// several of them, and over holes that were punched by mprotect.
void neighbours(World& world) {
  Peer peer(world.next());
  for (unsigned round = 0; round < rounds(50, 500); ++round) {
    std::byte* const memory = map_pages(24 * kPage);
    fill(memory, 24 * kPage, round);
    // Three mappings: private, shared, private.
    require(munmap(memory + 8 * kPage, 8 * kPage) == 0, "munmap");
    map_at(memory + 8 * kPage, 8 * kPage, MAP_SHARED | MAP_ANONYMOUS, -1);
    fill(memory + 8 * kPage, 8 * kPage, round, 8 * kPage);
    ibv_mr* const mr = peer.reg(memory + 100, 24 * kPage - 200);
    expect(memory, 24 * kPage, round, "after registration");
    peer.use(mr, memory + 100, 24 * kPage - 200, round);
    // Private memory stays private and shared memory shared, before and after.
    for (int i = 0; i < 2; ++i) {
      fill(memory, 24 * kPage, round);
      in_child([&] { memset(memory, 0xA0 + i, 24 * kPage); });
      expect(memory, 8 * kPage, round, "private memory after a child's writes");
      const auto* const middle = memory + 8 * kPage;
      require(std::all_of(middle, middle + 8 * kPage,
                          [i](std::byte byte) { return byte == static_cast<std::byte>(0xA0 + i); }),
              "a child's writes to shared memory do not arrive");
      expect(memory + 16 * kPage, 8 * kPage, round, "private memory after a child's writes",
             16 * kPage);
      if (i == 0) Peer::dereg(mr);
    }
    munmap(memory, 24 * kPage);
  }
}

}  // namespace

std::vector<Scenario> mapping_scenarios() {
  return {{"ranges", ranges},
          {"mremap-after", mremap_after},
          {"mremap-registered", mremap_registered},
          {"unmapped", unmapped},
          {"unmapped-and-registered", unmapped_and_registered},
          {"unmapped-hole", unmapped_hole},
          {"neighbours", neighbours}};
}

}  // namespace semantics
