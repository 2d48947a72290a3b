// SPDX-License-Identifier: MIT
// What the kernel says about this process's memory: its mappings, and figures of /proc/self/status.
// Raw system calls, nothing allocated.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "memory/arena.h"

namespace verbena::memory {

struct Mapping {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  std::uint64_t offset = 0;
  dev_t device = 0;
  ino_t inode = 0;
  int rights = 0;  // PROT_*
  bool is_shared = false;
};

// Addresses as a Mapping has them, and back.
inline std::uintptr_t number(const std::byte* address) {
  return reinterpret_cast<std::uintptr_t>(address);
}
inline std::byte* pointer(std::uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

enum class MapAnswer : std::uint8_t { kFound, kNothing, kUnknown };

struct MapSurvey {
  std::uint32_t mappings = 0;
  bool has_asynchronous_io = false;  // of aio or io_uring
};

class ProcessMap {
 public:
  // Keeps /proc/self/maps open: a program may leave its view of /proc behind.
  ProcessMap();
  bool is_open() const { return static_cast<bool>(file_); }

  // The mapping that holds the address, or the next one above.
  MapAnswer find(std::uintptr_t address, Mapping& mapping) const;
  // The mapping of [begin, end) if it is one plain private anonymous read-write mapping: no stack,
  // no file, no huge pages of hugetlbfs, not executable.
  std::optional<Mapping> plain(std::uintptr_t begin, std::uintptr_t end) const;

  // Reads all of the text.
  std::optional<MapSurvey> survey() const;

  // The ways to find out, for the tests.
  MapAnswer find_by_query(std::uintptr_t address, Mapping& mapping, char (&name)[64]) const;
  MapAnswer find_in_text(std::uintptr_t address, Mapping& mapping, char (&name)[64]) const;

 private:
  // `see(mapping, name)` says whether to go on.
  template <class See>
  MapAnswer each(See see) const;
  MapAnswer find_named(std::uintptr_t address, Mapping& mapping, char (&name)[64]) const;

  TableFd file_;
};

// Figures of /proc/self/status.
struct ProcessFigures {
  std::uint64_t threads = 0;
  std::uint64_t locked_bytes = 0;   // VmLck
  std::uint64_t pinned_bytes = 0;   // VmPin
  std::uint64_t address_bytes = 0;  // VmSize
  std::uint64_t data_bytes = 0;     // VmData
};
class ProcessStatus {
 public:
  ProcessStatus();
  bool is_open() const { return static_cast<bool>(file_); }
  std::optional<ProcessFigures> read() const;

 private:
  TableFd file_;
};

// Which pages of a range have content: present or swapped out.
struct PageRun {
  std::byte* begin = nullptr;
  std::size_t length = 0;
};
class TouchedPages {
 public:
  TouchedPages();
  bool is_open() const { return static_cast<bool>(file_); }
  // The first run in [begin, end); length 0: none. False: the kernel does not say.
  bool first(std::byte* begin, std::byte* end, PageRun& run) const;

  // The ways to find out, for the tests.
  bool first_by_scan(std::byte* begin, std::byte* end, PageRun& run) const;
  bool first_in_pagemap(std::byte* begin, std::byte* end, PageRun& run) const;

 private:
  TableFd file_;
};

}  // namespace verbena::memory
