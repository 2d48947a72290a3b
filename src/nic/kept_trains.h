// SPDX-License-Identifier: MIT
// Memory in which one queue pair builds the trains that the port sends without a copy
// (port::Lane): berths, used in turn, each free again when the peer says that it has
// executed what stood there.
//
// Whoever has received a packet twice may read the second one later. So where something was sent
// again, a berth gets fresh pages: the kernel keeps those that it still has to show. And a queue
// pair has berths of its own, which end with its connection: a peer that acknowledges what it has
// not read will read there what it is sent later, and nothing of others. docs/decisions/0036.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "wire/sequence.h"

namespace verbena::nic {

// With the queue pair's lock.
class KeptTrains {
 public:
  static constexpr std::size_t kBerths = 32;
  static constexpr std::size_t kBerthBytes = 64 << 10;  // the longest train, and whole pages

  // How many queue pairs may have them. Any thread.
  class Budget {
   public:
    bool take() {
      if (left_.fetch_sub(1, std::memory_order_relaxed) > 0) return true;
      give_back();
      return false;
    }
    void give_back() { left_.fetch_add(1, std::memory_order_relaxed); }

   private:
    static constexpr int kMost = 16;  // each has three descriptors, too
    std::atomic<int> left_{kMost};
  };

  // Null: others have them all, or there is no memory.
  static std::unique_ptr<KeptTrains> make(Budget& budget);
  KeptTrains(const KeptTrains&) = delete;
  KeptTrains& operator=(const KeptTrains&) = delete;
  ~KeptTrains();

  // Where the next train may be built; empty: not before the peer has executed more.
  std::span<std::byte> berth() const {
    return used_ == kBerths || is_spent_ ? std::span<std::byte>{} : berth_at(first_ + used_);
  }
  // It is, and ends before this PSN so far, after so many repetitions (roce::Engine::Sendings).
  void take(wire::Psn end, std::uint64_t repeated) { of(first_ + used_++) = {end, repeated}; }
  // The one that was taken last holds what is before this PSN, too. A repetition may be earlier
  // than what stands there.
  void extend(wire::Psn end) {
    Berth& last = of(first_ + used_ - 1);
    last.end = wire::later(last.end, end);
  }
  // Those that are taken may hold what was sent before.
  void doubt() {
    for (std::size_t i = 0; i < used_; ++i)
      of(first_ + i).repeated = kDoubted;
  }
  // Everything before this was executed, after so many repetitions.
  void release(wire::Psn executed, std::uint64_t repeated) {
    while (used_ != 0 && of(first_).end - executed <= 0)
      free_first(repeated);
  }

 private:
  static constexpr std::uint64_t kDoubted = ~std::uint64_t{0};
  struct Berth {
    wire::Psn end{};
    std::uint64_t repeated = 0;
  };

  KeptTrains(Budget& budget, std::byte* memory) : budget_(budget), memory_(memory) {}
  Berth& of(std::size_t i) { return berths_[i % kBerths]; }
  std::span<std::byte> berth_at(std::size_t i) const {
    return {memory_ + i % kBerths * kBerthBytes, kBerthBytes};
  }
  void free_first(std::uint64_t repeated);

  Budget& budget_;
  std::byte* const memory_;
  std::array<Berth, kBerths> berths_{};
  std::size_t first_ = 0;
  std::size_t used_ = 0;
  bool is_spent_ = false;  // there are no fresh pages to be had
};

}  // namespace verbena::nic
