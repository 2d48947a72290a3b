// SPDX-License-Identifier: MIT
// What a forked child gets of adopted memory: copies, so that its writes never reach the parent,
// nor the parent's the child.
//
// Before the fork every range is copied to its park, which the child then moves over the range: it
// has the program's own mapping again, with its flags (though the kernel does not join it with its
// neighbours in a child). Where that has MADV_DONTFORK the child finds no park, and has nothing, as
// it should. The parent empties the park. Where the program has moved or split a range, or where
// there was no copy, the child gets the shared mapping (which others never get: MADV_DONTFORK) and
// copies by itself, a moment later than it should; where it cannot, it may read the memory and dies
// of writing it (or has nothing, where it might not read): the parent does not suffer.
//
// All of this runs in the program's thread that forks, which has none of our descriptors.
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "memory/adoption_table.h"
#include "memory/guarded_copy.h"
#include "memory/raw_calls.h"

namespace verbena::memory {
namespace {

constexpr std::size_t kBlock = 4096;

bool is_zero(const std::byte (&block)[kBlock]) {
  return block[0] == std::byte{0} && std::memcmp(block, block + 1, kBlock - 1) == 0;
}

// Leaves out what is zero: `to` is, and need not become memory.
bool copy_sparsely(std::byte* to, const std::byte* from, std::size_t length) {
  alignas(64) std::byte block[kBlock];
  for (std::size_t at = 0; at < length; at += kBlock) {
    if (!guarded_copy(block, from + at, kBlock)) return false;
    if (!is_zero(block) && !guarded_copy(to + at, block, kBlock)) return false;
  }
  return true;
}

// In the child, which is alone. Also what nobody may read: the child may want to, later.
void copy_in_place(std::byte* begin, std::size_t length, int rights) {
  const bool is_readable = (rights & PROT_READ) != 0;
  std::byte* const fresh = raw::map_private(length);
  if (fresh != raw::failed()) {
    if (copy_sparsely(fresh, begin, length) ||
        (raw::protect(begin, length, PROT_READ) == 0 && copy_sparsely(fresh, begin, length))) {
      if (rights != (PROT_READ | PROT_WRITE)) raw::protect(fresh, length, rights);
      if (raw::move_over(begin, fresh, length) == begin) return;
    }
    raw::unmap(fresh, length);
  }
  if (is_readable) {
    raw::protect(begin, length, rights & ~PROT_WRITE);
  } else {
    raw::unmap(begin, length);
  }
}

}  // namespace

// The thread that forks may itself be waiting for us: handlers of the program that run after ours,
// before the fork, may register memory and deregister it. So each fork is waited for once, and for
// about a second: most are over by then.
bool AdoptionTable::lock_between_forks() {
  constexpr int kYields = 100;
  constexpr int kPauses = 1000;
  if (is_closing_) {
    lock_.lock();
    return true;
  }
  for (int i = 0; i < kYields + kPauses; ++i) {
    if (lock_.try_lock()) return true;
    if (i < kYields) {
      sched_yield();
    } else {
      raw::nap(1000);
    }
  }
  fork_given_up_ = forks_.load(std::memory_order_relaxed);
  return false;
}

bool AdoptionTable::is_held_up_by_fork() const {
  return !is_closing_ && is_forking_.load(std::memory_order_relaxed) &&
         forks_.load(std::memory_order_relaxed) == fork_given_up_;
}

void AdoptionTable::before_fork() {
  lock_.lock();
  // A child of a bare clone(2) has nothing to give to its own.
  if (getpid() != process_ || is_closed_) return;
  forks_.fetch_add(1, std::memory_order_relaxed);
  is_forking_.store(true, std::memory_order_relaxed);
  const std::uint32_t used = places_used_.load(std::memory_order_relaxed);
  if (used == 0) return;
  const ProcessMap map;
  for (std::uint32_t i = 0; i < used; ++i)
    copy_for_child(ranges_[i], map);
}

void AdoptionTable::copy_for_child(AdoptedRange& range, const ProcessMap& map) const {
  range.has_copy = false;
  if (range.is_allocated || range.shared_end.load(std::memory_order_relaxed) == 0) return;
  Mapping mapping;
  const auto begin = reinterpret_cast<std::uintptr_t>(range.begin);
  if (map.find(begin, mapping) == MapAnswer::kFound && is_whole(mapping, pages_of(range))) {
    range.rights = mapping.rights;
    range.has_copy = copy_sparsely(range.park, range.begin, range.length);
  }
  if (!range.has_copy) show_to_children(range, map, true);
}

// What is left of a range, wherever it is.
void AdoptionTable::show_to_children(const AdoptedRange& range, const ProcessMap& map,
                                     bool shall_show) const {
  const int advice = shall_show ? MADV_DOFORK : MADV_DONTFORK;
  if (!map.is_open()) {
    raw::advise(range.begin, range.length, advice);
    return;
  }
  const FilePlace place = pages_of(range).place;
  Mapping mapping;
  for (std::uintptr_t at = 0; map.find(at, mapping) == MapAnswer::kFound; at = mapping.end) {
    if (!shows(mapping, place)) continue;
    raw::advise(pointer(mapping.begin), mapping.end - mapping.begin, advice);
  }
}

void AdoptionTable::after_fork_in_parent() {
  if (is_forking_.exchange(false, std::memory_order_relaxed)) {
    const std::uint32_t used = places_used_.load(std::memory_order_relaxed);
    for (std::uint32_t i = 0; i < used; ++i) {
      AdoptedRange& range = ranges_[i];
      if (range.shared_end.load(std::memory_order_relaxed) == 0) continue;
      raw::advise(range.park, range.length, MADV_DONTNEED);
      const bool had_copy = std::exchange(range.has_copy, false);
      if (!had_copy && !range.is_allocated) show_to_children(range, ProcessMap(), false);
    }
  }
  lock_.unlock();
}

void AdoptionTable::after_fork_in_child() {
  if (is_forking_.exchange(false, std::memory_order_relaxed)) {
    const std::uint32_t used = places_used_.load(std::memory_order_relaxed);
    for (std::uint32_t i = 0; i < used; ++i) {
      if (ranges_[i].is_allocated) continue;  // it is not there (MADV_DONTFORK)
      if (ranges_[i].shared_end.load(std::memory_order_relaxed) != 0) give_to_child(ranges_[i]);
    }
  }
  // What is left of it here refuses everything.
  places_used_.store(0, std::memory_order_relaxed);
  is_closed_ = true;
  lock_.unlock();
}

void AdoptionTable::give_to_child(AdoptedRange& range) const {
  if (range.has_copy) {
    if (range.rights != (PROT_READ | PROT_WRITE)) {
      raw::protect(range.park, range.length, range.rights);
    }
    if (raw::move_over(range.begin, range.park, range.length) == range.begin) return;
  }
  const FilePlace place = pages_of(range).place;
  const ProcessMap map;
  Mapping mapping;
  if (!map.is_open()) {
    copy_in_place(range.begin, range.length, PROT_READ | PROT_WRITE);
    return;
  }
  for (std::uintptr_t at = 0; map.find(at, mapping) == MapAnswer::kFound; at = mapping.end) {
    if (!shows(mapping, place)) continue;
    copy_in_place(pointer(mapping.begin), mapping.end - mapping.begin, mapping.rights);
  }
}

}  // namespace verbena::memory
