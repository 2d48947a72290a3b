// SPDX-License-Identifier: MIT
// Which file a descriptor stands for. A program may close descriptors that it does not know, and
// get their numbers for files of its own: whoever owns one in the program's table asks before it
// closes.
#pragma once

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <compare>
#include <cstdint>

namespace verbena {

// Anonymous inodes (of epoll, of signalfd) are one and the same file here.
struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  friend auto operator<=>(const FileIdentity&, const FileIdentity&) = default;
};

class OpenFile {
 public:
  OpenFile() = default;
  // Where the system does not say, nothing is known of it. errno stays.
  explicit OpenFile(int fd) : is_known_(identify(fd, file_)) {}

  // Whether the number still stands for that file, as far as is known.
  bool is_behind(int fd) const {
    FileIdentity now;
    return !is_known_ || (identify(fd, now) && now == file_);
  }

 private:
  // The system call as such: libraries that interpose on libc's would take it for the program's.
  static bool identify(int fd, FileIdentity& file) {
    const int saved = errno;
    struct stat status;
    const bool is_told = fd >= 0 && syscall(SYS_fstat, fd, &status) == 0;
    errno = saved;
    if (is_told) file = {status.st_dev, status.st_ino};
    return is_told;
  }

  FileIdentity file_;
  bool is_known_ = false;
};

}  // namespace verbena
