// SPDX-License-Identifier: MIT
// Moves a mapping's pages into a file, in place, and back, while the program runs and uses them.
//
// To the file:
//
//     userfaultfd watches the range     whoever touches a page that is missing waits
//     mremap(range -> park)             now all pages are: at the park, in the program's mapping
//     UFFDIO_MOVE(park -> scratch)      piece by piece; refuses a page that somebody has pinned
//     pwrite(scratch -> file)
//     look who sleeps on a word of it  (other_threads.h: they would never be woken)
//     mremap(mapping of the file -> range), wake
//
// And back:
//
//     userfaultfd write-protects the range
//     look who sleeps on a word of it, or reads from a device into it
//     pread(file -> park)
//     mremap(park -> range), wake
//
// The park is the program's own mapping, moved away and, since then, empty: flags, memory policy
// and the identity by which the kernel joins it with its neighbours come back with it. A failure
// anywhere puts everything back; the mappings that this takes are there from the start, because the
// process may be near its limit of them. Between the first and the last step nothing is allocated
// and no lock is taken: those who wait for us may hold it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"
#include "memory/adoption.h"
#include "memory/process_map.h"
#include "memory/userfault.h"

namespace verbena::memory {

// Where in which file.
struct FilePlace {
  int file = -1;  // -1 for the way back: the descriptor was lost, the mapping itself is read
  dev_t device = 0;
  ino_t inode = 0;
  std::uint64_t offset = 0;
};

// A range that has gone to the file.
struct MovedPages {
  std::byte* begin = nullptr;
  std::size_t length = 0;
  std::byte* park = nullptr;
  FilePlace place;
};

// True when the mapping shows a part of the place.
bool shows(const Mapping& mapping, const FilePlace& place);
// True when the mapping is exactly the range in its place.
bool is_whole(const Mapping& mapping, const MovedPages& pages);

struct MoverOptions {
  bool use_userfault = true;
  bool use_move = true;
  bool for_programs_only = false;   // see Userfault
  std::uint32_t quiet_threads = 1;  // see AdoptionOptions
};

class PageMover {
 public:
  explicit PageMover(const MoverOptions& options);
  PageMover(const PageMover&) = delete;
  PageMover& operator=(const PageMover&) = delete;
  ~PageMover();

  // False: this kernel, or a filter, does not let us.
  bool is_able() const { return is_able_; }
  // Other threads may run: who touches the range waits, also within a system call, and pinned
  // pages are seen.
  bool can_move_under_use() const { return can_move_; }

  // Whoever of our process touches a page on its way waits: to the file and back.
  bool can_hold_all() const { return userfault_.is_open(); }
  bool can_hold_writers() const { return userfault_.can_hold_writers(); }

  PageRun scratch() const;

  // The park. `range` is plain memory (ProcessMap::plain), whole pages.
  Result<std::byte*, AdoptRefusal> to_file(const PageRun& range, const FilePlace& place);
  // Makes every mapping of the place private, wherever the program has moved it since; what it has
  // unmapped is left alone. False: not all of it could be, and the rest is as before.
  bool to_private(const MovedPages& pages, const ProcessMap& map) const;
  // The program may find the pages it touched present again, and small ranges all of their pages.
  void populate(const PageRun& range, const FilePlace& place, bool all) const;

 private:
  bool try_park() const;
  bool lay_by_mappings();
  void give_up_mappings();
  int watch_program(const PageRun& range);
  void put_back(const PageRun& range, std::byte* park);
  Result<void, AdoptRefusal> carry(const PageRun& range, std::byte* park, const FilePlace& place,
                                   std::size_t& carried) const;
  Result<void, AdoptRefusal> carry_piece(std::byte* from, std::size_t length,
                                         const FilePlace& place) const;
  int move_to_scratch(std::byte* from, std::size_t length, std::size_t& done) const;
  Result<void, AdoptRefusal> write_touched(std::byte* from, std::size_t length,
                                           const FilePlace& place) const;
  void empty_scratch_into(std::byte* to, std::size_t length) const;
  bool unshare(const PageRun& range) const;
  bool put_file_over(const PageRun& range, const FilePlace& place) const;
  bool take_back(const Mapping& mapping, std::byte* from, const FilePlace& place,
                 bool keep_from) const;
  bool put_over(const Mapping& mapping, std::byte* from, const FilePlace& place,
                bool keep_from) const;
  bool take_back_anywhere(const MovedPages& pages, const ProcessMap& map) const;
  bool take_back_piece(const Mapping& mapping, const MovedPages& pages) const;

  Userfault userfault_;
  TouchedPages touched_;
  const std::uint32_t quiet_threads_;
  std::byte* scratch_ = nullptr;
  std::byte* spare_ = nullptr;
  bool is_able_ = false;
  bool can_move_ = false;
};

}  // namespace verbena::memory
