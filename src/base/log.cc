// SPDX-License-Identifier: MIT
#include "base/log.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

namespace verbena {
namespace {

constexpr const char* kNames[] = {"none", "error", "warn", "info", "debug"};

LogLevel level_from_environment() noexcept {
  const char* wanted = std::getenv("VERBENA_LOG");
  if (!wanted) return LogLevel::kNone;
  for (unsigned i = 0; i < std::size(kNames); ++i) {
    if (std::strcmp(wanted, kNames[i]) == 0) return static_cast<LogLevel>(i);
  }
  return LogLevel::kWarn;
}

}  // namespace

LogLevel log_level() noexcept {
  static const LogLevel level = level_from_environment();
  return level;
}

void log_line(LogLevel level, const char* format, ...) noexcept {
  const int saved = errno;
  char line[512];
  int used = std::snprintf(line, sizeof line, "verbena[%d] %s: ", static_cast<int>(getpid()),
                           kNames[static_cast<unsigned>(level)]);
  va_list arguments;
  va_start(arguments, format);
  const auto room = sizeof line - static_cast<std::size_t>(used);
  const int more = std::vsnprintf(line + used, room, format, arguments);
  va_end(arguments);
  used = std::min<int>(used + std::max(more, 0), static_cast<int>(sizeof line) - 2);
  line[used] = '\n';
  // One write, so that lines of several processes do not mix.
  [[maybe_unused]] const ssize_t ignored = write(2, line, static_cast<std::size_t>(used) + 1);
  errno = saved;
}

}  // namespace verbena
