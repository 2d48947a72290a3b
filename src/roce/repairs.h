// SPDX-License-Identifier: MIT
// Ranges of PSNs to be sent once more out of their turn. Fixed room: what does not fit is found by
// the next timer.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "wire/sequence.h"

namespace verbena::roce {

class Repairs {
 public:
  struct Range {
    wire::Psn first;
    std::uint32_t count = 0;
  };

  bool is_empty() const { return size_ == 0; }
  const Range& front() const { return ranges_[head_ % kMost]; }
  // Not where it begins in one that waits already.
  void add(wire::Psn first, std::uint32_t count) {
    if (size_ == kMost || count == 0) return;
    for (std::uint32_t i = 0; i < size_; ++i) {
      const Range& range = ranges_[(head_ + i) % kMost];
      const std::int32_t inside = first - range.first;
      if (inside >= 0 && inside < static_cast<std::int32_t>(range.count)) return;
    }
    ranges_[(head_ + size_++) % kMost] = {first, count};
  }
  // `count` of the front one are sent, or not needed any more.
  void take(std::uint32_t count) {
    Range& range = ranges_[head_ % kMost];
    if (count < range.count) {
      range.first = range.first + count;
      range.count -= count;
      return;
    }
    ++head_;
    --size_;
  }
  void clear() { size_ = 0; }

 private:
  static constexpr std::uint32_t kMost = 32;
  std::array<Range, kMost> ranges_{};
  std::uint32_t head_ = 0;
  std::uint32_t size_ = 0;
};

}  // namespace verbena::roce
