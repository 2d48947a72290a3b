// SPDX-License-Identifier: MIT
// A completion queue: completions in the order in which they were pushed, and the arming of its
// event (IBTA vol 1, 10.2.6.1 and 11.4.2). Private memory; any thread may call anything at any
// time, but for the pushing that Pushers limits.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <type_traits>

#include "base/biased_lock.h"
#include "base/serial_number.h"
#include "base/short_lock.h"
#include "base/types.h"

namespace verbena::queues {

// Numbered as in verbs (enum ibv_wc_status), so that the C border only copies.
enum class Status : std::uint8_t {
  kSuccess = 0,
  kLocalLength = 1,
  kLocalQpOperation = 2,
  kLocalProtection = 4,
  kFlushed = 5,
  kWindowBind = 6,
  kBadResponse = 7,
  kLocalAccess = 8,
  kRemoteInvalidRequest = 9,
  kRemoteAccess = 10,
  kRemoteOperation = 11,
  kRetryExceeded = 12,
  kRnrRetryExceeded = 13,
  kFatal = 19,
  kTagOperation = 22,          // of a tag list: its entry is not there any more
  kRendezvousIncomplete = 23,  // of a tagged receive: the message is still where the header says
};

// Numbered as in verbs (enum ibv_wc_opcode).
enum class CompletionKind : std::uint8_t {
  kSend = 0,
  kWrite = 1,
  kRead = 2,
  kCompareSwap = 3,
  kFetchAdd = 4,
  kBindWindow = 5,
  kLocalInvalidate = 6,
  kFlush = 8,
  kAtomicWrite = 9,
  kReceive = 128,
  kReceiveWithImmediate = 129,
  kTagAdd = 130,
  kTagDelete = 131,
  kTagSync = 132,
  kTagReceive = 133,
  kNoTag = 134,
};

// Numbered as in verbs (enum ibv_wc_flags).
inline constexpr std::uint8_t kHasGrh = 1;
inline constexpr std::uint8_t kHasImmediate = 2;
inline constexpr std::uint8_t kHasInvalidatedKey = 8;
inline constexpr std::uint8_t kTagSyncWanted = 16;
inline constexpr std::uint8_t kTagMatched = 32;
inline constexpr std::uint8_t kTagDataValid = 64;

struct Completion {
  std::uint64_t wr_id = 0;
  Status status = Status::kSuccess;
  CompletionKind kind = CompletionKind::kSend;
  std::uint8_t flags = 0;
  std::uint8_t service_level = 0;
  std::uint32_t vendor_error = 0;  // why, in our own numbering; 0 when successful
  std::uint32_t byte_length = 0;   // of a receive, a READ or an atomic
  std::uint32_t immediate = 0;     // as it came, network order; or the invalidated key
  QpNum qp = {};
  QpNum source_qp = {};  // datagrams only
  std::uint16_t source_lid = 0;
  std::uint16_t pkey_index = 0;
  std::uint32_t flow_tag = 0;   // of the rule that a raw packet matched; or see set_tag()
  std::uint64_t timestamp = 0;  // of the queue's clock; 0 when the queue has none
};
static_assert(std::is_trivially_copyable_v<Completion> && sizeof(Completion) == 48);

// What a message's tag matching header says: its tag and its application's own word. No such
// message is a datagram, so they lie where those say whom they are from.
inline void set_tag(Completion& completion, std::uint64_t tag, std::uint32_t context) {
  completion.source_qp.value = static_cast<std::uint32_t>(tag);
  completion.source_lid = static_cast<std::uint16_t>(tag >> 32);
  completion.pkey_index = static_cast<std::uint16_t>(tag >> 48);
  completion.flow_tag = context;
}
inline std::uint64_t tag_of(const Completion& completion) {
  return std::uint64_t{completion.pkey_index} << 48 | std::uint64_t{completion.source_lid} << 32 |
         completion.source_qp.value;
}

class CompletionQueue;

// Who is told when an armed queue gets a completion. Called without the queue's lock held.
class CompletionEvents {
 public:
  virtual void completion_event(CompletionQueue& queue) = 0;
  // The queue was full and a completion is lost (IBTA vol 1, 11.6.3.2: CQ error). Called once.
  virtual void overrun_event(CompletionQueue& queue) = 0;
  // The first of some completions waits for others before it is an event: moderation_over() is to
  // be called when the period has passed.
  virtual void moderation_began(CompletionQueue&) {}

 protected:
  ~CompletionEvents() = default;
};

enum class Arm : std::uint8_t { kNo, kSolicited, kNext };

// Who pushes. kOneAtATime: all pushes come under one queue pair's lock, and nobody wants to hear
// of completions. Then pushing takes no lock, and arming does nothing.
enum class Pushers : std::uint8_t { kAny, kOneAtATime };

class CompletionQueue {
 public:
  // What is asked for when it is made. Each of them makes pushing a little dearer, so nobody else
  // pays.
  struct Extras {
    std::uint64_t (*clock)() = nullptr;  // for timestamps
    // A full queue forgets its oldest completion instead of failing.
    bool ignores_overrun = false;
    std::uint32_t first = 0;  // how many completions it seems to have had
  };
  // `capacity` completions, at least 1. `events` may be null.
  CompletionQueue(std::uint32_t capacity, CompletionEvents* events,
                  Pushers pushers = Pushers::kAny);
  CompletionQueue(std::uint32_t capacity, CompletionEvents* events, Pushers pushers,
                  const Extras& extras);
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  // False when full: the completion is lost, the queue is in error for good, and the caller's queue
  // pair must fail. `solicited`: a receive whose sender asked for an event; an unsuccessful
  // completion always counts as solicited. `place`: where to write down its place, for
  // is_waiting_at(); also where it is lost.
  [[nodiscard]] bool push(const Completion& completion, bool solicited,
                          std::uint32_t* place = nullptr);
  // The same for the one that make() gives: it is built in its place.
  template <class Make>
    requires std::is_invocable_r_v<Completion, Make>
  [[nodiscard, gnu::always_inline]] bool push(const Make& make, bool solicited,
                                              std::uint32_t* place = nullptr) {
    if (is_push_locked_.load(std::memory_order_relaxed)) [[unlikely]]
      return push(make(), solicited, place);
    const std::uint32_t tail = tail_.load(std::memory_order_relaxed);
    if (tail == room_upto_) [[unlikely]]
      return push(make(), solicited, place);
    if (place) *place = tail + 1;
    new (place_of(tail)) Completion(make());
    tail_.store(tail + 1, std::memory_order_release);
    return true;
  }
  // The same in two steps, for several: so many can be pushed, the `nth` of them, from 0 on, and
  // now they are.
  std::uint32_t room_alone() const {
    if (is_push_locked_.load(std::memory_order_relaxed)) [[unlikely]]
      return 0;
    return room_upto_ - tail_.load(std::memory_order_relaxed);
  }
  template <class Make>
  [[gnu::always_inline]] void write_down(std::uint32_t nth, const Make& make) {
    new (place_of(tail_.load(std::memory_order_relaxed) + nth)) Completion(make());
  }
  void push_written(std::uint32_t count) {
    tail_.store(tail_.load(std::memory_order_relaxed) + count, std::memory_order_release);
  }
  // Whether the completion that was pushed to that place waits to be taken since. 0 is no place; of
  // 2^32 one has it, and never seems to wait.
  bool is_waiting_at(std::uint32_t place) {
    const std::uint32_t taken = taken_upto();
    return place != 0 && place - 1 - taken < tail_.load(std::memory_order_relaxed) - taken;
  }
  // All places up to this one were taken.
  std::uint32_t taken_upto() {
    const std::uint32_t head = head_.load(std::memory_order_acquire);
    return is_before(head, moved_upto_.load(std::memory_order_relaxed)) ? taken_of_moved() : head;
  }

  // From now on pushes may meet. The first caller returns before that is true: it waits until every
  // push that began before the call has ended, then lets others push.
  void expect_many_pushers() { is_push_locked_.store(true, std::memory_order_relaxed); }

  // Calls take(const Completion&) for up to `most` completions, oldest first; not to call back.
  // Cheap when empty: no lock. What was pushed before an overrun can still be taken after it.
  template <class Take>
  std::size_t take(std::size_t most, Take&& take) {
    if (empty()) return 0;
    const std::lock_guard guard(take_lock_);
    const std::uint32_t head = head_.load(std::memory_order_relaxed);
    const std::size_t waiting = tail_.load(std::memory_order_acquire) - head;
    const auto taken = static_cast<std::uint32_t>(waiting < most ? waiting : most);
    for (std::uint32_t i = 0; i < taken; ++i)
      take(*place_of(head + i));
    head_.store(head + taken, std::memory_order_release);
    return taken;
  }
  std::size_t poll(std::span<Completion> out);
  bool empty() const {
    return tail_.load(std::memory_order_acquire) == head_.load(std::memory_order_relaxed);
  }

  // The next completion (of this kind) calls completion_event once. Arming for kNext overrides
  // kSolicited, not the reverse; kNo disarms. A completion that came before the arming does not
  // count (11.4.2.2).
  void arm(Arm what);

  // From now on an event is told when `count` completions that count have come, or when the period
  // of moderation_began() is over. Up to 1: at once. What is unsuccessful does not wait.
  void moderate(std::uint32_t count);
  void moderation_over();

  // Forgets completions of a queue pair that is gone; the others keep their order. For
  // kOneAtATime this counts as pushing.
  void remove(QpNum qp);

  // False when more completions than `capacity` are waiting, or `capacity` is 0. For kOneAtATime
  // this counts as pushing.
  bool resize(std::uint32_t capacity);
  std::uint32_t capacity() const { return capacity_.load(std::memory_order_relaxed); }
  bool is_overrun() const { return overrun_.load(std::memory_order_relaxed); }

 private:
  enum class Pushed : std::uint8_t { kQuietly, kWithEvent, kBeginsToWait, kLost, kLostFirst };
  Completion* place_of(std::uint32_t index) {
    return reinterpret_cast<Completion*>(memory_.get()) + (index & mask_);
  }
  // All below: by the one who pushes.
  Pushed push_alone(const Completion& completion, bool solicited);
  bool make_room(std::uint32_t tail);
  // With both locks; null: there is no memory for it.
  void remove(QpNum qp, std::unique_ptr<std::uint32_t[]> origins);
  std::uint32_t taken_of_moved();
  std::uint32_t origin_of(std::uint32_t index) const;
  void use_twice_as_much(std::uint32_t tail);
  void use(std::uint32_t places);
  bool tell(Pushed pushed);
  void forget_oldest();
  Pushed event_of(const Completion& completion, bool solicited);
  Pushed moderated();

  // Raw bytes: a program that asks for millions of entries and uses ten shall touch the memory of
  // ten. So the ring takes up as few places as it ever needed, a power of two.
  std::unique_ptr<std::byte[]> memory_;
  std::uint32_t mask_ = 0;
  std::atomic<std::uint32_t> capacity_;
  std::atomic<bool> overrun_{false};
  CompletionEvents* const events_;
  const Extras extras_;

  // Head and tail count all completions, and wrap. Each side on a line of its own; where both locks
  // are needed, take_lock_ is the inner one.
  alignas(64) ShortLock push_lock_;
  std::atomic<bool> is_push_locked_;
  const bool has_listeners_;
  Arm armed_ = Arm::kNo;
  std::uint32_t moderate_count_ = 0;
  std::uint32_t moderated_ = 0;  // completions that wait for others
  std::uint32_t room_upto_;      // as far as the tail may go without a look at the head
  std::atomic<std::uint32_t> tail_;
  alignas(64) BiasedLock take_lock_;
  std::atomic<std::uint32_t> head_;
  // remove() has moved what waits below this index: to where each was pushed, the last one first.
  std::atomic<std::uint32_t> moved_upto_;
  std::uint32_t moved_ = 0;  // so many
  std::unique_ptr<std::uint32_t[]> origins_;
};

}  // namespace verbena::queues
