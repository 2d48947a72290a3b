// SPDX-License-Identifier: MIT
#include "nic/qp_table.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/fence.h"

namespace verbena::nic {
namespace {

// A slot is full enough when a random pick begins to take long.
constexpr std::uint32_t kUsedMax = QpTable::kPlaces * 3 / 4;

unsigned line_of_this_thread(unsigned lines) {
  static std::atomic<unsigned> next{1};
  // Without a guard and a call for it: each packet that comes is looked up by this.
  constinit static thread_local unsigned line [[gnu::tls_model("initial-exec")]] = 0;
  if (line == 0) [[unlikely]]
    line = next.fetch_add(1, std::memory_order_relaxed);
  return line % lines;
}

}  // namespace

ReadingSections::Ticket ReadingSections::enter() {
  const std::uint32_t phase = phase_.load(std::memory_order_relaxed) & 1;
  Ticket ticket = &lines_[line_of_this_thread(kLines)].readers[phase];
  ticket->fetch_add(1, std::memory_order_seq_cst);
  return ticket;
}

void ReadingSections::flip_and_wait() {
  const std::uint32_t old = phase_.fetch_xor(1, std::memory_order_seq_cst) & 1;
  full_fence();
  for (Line& line : lines_) {
    while (line.readers[old].load(std::memory_order_acquire) != 0)
      sched_yield();
  }
}

void ReadingSections::wait_for_all() {
  const std::lock_guard guard(waiters_);
  flip_and_wait();
  flip_and_wait();
}

QpTable::~QpTable() = default;

void QpTable::add_slot(SlotNumber number) {
  const std::lock_guard guard(lock_);
  const std::uint32_t count = slot_count_.load(std::memory_order_relaxed);
  VERBENA_ASSERT(count < kSlotsMax);
  Slot& slot = slots_[count];
  slot.number = number;
  slot.places = std::make_unique<std::atomic<Qp*>[]>(kPlaces);
  slot.taken = std::make_unique<bool[]>(kPlaces);
  slot_count_.store(count + 1, std::memory_order_release);
}

bool QpTable::has_slot(SlotNumber slot) const {
  const std::uint32_t count = slot_count_.load(std::memory_order_acquire);
  return std::any_of(slots_.begin(), slots_.begin() + count,
                     [slot](const Slot& each) { return each.number == slot; });
}

QpTable::Slot* QpTable::slot_of(QpNum number) {
  const std::uint32_t count = slot_count_.load(std::memory_order_acquire);
  for (std::uint32_t s = 0; s < count; ++s) {
    if (slots_[s].number == number.slot()) return &slots_[s];
  }
  return nullptr;
}

std::optional<QpNum> QpTable::reserve(RandomSource& random) {
  const std::lock_guard guard(lock_);
  const std::uint32_t count = slot_count_.load(std::memory_order_relaxed);
  for (std::uint32_t s = 0; s < count; ++s) {
    Slot& slot = slots_[s];
    if (slot.used >= kUsedMax) continue;
    for (;;) {
      const QpNum number = QpNum::of(slot.number, static_cast<std::uint32_t>(random.next()));
      const std::uint32_t index = number.index();
      if (index < 2 || index == kPlaces - 1 || slot.taken[index]) continue;
      slot.taken[index] = true;
      ++slot.used;
      return number;
    }
  }
  return std::nullopt;
}

void QpTable::insert(QpNum number, Qp* qp) {
  const std::lock_guard guard(lock_);
  slot_of(number)->places[number.index()].store(qp, std::memory_order_release);
  occupied_[number.index() / 64].fetch_or(std::uint64_t{1} << number.index() % 64,
                                          std::memory_order_release);
}

void QpTable::remove(QpNum number) {
  slot_of(number)->places[number.index()].store(nullptr, std::memory_order_release);
  sections_.wait_for_all();
  release(number);
}

// Late messages for the old queue pair must not reach a new one.
void QpTable::release(QpNum number) {
  const std::lock_guard guard(lock_);
  const QpNum rested = std::exchange(resting_[next_resting_], number);
  next_resting_ = (next_resting_ + 1) % kRestingMax;
  if (rested == QpNum{}) return;
  // A place shared with another slot's queue pair keeps its bit.
  bool is_shared = false;
  each_at(rested.index(), [&](Qp&) { is_shared = true; });
  if (!is_shared) {
    occupied_[rested.index() / 64].fetch_and(~(std::uint64_t{1} << rested.index() % 64));
  }
  Slot* slot = slot_of(rested);
  slot->taken[rested.index()] = false;
  --slot->used;
}

Qp* QpTable::find(QpNum number) const {
  const std::uint32_t count = slot_count_.load(std::memory_order_acquire);
  for (std::uint32_t s = 0; s < count; ++s) {
    if (slots_[s].number == number.slot()) {
      return slots_[s].places[number.index()].load(std::memory_order_acquire);
    }
  }
  return nullptr;
}

}  // namespace verbena::nic
