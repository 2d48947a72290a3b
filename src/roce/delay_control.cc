// SPDX-License-Identifier: MIT
#include "roce/delay_control.h"

#include <algorithm>

namespace verbena::roce {

namespace {

constexpr double kGain = 0.5;
constexpr double kMarked = 0.875;
// Once bytes that waited were lost, fewer may; until so many round trips later.
constexpr double kWaitingRecovery = 1.0 / 32;
constexpr double kWaitingLeast = 1.0 / 16;
constexpr std::uint32_t kCountLossesOver = 64;  // packets
constexpr std::uint32_t kTooManyOf = 10;
constexpr std::int64_t kUnmeasuredRoundTrips = 32;

}  // namespace

DelayControl::DelayControl(const DelayControlOptions& options)
    : options_(options),
      window_(static_cast<double>(std::min(options.window_start, options.window_max))),
      waiting_(static_cast<double>(options.waiting)) {}

std::size_t DelayControl::window() const {
  if (is_looking_) return options_.packet_bytes;
  return std::max(options_.packet_bytes, static_cast<std::size_t>(window_));
}

void DelayControl::sent(std::size_t, Instant) {
  if (++packets_ < kCountLossesOver) return;
  packets_ = losses_ = 0;
}

void DelayControl::acknowledged(std::size_t bytes, std::optional<Duration> round_trip,
                                Instant now) {
  acknowledged_ += static_cast<double>(bytes);
  if (!round_trip) return;
  const bool was_looking = is_looking_;
  measure(*round_trip, now);
  look_again(*round_trip, now);
  if (was_looking) acknowledged_ = 0;
}

void DelayControl::measure(Duration round_trip, Instant now) {
  last_ = round_trip;
  measured_at_ = now;
  if (shortest_ == Duration() || last_ < shortest_) shortest_ = last_;
  if (is_looking_) return;
  is_starting_ &= !is_long(round_trip);
  // Where less was sent than could have been, nothing says that there is room for more.
  const double used = std::min(1.0, acknowledged_ / window_);
  acknowledged_ = 0;
  const auto measured = static_cast<double>(round_trip.count_nanoseconds());
  const auto free = static_cast<double>((shortest_ + options_.queueing).count_nanoseconds());
  const double wanted = window_ * std::min(1.0, free / measured) + waiting_;
  const double change = is_starting_ ? window_ : kGain * (wanted - window_);
  window_ += change > 0 ? change * used : change;
  window_ = std::min(window_, static_cast<double>(options_.window_max));
  const auto most = static_cast<double>(options_.waiting);
  waiting_ = std::min(most, waiting_ + most * kWaitingRecovery);
}

// Over when a packet has come back that left after everything before it.
void DelayControl::look_again(Duration round_trip, Instant now) {
  if (is_looking_) {
    const Instant sent_at = Instant::at(now.nanoseconds() - round_trip.count_nanoseconds());
    if (sent_at <= looked_at_) return;
    is_looking_ = false;
    looked_at_ = now;
    return;
  }
  if (looked_at_ == Instant() || !is_long(round_trip)) looked_at_ = now;
  if (now < looked_at_ + options_.look_again_after) return;
  is_looking_ = true;
  looked_at_ = now + round_trip;
}

void DelayControl::lost(Instant now) {
  const bool is_blind = now > measured_at_ + last_ * kUnmeasuredRoundTrips;
  if (!is_blind && !is_long(last_) && ++losses_ * kTooManyOf <= kCountLossesOver) return;
  losses_ = 0;
  halve(now);
}

// That a queue is long the round trips say, too, and how long: so less than half. Ends without
// delay control, who share it, hear of nothing else.
void DelayControl::notified(Instant) {
  is_starting_ = false;
  window_ = std::max(window_ * kMarked, static_cast<double>(options_.packet_bytes));
}

// Once a round trip: what was sent before cannot know of it.
void DelayControl::halve(Instant now) {
  is_starting_ = false;
  if (now < halved_at_ + last_) return;
  halved_at_ = now;
  window_ = std::max(window_ / 2, static_cast<double>(options_.packet_bytes));
  waiting_ = std::max(waiting_ / 2, static_cast<double>(options_.waiting) * kWaitingLeast);
}

}  // namespace verbena::roce
