// SPDX-License-Identifier: MIT
#include "queues/completion_queue.h"

#include <algorithm>
#include <bit>
#include <new>
#include <utility>

#include "base/assert.h"

namespace verbena::queues {
namespace {

// Places that a queue begins with: 3 KiB.
constexpr std::uint32_t kPlacesMin = 64;

std::unique_ptr<std::byte[]> memory_for(std::uint32_t capacity) {
  VERBENA_ASSERT(capacity <= 1u << 31);
  const std::size_t places = std::bit_ceil(capacity);
  return std::make_unique_for_overwrite<std::byte[]>(places * sizeof(Completion));
}

}  // namespace

CompletionQueue::CompletionQueue(std::uint32_t capacity, CompletionEvents* events, Pushers pushers)
    : CompletionQueue(capacity, events, pushers, Extras{}) {}

// Who wants the time of each completion pushes by the long way.
CompletionQueue::CompletionQueue(std::uint32_t capacity, CompletionEvents* events, Pushers pushers,
                                 const Extras& extras)
    : memory_(memory_for(capacity)),
      capacity_(capacity),
      events_(events),
      extras_(extras),
      is_push_locked_(pushers == Pushers::kAny || extras.clock),
      has_listeners_(pushers == Pushers::kAny),
      room_upto_(extras.first),
      tail_(extras.first),
      head_(extras.first),
      moved_upto_(extras.first) {
  VERBENA_ASSERT(capacity >= 1);
  use(kPlacesMin);
}

bool CompletionQueue::push(const Completion& completion, bool solicited, std::uint32_t* place) {
  const auto tell_place = [&] {
    if (place) *place = tail_.load(std::memory_order_relaxed) + 1;
  };
  if (!is_push_locked_.load(std::memory_order_relaxed)) [[likely]] {
    tell_place();
    return tell(push_alone(completion, solicited));
  }
  std::unique_lock guard(push_lock_);
  tell_place();
  Pushed pushed = Pushed::kQuietly;
  if (extras_.clock) [[unlikely]] {
    Completion stamped = completion;
    stamped.timestamp = extras_.clock();
    pushed = push_alone(stamped, solicited);
  } else {
    pushed = push_alone(completion, solicited);
  }
  guard.unlock();
  return tell(pushed);
}

CompletionQueue::Pushed CompletionQueue::push_alone(const Completion& completion, bool solicited) {
  const std::uint32_t tail = tail_.load(std::memory_order_relaxed);
  if (tail == room_upto_ && !make_room(tail)) {
    return overrun_.exchange(true, std::memory_order_relaxed) ? Pushed::kLost : Pushed::kLostFirst;
  }
  new (place_of(tail)) Completion(completion);
  tail_.store(tail + 1, std::memory_order_release);
  if (!has_listeners_ || armed_ == Arm::kNo) [[likely]]
    return Pushed::kQuietly;
  return event_of(completion, solicited);
}

bool CompletionQueue::tell(Pushed pushed) {
  switch (pushed) {
    case Pushed::kQuietly: return true;
    case Pushed::kWithEvent:
      if (events_) events_->completion_event(*this);
      return true;
    case Pushed::kBeginsToWait:
      if (events_) events_->moderation_began(*this);
      return true;
    case Pushed::kLost: return false;
    case Pushed::kLostFirst:
      if (events_) events_->overrun_event(*this);
      return false;
  }
  return false;
}

CompletionQueue::Pushed CompletionQueue::event_of(const Completion& completion, bool solicited) {
  const bool is_good = completion.status == Status::kSuccess;
  if (armed_ != Arm::kNext && !solicited && is_good) return Pushed::kQuietly;
  if (is_good && moderate_count_ > 1) return moderated();
  armed_ = Arm::kNo;
  moderated_ = 0;
  return Pushed::kWithEvent;
}

CompletionQueue::Pushed CompletionQueue::moderated() {
  ++moderated_;
  if (moderated_ < moderate_count_)
    return moderated_ == 1 ? Pushed::kBeginsToWait : Pushed::kQuietly;
  armed_ = Arm::kNo;
  moderated_ = 0;
  return Pushed::kWithEvent;
}

void CompletionQueue::moderate(std::uint32_t count) {
  {
    const std::lock_guard guard(push_lock_);
    moderate_count_ = count;
  }
  // What waits by the old rule waits no longer.
  moderation_over();
}

void CompletionQueue::moderation_over() {
  std::unique_lock guard(push_lock_);
  if (moderated_ == 0) return;
  moderated_ = 0;
  const bool tells = std::exchange(armed_, Arm::kNo) != Arm::kNo;
  guard.unlock();
  if (tells) tell(Pushed::kWithEvent);
}

// False when full. After an overrun it stays full for those who push.
bool CompletionQueue::make_room(std::uint32_t tail) {
  if (is_overrun()) return false;
  std::uint32_t waiting = tail - head_.load(std::memory_order_acquire);
  if (waiting >= capacity()) {
    if (!extras_.ignores_overrun) return false;
    forget_oldest();
    waiting = tail - head_.load(std::memory_order_acquire);
  }
  if (waiting == mask_ + 1) use_twice_as_much(tail);
  room_upto_ = tail - waiting + std::min(mask_ + 1, capacity());
  return true;
}

void CompletionQueue::forget_oldest() {
  const std::lock_guard guard(take_lock_);
  const std::uint32_t head = head_.load(std::memory_order_relaxed);
  const std::uint32_t tail = tail_.load(std::memory_order_relaxed);
  if (tail - head >= capacity()) head_.store(head + 1, std::memory_order_release);
}

// What waits keeps its order: each completion stays, or moves up by the old number of places.
void CompletionQueue::use_twice_as_much(std::uint32_t tail) {
  const std::lock_guard guard(take_lock_);
  const std::uint32_t head = head_.load(std::memory_order_relaxed);
  const std::uint32_t places = mask_ + 1;
  for (std::uint32_t index = head; index != tail; ++index) {
    if (index & places) *(place_of(index) + places) = *place_of(index);
  }
  use(places * 2);
}

void CompletionQueue::use(std::uint32_t places) {
  mask_ = std::min(places, std::bit_ceil(capacity())) - 1;
}

std::size_t CompletionQueue::poll(std::span<Completion> out) {
  Completion* to = out.data();
  return take(out.size(), [&to](const Completion& completion) { *to++ = completion; });
}

void CompletionQueue::arm(Arm what) {
  if (!has_listeners_) return;
  const std::lock_guard guard(push_lock_);
  if (what == Arm::kSolicited && armed_ == Arm::kNext) return;
  armed_ = what;
  if (what == Arm::kNo) moderated_ = 0;
}

// With take_lock_.
std::uint32_t CompletionQueue::origin_of(std::uint32_t index) const {
  const std::uint32_t nth = moved_upto_.load(std::memory_order_relaxed) - 1 - index;
  return nth < moved_ ? origins_[nth] : index;
}

std::uint32_t CompletionQueue::taken_of_moved() {
  const std::lock_guard guard(take_lock_);
  const std::uint32_t head = head_.load(std::memory_order_relaxed);
  const std::uint32_t origin = origin_of(head);
  // They were taken long ago: the numbers have gone half around.
  if (origin == head) {
    moved_ = 0;
    moved_upto_.store(head, std::memory_order_relaxed);
  }
  return origin;
}

// What waits moves towards the tail, so that whatever comes next lies where it would have. Where
// each was pushed is kept for as long as it waits: its place is not free.
void CompletionQueue::remove(QpNum qp) {
  std::unique_ptr<std::uint32_t[]> origins;
  for (std::size_t room = 0;;) {
    const std::uint32_t head = head_.load(std::memory_order_acquire);
    const std::uint32_t waiting = tail_.load(std::memory_order_relaxed) - head;
    if (waiting > room) {
      // Not under the locks, which others wait for. Without it places are free too early.
      room = std::size_t{waiting} + waiting / 2 + kPlacesMin;
      origins.reset(new (std::nothrow) std::uint32_t[room]);
    }
    const std::lock_guard pushing(push_lock_);
    const std::lock_guard taking(take_lock_);
    if (tail_.load(std::memory_order_relaxed) - head_.load(std::memory_order_relaxed) > room)
      continue;
    return remove(qp, std::move(origins));
  }
}

void CompletionQueue::remove(QpNum qp, std::unique_ptr<std::uint32_t[]> origins) {
  const std::uint32_t head = head_.load(std::memory_order_relaxed);
  const std::uint32_t tail = tail_.load(std::memory_order_relaxed);
  std::uint32_t kept = tail;
  for (std::uint32_t index = tail; index != head;) {
    const Completion& completion = *place_of(--index);
    if (completion.qp == qp) continue;
    --kept;
    if (origins) origins[tail - 1 - kept] = origin_of(index);
    if (kept != index) *place_of(kept) = completion;
  }
  if (kept == head) return;
  moved_ = origins ? tail - kept : 0;
  origins_ = std::move(origins);
  moved_upto_.store(tail, std::memory_order_relaxed);
  head_.store(kept, std::memory_order_release);
}

bool CompletionQueue::resize(std::uint32_t capacity) {
  if (capacity == 0) return false;
  std::unique_ptr<std::byte[]> memory = memory_for(capacity);
  // The old memory is freed after the locks are.
  const std::lock_guard pushing(push_lock_);
  const std::lock_guard taking(take_lock_);
  const std::uint32_t head = head_.load(std::memory_order_relaxed);
  const std::uint32_t count = tail_.load(std::memory_order_relaxed) - head;
  if (count > capacity) return false;
  // Each keeps its number (is_waiting_at()).
  const std::uint32_t places =
      std::min(std::bit_ceil(std::max(count, kPlacesMin)), std::bit_ceil(capacity));
  auto* const to = reinterpret_cast<Completion*>(memory.get());
  for (std::uint32_t i = 0; i < count; ++i)
    to[(head + i) & (places - 1)] = *place_of(head + i);
  std::swap(memory_, memory);
  capacity_.store(capacity, std::memory_order_relaxed);
  use(places);
  room_upto_ = head + count;
  return true;
}

}  // namespace verbena::queues
