// SPDX-License-Identifier: MIT
// Time as the engines see it: nanoseconds of a clock that only goes forward. Below nic/ time is a
// parameter, so that a simulator can run everything on a clock of its own.
#pragma once

#include <compare>
#include <cstdint>

namespace verbena {

class Duration {
 public:
  constexpr Duration() = default;
  static constexpr Duration nanoseconds(std::int64_t n) { return Duration(n); }
  static constexpr Duration microseconds(std::int64_t n) { return Duration(n * 1'000); }
  static constexpr Duration milliseconds(std::int64_t n) { return Duration(n * 1'000'000); }
  static constexpr Duration seconds(std::int64_t n) { return Duration(n * 1'000'000'000); }

  constexpr std::int64_t count_nanoseconds() const { return nanoseconds_; }

  friend constexpr auto operator<=>(Duration, Duration) = default;
  friend constexpr Duration operator+(Duration a, Duration b) {
    return Duration(a.nanoseconds_ + b.nanoseconds_);
  }
  friend constexpr Duration operator*(Duration a, std::int64_t n) {
    return Duration(a.nanoseconds_ * n);
  }

 private:
  constexpr explicit Duration(std::int64_t n) : nanoseconds_(n) {}
  std::int64_t nanoseconds_ = 0;
};

class Instant {
 public:
  constexpr Instant() = default;
  // Nanoseconds since the clock's zero (CLOCK_MONOTONIC in a real NIC).
  static constexpr Instant at(std::int64_t nanoseconds) { return Instant(nanoseconds); }
  static constexpr Instant never() { return Instant(INT64_MAX); }

  constexpr std::int64_t nanoseconds() const { return nanoseconds_; }

  friend constexpr auto operator<=>(Instant, Instant) = default;
  friend constexpr Instant operator+(Instant t, Duration d) {
    return Instant(t.nanoseconds_ + d.count_nanoseconds());
  }
  friend constexpr Duration operator-(Instant a, Instant b) {
    return Duration::nanoseconds(a.nanoseconds_ - b.nanoseconds_);
  }

 private:
  constexpr explicit Instant(std::int64_t n) : nanoseconds_(n) {}
  std::int64_t nanoseconds_ = 0;
};

// The time of one turn, asked for at its first use: reading a clock takes longer than most turns,
// and most never need it.
class Now {
 public:
  using Clock = Instant (*)();
  // An instant that is known is a clock that stands.
  constexpr Now(Instant known) : known_(known) {}  // NOLINT(google-explicit-constructor): a time
  explicit constexpr Now(Clock clock) : clock_(clock) {}

  operator Instant() const {  // NOLINT(google-explicit-constructor): a time
    if (clock_) {
      known_ = clock_();
      clock_ = nullptr;
    }
    return known_;
  }
  friend Instant operator+(const Now& now, Duration d) { return Instant(now) + d; }

 private:
  mutable Clock clock_ = nullptr;
  mutable Instant known_;
};

}  // namespace verbena
