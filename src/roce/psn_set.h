// SPDX-License-Identifier: MIT
// Which PSNs ahead of a mark have come: a bitmap on a circle, of fixed size.
#pragma once

#include <array>
#include <cstdint>

#include "wire/sequence.h"

namespace verbena::roce {

class PsnSet {
 public:
  static constexpr std::uint32_t kSpan = 2048;  // members are within so many of each other

  bool has(wire::Psn psn) const { return words_[word(psn)] >> bit(psn) & 1; }
  void add(wire::Psn psn) { words_[word(psn)] |= std::uint64_t{1} << bit(psn); }
  void remove(wire::Psn psn) { words_[word(psn)] &= ~(std::uint64_t{1} << bit(psn)); }
  void clear() { words_.fill(0); }

 private:
  static constexpr std::size_t word(wire::Psn psn) { return psn.value() % kSpan / 64; }
  static constexpr unsigned bit(wire::Psn psn) { return psn.value() % 64; }
  std::array<std::uint64_t, kSpan / 64> words_{};
};

}  // namespace verbena::roce
