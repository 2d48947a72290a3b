// SPDX-License-Identifier: MIT
// What one side of a session does, computed from the session's seed: so each side knows what the
// other must have sent, written and counted.
#pragma once

#include <cstdint>
#include <string_view>

#include "pattern.h"

namespace chaos {

enum class Kind : std::uint8_t { kRc, kUc, kUd };
inline const char* to_string(Kind kind) {
  return kind == Kind::kRc ? "rc" : kind == Kind::kUc ? "uc" : "ud";
}

enum class Verb : std::uint8_t { kSend, kWrite, kWriteImmediate, kRead, kFetchAdd, kCompareSwap };

// One work request.
struct Step {
  std::uint32_t index = 0;
  Verb verb = Verb::kSend;
  std::uint32_t length = 0;
  std::uint32_t place = 0;  // in the peer's window, for WRITE and READ
  std::uint64_t key = 0;    // of the pattern that SEND and WRITE carry
  bool is_signaled = true;
  bool is_inline = false;
  bool is_fenced = false;
  std::uint32_t pieces = 1;  // scatter/gather elements

  bool takes_receive() const { return verb == Verb::kSend || verb == Verb::kWriteImmediate; }
  bool writes() const { return verb == Verb::kWrite || verb == Verb::kWriteImmediate; }
};

// The size of a session, from its seed; the same on both sides.
struct Shape {
  static constexpr std::uint32_t kDepthMax = 16;

  std::uint32_t message_max;
  std::uint32_t depth;  // work requests under way, receives posted, places in the window
  std::uint32_t steps;

  static Shape of(std::uint64_t seed, std::uint32_t steps, Kind kind) {
    Random random(seed);
    static constexpr std::uint32_t kSizes[] = {64, 1024, 4096, 4096, 32768, 131072};
    Shape shape{};
    shape.message_max = kSizes[random.below(6)];
    if (kind == Kind::kUd && shape.message_max > 2048) shape.message_max = 2048;
    shape.depth = 2 + random.below(kDepthMax - 1);
    shape.steps = 1 + random.below(steps * 2);
    return shape;
  }
};

class Schedule {
 public:
  Schedule(std::uint64_t seed, unsigned role, Kind kind, const Shape& shape)
      : random_(seed * 2 + role + 17), kind_(kind), shape_(shape) {}

  bool is_over() const { return next_ == shape_.steps; }
  Step next() {
    Step step;
    step.index = next_++;
    step.verb = pick_verb();
    step.key = random_.next();
    step.length = pick_length();
    step.place = random_.below(shape_.depth);
    step.is_fenced = random_.once_in(4);
    step.pieces = 1 + random_.below(3);
    // What carries its own number can be told apart where messages may be lost.
    if (kind_ != Kind::kRc && step.length < sizeof step.index) step.length = sizeof step.index;
    step.is_inline = step.length <= 64 && random_.once_in(2);
    const bool brings_data = step.verb > Verb::kWriteImmediate;
    step.is_signaled = brings_data || is_over() || !random_.once_in(4);
    if (step.verb > Verb::kRead) step.length = 8;
    return step;
  }

 private:
  Verb pick_verb() {
    const std::uint32_t number = random_.below(100);
    if (kind_ == Kind::kUd) return Verb::kSend;
    if (kind_ == Kind::kUc) {
      return number < 60 ? Verb::kSend : number < 80 ? Verb::kWrite : Verb::kWriteImmediate;
    }
    if (number < 30) return Verb::kSend;
    if (number < 55) return Verb::kWrite;
    if (number < 65) return Verb::kWriteImmediate;
    if (number < 85) return Verb::kRead;
    return number < 93 ? Verb::kFetchAdd : Verb::kCompareSwap;
  }
  std::uint32_t pick_length() {
    switch (random_.below(4)) {
      case 0: return random_.below(17);
      case 1: return random_.below(shape_.message_max < 256 ? shape_.message_max : 256);
      default: return random_.below(shape_.message_max + 1);
    }
  }

  Random random_;
  Kind kind_;
  Shape shape_;
  std::uint32_t next_ = 0;
};

}  // namespace chaos
