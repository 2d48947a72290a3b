// SPDX-License-Identifier: MIT
// The virtual clock of simulators, for tests only: things happen in the order of their time, then
// of their scheduling.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "base/time.h"

namespace verbena::sim {

class Clock {
 public:
  Instant now() const { return now_; }
  void at(Instant when, std::function<void()> what) {
    events_.emplace(std::pair{when < now_ ? now_ : when, next_++}, std::move(what));
  }
  void after(Duration delay, std::function<void()> what) { at(now_ + delay, std::move(what)); }
  // False when nothing is left to happen.
  bool run_one() {
    if (events_.empty()) return false;
    auto first = events_.extract(events_.begin());
    if (now_ < first.key().first) now_ = first.key().first;
    first.mapped()();
    return true;
  }
  void forget_all() { events_.clear(); }
  // What was to happen meanwhile happens now.
  void leap(Duration by) { now_ = now_ + by; }

 private:
  std::map<std::pair<Instant, std::uint64_t>, std::function<void()>> events_;
  Instant now_ = Instant::at(1'000'000'000);
  std::uint64_t next_ = 0;
};

// What went wrong first. A run goes on until it ends, so that nothing depends on where a check
// stands.
class Failures {
 public:
  explicit Failures(const Clock& clock) : clock_(clock) {}
  void add(const std::string& what) {
    if (first_.empty())
      first_ = "at " + std::to_string(clock_.now().nanoseconds()) + " ns: " + what;
  }
  void check(bool holds, const char* what, std::uint64_t detail = 0) {
    if (!holds) add(std::string(what) + " (" + std::to_string(detail) + ")");
  }
  Instant now() const { return clock_.now(); }
  bool any() const { return !first_.empty(); }
  const std::string& first() const { return first_; }

 private:
  const Clock& clock_;
  std::string first_;
};

}  // namespace verbena::sim
