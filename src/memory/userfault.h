// SPDX-License-Identifier: MIT
// The kernel's means to hold whoever touches a range while we change what is behind it
// (userfaultfd), and to take pages away only where nobody else holds them (UFFDIO_MOVE).
#pragma once

#include <cstddef>
#include <cstdint>

#include "memory/arena.h"

namespace verbena::memory {

enum class HoldWhat : std::uint8_t {
  kMissing,  // who touches a page that is not there waits
  kWrites,   // who writes a page that hold_writers() covered waits
};

class Userfault {
 public:
  // For accesses by the kernel as well where this process may (read(2) into the range waits, too),
  // else they fail with EFAULT meanwhile. `for_programs_only`: even where it may, for tests.
  explicit Userfault(bool for_programs_only);
  Userfault() = default;

  bool is_open() const { return static_cast<bool>(file_); }
  bool holds_kernel() const { return holds_kernel_; }
  bool can_move() const { return can_move_; }           // Linux 6.8
  bool can_hold_writers() const { return can_write_; }  // to shared memory; Linux 5.19

  // All give 0 or an errno.
  int watch(std::byte* begin, std::size_t length, HoldWhat what) const;
  int unwatch(std::byte* begin, std::size_t length) const;  // wakes, too
  int hold_writers(std::byte* begin, std::size_t length) const;
  // Lets go on who waits for the range, whatever is there now.
  void wake(std::byte* begin, std::size_t length) const;
  // Moves what is there of `from` to `to`, which is watched and empty. `moved` counts what was
  // gone over. EBUSY: the next page is pinned, or shared with a forked child.
  int move(std::byte* to, std::byte* from, std::size_t length, std::size_t& moved) const;

 private:
  bool open(unsigned flags);

  TableFd file_;
  bool holds_kernel_ = false;
  bool can_move_ = false;
  bool can_write_ = false;
};

}  // namespace verbena::memory
