// SPDX-License-Identifier: MIT
// Which memory may be adopted at all, and when: what the process and the mapping must look like.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"
#include "memory/adoption.h"
#include "memory/process_map.h"

namespace verbena::memory {

class AdoptionLicense {
 public:
  AdoptionLicense(std::uint32_t quiet_threads, bool minds_rings);

  const ProcessMap& map() const { return map_; }
  // The process leaves us what we need: address space, mappings, no limit that is a signal.
  Result<void, AdoptRefusal> check_process(std::size_t length);
  // It has not locked its memory, and nobody writes unseen: no asynchronous I/O and, where
  // `is_seen` is false, no other threads.
  Result<void, AdoptRefusal> check_writers(bool is_seen);
  // `stack`: an address in the asking thread's stack, or none.
  Result<void, AdoptRefusal> check_mapping(const PageRun& pages, const std::byte* stack) const;
  // Somebody may hold pages of an adopted range, or write to it unseen: it cannot be taken back.
  bool may_be_held(const PageRun& range, bool is_seen);

 private:
  bool has_mappings_left();
  bool may_have_asynchronous_io();

  ProcessMap map_;
  ProcessStatus status_;
  const std::uint32_t quiet_threads_;
  const bool minds_rings_;
  std::uint32_t mappings_max_ = 0;
  std::uint32_t until_survey_ = 0;
  bool has_mappings_left_ = true;
  std::uint32_t mappings_ = 0;  // at the last survey
};

}  // namespace verbena::memory
