// SPDX-License-Identifier: MIT
// When to look for the answer of a peer that answers each message at once.
//
// A message between two processors costs the way of a cache line twice: the writer takes it away
// from the reader, who then fetches it. The writer could take it as soon as it knows that it will
// answer, while it still works on that; but a reader that looks all the time fetches it back
// meanwhile, half written. So the reader does not look before the answer can be there: the first of
// the two ways is then over by the time the answer is.
//
// How much is gained depends on how far the processors are from each other. Near each other it may
// be better to wait and take nothing early, or to do neither. So each way is measured, in exchanges
// of one message out and one in:
//
//   waiting ─► plain ─► settling ─► trying ─► timed     settling and trying for each of two ways
//      ▲         │▲         │         │        ││
//      └─────────┴┼─────────┴─────────┴────────┘│       it does not pay, or nobody waits
//                 └─────────────────────────────┘       after a while, or as the peer does
//
// Anything but an exchange is no part of this: then nobody waits, until some exchanges have
// followed each other. How long not to look is learnt: a little more after each first look that
// found nothing, a little less after one that found the answer. Times are ticks (base/ticks.h).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace verbena::local {

class AnswerPace {
 public:
  // So many exchanges, one after the other, are no accident.
  static constexpr std::uint32_t kStreak = 16;
  // In what is measured; until the time not to look is found.
  static constexpr std::uint32_t kMeasured = 64;
  static constexpr std::uint32_t kSettling = 192;
  // Until all is measured anew: where it pays, and where it does not, doubled each time.
  static constexpr std::uint32_t kTimed = 16'384;
  static constexpr std::uint32_t kWaiting = 4'096;
  static constexpr std::uint32_t kWaitingMost = kWaiting << 6;
  // An exchange that takes longer is no matter of lines, or has been interrupted.
  static constexpr std::uint64_t kLongest = 4'096;
  // What is gained must be more than a part of this.
  static constexpr std::uint64_t kGain = 32;
  // So often in a row nothing is gained before a way is left.
  static constexpr std::uint32_t kWorse = 8;
  // After a look that came too early, until the poll ends.
  static constexpr unsigned kLooks = 64;
  static constexpr std::uint64_t kLookFor = 1'024;

  // -- with the queue pair's lock --------------------------------------------------------------
  // So many messages have been taken, and the peer said that it begins to measure: we do, too. Of
  // what both have to do nothing is gained where only one does it.
  void came(std::uint32_t messages, bool peer_measures = false) {
    came_ += messages;
    if (peer_measures) [[unlikely]]
      join();
  }
  // To be said to the peer.
  bool is_measuring() const { return phase_ == Phase::kPlain; }
  // One has left. The time is asked for only where it matters.
  template <class Ticks>
  [[gnu::always_inline]] void sent(Ticks&& ticks) {
    const bool is_exchange = came_ == 1;
    came_ = 0;
    if (!is_exchange) return interrupt();
    if (streak_ < kStreak) {
      ++streak_;
    } else if (phase_ != Phase::kWaiting || --left_ == 0) {
      exchanged(ticks());
    }
  }
  // The peer answers what we send and does not look meanwhile: take the place of the next message
  // at once.
  bool prepares() const { return takes_early_ && streak_ == kStreak && is_pacing(); }
  // Another connection.
  void reset();

  // -- who polls -------------------------------------------------------------------------------
  // An answer is expected that await() has not waited for.
  bool is_due() const { return due_at_.load(std::memory_order_relaxed) != 0; }
  // Waits until the answer can be there, fetches it, and looks a few times; true when one of these
  // finds something. Takes kLongest + kLookFor at most, also if the ticks jump.
  template <class Ticks, class Fetch, class Look>
  bool await(Ticks&& ticks, Fetch&& fetch, Look&& look) {
    const std::uint64_t due_at = due_at_.load(std::memory_order_relaxed);
    due_at_.store(0, std::memory_order_relaxed);
    while (due_at - ticks() - 1 < kLongest) {
    }
    fetch();
    const bool is_there = look();
    found_.store(is_there ? Found::kAtOnce : Found::kLater, std::memory_order_relaxed);
    if (is_there) return true;
    const std::uint64_t begin = ticks();
    for (unsigned i = 1; i < kLooks && ticks() - begin < kLookFor; ++i)
      if (look()) return true;
    return false;
  }

  std::uint64_t rest() const { return rest_; }

 private:
  enum class Phase : std::uint8_t { kWaiting, kPlain, kSettling, kTrying, kTimed };
  enum class Found : std::uint8_t { kNotAwaited, kAtOnce, kLater };

  bool is_pacing() const {
    return phase_ == Phase::kSettling || phase_ == Phase::kTrying || phase_ == Phase::kTimed;
  }
  void interrupt() {
    if (streak_ == 0) return;
    streak_ = 0;
    sent_at_ = 0;
    due_at_.store(0, std::memory_order_relaxed);
  }
  void join();
  void exchanged(std::uint64_t now);  // 0: there are no ticks
  void measure(std::uint64_t took);
  void adapt();
  bool gains(std::uint64_t mean) const { return mean + plain_ / kGain <= plain_; }
  // kLongest: most were interrupted, or nobody waited.
  std::uint64_t mean() const;
  void enter(Phase phase, std::uint32_t exchanges);
  void phase_is_over();
  void look_back();
  void try_way(bool takes_early);
  void choose(std::uint64_t early, std::uint64_t late);
  void give_up();

  Phase phase_ = Phase::kWaiting;
  bool takes_early_ = false;
  std::uint32_t came_ = 0;      // since we sent
  std::uint32_t streak_ = 0;    // exchanges in a row, up to kStreak
  std::uint32_t left_ = 1;      // exchanges of this phase
  std::uint32_t seen_ = 0;      // of those that are being measured
  std::uint32_t measured_ = 0;  // of them
  std::uint32_t awaited_ = 0;   // of them
  std::uint32_t worse_ = 0;     // how often in a row it did not pay
  std::uint64_t sum_ = 0;       // of how long they took
  std::uint64_t plain_ = 0;     // how long one takes
  std::uint64_t early_ = 0;     // the same where the next line is taken early
  std::uint64_t early_rest_ = 0;
  std::uint64_t rest_ = 0;
  std::uint64_t sent_at_ = 0;  // 0: not as the last of two exchanges
  std::uint32_t waiting_ = kWaiting;
  std::atomic<std::uint64_t> due_at_{0};  // 0: nobody waits
  std::atomic<Found> found_{Found::kNotAwaited};
};

}  // namespace verbena::local
