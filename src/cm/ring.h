// SPDX-License-Identifier: MIT
// A queue that keeps its memory: grows to what was needed once, and then never again.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace verbena::cm {

template <class T>
class Ring {
 public:
  bool empty() const { return count_ == 0; }
  std::size_t size() const { return count_; }
  std::size_t room() const { return items_.size(); }

  // A place at the end, with whatever stood there.
  T& push() {
    if (count_ == items_.size()) grow();
    return items_[(first_ + count_++) & (items_.size() - 1)];
  }
  T& front() { return items_[first_]; }
  void pop() {
    first_ = (first_ + 1) & (items_.size() - 1);
    --count_;
  }

 private:
  void grow() {
    std::vector<T> more(items_.empty() ? 16 : 2 * items_.size());
    for (std::size_t i = 0; i < count_; ++i)
      more[i] = std::move(items_[(first_ + i) & (items_.size() - 1)]);
    items_ = std::move(more);
    first_ = 0;
  }

  std::vector<T> items_;  // a power of two
  std::size_t first_ = 0;
  std::size_t count_ = 0;
};

}  // namespace verbena::cm
