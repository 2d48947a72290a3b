// SPDX-License-Identifier: MIT
// Randomness. Keys, queue pair numbers and nonces come from the kernel's generator, because peers
// must not guess them (ReDMArk, USENIX Security 2021); tests and the simulator hand in a seeded
// one.
#pragma once

#include <cstdint>

namespace verbena {

class RandomSource {
 public:
  virtual ~RandomSource() = default;
  virtual std::uint64_t next() = 0;
};

// getrandom(2), fetched in blocks. Not thread-safe: each owner guards its own.
class KernelRandom final : public RandomSource {
 public:
  std::uint64_t next() override;

 private:
  static constexpr unsigned kWords = 32;
  std::uint64_t words_[kWords] = {};
  unsigned left_ = 0;
};

// xorshift64*: the same numbers for the same seed, everywhere.
class SeededRandom final : public RandomSource {
 public:
  explicit SeededRandom(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}
  std::uint64_t next() override {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545F4914F6CDD1Du;
  }
  // Uniform in [0, bound); bound 0 gives 0. The bias is below 2^-32 for bounds below 2^32.
  std::uint64_t below(std::uint64_t bound) { return bound ? next() % bound : 0; }
  // True once in `n` on average.
  bool one_in(std::uint64_t n) { return below(n) == 0; }

 private:
  std::uint64_t state_;
};

}  // namespace verbena
