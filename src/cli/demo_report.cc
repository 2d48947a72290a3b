// SPDX-License-Identifier: MIT
#include "cli/demo_report.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "cli/child.h"

namespace verbena::cli {

std::optional<std::string> value_in(std::string_view lines, std::string_view name) {
  while (!lines.empty()) {
    const std::size_t end = lines.find('\n');
    if (end == std::string_view::npos) return std::nullopt;  // still being written
    const std::string_view line = lines.substr(0, end);
    if (line.starts_with(name) && line.substr(name.size()).starts_with(' ')) {
      return std::string(line.substr(name.size() + 1));
    }
    lines.remove_prefix(end + 1);
  }
  return std::nullopt;
}

Report::Report() {
  int ends[2] = {-1, -1};
  if (pipe2(ends, O_CLOEXEC) != 0) return;
  read_ = UniqueFd(ends[0]);
  write_ = UniqueFd(ends[1]);
}

std::optional<std::string> Report::wait_for(std::string_view name, double seconds) {
  const double end = seconds_now() + seconds;
  for (;;) {
    if (std::optional<std::string> found = value(name)) return found;
    const double left = end - seconds_now();
    if (left <= 0 || !read_more(static_cast<int>(left * 1000))) return std::nullopt;
  }
}

std::optional<std::string> Report::wait_while_moving(std::string_view name,
                                                     double silence_seconds) {
  for (;;) {
    if (std::optional<std::string> found = value(name)) return found;
    const std::size_t before = text_.size();
    const double end = seconds_now() + silence_seconds;
    while (text_.size() == before) {
      const double left = end - seconds_now();
      if (left <= 0 || !read_more(static_cast<int>(left * 1000))) return std::nullopt;
    }
  }
}

void Report::read_to_end() {
  while (read_more(1000)) {
  }
}

double Report::number(std::string_view name) const {
  return std::atof(value(name).value_or("0").c_str());
}

// False at the end, and where nothing comes in this time.
bool Report::read_more(int milliseconds) {
  pollfd one = {.fd = read_.get(), .events = POLLIN, .revents = 0};
  const int ready = poll(&one, 1, milliseconds);
  if (ready < 0 && errno == EINTR) return true;
  if (ready <= 0) return false;
  char part[512];
  const ssize_t length = read(read_.get(), part, sizeof part);
  if (length > 0) text_.append(part, static_cast<std::size_t>(length));
  has_ended_ |= length == 0;
  return length > 0;
}

}  // namespace verbena::cli
