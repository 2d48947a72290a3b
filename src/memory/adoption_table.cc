// SPDX-License-Identifier: MIT
#include "memory/adoption_table.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/assert.h"
#include "base/log.h"
#include "memory/fault_guard.h"
#include "memory/other_threads.h"
#include "memory/raw_calls.h"

namespace verbena::memory {
namespace {

AdoptRefusal reason_of(ArenaError error) {
  switch (error) {
    case ArenaError::kNoDescriptor: return AdoptRefusal::kNoDescriptor;
    case ArenaError::kNoMemory: return AdoptRefusal::kNoMemory;
    case ArenaError::kDenied: return AdoptRefusal::kDenied;
    case ArenaError::kFileSizeLimit: return AdoptRefusal::kFileSizeLimit;
  }
  return AdoptRefusal::kDenied;
}

std::uintptr_t end_of(const std::byte* address, std::size_t length) {
  const std::uintptr_t end = number(address) + length;
  return end < number(address) ? ~std::uintptr_t{0} : end;
}

// Length 0: the system does not say.
PageRun stack_of_this_thread() {
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return {};
  void* begin = nullptr;
  std::size_t length = 0;
  const bool is_told = pthread_attr_getstack(&attributes, &begin, &length) == 0;
  pthread_attr_destroy(&attributes);
  if (!is_told) return {};
  return {.begin = static_cast<std::byte*>(begin), .length = length};
}

bool do_meet(const PageRun& one, const PageRun& other) {
  return one.begin < other.begin + other.length && other.begin < one.begin + one.length;
}

}  // namespace

AdoptionTable::AdoptionTable(const AdoptionOptions& options)
    : limits_(options.limits),
      events_(options.events),
      process_(getpid()),
      thread_(gettid()),
      stack_(stack_of_this_thread()),
      license_(options.quiet_threads, options.minds_rings),
      mover_({.use_userfault = options.use_userfault,
              .use_move = options.use_move,
              .for_programs_only = options.for_programs_only,
              .quiet_threads = options.quiet_threads}),
      quiet_threads_(options.quiet_threads) {
  std::byte* const at = raw::map_private(sizeof(AdoptedRange) * limits_.ranges_max);
  if (at != raw::failed()) ranges_ = reinterpret_cast<AdoptedRange*>(at);
  is_closed_ = ranges_ == nullptr;
}

AdoptionTable::~AdoptionTable() {
  close();
  if (has_joined_forks_) leave_forks(*this);
  if (ranges_) {
    raw::unmap(reinterpret_cast<std::byte*>(ranges_), sizeof(AdoptedRange) * limits_.ranges_max);
  }
}

bool AdoptionTable::is_ours() const { return getpid() == process_ && gettid() == thread_; }

// Looking up ------------------------------------------------------------------------------------

AdoptedId AdoptionTable::id_of(const AdoptedRange& range) const {
  const auto place = static_cast<std::uint64_t>(&range - ranges_);
  return {range.serial * limits_.ranges_max + place};
}

AdoptedRange* AdoptionTable::find(AdoptedId id) {
  AdoptedRange& range = ranges_[id.value % limits_.ranges_max];
  const bool is_it = range.state != RangeState::kFree && id_of(range) == id;
  return is_it ? &range : nullptr;
}

AdoptedRange* AdoptionTable::free_place() {
  const std::uint32_t used = places_used_.load(std::memory_order_relaxed);
  for (std::uint32_t i = 0; i < std::min(used + 1, limits_.ranges_max); ++i) {
    if (ranges_[i].state == RangeState::kFree) return &ranges_[i];
  }
  return nullptr;
}

bool AdoptionTable::is_current(const AdoptedRange& range) const {
  return std::ranges::find(current_, range.arena) != current_.end();
}

AdoptedRange* AdoptionTable::find_overlapping(const PageRun& body) const {
  const std::uintptr_t begin = number(body.begin);
  const std::uintptr_t end = begin + body.length;
  const std::uint32_t used = places_used_.load(std::memory_order_relaxed);
  for (std::uint32_t i = 0; i < used; ++i) {
    const std::uintptr_t its_begin = ranges_[i].shared_begin.load(std::memory_order_relaxed);
    const std::uintptr_t its_end = ranges_[i].shared_end.load(std::memory_order_relaxed);
    if (begin < its_end && its_begin < end) return &ranges_[i];
  }
  return nullptr;
}

// False: the program has unmapped that part, or something of it, without telling us.
bool AdoptionTable::is_in_place(const ProcessMap& map, const AdoptedRange& range,
                                const PageRun& body) const {
  const FilePlace place = pages_of(range).place;
  std::uintptr_t at = std::max(number(body.begin), number(range.begin));
  const std::uintptr_t end =
      std::min(number(body.begin) + body.length, number(range.begin) + range.length);
  Mapping mapping;
  for (; at < end; at = mapping.end) {
    if (map.find(at, mapping) != MapAnswer::kFound || mapping.begin > at) return false;
    const std::uint64_t offset = mapping.offset + (at - mapping.begin);
    if (!shows(mapping, place) || offset != place.offset + (at - number(range.begin))) return false;
  }
  return true;
}

Result<void, AdoptRefusal> AdoptionTable::check_share(const AdoptedRange& range,
                                                      const PageRun& body, ArenaKind kind) const {
  const bool is_inside =
      body.begin >= range.begin && body.begin + body.length <= range.begin + range.length;
  if (!is_inside || !is_current(range)) return refuse(AdoptRefusal::kOverlap);
  const bool fits = range.is_allocated || arenas_[range.arena]->kind() == kind;
  if (!fits) return refuse(AdoptRefusal::kOtherRights);
  return {};
}

bool AdoptionTable::overlaps(const std::byte* address, std::size_t length) const {
  const std::uintptr_t begin = number(address);
  const std::uintptr_t end = end_of(address, length);
  if (begin == end) return false;
  const std::uint32_t used = places_used_.load(std::memory_order_acquire);
  for (std::uint32_t i = 0; i < used; ++i) {
    // The end first: it is written last, and 0 until then.
    const std::uintptr_t its_end = ranges_[i].shared_end.load(std::memory_order_acquire);
    const std::uintptr_t its_begin = ranges_[i].shared_begin.load(std::memory_order_relaxed);
    if (begin < its_end && its_begin < end) return true;
  }
  return false;
}

Adopted AdoptionTable::tell(const AdoptedRange& range, const PageRun& body) const {
  const Arena& arena = *arenas_[range.arena];
  return {.id = id_of(range),
          .begin = body.begin,
          .length = body.length,
          .kind = arena.kind(),
          .generation = arena.generation(),
          .offset = range.offset + static_cast<std::uint64_t>(body.begin - range.begin)};
}

MovedPages AdoptionTable::pages_of(const AdoptedRange& range) const {
  const Arena& arena = *arenas_[range.arena];
  return {.begin = range.begin,
          .length = range.length,
          .park = range.park,
          .place = {.file = arena.file(),
                    .device = arena.device(),
                    .inode = arena.inode(),
                    .offset = range.offset}};
}

AdoptionCounters AdoptionTable::counters() const { return counters_; }

// Files -----------------------------------------------------------------------------------------

Result<std::uint32_t, AdoptRefusal> AdoptionTable::current_arena(ArenaKind kind) {
  std::uint32_t& current = current_[static_cast<std::size_t>(kind)];
  if (current != kNoArena) {
    if (arenas_[current]->is_usable()) return current;
    return refuse(AdoptRefusal::kNoDescriptor);
  }
  const auto at = std::ranges::find_if(arenas_, [](const auto& each) { return !each; });
  if (at == arenas_.end()) return refuse(AdoptRefusal::kTooMany);
  auto arena = Arena::create(kind, generation_, limits_.places_max);
  if (!arena) return refuse(reason_of(arena.error()));
  at->emplace(std::move(*arena));
  current = static_cast<std::uint32_t>(at - arenas_.begin());
  return current;
}

// A fresh place for the range, in a new file where the current one has none left.
Result<void, AdoptRefusal> AdoptionTable::take_place(ArenaKind kind, AdoptedRange& range) {
  for (int files = 0; files < 2; ++files) {
    const auto arena = current_arena(kind);
    if (!arena) return refuse(arena.error());
    if (const auto place = arenas_[*arena]->take_place()) {
      range.arena = *arena;
      range.offset = *place;
      return {};
    }
    begin_generation();
  }
  return refuse(AdoptRefusal::kTooMany);
}

// Of both kinds, because they are announced as one. What is in the old files stays there until its
// last registration goes.
void AdoptionTable::begin_generation() {
  const auto before = std::exchange(current_, {kNoArena, kNoArena});
  for (const std::uint32_t arena : before) {
    if (arena != kNoArena) drop_arena_if_unused(arena);
  }
  ++generation_;
}

void AdoptionTable::drop_arena_if_unused(std::uint32_t index) {
  const bool is_current = std::ranges::find(current_, index) != current_.end();
  if (!is_current && arena_users_[index] == 0) arenas_[index].reset();
}

int AdoptionTable::descriptor(ArenaKind kind) const {
  const std::uint32_t current = current_[static_cast<std::size_t>(kind)];
  return current == kNoArena ? -1 : arenas_[current]->descriptor();
}

// Adopting --------------------------------------------------------------------------------------

Result<Adopted, AdoptRefusal> AdoptionTable::adopt(const PageRun& body, ArenaKind kind,
                                                   const std::byte* stack) {
  if (is_closed_ || !is_ours()) return refuse(AdoptRefusal::kShutDown);
  retry_kept();
  while (AdoptedRange* const range = find_overlapping(body)) {
    if (!is_in_place(license_.map(), *range, body)) {
      // Other memory by now, with the old registration still there.
      if (!take_back(*range)) return refuse(AdoptRefusal::kOverlap);
      continue;
    }
    if (const auto checked = check_share(*range, body, kind); !checked) {
      return refuse(checked.error());
    }
    ++range->holders;
    if (range->state == RangeState::kKept) {
      range->state = RangeState::kShared;
      --counters_.kept;
    }
    return tell(*range, body);
  }
  auto adopted = adopt_fresh(body, kind, stack);
  if (!adopted) ++counters_.refused;
  return adopted;
}

Result<void, AdoptRefusal> AdoptionTable::check_room(std::size_t length) {
  if (counters_.bytes > limits_.total_bytes_max ||
      length > limits_.total_bytes_max - counters_.bytes) {
    return refuse(AdoptRefusal::kTooMuch);
  }
  return check_process(length);
}

Result<void, AdoptRefusal> AdoptionTable::check_process(std::size_t length) {
  if (const auto checked = license_.check_process(length); !checked) return checked;
  if (!has_joined_forks_) {
    install_fault_guard();  // a fork reads memory that the program may have unmapped
    has_joined_forks_ = join_forks(*this);
    if (!has_joined_forks_) return refuse(AdoptRefusal::kNoMemory);
  }
  return {};
}

// What the thread that moves pages reads and writes meanwhile: it would wait for itself.
bool AdoptionTable::is_needed_to_move(const PageRun& body) const {
  auto* const self = reinterpret_cast<std::byte*>(const_cast<AdoptionTable*>(this));
  auto* const book = reinterpret_cast<std::byte*>(ranges_);
  const PageRun needed[] = {stack_,
                            {.begin = self, .length = sizeof *this},
                            {.begin = book, .length = sizeof(AdoptedRange) * limits_.ranges_max},
                            mover_.scratch()};
  return std::ranges::any_of(needed, [&](const PageRun& each) { return do_meet(each, body); });
}

Result<Adopted, AdoptRefusal> AdoptionTable::adopt_fresh(const PageRun& body, ArenaKind kind,
                                                         const std::byte* stack) {
  if (!mover_.is_able()) return refuse(AdoptRefusal::kDenied);
  if (body.length > limits_.region_bytes_max) return refuse(AdoptRefusal::kTooLarge);
  if (is_needed_to_move(body)) return refuse(AdoptRefusal::kNotPlain);
  if (is_held_up_by_fork()) return refuse(AdoptRefusal::kOtherThreads);
  AdoptedRange* const range = free_place();
  if (!range) return refuse(AdoptRefusal::kTooMany);
  const auto checked =
      check_room(body.length)
          .and_then([&] { return license_.check_mapping(body, stack); })
          .and_then([&] { return license_.check_writers(mover_.can_move_under_use()); });
  if (!checked) return refuse(checked.error());
  if (const auto taken = take_place(kind, *range); !taken) return refuse(taken.error());
  range->begin = body.begin;
  range->length = body.length;
  const FilePlace file = pages_of(*range).place;
  Result<std::byte*, AdoptRefusal> park = refuse(AdoptRefusal::kOtherThreads);
  const bool may_move = begin_move(body, mover_.can_hold_all());
  if (may_move && lock_between_forks()) {
    const std::lock_guard guard(lock_, std::adopt_lock);
    park = mover_.to_file(body, file);
    if (park) enter(*range, body, *park);
  }
  // Told without the lock.
  if (may_move) end_move(body);
  if (!park) {
    arenas_[range->arena]->clear_place(range->offset);
    return refuse(park.error());
  }
  range->holders = 1;
  ++counters_.adopted;
  mover_.populate(body, file, body.length <= limits_.populate_bytes_max);
  return tell(*range, body);
}

// With the lock held: the range is in its file.
void AdoptionTable::enter(AdoptedRange& range, const PageRun& pages, std::byte* park) {
  range.begin = pages.begin;
  range.length = pages.length;
  range.park = park;
  range.serial = next_serial_++;
  range.holders = 0;
  range.is_allocated = range.has_owner = false;
  range.state = RangeState::kShared;
  range.shared_begin.store(number(pages.begin), std::memory_order_relaxed);
  range.shared_end.store(number(pages.begin) + pages.length, std::memory_order_release);
  const auto place = static_cast<std::uint32_t>(&range - ranges_);
  if (place >= places_used_.load(std::memory_order_relaxed)) {
    places_used_.store(place + 1, std::memory_order_release);
  }
  ++arena_users_[range.arena];
  ++counters_.ranges;
  counters_.bytes += pages.length;
}

// Taking back -----------------------------------------------------------------------------------

void AdoptionTable::release(AdoptedId id) {
  if (is_closed_ || !is_ours()) return;
  AdoptedRange* const range = find(id);
  VERBENA_ASSERT(range && range->holders > 0);
  --range->holders;
  settle(*range);
  retry_kept();
}

// Nobody may hold the range any more.
void AdoptionTable::settle(AdoptedRange& range) {
  if (range.holders > 0 || range.has_owner) return;
  if (range.is_allocated) {
    unmap_allocated(range);
  } else if (range.state == RangeState::kPrivate) {
    forget(range);
  } else {
    take_back(range);
  }
}

// False: it is kept.
bool AdoptionTable::take_back(AdoptedRange& range) {
  const PageRun pages{.begin = range.begin, .length = range.length};
  const auto may_be_held = [&] { return license_.may_be_held(pages, mover_.can_move_under_use()); };
  // What was kept is mostly held yet: found out before peers lose sight of it for nothing.
  bool done = !is_held_up_by_fork() && !(range.state == RangeState::kKept && may_be_held()) &&
              begin_move(pages, mover_.can_hold_writers());
  if (done) {
    done = !may_be_held() &&
           !stays_used_by_others(pages, ThreadUse::kSleepsOrReads, quiet_threads_) &&
           lock_between_forks();
    if (done) {
      const std::lock_guard guard(lock_, std::adopt_lock);
      done = mover_.to_private(pages_of(range), license_.map());
      if (done) forget_shared(range);
    }
    end_move(pages);
  }
  if (!done) {
    if (range.state != RangeState::kKept) ++counters_.kept;
    range.state = RangeState::kKept;
    return false;
  }
  ++counters_.undone;
  if (range.holders == 0 && !range.has_owner) forget(range);
  return true;
}

bool AdoptionTable::begin_move(const PageRun& pages, bool is_held) {
  return !events_ || events_->moving(pages.begin, pages.length, is_held);
}

void AdoptionTable::end_move(const PageRun& pages) {
  if (events_) events_->moved(pages.begin, pages.length);
}

// With the lock held, when no mapping of the program shows the place any more.
void AdoptionTable::forget_shared(AdoptedRange& range) {
  if (range.state == RangeState::kKept) --counters_.kept;
  range.state = RangeState::kPrivate;
  range.shared_end.store(0, std::memory_order_relaxed);
  range.shared_begin.store(0, std::memory_order_relaxed);
  arenas_[range.arena]->clear_place(range.offset);
  --arena_users_[range.arena];
  drop_arena_if_unused(range.arena);
  --counters_.ranges;
  (range.is_allocated ? counters_.allocated_bytes : counters_.bytes) -= range.length;
}

void AdoptionTable::forget(AdoptedRange& range) {
  range.state = RangeState::kFree;
  std::uint32_t used = places_used_.load(std::memory_order_relaxed);
  while (used > 0 && ranges_[used - 1].state == RangeState::kFree)
    --used;
  places_used_.store(used, std::memory_order_relaxed);
}

void AdoptionTable::retry_kept() {
  // A few at a time: each look costs some microseconds.
  constexpr int kTries = 4;
  const std::uint32_t used = places_used_.load(std::memory_order_relaxed);
  int tries = 0;
  for (std::uint32_t i = 0; counters_.kept > 0 && tries < kTries && i < used; ++i) {
    if (ranges_[i].state != RangeState::kKept) continue;
    take_back(ranges_[i]);
    ++tries;
  }
}

std::size_t AdoptionTable::expel() {
  if (is_closed_ || !is_ours()) return 0;
  std::size_t left = 0;
  for (std::uint32_t i = 0; i < places_used_.load(std::memory_order_relaxed); ++i) {
    AdoptedRange& range = ranges_[i];
    if (range.state != RangeState::kShared && range.state != RangeState::kKept) continue;
    if (!take_back(range)) left += range.length;
  }
  begin_generation();
  LOG_INFO("adopted memory moved away from its peers, %zu bytes could not be", left);
  return left;
}

bool AdoptionTable::undo_range(const std::byte* address, std::size_t length) {
  if (is_closed_ || !is_ours()) return true;
  const std::uintptr_t begin = number(address);
  const std::uintptr_t end = end_of(address, length);
  for (std::uint32_t i = 0; i < places_used_.load(std::memory_order_relaxed); ++i) {
    AdoptedRange& range = ranges_[i];
    const std::uintptr_t its_begin = range.shared_begin.load(std::memory_order_relaxed);
    const std::uintptr_t its_end = range.shared_end.load(std::memory_order_relaxed);
    if (its_end <= begin || its_begin >= end) continue;
    take_back(range);
  }
  return !overlaps(address, length);
}

void AdoptionTable::close() {
  if (is_closed_ || !is_ours()) return;
  is_closing_ = true;  // what is left now stays shared: every fork is waited for
  for (std::uint32_t i = 0; i < limits_.ranges_max; ++i) {
    if (i >= places_used_.load(std::memory_order_relaxed)) break;
    AdoptedRange& range = ranges_[i];
    if (range.state == RangeState::kShared || range.state == RangeState::kKept) take_back(range);
  }
  is_closed_ = true;
  current_ = {kNoArena, kNoArena};
  for (auto& arena : arenas_)
    arena.reset();
}

}  // namespace verbena::memory
