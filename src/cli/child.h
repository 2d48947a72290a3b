// SPDX-License-Identifier: MIT
// A program that we start and that ends with us: killed by its number when it takes too long, when
// its owner goes, and by the kernel when we die.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace verbena::cli {

class Child {
 public:
  struct Options {
    bool captures_output = true;  // else it writes where we write
    std::vector<int> inherited;   // descriptors that it keeps, under the same numbers
  };
  static Result<Child, std::string> start(const std::vector<std::string>& words, Options options);

  Child(Child&& other) noexcept;
  Child& operator=(Child&& other) noexcept = delete;
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child();

  pid_t pid() const { return pid_; }
  // Its exit status (128 + N for signal N) once it has ended, looked at for so long.
  std::optional<int> wait(double seconds);
  void kill();

  // Stops it by SIGSTOP. True once every thread of it stands still; false where it has ended, or
  // does not stop in this time.
  bool stop(double seconds);
  void resume();
  // Whether somebody has let it go on since it was stopped, or since this was asked.
  bool was_resumed();
  // Processor time of all its threads so far; nothing where the system does not tell.
  std::optional<std::uint64_t> cpu_nanoseconds() const;

  // What it has written so far.
  std::string output() const;

 private:
  Child(pid_t pid, UniqueFd output) : pid_(pid), output_(std::move(output)) {}
  void note_end(int raw);
  bool stands_still(double end) const;

  pid_t pid_ = -1;
  std::optional<int> status_;
  UniqueFd output_;
};

// A TCP port of the loopback interface that nobody uses now; 0 where there is none.
unsigned free_port();

// Whether somebody in this network namespace listens at the TCP port. Seen without connecting,
// since a connection would be taken for the client's.
bool is_listening(unsigned port);

// Seconds since some fixed moment.
double seconds_now();

}  // namespace verbena::cli
