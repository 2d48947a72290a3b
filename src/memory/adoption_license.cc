// SPDX-License-Identifier: MIT
#include "memory/adoption_license.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <limits>

#include "memory/open_files.h"
#include "memory/proc_text.h"
#include "memory/raw_calls.h"

namespace verbena::memory {
namespace {

// A limit of the program's address space is its own: we take at most this part of what is left.
constexpr std::uint64_t kShareOfAddressSpace = 16;
// Counting mappings reads them all, so that is done now and then. Each range costs up to four.
constexpr std::uint32_t kRangesPerSurvey = 256;
constexpr std::uint32_t kMappingsOfUs = kRangesPerSurvey * 4;
// With fewer it is done each time that somebody on the host has aio.
constexpr std::uint32_t kFewMappings = 1000;
// Looking at all of them would take longer than memory should be withheld.
constexpr std::uint64_t kThreadsMax = 256;

// Whether nobody on this host has set up aio.
bool is_without_aio() {
  const int file = raw::open("/proc/sys/fs/aio-nr", O_RDONLY);
  if (file < 0) return false;
  char text[32];
  const long got = raw::read_at(file, text, sizeof text, 0);
  raw::close(file);
  return got > 0 && parse_figure({text, static_cast<std::size_t>(got)}) == 0;
}

bool leaves_room(int resource, std::uint64_t used, std::uint64_t length) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return false;
  if (limit.rlim_cur == RLIM_INFINITY) return true;
  return limit.rlim_cur > used && (limit.rlim_cur - used) / kShareOfAddressSpace >= length;
}

std::uint32_t read_mappings_max() {
  constexpr std::uint32_t kUsual = 65530;
  const int file = raw::open("/proc/sys/vm/max_map_count", O_RDONLY);
  if (file < 0) return kUsual;
  char text[32];
  const long got = raw::read_at(file, text, sizeof text, 0);
  raw::close(file);
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
  const auto value = parse_figure({text, got > 0 ? static_cast<std::size_t>(got) : 0});
  return static_cast<std::uint32_t>(std::min(value.value_or(kUsual), kMost));
}

}  // namespace

AdoptionLicense::AdoptionLicense(std::uint32_t quiet_threads, bool minds_rings)
    : quiet_threads_(quiet_threads),
      minds_rings_(minds_rings),
      mappings_max_(read_mappings_max()) {}

Result<void, AdoptRefusal> AdoptionLicense::check_process(std::size_t length) {
  if (!map_.is_open() || !status_.is_open()) return refuse(AdoptRefusal::kDenied);
  if (file_size_is_limited()) return refuse(AdoptRefusal::kFileSizeLimit);
  const std::optional<ProcessFigures> figures = status_.read();
  if (!figures) return refuse(AdoptRefusal::kDenied);
  if (!leaves_room(RLIMIT_AS, figures->address_bytes, length) ||
      !leaves_room(RLIMIT_DATA, figures->data_bytes, length) || !has_mappings_left()) {
    return refuse(AdoptRefusal::kAddressSpace);
  }
  return {};
}

bool AdoptionLicense::has_mappings_left() {
  if (until_survey_ > 0) {
    --until_survey_;
    return has_mappings_left_;
  }
  const std::optional<MapSurvey> survey = map_.survey();
  mappings_ = survey ? survey->mappings : 0;
  has_mappings_left_ = survey && mappings_ + kMappingsOfUs < mappings_max_ / 2;
  until_survey_ = kRangesPerSurvey;
  return has_mappings_left_;
}

// An io_uring is one of the descriptors, or (when the program has closed that) one of the mappings.
// Those of aio are mappings only.
bool AdoptionLicense::may_have_asynchronous_io() {
  if (!minds_rings_) return false;
  const bool is_told_otherwise = mappings_ > kFewMappings / 4 && is_without_aio();
  return find_asynchronous_io(is_told_otherwise ? nullptr : &map_) != AsynchronousIo::kNone;
}

Result<void, AdoptRefusal> AdoptionLicense::check_writers(bool is_seen) {
  const std::optional<ProcessFigures> figures = status_.read();
  if (!figures) return refuse(AdoptRefusal::kDenied);
  if (figures->locked_bytes != 0) return refuse(AdoptRefusal::kLocked);
  const std::uint64_t threads_max = is_seen ? kThreadsMax : quiet_threads_;
  if (figures->threads > threads_max) return refuse(AdoptRefusal::kOtherThreads);
  if (!is_seen && figures->pinned_bytes != 0) return refuse(AdoptRefusal::kPinned);
  // Reading many mappings each time would take too long.
  const bool is_costly = minds_rings_ && mappings_ > kFewMappings && !is_without_aio();
  if (is_costly || may_have_asynchronous_io()) return refuse(AdoptRefusal::kAsynchronousIo);
  return {};
}

Result<void, AdoptRefusal> AdoptionLicense::check_mapping(const PageRun& pages,
                                                          const std::byte* stack) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(pages.begin);
  const std::optional<Mapping> mapping = map_.plain(begin, begin + pages.length);
  if (!mapping) return refuse(AdoptRefusal::kNotPlain);
  // The kernel itself writes to stacks (signals), and kills whom it cannot write to.
  const auto on_stack = reinterpret_cast<std::uintptr_t>(stack);
  if (on_stack >= mapping->begin && on_stack < mapping->end) {
    return refuse(AdoptRefusal::kNotPlain);
  }
  return {};
}

bool AdoptionLicense::may_be_held(const PageRun& range, bool is_seen) {
  const std::optional<ProcessFigures> figures = status_.read();
  return !figures || (!is_seen && figures->threads > quiet_threads_) ||
         may_be_pinned(range.begin, range.length, figures->pinned_bytes) ||
         may_have_asynchronous_io();
}

}  // namespace verbena::memory
