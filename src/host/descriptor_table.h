// SPDX-License-Identifier: MIT
// The control thread's own descriptor table.
//
// A thread that leaves the process's shared table (close_range with CLOSE_RANGE_UNSHARE, or
// unshare(CLONE_FILES)) starts an empty one: the program cannot close what is in it, loses none of
// its own numbers, and passes none of it to forked children. Where a filter refuses both, the
// descriptors stay in the program's table, close-on-exec and at high numbers.
//
// RLIMIT_NOFILE bounds the numbers in our table too. A program may live with 32; we may need one
// for each peer. So where the soft limit is met and the hard one allows more, it is raised for that
// one system call.
#pragma once

#include <sys/types.h>

#include "host/private_fd.h"

namespace verbena::host {

class DescriptorTable {
 public:
  // Called first of all on the control thread. In its own table standard input, output and error
  // are stand-ins that swallow what is written, unless the log or a sanitizer wants standard error:
  // the program's may be a pipe, whose reader waits for its end.
  explicit DescriptorTable(bool want_own);
  DescriptorTable(const DescriptorTable&) = delete;
  DescriptorTable& operator=(const DescriptorTable&) = delete;

  bool is_own() const { return is_own_; }

  // Runs a system call that gives a descriptor or -1. Empty, and errno, when refused.
  template <class Call>
  PrivateFd make(Call call) {
    int fd = call();
    if (fd < 0 && is_full()) {
      const RaisedLimit raised;
      fd = call();
    }
    return settle(fd);
  }

  // Runs a recvmsg that may bring up to two descriptors: these are lost where there is no room.
  template <class Call>
  ssize_t receive(Call call) {
    if (has_room()) return call();
    const RaisedLimit raised;
    return call();
  }

  // Takes in a descriptor that a system call gave.
  PrivateFd settle(int fd);

 private:
  // The soft limit at the hard one, while it lives. Others see it too, for a microsecond.
  class RaisedLimit {
   public:
    RaisedLimit();
    ~RaisedLimit();

   private:
    unsigned long before_ = 0;
    bool raised_ = false;
  };

  static bool is_full();
  bool has_room() const;

  bool is_own_ = false;
  int highest_ = 2;
};

}  // namespace verbena::host
