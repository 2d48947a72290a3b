// SPDX-License-Identifier: MIT
#include "memory/process_map.h"

#include <sys/mman.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "memory/proc_text.h"
#include "memory/raw_calls.h"

namespace verbena::memory {
namespace {

// linux/fs.h of 6.7; the headers may be older than the kernel.
struct PageScan {
  std::uint64_t size;
  std::uint64_t flags;
  std::uint64_t begin;
  std::uint64_t end;
  std::uint64_t walk_end;
  std::uint64_t runs_address;
  std::uint64_t runs_max;
  std::uint64_t pages_max;
  std::uint64_t category_inverted;
  std::uint64_t category_mask;
  std::uint64_t category_any;
  std::uint64_t return_mask;
};
struct PageScanRun {
  std::uint64_t begin;
  std::uint64_t end;
  std::uint64_t categories;
};
constexpr unsigned long kPageScan = _IOWR('f', 16, PageScan);
constexpr std::uint64_t kPagePresent = 1 << 3;
constexpr std::uint64_t kPageSwapped = 1 << 4;

int rights_of(std::uint64_t flags) {
  return ((flags & raw::kMapReadable) != 0 ? PROT_READ : 0) |
         ((flags & raw::kMapWritable) != 0 ? PROT_WRITE : 0) |
         ((flags & raw::kMapExecutable) != 0 ? PROT_EXEC : 0);
}

bool is_plain_name(std::string_view name) {
  return name.empty() || name == "[heap]" || name.starts_with("[anon:");
}

}  // namespace

ProcessMap::ProcessMap() : file_(raw::open("/proc/self/maps", O_RDONLY)) {}

MapAnswer ProcessMap::find_by_query(std::uintptr_t address, Mapping& mapping,
                                    char (&name)[64]) const {
  name[0] = 0;
  raw::MapQuery query{};
  query.size = sizeof query;
  query.query_flags = raw::kOrNextAbove;
  query.query_address = address;
  query.name_size = sizeof name;
  query.name_address = reinterpret_cast<std::uint64_t>(name);
  int failed = raw::control(file_.get(), raw::kMapQuery, &query);
  if (failed != 0 && errno == ENAMETOOLONG) {
    // No name of anonymous memory that matters is that long; names of files are not asked for.
    query.name_size = 0;
    query.name_address = 0;
    failed = raw::control(file_.get(), raw::kMapQuery, &query);
    std::strcpy(name, "[anon:long]");
  }
  if (failed != 0) return errno == ENOENT ? MapAnswer::kNothing : MapAnswer::kUnknown;
  mapping = {.begin = query.begin,
             .end = query.end,
             .offset = query.offset,
             .device = makedev(query.device_major, query.device_minor),
             .inode = query.inode,
             .rights = rights_of(query.flags),
             .is_shared = (query.flags & raw::kMapShared) != 0};
  return MapAnswer::kFound;
}

// kFound: `see` said that this is enough; kNothing: it saw all.
template <class See>
MapAnswer ProcessMap::each(See see) const {
  const int file = file_.get();
  if (file < 0 || raw::seek(file, 0, SEEK_SET) != 0) return MapAnswer::kUnknown;
  char text[4096];
  char line[160];  // the beginning of the current one
  std::size_t length = 0;
  bool is_empty = true;
  for (;;) {
    const long got = syscall(SYS_read, file, text, sizeof text);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return MapAnswer::kUnknown;
    if (got == 0) return is_empty ? MapAnswer::kUnknown : MapAnswer::kNothing;
    is_empty = false;
    for (const char c : std::string_view(text, static_cast<std::size_t>(got))) {
      if (c != '\n') {
        if (length < sizeof line) line[length++] = c;
        continue;
      }
      char name[64];
      const Mapping mapping = parse_mapping({line, length}, name);
      length = 0;
      if (!see(mapping, name)) return MapAnswer::kFound;
    }
  }
}

MapAnswer ProcessMap::find_in_text(std::uintptr_t address, Mapping& mapping,
                                   char (&name)[64]) const {
  return each([&](const Mapping& seen, const char(&its_name)[64]) {
    if (seen.end <= address) return true;
    mapping = seen;
    std::memcpy(name, its_name, sizeof name);
    return false;
  });
}

std::optional<MapSurvey> ProcessMap::survey() const {
  MapSurvey survey;
  const MapAnswer answer = each([&](const Mapping&, const char(&name)[64]) {
    ++survey.mappings;
    const std::string_view its_name(name);
    if (its_name.find("[aio]") != std::string_view::npos ||
        its_name.find("[io_uring]") != std::string_view::npos) {
      survey.has_asynchronous_io = true;
    }
    return true;
  });
  if (answer == MapAnswer::kUnknown) return std::nullopt;
  return survey;
}

MapAnswer ProcessMap::find_named(std::uintptr_t address, Mapping& mapping, char (&name)[64]) const {
  const MapAnswer answer = find_by_query(address, mapping, name);
  return answer == MapAnswer::kUnknown ? find_in_text(address, mapping, name) : answer;
}

MapAnswer ProcessMap::find(std::uintptr_t address, Mapping& mapping) const {
  char name[64];
  return find_named(address, mapping, name);
}

std::optional<Mapping> ProcessMap::plain(std::uintptr_t begin, std::uintptr_t end) const {
  Mapping mapping;
  char name[64];
  if (find_named(begin, mapping, name) != MapAnswer::kFound) return std::nullopt;
  if (mapping.begin > begin || mapping.end < end) return std::nullopt;
  if (mapping.is_shared || mapping.inode != 0 || mapping.device != 0) return std::nullopt;
  if (mapping.rights != (PROT_READ | PROT_WRITE) || !is_plain_name(name)) return std::nullopt;
  return mapping;
}

ProcessStatus::ProcessStatus() : file_(raw::open("/proc/self/status", O_RDONLY)) {}

std::optional<ProcessFigures> ProcessStatus::read() const {
  char text[4096];
  const long got = raw::read_at(file_.get(), text, sizeof text, 0);
  if (got <= 0) return std::nullopt;
  return parse_status({text, static_cast<std::size_t>(got)});
}

TouchedPages::TouchedPages() : file_(raw::open("/proc/self/pagemap", O_RDONLY)) {}

bool TouchedPages::first_by_scan(std::byte* begin, std::byte* end, PageRun& run) const {
  // The kernel joins neighbours of equal categories, so the categories returned are none.
  PageScanRun found{};
  PageScan scan{};
  scan.size = sizeof scan;
  scan.begin = reinterpret_cast<std::uint64_t>(begin);
  scan.end = reinterpret_cast<std::uint64_t>(end);
  scan.runs_address = reinterpret_cast<std::uint64_t>(&found);
  scan.runs_max = 1;
  scan.category_any = kPagePresent | kPageSwapped;
  const int runs = raw::control(file_.get(), kPageScan, &scan);
  if (runs < 0) return false;
  run = {};
  if (runs > 0) {
    run.begin = begin + (found.begin - scan.begin);
    run.length = found.end - found.begin;
  }
  return true;
}

bool TouchedPages::first_in_pagemap(std::byte* begin, std::byte* end, PageRun& run) const {
  constexpr std::uint64_t kPresentOrSwapped = std::uint64_t{3} << 62;
  const int file = file_.get();
  const std::size_t page = raw::page_size();
  run = {};
  std::uint64_t entries[512];
  while (begin < end) {
    const auto left = static_cast<std::size_t>(end - begin) / page;
    const std::size_t wanted = std::min(left, std::size(entries));
    const auto offset = reinterpret_cast<std::uint64_t>(begin) / page * sizeof entries[0];
    if (raw::read_at(file, entries, wanted * sizeof entries[0], offset) !=
        static_cast<long>(wanted * sizeof entries[0])) {
      return false;
    }
    for (std::size_t i = 0; i < wanted; ++i, begin += page) {
      if ((entries[i] & kPresentOrSwapped) != 0) {
        if (run.length == 0) run.begin = begin;
        run.length += page;
      } else if (run.length != 0) {
        return true;
      }
    }
  }
  return true;
}

bool TouchedPages::first(std::byte* begin, std::byte* end, PageRun& run) const {
  return first_by_scan(begin, end, run) || first_in_pagemap(begin, end, run);
}

}  // namespace verbena::memory
