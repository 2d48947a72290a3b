// SPDX-License-Identifier: MIT
// How long, and how often, a process tries to get the lock under which processes join those that
// share UDP port 4791. They join one after the other, each faster than one notices. But some
// hundred of them may start at once; then whoever has tried for long tries seldom, since each try
// takes time from those that join. And as long as others join the lock is not stuck.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/time.h"
#include "base/types.h"

namespace verbena::nic {

class JoinWait {
 public:
  static constexpr Duration kPauseMin = Duration::milliseconds(2);
  static constexpr Duration kPauseMax = Duration::milliseconds(50);
  static constexpr Duration kLookPause = Duration::milliseconds(2500);
  static constexpr Duration kMost = Duration::seconds(60);

  explicit JoinWait(Instant now) : begun_(now), look_at_(now + kLookPause) {}

  // The lock could not be had. When to try again; nothing: whoever has it does not come to an end.
  // `members()`: the slots of those that have joined, in order.
  template <class Members>
  std::optional<Instant> next(Instant now, Members members) {
    if (now >= begun_ + kMost) return std::nullopt;
    if (now >= look_at_) {
      std::optional<std::vector<SlotNumber>> seen(members());
      if (seen == seen_) return std::nullopt;
      seen_ = std::move(seen);
      look_at_ = now + kLookPause;
    }
    return now + std::clamp(Duration::nanoseconds((now - begun_).count_nanoseconds() / 16),
                            kPauseMin, kPauseMax);
  }

 private:
  Instant begun_;
  Instant look_at_;
  std::optional<std::vector<SlotNumber>> seen_;
};

}  // namespace verbena::nic
