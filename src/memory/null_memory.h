// SPDX-License-Identifier: MIT
// The memory behind a null region (ibv_alloc_null_mr(3)): zeros for whoever reads it. Whoever
// writes there is to leave it alone, and has to look; a write that is tried all the same fails.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace verbena::memory {

inline constexpr std::size_t kNullBytes = std::size_t{2} << 20;

// Where it is mapped; null before the first null region.
inline constinit std::atomic<std::byte*> null_memory{nullptr};

// Maps it, once for all; false when there is no room for addresses.
bool map_null_memory();

inline bool is_null_memory(const std::byte* address) {
  const std::byte* const base = null_memory.load(std::memory_order_relaxed);
  return base &&
         reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(base) <
             kNullBytes;
}

}  // namespace verbena::memory
