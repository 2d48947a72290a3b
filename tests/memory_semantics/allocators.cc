// SPDX-License-Identifier: MIT
// What allocators do with memory that was registered. They run with glibc's and, by LD_PRELOAD,
// with others: each gives pages back and takes them again in its own way, and each trusts that
// pages which it gave back with MADV_DONTNEED come back as zeros.
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "world.h"

namespace semantics {
namespace {

std::byte* allocate(std::size_t size) {
  void* const at = std::malloc(size);
  require(at != nullptr, "malloc of %zu", size);
  return static_cast<std::byte*>(at);
}

std::byte* allocate_zeroed(std::size_t size) {
  void* const at = std::calloc(size, 1);
  require(at != nullptr, "calloc of %zu", size);
  return static_cast<std::byte*>(at);
}

// What is lost when it fails ends with the process.
std::byte* reallocated(std::byte* at, std::size_t size) {
  void* const moved = std::realloc(at, size);
  require(moved != nullptr, "realloc to %zu", size);
  return static_cast<std::byte*>(moved);
}

struct Block {
  std::byte* at = nullptr;
  std::size_t size = 0;
  std::uint64_t seed = 0;

  void check_and_free(const char* when) const {
    expect(at, size, seed, when);
    std::free(at);
  }
};

// Blocks that wait to be freed, by whichever thread comes.
class Exchange {
 public:
  void give(const Block& block) {
    const std::lock_guard guard(lock_);
    blocks_.push_back(block);
  }
  bool take(Block& block) {
    const std::lock_guard guard(lock_);
    if (blocks_.size() < 32) return false;
    block = blocks_.front();
    blocks_.pop_front();
    return true;
  }
  void end() {
    for (const Block& block : blocks_)
      block.check_and_free("a block at the end");
    blocks_.clear();
  }

 private:
  std::mutex lock_;
  std::deque<Block> blocks_;
};

// One thread of `churn`: registers, uses and gives back blocks among others that are never
// registered; those share pages with them.
class Churner {
 public:
  Churner(int wire_fd, unsigned number, Exchange& exchange)
      : peer_(wire_fd), numbers_(number + 1), exchange_(exchange) {}

  void round() {
    keep_neighbours();
    const std::size_t size = numbers_.size_between(64, 256 * kKilo);
    Block block{allocate(size), size, numbers_.next()};
    fill(block.at, size, block.seed);
    use_part(block);
    if (numbers_.between(0, 3) == 0) reallocate(block);
    if (numbers_.between(0, 1) == 0) {
      exchange_.give(block);
    } else {
      block.check_and_free("a block that was registered");
    }
    Block other;
    if (exchange_.take(other)) other.check_and_free("a block of another thread");
    check_zeroed();
  }

  void end() {
    for (const Block& block : neighbours_) {
      if (block.at) block.check_and_free("a neighbour at the end");
    }
  }

 private:
  void keep_neighbours() {
    Block& block = neighbours_[numbers_.between(0, neighbours_.size() - 1)];
    if (block.at) block.check_and_free("a neighbour that was never registered");
    const std::size_t size = numbers_.size_between(16, 8 * kKilo);
    block = {allocate(size), size, numbers_.next()};
    fill(block.at, size, block.seed);
  }

  void use_part(const Block& block) {
    const std::size_t begin = numbers_.between(0, 1) == 0 ? 0 : numbers_.between(0, block.size - 1);
    const std::size_t size = numbers_.between(1, block.size - begin);
    std::byte* const at = block.at + begin;
    ibv_mr* const mr = peer_.reg(at, size);
    expect(block.at, block.size, block.seed, "after registration");
    if (numbers_.between(0, 7) == 0) {
      peer_.use(mr, at, size, 5);
    } else {
      peer_.touch(mr, at, size, 5);
    }
    fill(at, size, block.seed, begin);
    Peer::dereg(mr);
    expect(block.at, block.size, block.seed, "after deregistration");
  }

  void reallocate(Block& block) {
    const std::size_t size = numbers_.size_between(64, 512 * kKilo);
    block.at = reallocated(block.at, size);
    expect(block.at, std::min(size, block.size), block.seed, "after realloc");
    block.size = size;
    fill(block.at, size, block.seed);
  }

  void check_zeroed() {
    const std::size_t size = numbers_.size_between(64, 512 * kKilo);
    std::byte* const at = allocate_zeroed(size);
    expect_zero(at, size, "calloc");
    memset(at, 0xEE, size);
    std::free(at);
  }

  Peer peer_;
  Numbers numbers_;
  Exchange& exchange_;
  std::array<Block, 64> neighbours_{};
};

// Looks for: blocks that lose what they hold when their pages are moved or moved back (theirs, or a
// neighbour's on the same page), memory of calloc that is not zero because pages that were given
// back kept what they held, and an allocator that crashes on its own dirty metadata.
void churn(World& world) {
  Exchange exchange;
  std::vector<std::unique_ptr<Churner>> churners;
  for (unsigned i = 0; i < World::kPeers; ++i)
    churners.push_back(std::make_unique<Churner>(world.next(), i, exchange));
  const unsigned count = rounds(600, 20'000);
  in_threads(World::kPeers, [&](unsigned i) {
    for (unsigned round = 0; round < count; ++round)
      churners[i]->round();
    churners[i]->end();
  });
  exchange.end();
}

// The failure of careless adoption: an allocator that gives dirty pages back with MADV_DONTNEED
// hands them out as zeroed. Sizes above any cache of small blocks; many at a time, so that whole
// extents become free and are given back.
void calloc_zero(World& world) {
  Peer peer(world.next());
  Numbers numbers(7);
  for (unsigned round = 0; round < rounds(20, 200); ++round) {
    std::vector<std::pair<std::byte*, std::size_t>> blocks;
    std::vector<ibv_mr*> regions;
    for (int i = 0; i < 24; ++i) {
      const std::size_t size = numbers.between(16 * kKilo, 300 * kKilo);
      std::byte* const at = allocate(size);
      regions.push_back(peer.reg(at, size));
      peer.write(regions.back(), at, size, numbers.next());
      blocks.emplace_back(at, size);
    }
    for (ibv_mr* mr : regions)
      Peer::dereg(mr);
    for (const auto& [at, size] : blocks)
      std::free(at);
    if (round % 2 == 0) malloc_trim(0);
    blocks.clear();
    for (int i = 0; i < 24; ++i) {
      const std::size_t size = numbers.between(16 * kKilo, 300 * kKilo);
      std::byte* const at = allocate_zeroed(size);
      expect_zero(at, size, "calloc after free of registered memory");
      memset(at, 0xEE, size);
      blocks.emplace_back(at, size);
    }
    for (const auto& [at, size] : blocks)
      std::free(at);
  }
}

// Small registered blocks all over the heap, freed in any order, with malloc_trim in between: looks
// for heap pages that lose their neighbours' bytes or the allocator's own lists.
void trim(World& world) {
  Peer peer(world.next());
  Numbers numbers(8);
  for (unsigned round = 0; round < rounds(6, 60); ++round) {
    std::vector<Block> blocks;
    for (int i = 0; i < 3000; ++i) {
      const std::size_t size = numbers.size_between(24, 6 * kKilo);
      blocks.push_back({allocate(size), size, numbers.next()});
      fill(blocks.back().at, size, blocks.back().seed);
    }
    std::vector<ibv_mr*> regions;
    for (std::size_t i = 0; i < blocks.size(); i += 10) {
      regions.push_back(peer.reg(blocks[i].at, blocks[i].size));
      peer.touch(regions.back(), blocks[i].at, blocks[i].size, blocks[i].seed);
    }
    for (std::size_t i = blocks.size(); i > 1; --i)
      std::swap(blocks[i - 1], blocks[numbers.between(0, i - 1)]);
    for (ibv_mr* mr : regions)
      Peer::dereg(mr);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      blocks[i].check_and_free("a small block");
      if (i % 500 == 0) malloc_trim(0);
    }
    malloc_trim(0);
  }
}

// realloc of memory that was registered, up and down; glibc does it with mremap above 128 KiB.
// Looks for content that stays behind, and for growth past the end of what was moved (SIGBUS).
void reallocate(World& world) {
  Peer peer(world.next());
  Numbers numbers(9);
  Block block{allocate(1), 1, 1};
  fill(block.at, 1, 1);
  for (unsigned round = 0; round < rounds(150, 2000); ++round) {
    const std::size_t size = numbers.size_between(32 * kKilo, 4 * kMega);
    block.at = reallocated(block.at, size);
    expect(block.at, std::min(size, block.size), block.seed, "after realloc");
    block.size = size;
    block.seed = round;
    ibv_mr* const mr = peer.reg(block.at, size);
    peer.write(mr, block.at, size, block.seed);
    expect(block.at, size, block.seed, "after the peer's WRITE");
    Peer::dereg(mr);
  }
  block.check_and_free("at the end");
}

// The program moves its own break: memory that it gave back and takes again is zero.
void brk_heap(World& world) {
  Peer peer(world.next());
  // Nobody else shall move it.
  mallopt(M_TOP_PAD, 64 * static_cast<int>(kMega));
  std::free(allocate(100));
  constexpr std::size_t kSize = 256 * kKilo;
  for (unsigned round = 0; round < rounds(50, 500); ++round) {
    auto* const begin = static_cast<std::byte*>(sbrk(static_cast<std::intptr_t>(kSize)));
    if (begin == reinterpret_cast<void*>(-1)) skip("the break cannot be moved here");
    expect_zero(begin, kSize, "fresh memory of the break");
    fill(begin, kSize, round);
    ibv_mr* const mr = peer.reg(begin + 100, kSize - 200);
    peer.touch(mr, begin + 100, kSize - 200, round);
    if (round % 2 == 0) Peer::dereg(mr);
    require(sbrk(-static_cast<std::intptr_t>(kSize)) == begin + kSize, "the break was moved");
    if (round % 2 == 1) Peer::dereg(mr);
  }
}

}  // namespace

std::vector<Scenario> allocator_scenarios() {
  return {{"churn", churn},
          {"calloc-zero", calloc_zero},
          {"trim", trim},
          {"realloc", reallocate},
          {"brk-heap", brk_heap}};
}

}  // namespace semantics
