// SPDX-License-Identifier: MIT
// Bytes that everybody can compute: what a message must contain, and what lies around the buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/random.h"

namespace chaos {

inline void fill(std::span<std::byte> to, std::uint64_t key) {
  verbena::SeededRandom random(key);
  while (!to.empty()) {
    const std::uint64_t word = random.next();
    const std::size_t size = to.size() < sizeof word ? to.size() : sizeof word;
    std::memcpy(to.data(), &word, size);
    to = to.subspan(size);
  }
}

// Where the bytes first differ from the pattern; -1: nowhere.
inline std::ptrdiff_t difference(std::span<const std::byte> from, std::uint64_t key) {
  verbena::SeededRandom random(key);
  for (std::size_t at = 0; at < from.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t word = random.next();
    const std::size_t left = from.size() - at;
    const std::size_t size = left < sizeof word ? left : sizeof word;
    if (std::memcmp(from.data() + at, &word, size) != 0) return static_cast<std::ptrdiff_t>(at);
  }
  return -1;
}

}  // namespace chaos
