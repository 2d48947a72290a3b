// SPDX-License-Identifier: MIT
#include "roce/delay_control.h"

#include <algorithm>

namespace verbena::roce {

void DelayControl::acknowledged(std::size_t bytes, std::optional<Duration> round_trip,
                                Instant now) {
  if (round_trip) {
    last_ = *round_trip;
    if (shortest_ == Duration() || last_ < shortest_) shortest_ = last_;
    const Duration target = shortest_ + options_.queueing;
    is_above_ = last_ > target;
    if (is_above_) {
      const auto over = static_cast<double>(last_.count_nanoseconds() - target.count_nanoseconds());
      shrink(options_.decrease_gain * over / static_cast<double>(last_.count_nanoseconds()), now);
    }
  }
  if (is_above_) return;
  window_ += static_cast<double>(options_.packet_bytes) * static_cast<double>(bytes) / window_;
  window_ = std::min(window_, static_cast<double>(options_.window_max));
}

// Once a round trip: what was sent before cannot know of it.
void DelayControl::shrink(double by, Instant now) {
  if (now < shrunk_at_ + last_) return;
  shrunk_at_ = now;
  window_ *= 1 - std::min(by, options_.decrease_most);
  window_ = std::max(window_, static_cast<double>(options_.window_min));
}

}  // namespace verbena::roce
