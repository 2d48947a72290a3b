// SPDX-License-Identifier: MIT
// Ends the sleep of a service thread that waits for descriptors. A pipe and no eventfd: programs
// close descriptors that they do not know, and only of a pipe's end can it be told afterwards
// whether a number still means it. (All eventfds, epolls and timers have one inode.)
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <array>

#include "host/raw_calls.h"
#include "port/udp_socket.h"

namespace verbena::nic {

// open() before the others; then any thread. It stays for as long as the process.
class WakePipe {
 public:
  // False: there are no descriptors left.
  bool open() {
    std::array<int, 2> ends{};
    if (!host::raw::make_pipe(ends)) return false;
    reader_ = known(ends[0]);
    writer_ = known(ends[1]);
    return true;
  }
  bool is_open() const { return reader_.fd >= 0; }

  // To wait for. -1: the program has closed it, and nobody is woken any more.
  int descriptor() const { return is_ours(reader_) ? reader_.fd : -1; }
  void wake() const {
    const char one = 1;
    if (is_ours(writer_)) static_cast<void>(syscall(SYS_write, writer_.fd, &one, sizeof one));
  }
  // Who has slept.
  void drain() const {
    std::array<char, 64> taken;
    if (is_ours(reader_))
      static_cast<void>(syscall(SYS_read, reader_.fd, taken.data(), taken.size()));
  }

 private:
  struct End {
    int fd = -1;
    ino_t file = 0;
  };
  static End known(int fd) {
    const int lifted = port::lift_descriptor(fd);
    return {lifted, port::file_of(lifted)};
  }
  static bool is_ours(const End& end) { return end.fd >= 0 && port::file_of(end.fd) == end.file; }

  End reader_;
  End writer_;
};

}  // namespace verbena::nic
