// SPDX-License-Identifier: MIT
// Memory that is shared from the start: in the book as an adopted range that has an owner.
#include <sys/mman.h>
#include <unistd.h>

#include <mutex>

#include "memory/adoption_table.h"
#include "memory/raw_calls.h"

namespace verbena::memory {

Result<std::byte*, AdoptRefusal> AdoptionTable::allocate(std::size_t length) {
  if (is_closed_ || !is_ours()) return refuse(AdoptRefusal::kShutDown);
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  if (length == 0) return refuse(AdoptRefusal::kNoWholePage);
  if (length > limits_.allocated_bytes_max || length > Arena::kPlaceStride) {
    return refuse(AdoptRefusal::kTooMuch);
  }
  length = (length + page - 1) / page * page;
  if (counters_.allocated_bytes + length > limits_.allocated_bytes_max) {
    return refuse(AdoptRefusal::kTooMuch);
  }
  retry_kept();
  AdoptedRange* const range = free_place();
  if (!range) return refuse(AdoptRefusal::kTooMany);
  if (const auto checked = check_process(length); !checked) return refuse(checked.error());
  if (const auto taken = take_place(ArenaKind::kPeersWrite, *range); !taken) {
    return refuse(taken.error());
  }
  const auto mapped = map_allocated(*range, length);
  if (!mapped) {
    arenas_[range->arena]->clear_place(range->offset);
    return refuse(mapped.error());
  }
  return range->begin;
}

// The park is what the memory becomes when it must be private. A forked child gets neither: it
// would have to be a copy, and there may be much of it.
Result<void, AdoptRefusal> AdoptionTable::map_allocated(AdoptedRange& range, std::size_t length) {
  const std::lock_guard guard(lock_);
  std::byte* const park = raw::map_private(length);
  if (park == raw::failed()) return refuse(AdoptRefusal::kAddressSpace);
  const int file = arenas_[range.arena]->file();
  std::byte* const begin = raw::map(nullptr, length, MAP_SHARED, file, range.offset);
  if (begin == raw::failed()) {
    raw::unmap(park, length);
    return refuse(AdoptRefusal::kAddressSpace);
  }
  if (raw::advise(begin, length, MADV_DONTFORK) != 0 ||
      raw::advise(park, length, MADV_DONTFORK) != 0) {
    raw::unmap(begin, length);
    raw::unmap(park, length);
    return refuse(AdoptRefusal::kNoMemory);
  }
  enter(range, {.begin = begin, .length = length}, park);
  range.is_allocated = range.has_owner = true;
  counters_.bytes -= length;
  counters_.allocated_bytes += length;
  return {};
}

bool AdoptionTable::free(std::byte* address) {
  if (is_closed_ || !is_ours()) return false;
  const std::uint32_t used = places_used_.load(std::memory_order_relaxed);
  for (std::uint32_t i = 0; i < used; ++i) {
    AdoptedRange& range = ranges_[i];
    if (range.state == RangeState::kFree || !range.has_owner || range.begin != address) continue;
    range.has_owner = false;
    settle(range);
    return true;
  }
  return false;
}

void AdoptionTable::unmap_allocated(AdoptedRange& range) {
  {
    const std::lock_guard guard(lock_);
    if (range.state == RangeState::kPrivate) {
      raw::unmap(range.begin, range.length);
    } else {
      const MovedPages pages = pages_of(range);
      Mapping mapping;
      std::uintptr_t at = 0;
      while (license_.map().find(at, mapping) == MapAnswer::kFound) {
        at = mapping.end;
        if (!shows(mapping, pages.place)) continue;
        raw::unmap(reinterpret_cast<std::byte*>(mapping.begin), mapping.end - mapping.begin);
      }
      raw::unmap(range.park, range.length);
      forget_shared(range);
    }
  }
  forget(range);
}

}  // namespace verbena::memory
