// SPDX-License-Identifier: MIT
#include "qp/operation.h"

#include <array>

namespace verbena::qp {

namespace {

// Table 45 (9.7.5.2.8), in units of 10 us.
constexpr std::array<std::int32_t, 32> kRnrDelays = {
    65536, 1,    2,    3,    4,    6,     8,     12,    16,    24,   32,
    48,    64,   96,   128,  192,  256,   384,   512,   768,   1024, 1536,
    2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
constexpr std::int64_t kRnrUnitMicroseconds = 10;
constexpr std::int64_t kTimeoutUnitNanoseconds = 4096;
constexpr std::uint8_t kCodeMask = 31;

}  // namespace

Duration rnr_delay(std::uint8_t code) {
  return Duration::microseconds(kRnrUnitMicroseconds * kRnrDelays[code & kCodeMask]);
}

Duration ack_timeout(std::uint8_t code) {
  if ((code & kCodeMask) == 0) return Duration();
  return Duration::nanoseconds(kTimeoutUnitNanoseconds << (code & kCodeMask));
}

}  // namespace verbena::qp
