// SPDX-License-Identifier: MIT
// Of two places where packets come, which to look at: each look is a system call. A conversation's
// packets come to one place, so that one is looked at, and now and then the other; while packets
// come to one and the other by turns, both are, the first one first. One thread.
#pragma once

#include <cstdint>

namespace verbena::port {

class Alternation {
 public:
  // Of so many times one is for both, whatever is found.
  static constexpr std::uint32_t kBothOf = 8;
  // So many finds in one place in a row, before the other is looked at less often.
  static constexpr std::uint32_t kRun = 64;

  // The next time is for both: what lies there has to be found.
  void look_at_both() { is_next_for_both_ = true; }
  // Each time: looks_at_first(), then looks_at_second() with what came of that, then found().
  bool looks_at_first() {
    is_for_both_ = ++times_ % kBothOf == 0 || is_next_for_both_;
    is_next_for_both_ = false;
    return is_for_both_ || is_at_first_ || run_ < kRun;
  }
  bool looks_at_second(bool has_found) const {
    return is_for_both_ || (!has_found && (!is_at_first_ || run_ < kRun));
  }
  void found(bool in_first, bool in_second) {
    silent_ = in_first ? 0 : silent_ + 1;
    if (in_first == in_second) {
      if (in_first) run_ = 0;
    } else if (in_first != is_at_first_) {
      is_at_first_ = in_first;
      run_ = 0;
    } else if (run_ < kRun) {
      ++run_;
    }
  }

  // Times since something was found in the first place.
  std::uint64_t silent() const { return silent_; }

 private:
  bool is_at_first_ = true;
  bool is_for_both_ = false;
  bool is_next_for_both_ = false;
  std::uint32_t run_ = 0;  // finds in one place, up to kRun
  std::uint32_t times_ = 0;
  std::uint64_t silent_ = 0;
};

}  // namespace verbena::port
