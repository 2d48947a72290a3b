// SPDX-License-Identifier: MIT
// The doorbell of a process: how peers (and threads of the process itself) say that there is work,
// and wake its NIC thread. It lies in the process page; any number of processes ring, the owner
// answers.
//
// A publisher stores its message where the owner will look, then calls
//     ring(index)        where the owner does not look by itself: sets the conduit's bit
//     wake_if_asleep()   in any case: a full fence, then a look at sleep_state
// or notify(index), which finds out by itself what is needed.
// The owner, when it found nothing to do:
//     prepare_sleep()    sleep_state becomes 1, then a full fence
//     looks again        at its messages and at any_ready(); if there are: awake(), and to work
//     sleep(timeout)     until somebody wakes it or the time is over: awake then, and must look
// An owner that leaves its work to pollers naps instead, in the same way, with prepare_nap() and
// nap(): publishers let it, and wake() ends it. So does nudge(), of a peer that has waited for
// long, unless the owner naps on: it was nudged, and saw its pollers at work.
//
// Each side stores, fences, then loads what the other stored (Dekker; the publisher's fence of
// notify() is made by the owner where both can, far_fence.h), so at least one of the two sees the
// other: either the owner finds the message, or the publisher finds the owner asleep. The bits work
// the same way: ring() fences before it finds a bit set already, so whoever takes that bit later
// sees the message too.
//
// A publisher may be killed or stopped anywhere. So it never skips a level that another one is
// about to set (it always looks at the summary, even when the bit was set), and the state returns
// to "awake" in one system call with the wake-up: a waker that died in between would leave the
// owner asleep and everybody believing that it was awake.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>

#include "base/far_fence.h"
#include "base/fence.h"
#include "base/time.h"
#include "host/process_page.h"

namespace verbena::host {

class Doorbell {
 public:
  // Borrows the page.
  explicit Doorbell(ProcessPage& page) : page_(page) {}

  // Publishers
  // -----------------------------------------------------------------------------------------------

  // Marks conduit `index` (below kDoorbellBits) as having something for the owner.
  void ring(std::uint32_t index) {
    full_fence();
    set(page_.ready[index / 64 % ProcessPage::kWords], index % 64);
    set(page_.summary[index / 4096 % ProcessPage::kSummaryWords], index / 64 % 64);
  }
  void wake_if_asleep() {
    full_fence();
    if (page_.sleep_state.load(std::memory_order_seq_cst) == kAsleep) [[unlikely]]
      wake();
  }
  // Both, with one fence fewer.
  void ring_and_wake(std::uint32_t index) {
    ring(index);
    // Whatever ring() did, its fence or its read-modify-write stands before this load.
    if (page_.sleep_state.load(std::memory_order_seq_cst) == kAsleep) [[unlikely]]
      wake();
  }
  // For a message that lies in a conduit: an owner of few conduits looks at them all when it is
  // awake, and says so; its bits stay untouched then.
  [[gnu::always_inline]] void notify(std::uint32_t index) {
    if (page_.fences_far.load(std::memory_order_relaxed) != 0 && has_joined_far_fences())
        [[likely]] {
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      full_fence();
    }
    // Bits are taken all the time, not only before sleeping: they need the fence.
    if (page_.scans_all.load(std::memory_order_seq_cst) == 0) [[unlikely]]
      ring(index);
    if (page_.sleep_state.load(std::memory_order_seq_cst) == kAsleep) [[unlikely]]
      wake();
  }
  // Wakes the owner whatever the state says.
  void wake();
  // Ends a sleep, or a nap of an owner whose pollers may have left; not the nap of one that naps
  // on.
  void nudge() {
    if (page_.sleep_state.load(std::memory_order_relaxed) != kNappingOn) wake();
  }

  // The owner
  // -----------------------------------------------------------------------------------------------

  // Calls each(index) for every conduit that was rung, and clears them first: what arrives from now
  // on rings again. Several threads may take at a time; each ring comes to one of them. True if
  // there was one.
  template <class Each>
  bool take(Each&& each) {
    bool found = false;
    for (std::uint32_t s = 0; s < ProcessPage::kSummaryWords; ++s) {
      if (page_.summary[s].load(std::memory_order_relaxed) == 0) continue;
      std::uint64_t words = page_.summary[s].exchange(0, std::memory_order_seq_cst);
      for (; words != 0; words &= words - 1) {
        const std::uint32_t w = s * 64 + static_cast<std::uint32_t>(std::countr_zero(words));
        std::uint64_t bits = page_.ready[w].exchange(0, std::memory_order_seq_cst);
        for (; bits != 0; bits &= bits - 1) {
          found = true;
          each(w * 64 + static_cast<std::uint32_t>(std::countr_zero(bits)));
        }
      }
    }
    return found;
  }
  bool any_ready() const {
    std::uint64_t words = 0;
#pragma GCC unroll 4
    for (const auto& word : page_.summary)
      words |= word.load(std::memory_order_seq_cst);
    return words != 0;
  }

  void prepare_sleep() {
    page_.sleep_state.exchange(kAsleep, std::memory_order_seq_cst);
    fence_for_publishers();
  }
  // May also return for no reason. Without a timeout it sleeps until woken.
  void sleep(std::optional<Duration> timeout);
  // What sleep_state is while it naps. kOn: nobody nudges.
  enum class NapKind : std::uint32_t { kUsual = 2, kOn = 3 };
  // With a full fence, so that whoever stores something and then finds is_napping() false is seen
  // by a look in between.
  void prepare_nap(NapKind how) {
    page_.sleep_state.exchange(static_cast<std::uint32_t>(how), std::memory_order_seq_cst);
  }
  // As sleep(), but only wake() and nudge() end it. Whether they did.
  bool nap(NapKind how, Duration timeout);
  void awake() { page_.sleep_state.store(kAwake, std::memory_order_relaxed); }
  // After turning it off the owner looks at all its conduits once more: a publisher that still read
  // "on" has stored its message before.
  void set_scans_all(bool on) {
    page_.scans_all.exchange(on ? 1 : 0, std::memory_order_seq_cst);
    fence_for_publishers();
  }
  bool is_asleep() const { return page_.sleep_state.load(std::memory_order_relaxed) == kAsleep; }
  bool is_napping() const {
    return page_.sleep_state.load(std::memory_order_seq_cst) >=
           static_cast<std::uint32_t>(NapKind::kUsual);
  }

 private:
  static constexpr std::uint32_t kAwake = 0;
  static constexpr std::uint32_t kAsleep = 1;
  static constexpr auto kNappingOn = static_cast<std::uint32_t>(NapKind::kOn);

  void fence_for_publishers() {
    if (page_.fences_far.load(std::memory_order_relaxed) != 0) {
      far_fence();
    } else {
      full_fence();
    }
  }
  // Reading first keeps the line shared while the owner is behind.
  static void set(std::atomic<std::uint64_t>& word, std::uint32_t bit) {
    const std::uint64_t mask = std::uint64_t{1} << bit;
    if ((word.load(std::memory_order_seq_cst) & mask) == 0) {
      word.fetch_or(mask, std::memory_order_seq_cst);
    }
  }

  ProcessPage& page_;
};

}  // namespace verbena::host
