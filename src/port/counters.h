// SPDX-License-Identifier: MIT
// What a port counts: each packet once under what became of it. Written by the threads that send
// and receive, read by anybody.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace verbena::port {

enum class Count : std::uint8_t {
  // Out.
  kSentTrains,
  kSentPackets,
  kSentBytes,
  kSentUncopied,    // trains: the kernel took the pages that they lie in
  kSendFull,        // trains that found no room; not taken
  kDroppedTooLong,  // packets: longer than the way out takes
  kDroppedRefused,  // packets: by a filter, a firewall, or for want of a route
  kDroppedOffload,  // packets: the way out cannot split trains, which shows at the first one
  kDroppedBroken,   // packets: a train against the rules, or a socket that somebody closed
  // In.
  kReceivedBatches,
  kReceivedPackets,  // given to the caller
  kReceivedBytes,
  kOverflowed,      // packets (batches, in the kernel's count): the receive buffer was full
  kTruncated,       // batches longer than any that we asked for
  kHandedOver,      // packets for another process that came to us
  kDroppedForeign,  // packets for another process, which did not take them
  kDroppedNobody,   // packets for a slot that nobody holds
  kReceiveErrors,   // system calls that failed in a way that should not happen
  // Impairments and the simulator: packets.
  kLost,
  kDuplicated,
  kReordered,
  kDelayed,
  kCorrupted,
  kMarked,      // ECN
  kQueueDrops,  // a queue was full
  kEnd,
};
inline constexpr std::size_t kCountEnd = static_cast<std::size_t>(Count::kEnd);

// "sent_packets" and so on.
const char* to_string(Count count);

class Counters {
 public:
  void add(Count what, std::uint64_t n = 1) {
    values_[static_cast<std::size_t>(what)].fetch_add(n, std::memory_order_relaxed);
  }
  // By the only thread that counts this just now: without the cost of a locked instruction.
  void add_alone(Count what, std::uint64_t n = 1) { set(what, (*this)[what] + n); }
  // Where the count is kept by somebody else.
  void set(Count what, std::uint64_t n) {
    values_[static_cast<std::size_t>(what)].store(n, std::memory_order_relaxed);
  }
  std::uint64_t operator[](Count what) const {
    return values_[static_cast<std::size_t>(what)].load(std::memory_order_relaxed);
  }

 private:
  std::array<std::atomic<std::uint64_t>, kCountEnd> values_{};
};

}  // namespace verbena::port
