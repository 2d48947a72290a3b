// SPDX-License-Identifier: MIT
// The queue pairs of this process by number: for each slot an array of places. Looking one up is a
// load inside a reading section; a queue pair that was removed is freed only after all reading
// sections that might know it have ended.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "base/mutex.h"
#include "base/random.h"
#include "base/types.h"

namespace verbena::nic {

class Qp;

// Counts readers in two phases; a waiter flips the phase twice and each time waits for the old one
// to run empty. (One flip is not enough: a reader may have read the phase long before it counts
// itself.)
class ReadingSections {
 public:
  // Which counter to decrease at the end.
  using Ticket = std::atomic<std::uint32_t>*;
  Ticket enter();
  static void leave(Ticket ticket) { ticket->fetch_sub(1, std::memory_order_release); }
  // Until every section that was open at the call has ended. Not from inside a section.
  void wait_for_all();

 private:
  static constexpr unsigned kLines = 16;  // threads spread over them
  struct alignas(64) Line {
    std::atomic<std::uint32_t> readers[2]{};
  };
  void flip_and_wait();

  std::atomic<std::uint32_t> phase_{0};
  std::array<Line, kLines> lines_;
  Mutex waiters_;
};

class QpTable {
 public:
  class Reading {
   public:
    explicit Reading(QpTable& table) : ticket_(table.sections_.enter()) {}
    ~Reading() { ReadingSections::leave(ticket_); }
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;

   private:
    ReadingSections::Ticket ticket_;
  };

  // While it lives no queue pair is added, and none that is there is freed.
  class Frozen {
   public:
    explicit Frozen(QpTable& table) : guard_(table.lock_), reading_(table) {}

   private:
    std::lock_guard<Mutex> guard_;
    Reading reading_;
  };

  QpTable() = default;
  ~QpTable();

  static constexpr std::uint32_t kPlaces = QpNum::kIndexMask + 1;
  static constexpr std::uint32_t kSlotsMax = 64;
  // Index 0 of a slot's doorbell means datagrams; 1 and the last are never numbers (types.h).
  static constexpr std::uint32_t kDatagramIndex = 0;

  void add_slot(SlotNumber slot);
  bool has_slot(SlotNumber slot) const;
  // A free number at random, from a slot with room; none: take another slot.
  std::optional<QpNum> reserve(RandomSource& random);
  void insert(QpNum number, Qp* qp);
  // Nobody finds it any more, and after the return nobody uses it any more. The number rests for a
  // while.
  void remove(QpNum number);
  // A reserved number that was not used after all.
  void release(QpNum number);

  // Inside a reading section only.
  Qp* find(QpNum number) const;
  template <class Each>
  void each_at(std::uint32_t index, Each&& each) const {
    const std::uint32_t slots = slot_count_.load(std::memory_order_acquire);
    for (std::uint32_t s = 0; s < slots; ++s) {
      if (Qp* qp = slots_[s].places[index].load(std::memory_order_acquire)) each(*qp);
    }
  }
  template <class Each>
  void each(Each&& each) const {
    for (std::uint32_t w = 0; w < kWords; ++w) {
      std::uint64_t bits = occupied_[w].load(std::memory_order_acquire);
      for (; bits != 0; bits &= bits - 1) {
        each_at(w * 64 + static_cast<std::uint32_t>(std::countr_zero(bits)), each);
      }
    }
  }
  void wait_for_readers() { sections_.wait_for_all(); }

 private:
  struct Slot {
    SlotNumber number;
    std::unique_ptr<std::atomic<Qp*>[]> places;
    std::unique_ptr<bool[]> taken;
    std::uint32_t used = 0;
  };
  Slot* slot_of(QpNum number);

  static constexpr std::uint32_t kWords = kPlaces / 64;

  ReadingSections sections_;
  // Bit i: some slot had a queue pair at place i at some time.
  std::array<std::atomic<std::uint64_t>, kWords> occupied_{};
  mutable Mutex lock_;
  std::array<Slot, kSlotsMax> slots_;
  std::atomic<std::uint32_t> slot_count_{0};
  // A ring: each number that comes to rest takes the place of the one that has rested longest.
  static constexpr std::size_t kRestingMax = 1024;
  std::array<QpNum, kRestingMax> resting_{};
  std::size_t next_resting_ = 0;
};

}  // namespace verbena::nic
