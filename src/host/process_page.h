// SPDX-License-Identifier: MIT
// The process page: what a process shows to every peer that it is linked to, read and write. A
// memfd of its own, passed in the greeting (greeting.h). Its layout is part of kLayoutVersion: two
// processes that disagree use the wire.
//
// Peers write to the doorbell (doorbell.h) at any time and may write anything else: the owner reads
// nothing here but bits that it bounds by itself.
#pragma once

#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>

namespace verbena::host {

// One number for everything that two processes share in memory, here and in the layers above. Raise
// it with any change.
inline constexpr std::uint32_t kLayoutVersion = 14;

// Who a process is: drawn at random when its control thread starts, so an exec or a reused pid is
// somebody else.
struct ProcessId {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  friend constexpr auto operator<=>(ProcessId, ProcessId) = default;
};

// How many doorbell bits a process has: the most conduits, or queue pairs, that it can tell apart.
inline constexpr std::uint32_t kDoorbellBits = 16384;

struct ProcessPage {
  static constexpr std::uint64_t kMagic = 0x61'6E'65'62'72'65'56'01;  // "\1Verbena" in memory
  static constexpr std::size_t kSize = 16384;
  static constexpr std::size_t kWords = kDoorbellBits / 64;
  static constexpr std::size_t kSummaryWords = kWords / 64;

  // Written once, before any peer has it.
  alignas(64) std::uint64_t magic;
  ProcessId id;
  std::uint32_t layout_version;
  std::uint32_t pid;  // as its owner sees it: for people who look, not for decisions

  // 0 awake, 1 asleep or about to, 2 and 3 napping (doorbell.h). A futex of all processes.
  alignas(64) std::atomic<std::uint32_t> sleep_state;
  // 1: the owner looks at all its conduits by itself, so messages need no bit. Changes seldom.
  std::atomic<std::uint32_t> scans_all;
  // 1: the owner makes far fences before it sleeps (base/far_fence.h), so that a publisher who
  // takes part in them needs no fence between its message and its look at the two words above.
  std::atomic<std::uint32_t> fences_far;

  // Bit w of the summary: ready[w] may have bits. Bit i of ready: conduit i may have something for
  // the owner.
  alignas(64) std::atomic<std::uint64_t> summary[kSummaryWords];
  alignas(64) std::atomic<std::uint64_t> ready[kWords];

  // Zero in this version.
  alignas(64) std::byte reserved[kSize - 3 * 64 - kWords * 8];
};

static_assert(sizeof(ProcessPage) == ProcessPage::kSize);
static_assert(offsetof(ProcessPage, sleep_state) == 64);
static_assert(offsetof(ProcessPage, summary) == 128);
static_assert(offsetof(ProcessPage, ready) == 192);
static_assert(offsetof(ProcessPage, reserved) == 2240);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace verbena::host
