// SPDX-License-Identifier: MIT
// Giving back the pages of shared memory (MADV_REMOVE), in the program's thread: its allocator may
// be holding the lock of the heap, so nothing here waits for anybody who could want that.
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>

#include "memory/adoption_table.h"
#include "memory/raw_calls.h"

namespace verbena::memory {

// Who holds the lock works for milliseconds at most. But the thread itself may hold it: handlers of
// a fork that are not ours.
bool AdoptionTable::lock_patiently() {
  constexpr int kTries = 20'000;
  for (int i = 0; i < kTries; ++i) {
    if (lock_.try_lock()) return true;
    sched_yield();
  }
  return false;
}

bool AdoptionTable::give_back(std::byte* address, std::size_t length) {
  if (!overlaps(address, length)) return true;
  if (getpid() != process_ || !lock_patiently()) return false;
  const std::lock_guard guard(lock_, std::adopt_lock);
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::byte* const end = address + (length + page - 1) / page * page;
  // A pass over the process's mappings: without it we could take pages from a file of the
  // program's own that lies there by now.
  const ProcessMap map;
  bool all = true;
  const std::uint32_t used = places_used_.load(std::memory_order_relaxed);
  for (std::uint32_t i = 0; i < used; ++i) {
    const AdoptedRange& range = ranges_[i];
    if (range.shared_end.load(std::memory_order_relaxed) == 0) continue;
    std::byte* const from = std::max(address, range.begin);
    std::byte* const to = std::min(end, range.begin + range.length);
    if (from >= to) continue;
    const PageRun body{.begin = from, .length = static_cast<std::size_t>(to - from)};
    const bool done =
        is_in_place(map, range, body) && raw::advise(body.begin, body.length, MADV_REMOVE) == 0;
    all = all && done;
  }
  return all;
}

}  // namespace verbena::memory
