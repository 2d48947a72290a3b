// SPDX-License-Identifier: MIT
// Whether memory is there, and may be written: what pinning pages tells a hardware NIC at
// registration. Looks at the mappings instead of touching the pages, because a program may register
// far more address space than it has memory; docs/decisions/0007-checking-memory-at-registration.md
// has the figures.
#pragma once

#include <cstddef>
#include <cstdint>

namespace verbena::memory {

struct PageRange {
  std::uintptr_t begin = 0;  // whole pages
  std::uintptr_t end = 0;
  bool is_written = false;  // must be writable; else readable
};

enum class Presence : std::uint8_t { kThere, kNotThere, kUnknown };

// `length` is not 0 and the range does not wrap. Unknown counts as there: every access is guarded
// anyway.
bool memory_is_there(const std::byte* address, std::size_t length, bool is_written);

// Faults the pages in, for reading or writing. False where some are not there with that right.
bool fault_in(const std::byte* address, std::size_t length, bool is_written);

// The ways to find out, for the tests: each says kUnknown where this kernel or this process cannot
// use it.
Presence ask_by_populating(const PageRange& range);  // faults every page in; Linux 5.14
Presence ask_map_query(const PageRange& range);      // ioctl on /proc/self/maps; Linux 6.11
Presence ask_map_text(const PageRange& range);       // /proc/self/maps
Presence ask_existence_only(
    const PageRange& range);  // any kernel, needs no /proc; rights at both ends only

}  // namespace verbena::memory
