// SPDX-License-Identifier: MIT
// How the thread that receives when nobody polls shares that work with a program that polls: it
// naps while the program is at it, and each nap's end takes the core from a program that has only
// that one, for some 20 us. So naps get longer while the program is found polling, and short where
// packets have been waiting for us time and again. One thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/time.h"

namespace verbena::nic {

// Programs close descriptors that they do not know. The watcher looks often enough for a connection
// to outlive it, whose peer gives up after a few timeouts.
class DescriptorChecks {
 public:
  static constexpr Duration kBetween = Duration::milliseconds(20);
  bool is_due(Instant now) {
    if (now < next_) return false;
    next_ = now + kBetween;
    return true;
  }

 private:
  Instant next_;
};

class WatchPace {
 public:
  static constexpr Duration kNapShort = Duration::microseconds(50);
  static constexpr Duration kNapMin = Duration::microseconds(200);
  static constexpr Duration kNapMax = Duration::milliseconds(2);
  // So many polls since the last look are a program that polls all the time. Fewer are no sign of
  // the opposite within this time.
  static constexpr std::uint32_t kPollsForLease = 64;
  static constexpr Duration kLookAtLeast = Duration::microseconds(200);
  // So often packets waited for the end of a nap, before we look often; and so many naps in a row
  // ended while the program polled, before we believe that it goes on like that.
  static constexpr unsigned kLateNaps = 2;
  static constexpr unsigned kBusyNapsMost = 8;
  // So many, before naps get longer.
  static constexpr unsigned kBusyNaps = 3;

  // Who has not polled for so long, in the unit of Seen::busy, does something else: some 20 us
  // where it is ticks.
  static constexpr std::uint64_t kLong = 50'000;

  // Where nothing comes, pollers go on looking at the sockets for so many polls; then only the
  // watcher does.
  static constexpr std::uint32_t kWarmPolls = 100'000;

  // Of who may have to look after closed descriptors, though nothing wakes it.
  static constexpr Duration kSleepUnwoken = Duration::milliseconds(100);

  // Counters that move: with each poll, with each wait for events; what polls took that received
  // something, and all the time, in one unit.
  struct Seen {
    std::uint32_t polls = 0;
    std::uint32_t waits = 0;
    std::uint64_t busy = 0;
    std::uint64_t all = 0;
  };

  // Whether the program polls all the time. Where polls receive much they are few, and take most of
  // the time. Who has asked for events is going to sleep.
  bool is_polled(const Seen& seen, Instant now) {
    const std::uint32_t moved = seen.polls - seen_.polls;
    const bool are_many = moved >= kPollsForLease;
    const bool is_awaited = this->is_awaited(seen.waits);
    if (!is_awaited && !are_many && now - looked_at_ < kLookAtLeast) return is_polled_;
    const std::uint64_t busy = seen.busy - seen_.busy;
    const bool is_busy = busy != 0 && busy >= (seen.all - seen_.all) / 2;
    is_polled_ = !is_awaited && (are_many || is_busy);
    seen_ = seen;
    looked_at_ = now;
    return is_polled_;
  }
  // Since is_polled() was asked.
  bool is_awaited(std::uint32_t waits) const { return waits != seen_.waits; }

  // Of the next nap.
  Duration nap() const { return nap_; }
  // After a wait without a nap, or where answers are expected: the next one is not long.
  void begin_anew() { nap_ = kNapMin; }

  // A nap is over. `is_late`: nobody had polled for a while then. Whether to look for packets.
  bool looks_after_nap(bool is_late) {
    busy_naps_ = is_late ? 0 : busy_naps_ + 1;
    if (busy_naps_ >= kBusyNapsMost) late_naps_ = 0;
    return is_late || is_often_late();
  }
  // What came of it.
  void looked(bool is_late, bool found) {
    if (found && is_late) ++late_naps_;
    if (is_often_late()) {
      nap_ = kNapShort;
    } else if (found) {
      nap_ = kNapMin;
    } else if (is_late || busy_naps_ >= kBusyNaps) {
      nap_ = std::min(nap_ * 2, kNapMax);
    }
  }

 private:
  bool is_often_late() const { return late_naps_ >= kLateNaps; }

  Seen seen_;
  Instant looked_at_;
  bool is_polled_ = false;
  Duration nap_ = kNapMin;
  unsigned late_naps_ = 0;  // since kBusyNapsMost busy ones
  unsigned busy_naps_ = 0;  // in a row
};

}  // namespace verbena::nic
