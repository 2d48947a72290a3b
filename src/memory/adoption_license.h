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
  explicit AdoptionLicense(std::uint32_t quiet_threads);

  const ProcessMap& map() const { return map_; }
  // The process leaves us what we need: address space, mappings, no limit that is a signal.
  Result<void, AdoptRefusal> check_process(std::size_t length);
  // It has not locked its memory, and nobody writes unseen where `is_seen` is false: no other
  // threads, no asynchronous I/O.
  Result<void, AdoptRefusal> check_writers(bool is_seen) const;
  // `stack`: an address in the asking thread's stack, or none.
  Result<void, AdoptRefusal> check_mapping(const PageRun& pages, const std::byte* stack) const;
  // Somebody may hold pages of an adopted range, which cannot be taken back then.
  bool may_be_pinned(const std::byte* begin, std::size_t length) const;

 private:
  bool has_mappings_left();

  ProcessMap map_;
  ProcessStatus status_;
  const std::uint32_t quiet_threads_;
  std::uint32_t mappings_max_ = 0;
  std::uint32_t until_survey_ = 0;
  bool has_mappings_left_ = true;
};

}  // namespace verbena::memory
