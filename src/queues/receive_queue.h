// SPDX-License-Identifier: MIT
// Receive queues, a queue pair's own or shared: first in, first out. Any thread may post at any
// time.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>

#include "base/biased_lock.h"
#include "base/types.h"

namespace verbena::queues {

inline constexpr std::size_t kReceiveSgeMax = 32;

// A receive taken from its queue: a copy, since the queue's stride is free again at once.
struct Receive {
  std::uint64_t wr_id = 0;
  std::uint32_t sge_count = 0;
  Sge sges[kReceiveSgeMax];

  std::span<const Sge> list() const { return {sges, sge_count}; }
  // Bytes in all SGEs.
  std::uint64_t room() const {
    std::uint64_t bytes = 0;
    for (const Sge& sge : list())
      bytes += sge.length;
    return bytes;
  }
};

class ReceiveQueueEvents {
 public:
  // A shared receive queue went below its limit (IBTA vol 1, 10.2.9.2). Called without the queue's
  // lock; once per arming.
  virtual void limit_reached() = 0;

 protected:
  ~ReceiveQueueEvents() = default;
};

// Who takes: any number of queue pairs at any time, or one of them, whose lock sees to it that this
// is one thread at a time. That one takes without a lock; limits and resizing are for the others.
enum class Takers : std::uint8_t { kMany, kOneAtATime };

class ReceiveQueue {
  struct Slot {  // and sge_max_ SGEs
    std::uint64_t wr_id;
    std::uint64_t sge_count;
    Sge* sges() { return reinterpret_cast<Sge*>(this + 1); }
  };

 public:
  // `sge_max` up to kReceiveSgeMax.
  ReceiveQueue(std::uint32_t depth, std::uint32_t sge_max, ReceiveQueueEvents* events = nullptr,
               Takers takers = Takers::kMany);
  ReceiveQueue(const ReceiveQueue&) = delete;
  ReceiveQueue& operator=(const ReceiveQueue&) = delete;

  enum class PostError : std::uint8_t { kFull, kTooManySges };
  std::optional<PostError> post(std::uint64_t wr_id, std::span<const Sge> sges) {
    if (sges.size() > sge_max_) [[unlikely]]
      return PostError::kTooManySges;
    const std::lock_guard guard(lock_);
    const std::uint32_t posted = posted_.load(std::memory_order_relaxed);
    if (posted - taken_.load(std::memory_order_acquire) == depth()) [[unlikely]]
      return PostError::kFull;
    Slot* slot = new (place_of(posted)) Slot{wr_id, sges.size()};
    std::copy(sges.begin(), sges.end(), slot->sges());
    posted_.store(posted + 1, std::memory_order_release);
    return std::nullopt;
  }
  // The same of those with one SGE, one after the other, by the thread that has posted all others.
  // They can be taken when this ends.
  class PostsAlone {
   public:
    // `may`: asked with the lock.
    template <class May>
    [[gnu::always_inline]] PostsAlone(ReceiveQueue& queue, const May& may) : queue_(queue) {
      if (!queue.lock_.lock_as_owner()) [[unlikely]]
        return;
      is_locked_ = true;
      posted_ = room_upto_ = queue.posted_.load(std::memory_order_relaxed);
      if (queue.sge_max_ != 0 && may()) [[likely]]
        room_upto_ = queue.taken_.load(std::memory_order_acquire) + queue.depth();
    }
    [[gnu::always_inline]] ~PostsAlone() {
      if (!is_locked_) [[unlikely]]
        return;
      queue_.posted_.store(posted_, std::memory_order_release);
      queue_.lock_.unlock_as_owner();
    }
    PostsAlone(const PostsAlone&) = delete;
    PostsAlone& operator=(const PostsAlone&) = delete;
    // False: nothing has happened, and post() finds out.
    [[gnu::always_inline]] bool post(std::uint64_t wr_id, Sge sge) {
      if (posted_ == room_upto_) [[unlikely]]
        return false;
      // Word by word, as the program may have just stored them (verbs/post.cc).
      Slot* const slot = new (queue_.place_of(posted_)) Slot;
      slot->wr_id = wr_id;
      slot->sge_count = 1;
      Sge& to = *slot->sges();
      to.address = sge.address;
      to.length = sge.length;
      to.key = sge.key;
      ++posted_;
      return true;
    }

   private:
    ReceiveQueue& queue_;
    bool is_locked_ = false;
    std::uint32_t posted_ = 0;
    std::uint32_t room_upto_ = 0;
  };
  // Every post that began before has ended, and what it posted can be taken.
  void wait_for_posts();
  // False when there is none. Of `out.sges` only the first sge_count are written.
  bool take(Receive& out) {
    return takers_ == Takers::kOneAtATime ? take_oldest(out) : take_shared(out);
  }
  // Without taking it: the oldest receive where its taker needs no lock, and where it has exactly
  // one SGE. It lies there until drop_oldest() takes it. Not a copy: what was stored word by word
  // and is read as a whole right behind makes the processor wait for the stores.
  class Simple {
   public:
    explicit operator bool() const { return slot_ != nullptr; }
    std::uint64_t wr_id() const { return slot_->wr_id; }
    const Sge& sge() const { return *slot_->sges(); }

   private:
    friend class ReceiveQueue;
    Slot* slot_ = nullptr;
  };
  Simple oldest_simple() const { return waiting_alone() == 0 ? Simple() : simple_at(0); }
  // The same of those behind it: so many wait, and the `nth` of them, from 0 on.
  std::uint32_t waiting_alone() const {
    if (takers_ != Takers::kOneAtATime) [[unlikely]]
      return 0;
    return posted_.load(std::memory_order_acquire) - taken_.load(std::memory_order_relaxed);
  }
  Simple simple_at(std::uint32_t nth) const {
    Simple simple;
    Slot* const slot = place_of(taken_.load(std::memory_order_relaxed) + nth);
    if (slot->sge_count == 1) [[likely]]
      simple.slot_ = slot;
    return simple;
  }
  void drop_oldest(std::uint32_t count = 1) {
    taken_.store(taken_.load(std::memory_order_relaxed) + count, std::memory_order_release);
  }
  std::uint32_t waiting() const {
    const std::uint32_t taken = taken_.load(std::memory_order_acquire);
    return posted_.load(std::memory_order_acquire) - taken;
  }
  std::uint32_t depth() const { return depth_.load(std::memory_order_relaxed); }
  std::uint32_t sge_max() const { return sge_max_; }
  // Forgets what waits, and the limit. Called by a taker.
  void reset();

  // Arms one event: the first taker that leaves (or finds) fewer than `limit` receives raises it,
  // so that arming before the first post is no event yet, and one that arms too late is not lost. 0
  // disarms. False when above the depth.
  bool set_limit(std::uint32_t limit);
  // 0 when not armed, also after the event (as ibv_query_srq shows it).
  std::uint32_t limit() const { return limit_.load(std::memory_order_relaxed); }
  // False when more than `depth` receives wait, or the limit is above it.
  bool resize(std::uint32_t depth);

 private:
  Slot* place_of(std::uint32_t index) const {
    return reinterpret_cast<Slot*>(memory_.get() + std::size_t{index & mask_} * stride_);
  }
  std::unique_ptr<std::byte[]> memory_for(std::uint32_t depth) const;
  bool take_shared(Receive& out);
  bool take_oldest(Receive& out) {
    const std::uint32_t taken = taken_.load(std::memory_order_relaxed);
    if (taken == posted_.load(std::memory_order_acquire)) return false;
    Slot* slot = place_of(taken);
    out.wr_id = slot->wr_id;
    out.sge_count = static_cast<std::uint32_t>(slot->sge_count);
    std::copy_n(slot->sges(), out.sge_count, out.sges);
    taken_.store(taken + 1, std::memory_order_release);
    return true;
  }
  bool limit_fires(std::uint32_t left);

  const Takers takers_;
  const std::uint32_t sge_max_;
  const std::size_t stride_;
  std::uint32_t mask_;  // a power of two of places, at least the depth
  std::unique_ptr<std::byte[]> memory_;
  std::atomic<std::uint32_t> depth_;
  std::atomic<std::uint32_t> limit_{0};
  ReceiveQueueEvents* const events_;

  // Both count all receives since the last reset, and wrap.
  alignas(64) BiasedLock lock_;  // of posting, and of taking from a shared queue
  std::atomic<std::uint32_t> posted_{0};
  alignas(64) std::atomic<std::uint32_t> taken_{0};
};

}  // namespace verbena::queues
