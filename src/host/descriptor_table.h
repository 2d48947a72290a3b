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
// one system call. And two descriptors are kept in reserve: what a linked peer sends must be
// received also when newcomers have taken all others. Where none is left, whoever holds descriptors
// that can be done without is asked to close them.
#pragma once

#include <sys/types.h>

#include <functional>
#include <utility>

#include "host/descriptor_limit.h"
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

  // Asked where none is left: closes what can be done without; false: there is nothing.
  void set_spare(std::function<bool()> spare) { spare_ = std::move(spare); }

  // Runs a system call that gives a descriptor or -1. Empty, and errno, when refused.
  template <class Call>
  PrivateFd make(Call call) {
    fill_reserve();
    int fd = call();
    if (fd < 0 && is_full()) {
      const RaisedDescriptorLimit raised;
      fd = call();
    }
    if (fd < 0 && is_full() && spare()) fd = call();
    return settle(fd);
  }

  // Runs a recvmsg that may bring up to two descriptors: these are lost where there is no room.
  template <class Call>
  ssize_t receive(Call call) {
    fill_reserve();
    if (has_room()) return call();
    const RaisedDescriptorLimit raised;
    for (PrivateFd& each : reserve_)
      each.reset();
    return call();
  }

  // Runs what needs a descriptor or two, but only for a moment.
  template <class Call>
  auto borrow(Call call) {
    fill_reserve();
    if (!has_room()) {
      for (PrivateFd& each : reserve_)
        each.reset();
    }
    return call();
  }

  // Takes in a descriptor that a system call gave.
  PrivateFd settle(int fd);

 private:
  static bool is_full();
  bool spare();
  void fill_reserve();
  bool has_room() const;

  bool is_own_ = false;
  std::function<bool()> spare_;
  PrivateFd reserve_[2];
  int highest_ = 2;
};

}  // namespace verbena::host
