// SPDX-License-Identifier: MIT
// The memory of another process as a file, /proc/PID/mem. Some bytes get there sooner than by
// process_vm_writev, which looks the process up and checks our rights each time; of this file that
// was done when it was opened, and whose memory it is does not change.
//
// The descriptor lies in the program's table, since the program's threads use it. A program may
// close what it does not know and get the number for a file of its own, and some bytes written
// there, at the address of memory, would make that file enormous. So:
//   * The number is one that is not given out by chance: it takes hundreds of open files.
//   * Nothing is moved unless the same thread has seen, a moment ago, that the number still means
//     our file: that has a random position, which nothing else has. (Threads may have tables of
//     their own.) A moment is too short for opening hundreds of files.
//   * To look takes a system call, as much as is gained: so it is done after an operation, and only
//     where the next one is likely to follow soon. Who has not seen it takes another way.
//
// The first high number of a process makes the kernel enlarge its table of descriptors, and wait
// for all its processors then: tens of milliseconds. That is not for a thread that posts, with a
// lock held; so somebody else is asked to make room first.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace verbena::host {

// Whose memory, and how it is known from that of another process with the same pid.
struct MemoryOwner {
  pid_t pid = 0;                    // 0: it cannot be reached
  std::uint64_t nonce_address = 0;  // 0: it cannot be known
  std::uint64_t nonce = 0;
};

class MemoryFile {
 public:
  // Open at the same time. Who wants more does without.
  static constexpr std::size_t kMost = 16;
  // A moment, in ticks (base/ticks.h): between 20 and 100 microseconds.
  static constexpr std::uint64_t kMoment = 100'000;
  // Numbers from kLowest on are not given out by chance to a program that has had use for kFew.
  static constexpr int kFew = 256;
  static constexpr int kLowest = 768;
  static constexpr int kNumbers = 1024;

  // Whether the kernel writes some bytes here as programs expect that spin on the last one.
  static bool is_sound_here();
  // On a thread whose descriptors are the program's, and which may wait: does what was asked for.
  static void make_room_if_wanted();
  static bool is_room_wanted();

  explicit MemoryFile(const MemoryOwner& owner) : owner_(owner) {}
  // On any thread; where that cannot close the file, the next one to open some does.
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  // -- any thread whose descriptors are the program's, at a time in ticks ------------------------
  bool is_open() const { return fd_.load(std::memory_order_relaxed) >= 0; }
  // It has seen the file a moment ago.
  bool may_use(std::uint64_t now) const { return seen_ago(now) < kMoment; }
  // To be looked at again, if it is used soon.
  bool is_due(std::uint64_t now) const;
  // Opens it if that was not tried before. True: there must be room first, and whoever can make it
  // is to be told. Leaves errno alone, as write() does.
  bool look();
  // False: not all was moved, and the next one is not moved this way. Others may change the length
  // of `piece` at any time: what lies behind its bytes can therefore not be read.
  bool write(const iovec* piece, std::size_t length, std::uint64_t to);

 private:
  static constexpr int kUntried = -1;
  static constexpr int kOpening = -2;
  static constexpr int kNone = -3;

  std::uint64_t seen_ago(std::uint64_t now) const;
  bool open();
  int open_in_place(std::size_t place);
  bool is_owners(int fd) const;

  const MemoryOwner owner_;
  std::atomic<int> fd_{kUntried};
  std::size_t place_ = 0;       // when there is one
  std::uint64_t position_ = 0;  // of ours, while it is open
};

}  // namespace verbena::host
