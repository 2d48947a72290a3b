// SPDX-License-Identifier: MIT
// How long an answer takes: smoothed round trip and its variation (RFC 6298, 2), over packets that
// were sent once (Karn), and the pause after which something must have been lost.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/time.h"

namespace verbena::roce {

class RoundTrip {
 public:
  void sample(Duration measured) {
    const std::int64_t r = std::max<std::int64_t>(measured.count_nanoseconds(), 1);
    if (smoothed_ == 0) {
      smoothed_ = r;
      variation_ = r / 4;
    } else {
      const std::int64_t error = r > smoothed_ ? r - smoothed_ : smoothed_ - r;
      variation_ += (error - variation_) / 4;
      smoothed_ += (r - smoothed_) / 8;
    }
    backoff_ = 0;
    doubtful_ = 0;
  }
  bool is_known() const { return smoothed_ != 0; }
  Duration smoothed() const { return Duration::nanoseconds(smoothed_); }
  Duration half() const { return Duration::nanoseconds(smoothed_ / 2); }

  // Silence for so long means that the last packet or its answer is lost: a round trip and a half,
  // or what its variation asks for, at most one and three quarters; twice as long after each that
  // was in vain. A lost last packet is so repaired within three round trips (compare RFC 8985,
  // 7.2).
  Duration probe_after() const {
    const std::int64_t more = std::clamp(4 * variation_, smoothed_ / 2, smoothed_ * 3 / 4);
    return after(smoothed_ == 0 ? kUnknown : smoothed_ + more + kGrain);
  }
  // The same where an answer of several packets has begun to come.
  Duration probe_rest_after() const {
    return after(smoothed_ == 0 ? kUnknown : smoothed_ + smoothed_ / 4 + kGrain);
  }
  // Answers to what was sent together are no further apart.
  Duration follows_within() const {
    return Duration::nanoseconds(smoothed_ == 0 ? kUnknown : smoothed_ / 4 + kGrain);
  }
  void probed_in_vain() { backoff_ = std::min(backoff_ + 1, 16); }
  void heard() { backoff_ = 0; }

  // A time that may be longer than a round trip: something before it was sent again meanwhile. One
  // or two say nothing. Where no other comes, round trips have become so long that they are taken
  // for losses, which spoils every measurement.
  bool believes(Duration doubtful) {
    if (++doubtful_ < kDoubtfulMost) return false;
    sample(doubtful);
    return true;
  }

 private:
  Duration after(std::int64_t once) const {
    return Duration::nanoseconds(std::min(once << backoff_, kLongest));
  }

  static constexpr int kDoubtfulMost = 3;
  static constexpr std::int64_t kUnknown = 4'000'000;
  static constexpr std::int64_t kGrain = 2'000;
  static constexpr std::int64_t kLongest = 1'000'000'000;
  std::int64_t smoothed_ = 0;
  std::int64_t variation_ = 0;
  int backoff_ = 0;
  int doubtful_ = 0;
};

}  // namespace verbena::roce
