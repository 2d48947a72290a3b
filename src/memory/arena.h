// SPDX-License-Identifier: MIT
// The file that adopted memory lives in: one sparse memfd of enormous size, cut in places that lie
// so far apart that a mapping which the program lets grow (mremap) reads fresh zeroes and never its
// neighbour. A place is used once: what a stopped peer writes late lands in a page that nobody
// reads. Its size is sealed, so that nobody can take pages away under a reader.
//
// Everything but the constants is used on the thread whose table holds the descriptors, and the
// object ends there too; elsewhere its destructor forgets the descriptors.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/result.h"

namespace verbena::memory {

// A descriptor that remembers whose table it is of, and which file it was: a program that closes
// what it does not know may have given the number to a file of its own since.
class TableFd {
 public:
  TableFd() = default;
  explicit TableFd(int fd);
  TableFd(TableFd&& other) noexcept;
  TableFd& operator=(TableFd&& other) noexcept;
  ~TableFd() { reset(); }

  // -1: there is none, it is another thread's, or somebody closed it.
  int get() const;
  explicit operator bool() const { return get() >= 0; }
  void reset();
  dev_t device() const { return device_; }
  ino_t inode() const { return inode_; }

 private:
  int fd_ = -1;
  pid_t owner_ = 0;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

// Which descriptor peers get.
enum class ArenaKind : std::uint8_t {
  kPeersWrite,
  kPeersRead,  // for regions without remote write and atomic
};

enum class ArenaError : std::uint8_t {
  kNoDescriptor,
  kNoMemory,
  kDenied,         // a filter, or no /proc to reopen the descriptor from
  kFileSizeLimit,  // RLIMIT_FSIZE: writing would be a signal
};

class Arena {
 public:
  static constexpr std::uint64_t kPlaceStride = std::uint64_t{1} << 38;
  static constexpr std::uint64_t kPlacesMax = std::uint64_t{1} << 24;
  static constexpr std::uint64_t kSize = kPlaceStride * kPlacesMax;

  // Generations are numbered from 1; a peer that knows a file by {process, kind, generation} never
  // confuses two.
  static Result<Arena, ArenaError> create(ArenaKind kind, std::uint32_t generation,
                                          std::uint64_t places_max = kPlacesMax);

  ArenaKind kind() const { return kind_; }
  std::uint32_t generation() const { return generation_; }
  // False: the program closed our descriptor.
  bool is_usable() const { return file() >= 0 && descriptor() >= 0; }

  int file() const { return file_.get(); }  // ours, reads and writes
  // What peers get. They map it and never call read or write on it: a writer holds the file's lock,
  // and would wait for adoption, which may wait for that lock.
  int descriptor() const { return kind_ == ArenaKind::kPeersRead ? peers_.get() : file_.get(); }
  dev_t device() const { return file_.device(); }  // as mappings of it show
  ino_t inode() const { return file_.inode(); }

  // The offset of a fresh place. None: all were used, a new arena is needed.
  std::optional<std::uint64_t> take_place();
  // Frees its pages, whoever still maps them.
  void clear_place(std::uint64_t offset) const;

 private:
  Arena(ArenaKind kind, std::uint32_t generation, std::uint64_t places_max)
      : kind_(kind), generation_(generation), places_max_(places_max) {}

  ArenaKind kind_;
  std::uint32_t generation_;
  std::uint64_t places_max_;
  std::uint64_t next_place_ = 0;
  TableFd file_;
  TableFd peers_;  // for reading only
};

// RLIMIT_FSIZE: writing to a file may be a signal.
bool file_size_is_limited();

}  // namespace verbena::memory
