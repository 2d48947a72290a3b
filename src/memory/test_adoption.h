// SPDX-License-Identifier: MIT
// For the tests of adoption: the ways in which a kernel lets us do it, and a peer's view.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "memory/adoption.h"
#include "memory/process_map.h"
#include "memory/test_memory.h"

namespace verbena::memory {

// What the process may do here. Only the first allows other threads.
enum class Means { kEverything, kProgramsOnly, kNoMove, kNoUserfault };

inline std::string name_of(const testing::TestParamInfo<Means>& info) {
  switch (info.param) {
    case Means::kEverything: return "Everything";
    case Means::kProgramsOnly: return "ProgramsOnly";
    case Means::kNoMove: return "NoMove";
    case Means::kNoUserfault: return "NoUserfault";
  }
  return "";
}

inline AdoptionOptions with(Means means) {
  AdoptionOptions options;
  // The sanitizers have a thread of their own, which does not touch our memory.
  options.quiet_threads = 2;
  options.use_userfault = means != Means::kNoUserfault;
  options.use_move = means == Means::kEverything || means == Means::kProgramsOnly;
  options.for_programs_only = means == Means::kProgramsOnly;
  return options;
}

// Why adoption under use cannot be tested here; empty: it can.
inline std::string why_no_adoption(const Adoption& adoption) {
  return adoption.needs_single_thread()
             ? "there is no userfaultfd with UFFDIO_MOVE that holds system calls"
             : "";
}

// What the child found wrong: the number of its first check that failed; 0: nothing.
inline int in_child(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// As a peer maps it.
class PeerView {
 public:
  PeerView(const Adoption& adoption, const Adopted& adopted, int rights = PROT_READ | PROT_WRITE)
      : length_(adopted.length) {
    void* const at = mmap(nullptr, length_, rights, MAP_SHARED, adoption.descriptor(adopted.kind),
                          static_cast<off_t>(adopted.offset));
    bytes_ = at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
  }
  PeerView(const PeerView&) = delete;
  PeerView& operator=(const PeerView&) = delete;
  ~PeerView() {
    if (bytes_) munmap(bytes_, length_);
  }
  explicit operator bool() const { return bytes_ != nullptr; }
  std::byte* bytes() const { return bytes_; }

 private:
  std::size_t length_;
  std::byte* bytes_;
};

inline std::optional<Mapping> mapping_at(const std::byte* address) {
  const ProcessMap map;
  Mapping mapping;
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  if (map.find(at, mapping) != MapAnswer::kFound || mapping.begin > at) return std::nullopt;
  return mapping;
}

inline bool is_shared(const std::byte* address) {
  const auto mapping = mapping_at(address);
  return mapping && mapping->is_shared;
}

inline std::uint32_t mappings_of_process() {
  const auto survey = ProcessMap().survey();
  return survey ? survey->mappings : 0;
}

// A different byte for every place, and nothing that repeats by pages.
inline std::byte pattern(std::size_t at) {
  return static_cast<std::byte>((at * 0x9E3779B97F4A7C15u) >> 56 | 1);
}
inline void fill_pattern(std::byte* begin, std::size_t length) {
  for (std::size_t i = 0; i < length; ++i)
    begin[i] = pattern(i);
}
// The first byte that is not as filled; `length`: none.
inline std::size_t first_difference(const std::byte* begin, std::size_t length) {
  for (std::size_t i = 0; i < length; ++i) {
    if (begin[i] != pattern(i)) return i;
  }
  return length;
}

}  // namespace verbena::memory
