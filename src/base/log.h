// SPDX-License-Identifier: MIT
// The log: one line an event on standard error, nothing at all unless VERBENA_LOG asks (error,
// warn, info, debug). An error is logged once, where it is first known.
#pragma once

#include <cstdint>

namespace verbena {

enum class LogLevel : std::uint8_t { kNone, kError, kWarn, kInfo, kDebug };

// From VERBENA_LOG, read once.
LogLevel log_level() noexcept;

[[gnu::format(printf, 2, 3)]] void log_line(LogLevel level, const char* format, ...) noexcept;

}  // namespace verbena

#define VERBENA_LOG(level, ...)                         \
  do {                                                  \
    if ((level) <= ::verbena::log_level()) [[unlikely]] \
      ::verbena::log_line(level, __VA_ARGS__);          \
  } while (false)
#define LOG_ERROR(...) VERBENA_LOG(::verbena::LogLevel::kError, __VA_ARGS__)
#define LOG_WARN(...) VERBENA_LOG(::verbena::LogLevel::kWarn, __VA_ARGS__)
#define LOG_INFO(...) VERBENA_LOG(::verbena::LogLevel::kInfo, __VA_ARGS__)
#define LOG_DEBUG(...) VERBENA_LOG(::verbena::LogLevel::kDebug, __VA_ARGS__)
