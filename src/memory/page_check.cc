// SPDX-License-Identifier: MIT
#include "memory/page_check.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "base/unique_fd.h"
#include "memory/maps_walk.h"
#include "memory/raw_calls.h"

namespace verbena::memory {
namespace {

// Up to here faulting in costs less than asking /proc (3 to 7 us), and the first access is as quick
// as on pinned memory.
constexpr std::size_t kPopulateMax = 64 * 1024;

// linux/mman.h of 5.14; the headers may be older than the kernel.
constexpr int kPopulateRead = 22;
constexpr int kPopulateWrite = 23;

// All calls are raw: libc's may be hooked by the program's libraries.
UniqueFd open_maps() {
  return UniqueFd(
      static_cast<int>(syscall(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC)));
}

Presence populate(std::uintptr_t begin, std::size_t length, bool is_written) {
  if (syscall(SYS_madvise, begin, length, is_written ? kPopulateWrite : kPopulateRead) == 0) {
    return Presence::kThere;
  }
  // EFAULT: an access would be a SIGBUS, as behind the end of a file. Others have more than one
  // meaning.
  return errno == EFAULT ? Presence::kNotThere : Presence::kUnknown;
}

// The map is read without the kernel's lock on it: where a mapping is being replaced (adoption's,
// of another registration) there is nothing for a moment. msync(2) takes the lock, and does nothing
// else with MS_ASYNC.
Presence ask_maps(const PageRange& range) {
  constexpr int kLooks = 8;
  Presence seen = Presence::kUnknown;
  for (int i = 0; i < kLooks; ++i) {
    seen = ask_map_query(range);
    if (seen == Presence::kUnknown) seen = ask_map_text(range);
    if (seen != Presence::kNotThere) break;
    const bool is_mapped =
        syscall(SYS_msync, range.begin, range.end - range.begin, MS_ASYNC) == 0 || errno != ENOMEM;
    if (!is_mapped) break;
    raw::nap(10);
  }
  return seen;
}

// Populating failed though the mapping allows it: behind the end of a file, or withheld for a
// moment by a userfaultfd that holds only accesses by programs.
bool is_there_later(const PageRange& range) {
  constexpr int kTries = 40;
  if (ask_maps(range) == Presence::kNotThere) return false;
  for (int i = 0; i < kTries; ++i) {
    raw::nap(500);
    if (ask_by_populating(range) != Presence::kNotThere) return true;
  }
  return false;
}

}  // namespace

Presence ask_by_populating(const PageRange& range) {
  return populate(range.begin, range.end - range.begin, range.is_written);
}

Presence ask_map_query(const PageRange& range) {
  const UniqueFd maps = open_maps();
  if (!maps) return Presence::kUnknown;
  MapsWalk walk(range);
  for (;;) {
    raw::MapQuery query{};
    query.size = sizeof query;
    query.query_address = walk.at();
    if (syscall(SYS_ioctl, maps.get(), raw::kMapQuery, &query) != 0) {
      return errno == ENOENT ? Presence::kNotThere : Presence::kUnknown;
    }
    const Presence seen = walk.see({.begin = query.begin,
                                    .end = query.end,
                                    .is_readable = (query.flags & raw::kMapReadable) != 0,
                                    .is_writable = (query.flags & raw::kMapWritable) != 0});
    if (seen != Presence::kUnknown) return seen;
  }
}

Presence ask_map_text(const PageRange& range) {
  const UniqueFd maps = open_maps();
  if (!maps) return Presence::kUnknown;
  MapsText walk(range);
  // The kernel gives about a page a call; threads of programs may have little stack.
  char text[4096];
  bool has_begun = false;
  for (;;) {
    const long got = syscall(SYS_read, maps.get(), text, sizeof text);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Presence::kUnknown;
    if (got == 0) return has_begun ? Presence::kNotThere : Presence::kUnknown;
    has_begun = true;
    const Presence seen = walk.take({text, static_cast<std::size_t>(got)});
    if (seen != Presence::kUnknown) return seen;
  }
}

Presence ask_existence_only(const PageRange& range) {
  // MS_ASYNC does nothing (msync(2)) but walk the mappings: 0.2 us for 64 GiB in one piece.
  if (syscall(SYS_msync, range.begin, range.end - range.begin, MS_ASYNC) != 0) {
    return errno == ENOMEM ? Presence::kNotThere : Presence::kUnknown;
  }
  // Of no pages it only tells whether this kernel can do it at all.
  if (populate(range.begin, 0, range.is_written) != Presence::kThere) return Presence::kThere;
  const std::uintptr_t page = raw::page_size();
  for (const std::uintptr_t at : {range.begin, range.end - page}) {
    if (populate(at, page, range.is_written) == Presence::kThere) continue;
    // The page is mapped, so this is about its rights.
    if (errno == EFAULT || errno == EINVAL) return Presence::kNotThere;
  }
  return Presence::kThere;
}

namespace {

// Whole pages; none at the very end of the address space, where no program has memory.
std::optional<PageRange> pages_of(const std::byte* address, std::size_t length, bool is_written) {
  const std::uintptr_t page = raw::page_size();
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  const std::uintptr_t last = (begin + length - 1) & ~(page - 1);
  if (last + page < last) return std::nullopt;
  return PageRange{.begin = begin & ~(page - 1), .end = last + page, .is_written = is_written};
}

Presence ask_without_faults(const PageRange& range) {
  const Presence seen = ask_maps(range);
  return seen == Presence::kUnknown ? ask_existence_only(range) : seen;
}

}  // namespace

bool memory_is_there(const std::byte* address, std::size_t length, bool is_written) {
  const auto range = pages_of(address, length, is_written);
  if (!range) return false;
  const int saved = errno;
  Presence seen = Presence::kUnknown;
  if (range->end - range->begin <= kPopulateMax) seen = ask_by_populating(*range);
  if (seen == Presence::kNotThere && is_there_later(*range)) seen = Presence::kThere;
  if (seen == Presence::kUnknown) seen = ask_without_faults(*range);
  errno = saved;
  return seen != Presence::kNotThere;
}

bool fault_in(const std::byte* address, std::size_t length, bool is_written) {
  const auto range = pages_of(address, length, is_written);
  if (!range) return false;
  const int saved = errno;
  Presence seen = ask_by_populating(*range);
  if (seen == Presence::kUnknown) seen = ask_without_faults(*range);
  errno = saved;
  return seen != Presence::kNotThere;
}

}  // namespace verbena::memory
