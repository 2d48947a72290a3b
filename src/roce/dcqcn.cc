// SPDX-License-Identifier: MIT
#include "roce/dcqcn.h"

#include <algorithm>

namespace verbena::roce {

namespace {

constexpr unsigned kFastRecoveryEvents = 5;

}  // namespace

Dcqcn::Dcqcn(const DcqcnOptions& options)
    : options_(options),
      rate_(options.line_bits_per_second),
      target_(options.line_bits_per_second) {}

void Dcqcn::notified(Instant now) {
  catch_up(now);
  is_limited_ = true;
  target_ = rate_;
  rate_ = std::max(options_.minimum_bits_per_second, rate_ * (1 - alpha_ / 2));
  alpha_ = (1 - options_.gain) * alpha_ + options_.gain;
  alpha_at_ = now + options_.alpha_interval;
  increase_at_ = now + options_.increase_interval;
  bytes_ = 0;
  timer_events_ = byte_events_ = 0;
}

// Its timers, which need nobody to fire: what was due since the last call.
void Dcqcn::catch_up(Instant now) {
  while (is_limited_ && now >= std::min(alpha_at_, increase_at_)) {
    if (alpha_at_ <= increase_at_) {
      alpha_ *= 1 - options_.gain;
      alpha_at_ = alpha_at_ + options_.alpha_interval;
    } else {
      ++timer_events_;
      increase_at_ = increase_at_ + options_.increase_interval;
      increase();
    }
  }
}

void Dcqcn::increase() {
  const unsigned least = std::min(timer_events_, byte_events_);
  const unsigned most = std::max(timer_events_, byte_events_);
  if (least > kFastRecoveryEvents)
    target_ += options_.hyper_bits_per_second;
  else if (most > kFastRecoveryEvents)
    target_ += options_.additive_bits_per_second;
  target_ = std::min(target_, options_.line_bits_per_second);
  rate_ = (rate_ + target_) / 2;
  if (rate_ < 0.999 * options_.line_bits_per_second) return;
  rate_ = target_ = options_.line_bits_per_second;
  is_limited_ = false;
  alpha_ = 1;
}

void Dcqcn::sent(std::size_t bytes, Instant now) {
  if (!is_limited_) return;
  catch_up(now);
  const auto time = static_cast<double>(bytes) * 8e9 / rate_;
  free_at_ = std::max(free_at_, now) + Duration::nanoseconds(static_cast<std::int64_t>(time));
  bytes_ += bytes;
  if (!is_limited_ || bytes_ < options_.increase_bytes) return;
  bytes_ = 0;
  ++byte_events_;
  increase();
}

Instant Dcqcn::next_departure(Instant now) {
  catch_up(now);
  if (!is_limited_) return now;
  const auto burst = static_cast<double>(options_.burst_bytes) * 8e9 / rate_;
  return Instant::at(free_at_.nanoseconds() - static_cast<std::int64_t>(burst));
}

}  // namespace verbena::roce
