// SPDX-License-Identifier: MIT
// The engine's timers: deadlines of queue pairs, and of completions that wait to be told of.
#include <algorithm>
#include <mutex>

#include "nic/engine.h"
#include "nic/objects.h"

namespace verbena::nic {

bool Timers::move(QpNum qp, Instant before, Instant when) {
  const std::lock_guard guard(lock_);
  entries_.erase({before, qp});
  entries_.insert({when, qp});
  if (when >= earliest()) return false;
  earliest_.store(when.nanoseconds(), std::memory_order_release);
  return true;
}

// The earliest time may now be one too early: then somebody looks for nothing, once.
void Timers::remove(QpNum qp, Instant when) {
  const std::lock_guard guard(lock_);
  entries_.erase({when, qp});
}

std::vector<QpNum> Timers::take_due(Instant now) {
  std::vector<QpNum> due;
  if (earliest() > now) return due;
  const std::lock_guard guard(lock_);
  while (!entries_.empty() && entries_.begin()->first <= now) {
    due.push_back(entries_.begin()->second);
    entries_.erase(entries_.begin());
  }
  const Instant next = entries_.empty() ? Instant::never() : entries_.begin()->first;
  earliest_.store(next.nanoseconds(), std::memory_order_release);
  return due;
}

bool Moderations::move(Cq& cq, Instant when) {
  const std::lock_guard guard(lock_);
  const auto found = std::ranges::find(entries_, &cq, &std::pair<Cq*, Instant>::first);
  if (found == entries_.end())
    entries_.emplace_back(&cq, when);
  else
    found->second = when;
  const bool is_earliest = when < earliest();
  settle();
  return is_earliest;
}

void Moderations::remove(Cq& cq) {
  const std::lock_guard guard(lock_);
  std::erase_if(entries_, [&](const auto& entry) { return entry.first == &cq; });
  settle();
}

void Moderations::settle() {
  Instant earliest = Instant::never();
  for (const auto& entry : entries_)
    earliest = std::min(earliest, entry.second);
  earliest_.store(earliest.nanoseconds(), std::memory_order_release);
}

void Moderations::end_due(Instant now) {
  const std::lock_guard guard(lock_);
  std::erase_if(entries_, [&](const auto& entry) {
    if (entry.second > now) return false;
    entry.first->queue.moderation_over();
    return true;
  });
  settle();
}

void Engine::note_moderation(Cq& cq) {
  if (moderations_.move(cq, clock_now() + cq.moderation_period())) doorbell_->wake();
}

}  // namespace verbena::nic
