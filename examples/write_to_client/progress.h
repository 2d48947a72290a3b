// SPDX-License-Identifier: MIT
// Progress for a person: a bar on a terminal, a line for each quarter elsewhere.
#pragma once

#include <cstdint>

namespace write_to_client {

class Progress {
 public:
  Progress(std::uint64_t total, bool quiet);
  // Cheap unless there is something new to show.
  void at(std::uint64_t done, double seconds);

 private:
  void draw(std::uint64_t done, double seconds);

  std::uint64_t total_;
  bool quiet_;
  bool is_terminal_;
  double next_seconds_ = 0;
  unsigned next_quarter_ = 1;
};

}  // namespace write_to_client
