// SPDX-License-Identifier: MIT
// A file descriptor that knows whose it is. The control thread has a descriptor table of its own
// (descriptor_table.h): the same number means something else, some file of the program, on every
// other thread. So a PrivateFd is used and closed only by the thread that made it, and forgets its
// number rather than close a stranger's file anywhere else.
//
// On a thread without a table of its own the program may close the descriptor and get its number
// for something else: there PrivateFd also remembers which file it was.
#pragma once

#include <unistd.h>

#include <utility>

#include "base/assert.h"
#include "base/open_file.h"
#include "host/raw_calls.h"

namespace verbena::host {

class PrivateFd {
 public:
  PrivateFd() = default;
  explicit PrivateFd(int fd) : fd_(fd), owner_(fd < 0 ? 0 : this_thread().number) {
    if (fd >= 0 && !this_thread().has_own_table) file_ = OpenFile(fd);
  }
  // Of those that this thread makes from now on: nobody else can close them.
  static void thread_has_own_table() { this_thread().has_own_table = true; }

  PrivateFd(PrivateFd&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), owner_(other.owner_), file_(other.file_) {}
  PrivateFd& operator=(PrivateFd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
      owner_ = other.owner_;
      file_ = other.file_;
    }
    return *this;
  }
  ~PrivateFd() { reset(); }

  // -1: there is none, or it was closed by somebody else.
  int get() const {
    VERBENA_ASSERT(fd_ < 0 || is_our_thread());
    return is_our_file() ? fd_ : -1;
  }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset() {
    if (fd_ >= 0 && is_our_thread() && is_our_file()) raw::close(fd_);
    fd_ = -1;
  }

 private:
  struct Thread {
    pid_t number = 0;
    bool has_own_table = false;
  };
  // Asked once: a number is the control thread's, and that never forks.
  static Thread& this_thread() {
    static thread_local Thread thread{.number = gettid()};
    return thread;
  }
  bool is_our_thread() const { return this_thread().number == owner_; }
  bool is_our_file() const { return file_.is_behind(fd_); }

  int fd_ = -1;
  pid_t owner_ = 0;
  OpenFile file_;  // unknown where nobody else can close it
};

}  // namespace verbena::host
