// SPDX-License-Identifier: MIT
#include "memory/page_mover.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/assert.h"
#include "memory/guarded_copy.h"
#include "memory/other_threads.h"
#include "memory/raw_calls.h"

namespace verbena::memory {
namespace {

// What is in memory twice at a time: a program near the limit of its memory cgroup shall survive.
// Small enough for the caches, too.
constexpr std::size_t kScratchLength = std::size_t{512} << 10;

// A program near its limit of mappings may reach it while its pages are away, and the kernel wants
// six to be left where it puts one over another.
constexpr std::size_t kSpareMappings = 16;

Result<void, AdoptRefusal> write_all(const std::byte* from, std::size_t length, int file,
                                     std::uint64_t offset) {
  while (length > 0) {
    const long done = raw::write_at(file, from, length, offset);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) {
      return refuse(errno == EFBIG ? AdoptRefusal::kFileSizeLimit : AdoptRefusal::kNoMemory);
    }
    from += done;
    offset += static_cast<std::uint64_t>(done);
    length -= static_cast<std::size_t>(done);
  }
  return {};
}

bool read_all(std::byte* to, std::size_t length, int file, std::uint64_t offset) {
  while (length > 0) {
    const long done = raw::read_at(file, to, length, offset);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    to += done;
    offset += static_cast<std::uint64_t>(done);
    length -= static_cast<std::size_t>(done);
  }
  return true;
}

// What the file has there; `to` reads as zero elsewhere.
bool read_content(std::byte* to, std::size_t length, const FilePlace& place) {
  const std::uint64_t end = place.offset + length;
  std::uint64_t at = place.offset;
  while (at < end) {
    const std::int64_t data = raw::seek(place.file, at, SEEK_DATA);
    if (data < 0) return errno == ENXIO;  // nothing up to the end of the file
    const auto begin = static_cast<std::uint64_t>(data);
    if (begin >= end) return true;
    const std::int64_t hole = raw::seek(place.file, begin, SEEK_HOLE);
    if (hole < 0) return false;
    at = std::min(static_cast<std::uint64_t>(hole), end);
    if (!read_all(to + (begin - place.offset), at - begin, place.file, begin)) return false;
  }
  return true;
}

// The content of what is mapped at `from` and shows `place`.
bool copy_content(std::byte* to, const std::byte* from, std::size_t length,
                  const FilePlace& place) {
  if (place.file < 0) return guarded_copy(to, from, length);
  return read_content(to, length, place);
}

// What was carried is only in the file now. Should there be no memory to bring it back, there is
// no way on, either: the kernel's out-of-memory killer comes before that.
void read_back(std::byte* to, std::size_t length, const FilePlace& place) {
  constexpr int kTries = 1000;
  bool done = false;
  for (int i = 0; i < kTries && !done; ++i)
    done = read_content(to, length, place);
  VERBENA_ASSERT(done);
}

AdoptRefusal reason_of_watch(int error) {
  if (error == EBUSY) return AdoptRefusal::kTrackedElsewhere;
  return error == ENOMEM ? AdoptRefusal::kAddressSpace : AdoptRefusal::kNotPlain;
}

bool is_busy(int error) { return error == EBUSY || error == EAGAIN; }

AdoptRefusal reason_of_move(int error) {
  if (is_busy(error)) return AdoptRefusal::kPinned;
  return error == ENOMEM ? AdoptRefusal::kNoMemory : AdoptRefusal::kDenied;
}

}  // namespace

bool shows(const Mapping& mapping, const FilePlace& place) {
  return mapping.is_shared && mapping.inode == place.inode && mapping.device == place.device &&
         mapping.offset >= place.offset && mapping.offset < place.offset + Arena::kPlaceStride;
}

bool is_whole(const Mapping& mapping, const MovedPages& pages) {
  return shows(mapping, pages.place) && mapping.offset == pages.place.offset &&
         mapping.begin == number(pages.begin) && mapping.end == number(pages.begin) + pages.length;
}

PageMover::PageMover(const MoverOptions& options) : quiet_threads_(options.quiet_threads) {
  if (options.use_userfault) userfault_ = Userfault(options.for_programs_only);
  scratch_ = raw::map_private(kScratchLength);
  if (scratch_ == raw::failed()) {
    scratch_ = nullptr;
    return;
  }
  raw::advise(scratch_, kScratchLength, MADV_DONTFORK);
  raw::advise(scratch_, kScratchLength, MADV_DONTDUMP);
  // Where only the program's own accesses are held, a system call of another thread into the range
  // would fail meanwhile.
  const bool can_hold = userfault_.can_move() && userfault_.can_hold_writers();
  can_move_ = options.use_move && can_hold && userfault_.holds_kernel();
  is_able_ = touched_.is_open() && try_park();
  lay_by_mappings();
}

PageMover::~PageMover() {
  give_up_mappings();
  if (scratch_) raw::unmap(scratch_, kScratchLength);
}

PageRun PageMover::scratch() const {
  return {.begin = scratch_, .length = scratch_ ? kScratchLength : 0};
}

// Linux 5.7.
bool PageMover::try_park() const {
  std::byte* const park = raw::move_away(scratch_, raw::page_size());
  if (park == raw::failed()) return false;
  raw::unmap(park, raw::page_size());
  return true;
}

// Pages of which no two neighbours have the same rights, and none has those of a neighbour of the
// program's: each is a mapping.
bool PageMover::lay_by_mappings() {
  if (spare_) return true;
  const std::size_t page = raw::page_size();
  spare_ = raw::map_private(kSpareMappings * page);
  if (spare_ == raw::failed()) {
    spare_ = nullptr;
    return false;
  }
  bool done = raw::advise(spare_, kSpareMappings * page, MADV_DONTFORK) == 0 &&
              raw::advise(spare_, kSpareMappings * page, MADV_DONTDUMP) == 0 &&
              raw::protect(spare_, kSpareMappings * page, PROT_NONE) == 0;
  for (std::size_t i = 1; done && i < kSpareMappings; i += 2)
    done = raw::protect(spare_ + i * page, page, PROT_READ) == 0;
  if (!done) give_up_mappings();
  return done;
}

void PageMover::give_up_mappings() {
  if (spare_) raw::unmap(spare_, kSpareMappings * raw::page_size());
  spare_ = nullptr;
}

// 0 or an errno. Out of mappings the kernel may have cut the program's at one end of the range:
// only when it is watched, and no more, it is one again.
int PageMover::watch_program(const PageRun& range) {
  const int error = userfault_.watch(range.begin, range.length, HoldWhat::kMissing);
  if (error != ENOMEM) return error;
  give_up_mappings();
  if (userfault_.watch(range.begin, range.length, HoldWhat::kMissing) == 0) {
    userfault_.unwatch(range.begin, range.length);
  }
  return error;
}

// The program's memory is away: there is no way on without it.
void PageMover::put_back(const PageRun& range, std::byte* park) {
  constexpr int kTries = 1000;
  bool done = raw::move_over(range.begin, park, range.length) == range.begin;
  if (done) return;
  give_up_mappings();
  for (int i = 0; i < kTries && !done; ++i) {
    done = raw::move_over(range.begin, park, range.length) == range.begin;
    if (!done) sched_yield();
  }
  VERBENA_ASSERT(done);
}

Result<std::byte*, AdoptRefusal> PageMover::to_file(const PageRun& range, const FilePlace& place) {
  if (!lay_by_mappings()) return refuse(AdoptRefusal::kAddressSpace);
  if (!unshare(range)) return refuse(AdoptRefusal::kNoMemory);
  if (can_move_) {
    const int error = userfault_.watch(scratch_, kScratchLength, HoldWhat::kMissing);
    if (error != 0) return refuse(reason_of_watch(error));
  }
  if (userfault_.is_open()) {
    const int error = watch_program(range);
    if (error != 0) {
      if (can_move_) userfault_.unwatch(scratch_, kScratchLength);
      return refuse(reason_of_watch(error));
    }
  }
  Result<void, AdoptRefusal> done;
  std::byte* const park = raw::move_away(range.begin, range.length);
  if (park == raw::failed()) {
    done = refuse(AdoptRefusal::kAddressSpace);
    userfault_.unwatch(range.begin, range.length);
  } else {
    std::size_t carried = 0;
    done =
        can_move_ ? carry(range, park, place, carried) : write_touched(park, range.length, place);
    if (done && is_used_by_others(range, ThreadUse::kSleeps, quiet_threads_)) {
      done = refuse(AdoptRefusal::kSleepers);
    }
    if (done && !put_file_over(range, place)) done = refuse(AdoptRefusal::kAddressSpace);
    if (!done) {
      read_back(park, carried, place);
      put_back(range, park);
    }
    userfault_.wake(range.begin, range.length);
  }
  if (can_move_) userfault_.unwatch(scratch_, kScratchLength);
  if (!done) return refuse(done.error());
  raw::advise(park, range.length, MADV_DONTNEED);
  return park;
}

// No child gets the mapping: one that is made without the handlers of fork(3) has nothing there,
// instead of what is the parent's. So it has its flag before it is anywhere.
bool PageMover::put_file_over(const PageRun& range, const FilePlace& place) const {
  std::byte* const fresh = raw::map(nullptr, range.length, MAP_SHARED, place.file, place.offset);
  if (fresh == raw::failed()) return false;
  if (raw::advise(fresh, range.length, MADV_DONTFORK) == 0 &&
      raw::move_over(range.begin, fresh, range.length) == range.begin) {
    return true;
  }
  raw::unmap(fresh, range.length);
  return false;
}

// Pages that a forked child still shares are copied now, and the mapping becomes one that has had
// a page: only such a one keeps its identity when it moves. Kernels before 5.14 cannot do it here;
// their pages are read and written back by the copy.
bool PageMover::unshare(const PageRun& range) const {
  if (raw::advise(range.begin, raw::page_size(), raw::kPopulateWrite) != 0) return errno == EINVAL;
  std::byte* const end = range.begin + range.length;
  PageRun run;
  for (std::byte* at = range.begin; at < end; at = run.begin + run.length) {
    if (!touched_.first(at, end, run)) return false;
    if (run.length == 0) break;
    if (raw::advise(run.begin, run.length, raw::kPopulateWrite) != 0) return errno == EINVAL;
  }
  return true;
}

Result<void, AdoptRefusal> PageMover::carry(const PageRun& range, std::byte* park,
                                            const FilePlace& place, std::size_t& carried) const {
  while (carried < range.length) {
    const std::size_t length = std::min(kScratchLength, range.length - carried);
    FilePlace to = place;
    to.offset += carried;
    const auto done = carry_piece(park + carried, length, to);
    if (!done) return done;
    carried += length;
  }
  return {};
}

Result<void, AdoptRefusal> PageMover::carry_piece(std::byte* from, std::size_t length,
                                                  const FilePlace& place) const {
  std::size_t moved = 0;
  const int error = move_to_scratch(from, length, moved);
  Result<void, AdoptRefusal> done;
  if (error == 0) {
    done = write_touched(scratch_, length, place);
  } else {
    done = refuse(reason_of_move(error));
  }
  if (!done) empty_scratch_into(from, moved);
  raw::advise(scratch_, length, MADV_DONTNEED);
  return done;
}

int PageMover::move_to_scratch(std::byte* from, std::size_t length, std::size_t& done) const {
  // Each page may be busy for a moment: under writeback, in a short direct I/O. Where the kernel
  // says to try again the page is on its way, maybe to another place, which takes longer.
  constexpr int kTries = 100;
  constexpr int kTriesAtOnce = 20;
  int tries = 0;
  while (done < length) {
    std::size_t moved = 0;
    const int error = userfault_.move(scratch_ + done, from + done, length - done, moved);
    done += moved;
    if (moved > 0) tries = 0;
    if (error == 0 || moved > 0) continue;
    if (!is_busy(error) || ++tries == kTries) return error;
    if (error == EAGAIN && tries > kTriesAtOnce) {
      raw::nap(100);
    } else {
      sched_yield();
    }
  }
  return 0;
}

Result<void, AdoptRefusal> PageMover::write_touched(std::byte* from, std::size_t length,
                                                    const FilePlace& place) const {
  std::byte* const end = from + length;
  PageRun run;
  for (std::byte* at = from; at < end; at = run.begin + run.length) {
    if (!touched_.first(at, end, run)) return refuse(AdoptRefusal::kDenied);
    if (run.length == 0) break;
    const auto distance = static_cast<std::uint64_t>(run.begin - from);
    const auto done = write_all(run.begin, run.length, place.file, place.offset + distance);
    if (!done) return done;
  }
  return {};
}

// Its pages are back where they came from, as copies. The scratch is not watched any more: reading
// a page that is not there would wait for ourselves.
void PageMover::empty_scratch_into(std::byte* to, std::size_t length) const {
  userfault_.unwatch(scratch_, kScratchLength);
  PageRun run;
  for (std::size_t at = 0; at < length;) {
    if (!touched_.first(scratch_ + at, scratch_ + length, run)) run = {scratch_ + at, length - at};
    if (run.length == 0) return;
    const auto distance = static_cast<std::size_t>(run.begin - scratch_);
    std::memcpy(to + distance, run.begin, run.length);
    at = distance + run.length;
  }
}

bool PageMover::to_private(const MovedPages& pages, const ProcessMap& map) const {
  Mapping mapping;
  const MapAnswer answer = map.find(number(pages.begin), mapping);
  if (answer == MapAnswer::kUnknown) return false;
  if (answer == MapAnswer::kFound && is_whole(mapping, pages)) {
    return take_back(mapping, pages.park, pages.place, false);
  }
  if (!take_back_anywhere(pages, map)) return false;
  raw::unmap(pages.park, pages.length);
  return true;
}

bool PageMover::take_back_anywhere(const MovedPages& pages, const ProcessMap& map) const {
  Mapping mapping;
  for (std::uintptr_t at = 0;; at = mapping.end) {
    const MapAnswer answer = map.find(at, mapping);
    if (answer == MapAnswer::kUnknown) return false;
    if (answer == MapAnswer::kNothing) return true;
    if (shows(mapping, pages.place) && !take_back_piece(mapping, pages)) return false;
  }
}

// A part of the range, or what the program made of it: moved, and grown past its end.
bool PageMover::take_back_piece(const Mapping& mapping, const MovedPages& pages) const {
  const std::size_t length = mapping.end - mapping.begin;
  const std::uint64_t distance = mapping.offset - pages.place.offset;
  FilePlace place = pages.place;
  place.offset = mapping.offset;
  if (distance < pages.length && length <= pages.length - distance) {
    return take_back(mapping, pages.park + distance, place, true);
  }
  std::byte* const fresh = raw::map_private(length);
  if (fresh == raw::failed()) return false;
  if (take_back(mapping, fresh, place, false)) return true;
  raw::unmap(fresh, length);
  return false;
}

bool PageMover::take_back(const Mapping& mapping, std::byte* from, const FilePlace& place,
                          bool keep_from) const {
  std::byte* const begin = pointer(mapping.begin);
  const std::size_t length = mapping.end - mapping.begin;
  bool is_held = false;
  if (userfault_.can_hold_writers() && (mapping.rights & PROT_WRITE) != 0) {
    // It fails where the program tracks the range.
    if (userfault_.watch(begin, length, HoldWhat::kWrites) != 0) return false;
    is_held = userfault_.hold_writers(begin, length) == 0;
    if (!is_held) {
      userfault_.unwatch(begin, length);
      return false;
    }
  }
  // Late comers are held by now.
  bool done = !is_used_by_others({.begin = begin, .length = length}, ThreadUse::kSleepsOrReads,
                                 quiet_threads_) &&
              copy_content(from, begin, length, place);
  // What nobody has held up, a system call of the program, is seen but for the last microseconds.
  if (done && !is_held) done = copy_content(from, begin, length, place);
  if (done && mapping.rights != (PROT_READ | PROT_WRITE)) {
    done = raw::protect(from, length, mapping.rights) == 0;
  }
  if (done) done = put_over(mapping, from, place, keep_from);
  if (is_held) {
    if (!done) userfault_.unwatch(begin, length);
    userfault_.wake(begin, length);
  }
  if (!done) {
    raw::protect(from, length, PROT_READ | PROT_WRITE);
    raw::advise(from, length, MADV_DONTNEED);
  }
  return done;
}

bool PageMover::put_over(const Mapping& mapping, std::byte* from, const FilePlace& place,
                         bool keep_from) const {
  std::byte* const begin = pointer(mapping.begin);
  const std::size_t length = mapping.end - mapping.begin;
  // With keep_from an empty mapping stays behind, so that the park is ours to unmap as a whole.
  const std::byte* const moved =
      keep_from ? raw::move_over_keeping(begin, from, length) : raw::move_over(begin, from, length);
  if (moved == begin) return true;
  // The kernel may have taken away what was to be replaced before it ran out of memory.
  if (place.file >= 0 &&
      raw::map(begin, length, MAP_SHARED | MAP_FIXED, place.file, place.offset) == begin) {
    raw::advise(begin, length, MADV_DONTFORK);
    raw::protect(begin, length, mapping.rights);
  }
  return false;
}

void PageMover::populate(const PageRun& range, const FilePlace& place, bool all) const {
  if (all) {
    raw::advise(range.begin, range.length, raw::kPopulateWrite);
    return;
  }
  const std::uint64_t end = place.offset + range.length;
  for (std::uint64_t at = place.offset; at < end;) {
    const std::int64_t data = raw::seek(place.file, at, SEEK_DATA);
    if (data < 0 || static_cast<std::uint64_t>(data) >= end) return;
    const std::int64_t hole = raw::seek(place.file, static_cast<std::uint64_t>(data), SEEK_HOLE);
    if (hole < 0) return;
    at = std::min(static_cast<std::uint64_t>(hole), end);
    raw::advise(range.begin + (static_cast<std::uint64_t>(data) - place.offset),
                at - static_cast<std::uint64_t>(data), raw::kPopulateWrite);
  }
}

}  // namespace verbena::memory
