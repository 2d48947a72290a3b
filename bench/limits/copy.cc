// SPDX-License-Identifier: MIT
#include <cstdlib>
#include <cstring>
#include <memory>

#include "limits/limits.h"
#include "limits/ticks.h"

namespace verbena::bench {
namespace {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Buffer = std::unique_ptr<void, Free>;

// Aligned to pages, as both perftests align theirs, and touched.
Buffer buffer(std::uint64_t size, int content) {
  constexpr std::uint64_t kPage = 4096;
  Buffer memory(std::aligned_alloc(kPage, (size + kPage - 1) / kPage * kPage));
  if (memory) {
    std::memset(memory.get(), content, size);
  }
  return memory;
}

}  // namespace

std::optional<std::uint64_t> copy_ticks(std::uint64_t size, std::uint64_t times) {
  const Buffer from = buffer(size, 1);
  const Buffer to = buffer(size, 2);
  if (!from || !to) {
    return std::nullopt;
  }
  // Through a pointer that the compiler does not know: the copy of libc, whatever the size.
  void* (*volatile copy)(void*, const void*, std::size_t) = std::memcpy;
  for (std::uint64_t i = 0; i < times / 10; ++i) {
    copy(to.get(), from.get(), size);
  }
  const std::uint64_t begin = ticks();
  for (std::uint64_t i = 0; i < times; ++i) {
    copy(to.get(), from.get(), size);
  }
  return ticks() - begin;
}

}  // namespace verbena::bench
