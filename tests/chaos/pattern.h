// SPDX-License-Identifier: MIT
// Bytes that everybody can compute: what a message must contain, and what lies around the buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace chaos {

// xorshift64*: small, and the same everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u | 1) { next(); }

  std::uint64_t next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545F4914F6CDD1Du;
  }
  // From 0 to limit - 1.
  std::uint32_t below(std::uint32_t limit) {
    return static_cast<std::uint32_t>((next() >> 32) * limit >> 32);
  }
  bool once_in(std::uint32_t times) { return below(times) == 0; }

 private:
  std::uint64_t state_;
};

inline void fill(std::span<std::byte> to, std::uint64_t key) {
  Random random(key);
  while (!to.empty()) {
    const std::uint64_t word = random.next();
    const std::size_t size = to.size() < sizeof word ? to.size() : sizeof word;
    std::memcpy(to.data(), &word, size);
    to = to.subspan(size);
  }
}

// Where the bytes first differ from the pattern; -1: nowhere.
inline std::ptrdiff_t difference(std::span<const std::byte> from, std::uint64_t key) {
  Random random(key);
  for (std::size_t at = 0; at < from.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t word = random.next();
    const std::size_t left = from.size() - at;
    const std::size_t size = left < sizeof word ? left : sizeof word;
    if (std::memcmp(from.data() + at, &word, size) != 0) return static_cast<std::ptrdiff_t>(at);
  }
  return -1;
}

}  // namespace chaos
