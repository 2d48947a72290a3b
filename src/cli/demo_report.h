// SPDX-License-Identifier: MIT
// What the demo's programs report to it through a pipe: lines "name value".
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/unique_fd.h"

namespace verbena::cli {

// The value in the first line of that name.
std::optional<std::string> value_in(std::string_view lines, std::string_view name);

// Collected as it comes.
class Report {
 public:
  Report();
  // -1: there is no pipe to be had, as errno says.
  int write_end() const { return write_.get(); }
  // The child has it now; when it ends, so does the report.
  void started() { write_.reset(); }

  // Waits for a value; nothing where the child ended before, or time is up.
  std::optional<std::string> wait_for(std::string_view name, double seconds);
  // The same, for as long as there is news of any kind at least this often.
  std::optional<std::string> wait_while_moving(std::string_view name, double silence_seconds);
  void read_to_end();
  bool has_ended() const { return has_ended_; }

  std::optional<std::string> value(std::string_view name) const { return value_in(text_, name); }
  double number(std::string_view name) const;

 private:
  bool read_more(int milliseconds);

  UniqueFd read_;
  UniqueFd write_;
  std::string text_;
  bool has_ended_ = false;
};

}  // namespace verbena::cli
