// SPDX-License-Identifier: MIT
// A file descriptor with one owner. It closes no file but its own: who is a guest in a program's
// process may find that the program has closed the descriptor and uses its number for something
// else.
#pragma once

#include <unistd.h>

#include <utility>

#include "base/open_file.h"

namespace verbena {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd), file_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)), file_(other.file_) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
      file_ = other.file_;
    }
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  // False: there is none, or somebody else closed it.
  bool is_ours() const { return fd_ >= 0 && file_.is_behind(fd_); }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset() {
    if (is_ours()) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
  OpenFile file_;
};

}  // namespace verbena
