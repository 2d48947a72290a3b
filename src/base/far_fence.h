// SPDX-License-Identifier: MIT
// A full fence on behalf of others, by membarrier(2). Where one side stores and looks in every
// message and the other only before it sleeps, the rare side pays for both: its far_fence() is a
// full fence in every running thread of every process that has joined, so these need none of their
// own, only the order of the program (a fence for the compiler).
#pragma once

#include <atomic>

namespace verbena {

// This process takes part from now on. False: the system does not offer it, or a filter forbids it;
// then everybody needs fences. Cheap when it was called before.
bool join_far_fences() noexcept;

// After join_far_fences() succeeded. Takes a microsecond or two.
void far_fence() noexcept;

// The same for the threads of this process alone, which disturbs nobody else.
bool join_near_fences() noexcept;
// Also where that is forbidden by now, by a filter that came later: then it waits for as long as no
// store takes to be seen.
void near_fence() noexcept;

namespace detail {
inline constinit std::atomic<bool> has_joined_far_fences{false};
inline constinit std::atomic<bool> has_joined_near_fences{false};
}  // namespace detail
inline bool has_joined_near_fences() noexcept {
  return detail::has_joined_near_fences.load(std::memory_order_relaxed);
}
inline bool has_joined_far_fences() noexcept {
  return detail::has_joined_far_fences.load(std::memory_order_relaxed);
}

}  // namespace verbena
