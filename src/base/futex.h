// SPDX-License-Identifier: MIT
// futex(2), for words of this process and for words in memory shared with others (std::atomic::wait
// is private only).
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "base/time.h"

namespace verbena {

enum class FutexScope : std::uint8_t { kProcess, kShared };

// Sleeps while `word` holds `expected`, `timeout` at most (none: without limit). May return early
// for no reason.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, FutexScope scope,
                std::optional<Duration> timeout = std::nullopt) noexcept;

// Wakes up to `count` sleepers.
void futex_wake(const std::atomic<std::uint32_t>& word, std::int32_t count,
                FutexScope scope) noexcept;

}  // namespace verbena
