// SPDX-License-Identifier: MIT
#include "local/answer_pace.h"

namespace verbena::local {
namespace {

// The time not to look, by parts of what an exchange takes: at first, and after a first look that
// came too early. Eight times less after one that did not: so nine in ten do not.
constexpr std::uint64_t kFirstPart = 4;
constexpr std::uint64_t kLaterPart = 128;
constexpr std::uint64_t kLaterMin = 4;
constexpr std::uint64_t kSoonerPart = 8;

}  // namespace

void AnswerPace::reset() {
  interrupt();
  came_ = 0;
  waiting_ = kWaiting;
  enter(Phase::kWaiting, 1);
}

void AnswerPace::enter(Phase phase, std::uint32_t exchanges) {
  phase_ = phase;
  left_ = exchanges;
  seen_ = measured_ = awaited_ = 0;
  sum_ = 0;
}

void AnswerPace::join() {
  if (streak_ != kStreak || (phase_ != Phase::kWaiting && phase_ != Phase::kTimed)) return;
  sent_at_ = 0;
  enter(Phase::kPlain, kMeasured);
}

void AnswerPace::exchanged(std::uint64_t now) {
  if (now == 0) return give_up();
  const std::uint64_t before = sent_at_;
  sent_at_ = now;
  if (phase_ == Phase::kWaiting) return enter(Phase::kPlain, kMeasured);
  if (before != 0) measure(now - before);
  if (is_pacing()) adapt();
  if (--left_ == 0) {
    phase_is_over();
  } else if (phase_ == Phase::kTimed && seen_ == kMeasured) {
    look_back();
  }
  if (is_pacing()) due_at_.store(now + rest_, std::memory_order_relaxed);
}

void AnswerPace::measure(std::uint64_t took) {
  ++seen_;
  if (took >= kLongest || (is_pacing() && took >= 2 * plain_)) return;
  sum_ += took;
  ++measured_;
}

void AnswerPace::adapt() {
  const Found found = found_.load(std::memory_order_relaxed);
  if (found == Found::kNotAwaited) return;
  found_.store(Found::kNotAwaited, std::memory_order_relaxed);
  ++awaited_;
  const std::uint64_t later = std::max(plain_ / kLaterPart, kLaterMin);
  const std::uint64_t sooner = std::max<std::uint64_t>(later / kSoonerPart, 1);
  rest_ =
      found == Found::kLater ? std::min(rest_ + later, plain_) : rest_ - std::min(rest_, sooner);
}

std::uint64_t AnswerPace::mean() const {
  const bool is_sound = measured_ != 0 && measured_ * 2 >= seen_;
  const bool is_awaited = !is_pacing() || awaited_ * 2 >= seen_;
  return is_sound && is_awaited ? sum_ / measured_ : kLongest;
}

void AnswerPace::phase_is_over() {
  switch (phase_) {
    case Phase::kWaiting:
    case Phase::kTimed: return enter(Phase::kPlain, kMeasured);
    case Phase::kPlain: plain_ = mean(); return plain_ < kLongest ? try_way(true) : give_up();
    case Phase::kSettling: return mean() < kLongest ? enter(Phase::kTrying, kMeasured) : give_up();
    case Phase::kTrying:
      if (!takes_early_) return choose(early_, mean());
      early_ = mean();
      early_rest_ = rest_;
      return try_way(false);
  }
}

void AnswerPace::look_back() {
  worse_ = mean() >= plain_ ? worse_ + 1 : 0;
  if (worse_ == kWorse) return give_up();
  enter(Phase::kTimed, left_);
}

void AnswerPace::try_way(bool takes_early) {
  takes_early_ = takes_early;
  rest_ = plain_ / kFirstPart;
  enter(Phase::kSettling, kSettling);
}

void AnswerPace::choose(std::uint64_t early, std::uint64_t late) {
  if (!gains(std::min(early, late))) return give_up();
  // Both ends should come to the same: what is about as good is no reason.
  if (early <= late + plain_ / kGain) {
    takes_early_ = true;
    rest_ = early_rest_;
  }
  waiting_ = kWaiting;
  worse_ = 0;
  enter(Phase::kTimed, kTimed);
}

void AnswerPace::give_up() {
  enter(Phase::kWaiting, waiting_);
  waiting_ = std::min(waiting_ * 2, kWaitingMost);
}

}  // namespace verbena::local
