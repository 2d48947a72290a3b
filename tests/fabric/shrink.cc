// SPDX-License-Identifier: MIT
#include "shrink.h"

#include "world.h"

namespace verbena::fabric {
namespace {

constexpr unsigned kRunsMax = 2000;
constexpr unsigned kSeedsTried = 8;  // another seed may do where this one no longer does

// Without the time and the numbers: another run has others.
std::string kind_of(const std::string& failure) {
  std::string kind;
  const std::size_t start = failure.find(": ");
  for (const char letter : failure.substr(start == std::string::npos ? 0 : start))
    if (letter < '0' || letter > '9') kind += letter;
  return kind;
}

class Shrinker {
 public:
  Shrinker(std::uint64_t seed, const Plan& plan)
      : best_{.seed = seed, .plan = plan, .failure = World(seed, plan).run().failure},
        kind_(kind_of(best_.failure)) {}

  Shrunk run() {
    bool is_better = true;
    while (is_better && runs_ < kRunsMax) {
      is_better = false;
      for (const Knob& knob : knobs())
        is_better |= simplify(knob);
    }
    return best_;
  }

 private:
  bool simplify(const Knob& knob) {
    const std::uint32_t now = best_.plan.*knob.member;
    if (now == knob.plain) return false;
    const std::uint32_t half = now > knob.plain ? knob.plain + (now - knob.plain) / 2 : knob.plain;
    return fails_with(knob, knob.plain) ||
           (knob.is_amount && half != knob.plain && fails_with(knob, half));
  }
  bool fails_with(const Knob& knob, std::uint32_t value) {
    Plan plan = best_.plan;
    plan.*knob.member = value;
    if (!is_valid(plan)) return false;
    for (unsigned i = 0; i < kSeedsTried; ++i) {
      ++runs_;
      const std::uint64_t seed = best_.seed + i;
      std::string failure = World(seed, plan).run().failure;
      if (failure.empty() || kind_of(failure) != kind_) continue;
      best_ = {.seed = seed, .plan = plan, .failure = std::move(failure)};
      return true;
    }
    return false;
  }

  unsigned runs_ = 0;
  Shrunk best_;
  std::string kind_;
};

}  // namespace

Shrunk shrink(std::uint64_t seed, const Plan& plan) { return Shrinker(seed, plan).run(); }

}  // namespace verbena::fabric
