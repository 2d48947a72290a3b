// SPDX-License-Identifier: MIT
// Keeps what a queue pair sends to a rate (ibv_modify_qp_rate_limit(3)), by the time at which a
// line of that rate would be free again: so much ahead of it may be sent as makes a burst, and at
// least one packet. In the long run the rate is exact, however late a turn comes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/time.h"

namespace verbena::nic {

class Pacer {
 public:
  // `rate` in kilobits a second, 0: as fast as it goes. What was sent so far counts on.
  void set(std::uint32_t rate, std::uint32_t burst_bytes) {
    if (rate == rate_ && burst_bytes == burst_) return;
    rate_ = rate;
    burst_ = burst_bytes;
    if (rate_ == 0) free_at_ = Instant();
  }
  bool is_limited() const { return rate_ != 0; }
  // None: a packet may leave now.
  std::optional<Instant> waits_until(Instant now) const {
    if (!is_limited()) return std::nullopt;
    const Instant at = free_at_ + time_of(burst_) * -1;
    return at <= now ? std::nullopt : std::optional(at);
  }
  void sent(std::size_t bytes, Instant now) {
    if (is_limited()) free_at_ = std::max(free_at_, now) + time_of(bytes);
  }
  // The last `bytes` of those, together, had left by `at`: later than was thought, if whoever sent
  // them lost its core meanwhile. Those behind them would follow too closely.
  void had_left(std::size_t bytes, Instant at) {
    if (is_limited()) free_at_ = std::max(free_at_, at + time_of(bytes));
  }

 private:
  Duration time_of(std::size_t bytes) const {
    constexpr std::int64_t kBits = 8;
    constexpr std::int64_t kNanosecondsOfABitAtOneKilobit = 1'000'000;
    return Duration::nanoseconds(static_cast<std::int64_t>(bytes) * kBits *
                                 kNanosecondsOfABitAtOneKilobit / rate_);
  }

  std::uint32_t rate_ = 0;
  std::uint32_t burst_ = 0;
  Instant free_at_;
};

}  // namespace verbena::nic
