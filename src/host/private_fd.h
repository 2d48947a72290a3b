// SPDX-License-Identifier: MIT
// A file descriptor that knows whose it is. The control thread has a descriptor table of its own
// (descriptor_table.h): the same number means something else, some file of the program, on every
// other thread. So a PrivateFd is used and closed only by the thread that made it, and forgets its
// number rather than close a stranger's file anywhere else.
//
// Where there is no table of its own, the program may close the descriptor and get its number for
// something else. There PrivateFd also remembers which file it was (in_shared_table).
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "base/assert.h"
#include "host/raw_calls.h"

namespace verbena::host {

class PrivateFd {
 public:
  PrivateFd() = default;
  explicit PrivateFd(int fd) : fd_(fd), owner_(fd < 0 ? 0 : this_thread()) {}
  // One that others may close under us.
  static PrivateFd in_shared_table(int fd) {
    PrivateFd result(fd);
    result.file_ = file_of(fd);
    return result;
  }
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
  static ino_t file_of(int fd) {
    struct stat status{};
    return raw::status(fd, status) == 0 ? status.st_ino : 0;
  }
  // Asked once: a number is the control thread's, and that never forks.
  static pid_t this_thread() {
    static thread_local const pid_t number = gettid();
    return number;
  }
  bool is_our_thread() const { return this_thread() == owner_; }
  bool is_our_file() const { return file_ == 0 || file_of(fd_) == file_; }

  int fd_ = -1;
  pid_t owner_ = 0;
  ino_t file_ = 0;  // 0: nobody else can close it
};

}  // namespace verbena::host
