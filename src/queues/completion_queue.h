// SPDX-License-Identifier: MIT
// A completion queue: completions in the order in which they were pushed, and the arming of its
// event (IBTA vol 1, 10.2.6.1 and 11.4.2). Private memory; any thread may call anything at any
// time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>

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
  kReceive = 128,
  kReceiveWithImmediate = 129,
};

// Numbered as in verbs (enum ibv_wc_flags).
inline constexpr std::uint8_t kHasGrh = 1;
inline constexpr std::uint8_t kHasImmediate = 2;
inline constexpr std::uint8_t kHasInvalidatedKey = 8;

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
  std::uint64_t timestamp = 0;  // nanoseconds, CLOCK_MONOTONIC; 0 when the queue does not take them
};
static_assert(std::is_trivially_copyable_v<Completion>);

class CompletionQueue;

// Who is told when an armed queue gets a completion. Called without the queue's lock held.
class CompletionEvents {
 public:
  virtual void completion_event(CompletionQueue& queue) = 0;
  // The queue was full and a completion is lost (IBTA vol 1, 11.6.3.2: CQ error). Called once.
  virtual void overrun_event(CompletionQueue& queue) = 0;

 protected:
  ~CompletionEvents() = default;
};

enum class Arm : std::uint8_t { kNo, kSolicited, kNext };

class CompletionQueue {
 public:
  // `capacity` completions, at least 1. `events` may be null.
  CompletionQueue(std::uint32_t capacity, CompletionEvents* events);
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  // False when full: the completion is lost, the queue is in error for good, and the caller's queue
  // pair must fail. `solicited`: a receive whose sender asked for an event; an unsuccessful
  // completion always counts as solicited.
  [[nodiscard]] bool push(const Completion& completion, bool solicited);

  // Takes up to out.size() completions, oldest first. Cheap when empty: no lock. What was pushed
  // before an overrun can still be taken after it.
  std::size_t poll(std::span<Completion> out);
  bool empty() const { return count_.load(std::memory_order_acquire) == 0; }

  // The next completion (of this kind) calls completion_event once. Arming for kNext overrides
  // kSolicited, not the reverse; kNo disarms. A completion that came before the arming does not
  // count (11.4.2.2).
  void arm(Arm what);

  // Forgets completions of a queue pair that is gone; the others keep their order.
  void remove(QpNum qp);

  // False when more completions than `capacity` are waiting, or `capacity` is 0.
  bool resize(std::uint32_t capacity);
  std::uint32_t capacity() const { return capacity_.load(std::memory_order_relaxed); }
  bool is_overrun() const { return overrun_.load(std::memory_order_relaxed); }

 private:
  Completion* ring() { return reinterpret_cast<Completion*>(memory_.get()); }
  // All below: with the lock held.
  std::uint32_t place_of(std::uint32_t index) const;  // of the index-th oldest
  void copy_oldest(Completion* to, std::uint32_t count);
  void set_count(std::uint32_t count);
  bool takes_event(const Completion& completion, bool solicited);

  ShortLock lock_;
  Arm armed_ = Arm::kNo;
  // Raw bytes: a program that asks for millions of entries and uses ten shall touch the memory of
  // ten.
  std::unique_ptr<std::byte[]> memory_;
  std::atomic<std::uint32_t> capacity_;
  std::uint32_t head_ = 0;  // place of the oldest
  std::atomic<std::uint32_t> count_{0};
  std::atomic<bool> overrun_{false};
  CompletionEvents* const events_;
};

}  // namespace verbena::queues
