// SPDX-License-Identifier: MIT
// A file descriptor that knows whose it is. The control thread has a descriptor table of its own
// (descriptor_table.h): the same number means something else, some file of the program, on every
// other thread. So a PrivateFd is used and closed only by the thread that made it, and forgets its
// number rather than close a stranger's file anywhere else.
#pragma once

#include <unistd.h>

#include <utility>

#include "base/assert.h"
#include "host/raw_calls.h"

namespace verbena::host {

class PrivateFd {
 public:
  PrivateFd() = default;
  explicit PrivateFd(int fd) : fd_(fd), owner_(fd < 0 ? 0 : gettid()) {}
  PrivateFd(PrivateFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)), owner_(other.owner_) {}
  PrivateFd& operator=(PrivateFd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
      owner_ = other.owner_;
    }
    return *this;
  }
  ~PrivateFd() { reset(); }

  int get() const {
    VERBENA_ASSERT(fd_ < 0 || is_ours());
    return fd_;
  }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset() {
    if (fd_ >= 0 && is_ours()) raw::close(fd_);
    fd_ = -1;
  }

 private:
  bool is_ours() const { return gettid() == owner_; }

  int fd_ = -1;
  pid_t owner_ = 0;
};

}  // namespace verbena::host
